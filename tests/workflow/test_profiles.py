"""The profiles: what they plan, and what their scripts make of a scheduler's answers."""

import os
import re
import subprocess

import pytest
import yaml

from helpers import ROOT, copy_project, put_stand_ins, snakemake

FIGURE = "results/figures/ra1_trajectories.pdf"
PROFILES = sorted(path.name for path in (ROOT / "profiles").iterdir())


def test_all_are_there():
    assert PROFILES == ["cluster-generic", "default", "gpu", "kubernetes", "slurm"]


@pytest.mark.parametrize("name", PROFILES)
def test_dry_run(untouched, name):
    process = snakemake(untouched, "-np", "--cores", "2", "--workflow-profile", name, "--", FIGURE)
    said = process.stdout + process.stderr
    assert f"profiles/{name} for setting default command line arguments" in said
    counts = dict(re.findall(r"^(prepare_data|train|measure_spectra|total) +(\d+)$", said, re.M))
    assert counts == {"prepare_data": "1", "train": "1", "measure_spectra": "1", "total": "4"}
    # Without a GPU on this machine, only the profile for GPUs asks for one.
    asked = set(re.findall(r"--gpu (\d) ", said))
    assert asked == ({"1"} if name == "gpu" else {"0"})


@pytest.mark.parametrize("name", PROFILES)
def test_comments_and_retries(name):
    """Each file says how it is used; retries are in the profiles, not in the rules."""
    text = (ROOT / "profiles" / name / "profile.yaml").read_text()
    assert text.startswith("# ")
    profile = yaml.safe_load(text)
    assert profile["scheduler"] == "greedy" and profile["rerun-incomplete"] is True
    assert profile["keep-going"] is True and profile["show-failed-logs"] is True
    assert ("retries" in profile) == (name != "default")
    assert not any("retries" in path.read_text() for path in (ROOT / "workflow").glob("**/*.smk"))


def test_whole_study_is_planned_on_kubernetes(untouched):
    """Also the files that rules name through those of other rules, as a storage keeps them."""
    process = snakemake(untouched, "-n", "--quiet", "all", "--workflow-profile", "kubernetes")
    assert "Nothing to be done" not in process.stdout + process.stderr


def test_a_second_attempt_asks_for_more(tmp_path):
    project = copy_project(tmp_path / "a project")
    (project / "Snakefile").write_text(
        (project / "Snakefile").read_text() + ASKED.format(network="digits/c10/fc-resnet/d16-w128")
    )
    said = snakemake(project, "-n", "--cores", "1", "--", "data").stderr
    first, second = (eval(row) for row in re.findall(r"asked (\(.*\))", said))
    assert second[0] == 2 * first[0] and second[1] == 2 * first[1]
    # More than the seconds and megabytes that the network takes.
    assert first[0] * 60 > 60 and 700 < first[1] < 4000


ASKED = """
class Of:
    network = "{network}/strong_decay"
for attempt in (1, 2):
    asked = minutes_of(train_cost)(Of, attempt), megabytes_of(train_cost)(Of, attempt)
    print("asked", asked, file=sys.stderr)
"""


@pytest.mark.parametrize(("devices", "gpu", "provided"), [("0,1", "1", 2), ("", "0", None)])
def test_no_more_jobs_start_than_the_machine_has_gpus(project, monkeypatch, devices, gpu, provided):
    put_stand_ins(project)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    process = snakemake(project, "-p", "--cores", "8", "--", FIGURE)
    said = process.stdout + process.stderr
    assert set(re.findall(r"--gpu (\d) ", said)) == {gpu}
    found = re.search(r"Provided resources: gpu\D+(\d+)", said)
    assert (found and int(found[1])) == provided


PBS = {
    "running": "Job Id: 7\n    job_state = R",
    "queued": "Job Id: 7\n    job_state = Q",
    "success": "Job Id: 7\n    job_state = F\n    Exit_status = 0",
    "failed": "Job Id: 7\n    job_state = F\n    Exit_status = 271",
}


@pytest.mark.parametrize("answer", [*PBS, "server away"])
def test_pbs_status(tmp_path, answer):
    said = PBS.get(answer)
    body = f"cat <<'END'\n{said}\nEND" if said else "exit 1"
    expected = answer if answer in ("success", "failed") else "running"
    assert status(tmp_path, "pbs-status.sh", {"qstat": body}) == expected


SGE = {
    "running": ("echo job 7", "exit 1"),
    "record not written yet": ("exit 1", "exit 1"),
    "success": ("exit 1", "echo 'failed       0'; echo 'exit_status  0'"),
    "failed": ("exit 1", "echo 'failed       0'; echo 'exit_status  1'"),
    "failed before it started": (
        "exit 1", "echo 'failed       26 : opening output'; echo 'exit_status  0'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("answer", SGE)
def test_sge_status(tmp_path, answer):
    qstat, qacct = SGE[answer]
    expected = answer.split()[0] if answer.startswith(("success", "failed")) else "running"
    assert status(tmp_path, "sge-status.sh", {"qstat": qstat, "qacct": qacct}) == expected


def status(folder, script, commands):
    """What a status script says when the scheduler's commands are these."""
    for name, body in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    process = subprocess.run(
        [ROOT / "profiles/cluster-generic" / script, "7"],
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return process.stdout.strip()


@pytest.mark.parametrize(("cores", "threads"), [("4", "2"), ("1", "1")])
def test_libraries_use_the_threads_of_the_job(project, cores, threads):
    """Those of the config, never more than the run has cores."""
    (project / "workflow/scripts/gradients.py").write_text(
        "import os, sys\n"
        "given = sys.argv[sys.argv.index('--threads') + 1]\n"
        "names = 'OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS'\n"
        "print('used', given, *(os.environ[name] for name in names), file=sys.stderr)\n"
        "sys.exit(1)\n"
    )
    target = "results/gradients/path_counts.csv"
    process = snakemake(
        project, "--cores", cores, "--config", "threads=2", "--", target, check=False
    )
    assert f"used {' '.join([threads] * 4)}" in process.stdout + process.stderr
