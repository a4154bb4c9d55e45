"""`make` after a killed run and beside a live one; what runs hold, write and survive."""

import fcntl
import os
import subprocess
import sys
import time

from helpers import planned, snakemake


def run_study(project, *words):
    return subprocess.run(
        [sys.executable, "workflow/scripts/run_study.py", *words],
        cwd=project,
        capture_output=True,
        text=True,
    )


def leave_lock(project, age):
    """What a killed Snakemake leaves."""
    lock = project / ".snakemake/locks/0.output.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.write_text("results/tables/claims.csv\n")
    os.utime(lock, (time.time() - age,) * 2)


def test_goes_on_after_a_killed_run(finished):
    (finished / "results/figures/claims.pdf").unlink()
    leave_lock(finished, age=60)
    refused = snakemake(finished, "--cores", "1", check=False)
    assert "locked" in refused.stdout + refused.stderr
    leave_lock(finished, age=60)
    process = run_study(finished)
    assert process.returncode == 0, process.stderr
    assert "The last run was stopped" in process.stderr
    assert (finished / "results/figures/claims.pdf").exists()
    assert planned(finished) == set()


def test_says_which_run_is_going_on(finished):
    leave_lock(finished, age=60)
    with open(finished / "results/.running", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("4711\n")
        file.flush()
        process = run_study(finished)
    assert process.returncode == 1
    assert process.stdout == ""
    assert process.stderr.startswith("error: a run of this study is going on (process 4711)")
    assert process.stderr.count("\n") == 1
    assert list((finished / ".snakemake/locks").iterdir())


def test_a_run_holds_the_study(finished):
    """Also one started without `make`, for as long as it lives, and not longer for its jobs."""
    script = finished / "workflow/scripts/claims.py"
    script.write_text(f"{script.read_text()}\nimport time; time.sleep(60)\n")
    with subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "1", "results/tables/claims.csv"],
        cwd=finished,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as run:
        running = finished / "results/.running"
        started = time.time()
        while not (running.exists() and running.read_text() == f"{run.pid}\n"):
            assert run.poll() is None
            assert time.time() < started + 60
            time.sleep(0.1)
        beside = run_study(finished)
        run.kill()
    assert beside.returncode == 1
    assert f"process {run.pid}" in beside.stderr
    with open(running) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_passes_words_on(untouched):
    process = run_study(untouched, "--dry-run", "results/figures/ra_width.pdf")
    assert process.returncode == 0
    assert "Drawing results/figures/ra_width.pdf" in process.stdout + process.stderr


def test_python_of_the_jobs_is_snakemakes(finished, tmp_path):
    """Also without an activated environment: PATH holds another python first."""
    other = tmp_path / "bin"
    other.mkdir()
    (other / "python").write_text("#!/bin/sh\nexit 9\n")
    (other / "python").chmod(0o755)
    (finished / "results/figures/claims.pdf").unlink()
    subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "1", "results/figures/claims.pdf"],
        cwd=finished,
        env={**os.environ, "PATH": f"{other}:/usr/bin:/bin"},
        check=True,
        capture_output=True,
    )


def test_failed_job_shows_its_log(finished):
    script = finished / "workflow/scripts/claims.py"
    script.write_text("import sys; sys.exit('error: no such claim')\n")
    process = snakemake(finished, "--cores", "1", "results/tables/claims.csv", check=False)
    assert process.returncode == 1
    assert "error: no such claim" in process.stdout + process.stderr
