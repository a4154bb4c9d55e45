"""The small study through the slurm profile, on a real Slurm of one node with stand-in GPUs."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from helpers import ROOT, snakemake
from small_study import SLOW, TABLES, assert_same, new_project

SCRIPTS = ROOT / "tests/integration/slurm"
FIGURE = "results/figures/ra_depth.pdf"


@pytest.fixture(scope="module")
def slurm():
    if os.geteuid():
        pytest.skip("a Slurm can only be started by root")
    process = subprocess.run([SCRIPTS / "up.sh"], capture_output=True, text=True)
    if process.returncode == 3:
        pytest.skip(process.stderr.strip())
    assert process.returncode == 0, process.stderr
    yield
    subprocess.run([SCRIPTS / "down.sh"], check=True)
    assert subprocess.run(["pgrep", "-x", "slurmctld|slurmd"]).returncode == 1


@pytest.mark.slow
def test_slurm_equals_local(slurm, tmp_path):
    local = new_project(tmp_path / "local")
    snakemake(local, "--cores", "2", "--configfile", "study.yaml", "--", *TABLES, FIGURE)
    project = new_project(tmp_path / "on slurm")
    words = [
        sys.executable, "-m", "snakemake", "--workflow-profile", "slurm", "--jobs", "4",
        "--latency-wait", "5", "--slurm-init-seconds-before-status-checks", "1",
        "--set-resources", "train:gpu=1", "measure_spectra:gpu=1", "--slurm-keep-successful-logs",
        "--configfile", "study.yaml", "--", *TABLES, FIGURE,
    ]  # fmt: skip
    process = subprocess.Popen(
        words, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said, _ = process.communicate(timeout=220)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # which cancels its jobs
        said, _ = process.communicate()
    assert process.returncode == 0, said
    assert_same(project, local)
    assert (project / FIGURE).read_bytes() == (local / FIGURE).read_bytes()
    records = [
        json.loads(path.read_text())
        for path in project.glob("results/networks/**/checkpoints.pt.provenance.json")
    ]
    assert len(records) == 2
    # Both were trained at the same time, each with a GPU of its own.
    assert {record["gpu"] for record in records} == {"0", "1"}
    assert len({record["job"] for record in records}) == 2
    assert all(record["job"].isdecimal() for record in records)
    data = json.loads((project / "results/data/digits-c3.npz.provenance.json").read_text())
    assert data["gpu"] not in ("0", "1")  # preparing data asked for none
    assert "waiting for a GPU" not in (project / f"results/logs/networks/{SLOW}.log").read_text()


@pytest.mark.slow
def test_a_stopped_run_cancels_its_jobs(slurm, tmp_path):
    project = new_project(tmp_path / "stopped")
    # The job lasts until it is cancelled.
    (project / "workflow/scripts/data.py").write_text("import time\n\ntime.sleep(3600)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--workflow-profile", "slurm",
         "--configfile", "study.yaml", "--", "results/data/digits-c3.npz"],
        cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while "digits" not in jobs() and time.monotonic() < end:
        time.sleep(0.2)
    assert jobs()
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=120)
    assert process.returncode, said
    end = time.monotonic() + 30
    while jobs() and time.monotonic() < end:
        time.sleep(0.2)
    assert not jobs()


def jobs():
    return subprocess.run(["squeue", "-h", "-o", "%i %k"], capture_output=True, text=True).stdout
