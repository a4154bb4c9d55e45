"""What clusters do to jobs, done to a small study: after each fault a second run ends with the same
tables and weights, to the last bit.

`pytest tests/integration/test_faults.py --write-faults` writes what each cost to docs/clusters.md.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import yaml

from helpers import ROOT, snakemake
from small_study import CHECKPOINTS, SLOW, TABLES, assert_same, new_project


@pytest.fixture
def project(tmp_path):
    return new_project(tmp_path / "a project")


def launch(project, *targets):
    """What `make` starts, in a process group of its own."""
    words = [sys.executable, "workflow/scripts/run_study.py", "--configfile", "study.yaml"]
    return subprocess.Popen(
        [*words, "--", *targets], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip


def run(project, check=True):
    """(seconds, what was said) of a run of the tables."""
    began = time.monotonic()
    process = launch(project, *TABLES)
    said, _ = process.communicate()
    assert not check or process.returncode == 0, said
    return time.monotonic() - began, said


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.005)


def logs(project, folder):
    return "".join(path.read_text() for path in project.glob(f"results/logs/{folder}/**/*.log"))


@pytest.fixture(scope="module")
def matrix(request):
    """Rows fault, what is lost, seconds to recover, for docs/clusters.md."""
    rows = {}
    yield rows
    if request.config.getoption("--write-faults"):
        lines = ["| fault | what is lost | seconds to recover |", "|---|---|---|"]
        lines += [f"| {fault} | {lost} | {taken:.0f} |" for fault, (lost, taken) in rows.items()]
        page = ROOT / "docs/clusters.md"
        table = "\n".join(lines)
        page.write_text(re.sub(
            r"(<!-- faults -->\n).*?(<!-- end of faults -->)",
            lambda match: f"{match[1]}{table}\n{match[2]}", page.read_text(), flags=re.DOTALL,
        ))  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory, matrix):
    """The study run without a fault; not to be changed."""
    project = new_project(tmp_path_factory.mktemp("finished") / "a project")
    taken, _ = run(project)
    matrix["none: the whole study"] = "-", taken
    return project


@pytest.fixture
def again(finished, tmp_path):
    """A copy of it, with all times of change, to damage."""
    copy = tmp_path / "a project"
    subprocess.run(["cp", "-a", finished, copy], check=True)
    return copy


def test_killed_in_the_middle_of_training(project, finished, matrix):
    process = launch(project, *TABLES)
    wait_for(lambda: any(project.glob(f"results/state/{SLOW}/*/seed*.running.pt")), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert any((project / ".snakemake/locks").iterdir())
    refused = snakemake(
        project, "--cores", "1", "--configfile", "study.yaml", "--", *TABLES, check=False
    )
    assert refused.returncode and "--unlock" in refused.stdout + refused.stderr
    taken, said = run(project)
    matrix["SIGKILL of everything in the middle of training"] = (
        "the seconds since the last kept epoch, one or two",
        taken,
    )
    assert "going on from what it has finished" in said
    assert "continued after epoch" in logs(project, "networks")
    assert_same(project, finished)


def test_killed_in_the_middle_of_measuring(again, finished, matrix):
    spectra = again / f"results/spectra/{SLOW}/spectra.nc"
    forget(again, "spectra")
    log = again / f"results/logs/spectra/{SLOW}.log"
    log.unlink()
    process = launch(again, *TABLES)
    wait_for(lambda: log.exists() and "block" in log.read_text(), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not spectra.exists()
    taken, _ = run(again)
    matrix["SIGKILL of everything in the middle of measuring"] = (
        "the measurement of the networks that were being measured",
        taken,
    )
    assert spectra.exists()
    assert_same(again, finished)


def scheduler(project, **environment):
    """Options and environment of a run through the scheduler of two shell scripts."""
    here = ROOT / "tests/integration/scheduler"
    submit = f"{shlex.quote(str(here / 'submit.sh'))} {{resources.mem_mb}} {{resources.runtime}}"
    options = [
        "--workflow-profile", "cluster-generic", "--jobs", "2", "--latency-wait", "5",
        "--cluster-generic-submit-cmd", submit,
        "--cluster-generic-status-cmd", shlex.quote(str(here / "status.sh")),
        "--seconds-between-status-checks", "1", "--max-status-checks-per-second", "10",
    ]  # fmt: skip
    queue = {"QUEUE": str(project / "queue")}
    return options, os.environ | queue | environment


def run_through_scheduler(project, *words, **environment):
    options, environment = scheduler(project, **environment)
    began = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "snakemake", *options, *words, "--configfile", "study.yaml", "--",
         *TABLES],
        cwd=project, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    return process, time.monotonic() - began


def test_time_limit(project, finished, matrix):
    """A job that runs out of time is submitted again and goes on from its last epoch."""
    # The first attempt's limit ends in the middle of training, however fast the machine is: the
    # training waits for it.
    script = project / "workflow/scripts/train.py"
    script.write_text(script.read_text().replace("run(main)", WAITING))
    process, taken = run_through_scheduler(
        project, "--set-resources", "train:runtime=45 * attempt ** 3",
        "prepare_data:runtime=600", "measure_spectra:runtime=600", SECONDS_A_MINUTE="1",
    )  # fmt: skip
    assert process.returncode == 0, process.stdout + process.stderr
    assert "stopped (SIGTERM: time limit" in process.stdout + process.stderr
    assert "continued after epoch" in logs(project, "networks")
    matrix["time limit of a scheduler"] = "the seconds since the last kept epoch, one or two", taken
    assert_same(project, finished)


WAITING = """
    import time

    kept = training.save_state

    def save_then_wait(content, path):
        kept(content, path)
        first = Path("waited-" + Path(path).parent.name)
        if "running" in str(path) and not first.exists():
            first.touch()
            time.sleep(600)

    training.save_state = save_then_wait
    run(main)
