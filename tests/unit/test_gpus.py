"""GPUs that a job may use, and the lease that keeps two jobs off one."""

import os
import subprocess
import sys
import time

import pytest

from helpers import ROOT
from resnet_mechanisms import device, gpus
from resnet_mechanisms.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from resnet_mechanisms import gpus
gpus.LOCKS = Path(sys.argv[1])
print(gpus.lease(int(sys.argv[2])), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("listed", "names"),
    [
        ("0,1", ["0", "1"]),
        ("2", ["2"]),
        ("", []),
        ("NoDevFiles", []),
        ("0,-1,1", ["0"]),
        ("GPU-8932f937, MIG-3", ["GPU-8932f937", "MIG-3"]),
    ],
)
def test_visible_as_cuda_reads_it(monkeypatch, listed, names):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert gpus.visible() == names


def test_all_of_the_machine(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpus, "DEVICES", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.visible() == []
    (tmp_path / "nvidia-smi").write_text(
        "#!/bin/sh\necho 'GPU 0: A (UUID: GPU-1)'; echo 'GPU 1: A (UUID: GPU-2)'\n"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert gpus.visible() == ["0", "1"]
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert gpus.visible() == ["2", "10"]


class Holders:
    """Processes that each take a lease and hold it."""

    def __init__(self, folder, devices="0,1", jobs_per_gpu=1):
        self.folder, self.devices, self.jobs_per_gpu = folder, devices, jobs_per_gpu
        self.processes = []

    def start(self, **environment):
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, self.folder, str(self.jobs_per_gpu)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": self.devices,
                 "PYTHONPATH": str(ROOT / "workflow"), **environment},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes:
            process.kill()
            process.communicate()


def got(process):
    return process.stdout.readline().strip()


def test_one_job_a_gpu(tmp_path):
    with Holders(tmp_path) as holders:
        first, second = holders.start(), holders.start()
        assert {got(first), got(second)} == {"0", "1"}
        third = holders.start()
        assert third.stderr.readline() == "waiting for a GPU: all of 0, 1 are taken\n"
        assert third.poll() is None
        # A killed process gives its lease back.
        second.kill()
        assert got(third) in ("0", "1")


def test_two_jobs_a_gpu_the_empty_ones_first(tmp_path):
    with Holders(tmp_path, jobs_per_gpu=2) as holders:
        assert {got(holders.start()), got(holders.start())} == {"0", "1"}
        assert sorted(got(holders.start()) for _ in range(2)) == ["0", "1"]
        assert "waiting" in holders.start().stderr.readline()


def test_a_scheduler_that_numbers_gpus_anew_in_each_job(tmp_path):
    """Two jobs of Slurm that both see their GPU as 0 have two different ones; two processes of one
    job do not."""
    with Holders(tmp_path, devices="0") as holders:
        assert got(holders.start(SLURM_JOB_ID="11")) == "0"
        assert got(holders.start(SLURM_JOB_ID="12")) == "0"
        assert "waiting" in holders.start(SLURM_JOB_ID="12").stderr.readline()


def test_lease_leaves_one_visible(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "LOCKS", tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert gpus.lease() == "3"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"
    for held in gpus._held:
        os.close(held)
    gpus._held.clear()


def test_none_without_a_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(gpus, "LOCKS", tmp_path / "never made")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    began = time.monotonic()
    assert gpus.lease() is None and time.monotonic() - began < 1
    assert not gpus.LOCKS.exists()


def test_a_job_without_a_gpu_computes_on_the_cpu():
    assert device.use("auto", 1, gpu=0).type == "cpu"
    with pytest.raises(UserError, match="device: cuda, but this job's resource gpu is 0"):
        device.use("cuda", 1, gpu=0)