""".strip()


def test_out_of_memory(project, finished, matrix):
    """A job that runs out of memory is submitted again with more."""
    script = project / "workflow/scripts/train.py"
    script.write_text(script.read_text().replace("run(main)", LIMITED))
    process, taken = run_through_scheduler(project, "--set-resources", "train:mem_mb=attempt * 900")
    said = process.stdout + process.stderr
    assert process.returncode == 0, said
    assert "error: out of memory" in said
    submitted = (project / "queue/submitted").read_text()
    assert "\n900 " in f"\n{submitted}" and "\n1800 " in submitted
    matrix["out of memory"] = "the attempt; the next asks for twice as much", taken
    assert_same(project, finished)


# The node's limit: what the job asked for, beyond a process that has loaded torch.
LIMITED = """
    import os, resource

    def limited(*args, train=training.train, **more):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        room = (int(os.environ["MEM_MB"]) - 900) * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (used + room, -1))
        torch.empty(2**25)  # 128 MiB, as a larger network would need
        return train(*args, **more)

    import torch
    training.train = limited
    run(main)
""".strip()


def test_full_disk(project, finished, matrix):
    results = project / "results"
    results.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", results], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a small file system can only be mounted by root")
    try:
        _, said = run(project, check=False)
        assert "error: disk full" in said
        assert not (project / TABLES[0]).exists()
        subprocess.run(["mount", "-o", "remount,size=100m", results], check=True)
        taken, _ = run(project)
        assert_same(project, finished)
        assert not list(results.glob("**/*.partial*"))
    finally:
        subprocess.run(["umount", results], check=True)
    matrix["disk full"] = "what was being written; the old file stays", taken


def flip(path):
    """Change one bit in the middle of a file, as a bad disk does: size and time stay."""
    times = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def forget(project, *folders):
    """Delete folders of results/, and the tables: Snakemake misses nothing while they are there."""
    for path in TABLES:
        (project / path).unlink()
    for folder in folders:
        shutil.rmtree(project / "results" / folder)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize(
    ("damage", "name", "path", "readers"),
    [
        (flip, "checkpoint", str(CHECKPOINTS), ["spectra"]),
        (truncate, "data file", "results/data/digits-c3.npz", ["networks", "spectra"]),
    ],
)
def test_damaged_file(again, finished, matrix, damage, name, path, readers):
    damage(again / path)
    forget(again, *readers)  # so that it is read once more
    taken, said = run(again, check=False)
    assert f"error: {path}: damaged" in said
    assert "put aside as" in said
    further, _ = run(again)
    matrix[f"{name} damaged"] = "the file; a second run makes it anew", taken + further
    assert (again / f"{path}.damaged").exists()
    assert_same(again, finished)


def test_damaged_state(again, finished, matrix):
    state, *_ = again.glob(f"results/state/{SLOW}/*/seed0.pt")
    flip(state)
    forget(again, "networks", "spectra")
    taken, _ = run(again)
    log = (again / f"results/logs/networks/{SLOW}.log").read_text()
    assert "seed0.pt: damaged (SHA-256 is" in log and "made anew" in log
    assert "seed 1: finished before" in log
    matrix["state of a seed damaged"] = "that seed", taken
    assert_same(again, finished)


def test_a_second_run_is_refused_while_one_is_going_on(again, finished):
    forget(again, "spectra")
    first = launch(again, *TABLES)
    running = again / "results/.running"
    wait_for(lambda: running.read_text() == f"{first.pid}\n", first)
    second = launch(again, *TABLES)
    said, _ = second.communicate()
    assert second.returncode == 1
    assert said.splitlines() == [
        f"error: a run of this study is going on (process {first.pid}); wait for it or stop it"
    ]
    said, _ = first.communicate()
    assert first.returncode == 0, said
    assert_same(again, finished)


def test_a_diverging_recipe_is_recorded_and_the_rest_goes_on(finished):
    rows, losses = (pd.read_csv(finished / path) for path in TABLES)
    hot = rows.recipe == "hot"
    assert (rows[hot].status == "diverged").all() and hot.sum() == 4
    assert rows[hot].loc[:, "line_shape_score"].isna().all().all()
    assert not (rows[~hot].status == "diverged").any()
    assert rows[~hot & (rows.skip == "resnet")].line_shape_score.notna().all()
    assert (losses[losses.recipe == "hot"].groupby("seed").status.last() == "diverged").all()
    assert np.isfinite(losses.train_loss.dropna()).all()


def test_one_more_seed_trains_only_that_seed(again):
    study = yaml.safe_load((again / "study.yaml").read_text())
    study["grids"]["slow"]["seeds"] = [0, 1, 2]
    (again / "more.yaml").write_text(yaml.safe_dump(study))
    state = {p: p.stat().st_mtime_ns for p in again.glob(f"results/state/{SLOW}/*/seed?.pt")}
    assert len(state) == 2
    history = f"results/networks/{SLOW}/history.csv"
    snakemake(again, "--cores", "2", "--configfile", "more.yaml", "--", history)
    assert all(path.stat().st_mtime_ns == before for path, before in state.items())
    log = (again / f"results/logs/networks/{SLOW}.log").read_text()
    assert "seed 0: finished before\nseed 1: finished before\nseed 2: epoch" in log
    assert sorted(pd.read_csv(again / history).seed.unique()) == [0, 1, 2]
