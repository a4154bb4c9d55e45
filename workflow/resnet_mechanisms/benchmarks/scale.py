"""What planning costs: dry runs, one figure and the plan of a study of ten thousand configurations
and of studies/paper.yaml, beside a workflow of as many empty rules, which is Snakemake's own share.

Each command is a process of its own, timed by the clock from start to end.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import yaml

from ..config import resolve

COLUMNS = ("study", "command", "jobs", "seconds", "seconds_of_empty_rules", "ratio")
REPETITIONS = 1
WHAT = "Seconds of planning, beside Snakemake's own for as many empty rules"
ROOT = Path(__file__).resolve().parents[3]
FIGURE = "results/figures/ra1_trajectories.pdf"

# As many jobs in the same three layers; nothing but an input, an output and a shell command.
EMPTY_RULES = """
N = range({pairs})
rule all:
    input: expand("measured/{{n}}.txt", n=N)
rule data:
    output: "data.txt"
    shell: "touch {{output}}"
rule train:
    input: "data.txt"
    output: "trained/{{n}}.txt"
    shell: "touch {{output}}"
rule measure:
    input: "trained/{{n}}.txt"
    output: "measured/{{n}}.txt"
    shell: "touch {{output}}"
"""


def wide_study(recipes=50):
    """A study of 200 configurations a recipe, as read from YAML; one figure shows them all, another
    one network."""
    base = {"learning_rate": 0.1, "steps": 1200}
    one = {"dataset": "digits", "classes": 10, "type": "fc", "skip": "resnet", "depth": 4}
    return {
        "standalone": True,
        "datasets": {"digits": {"source": "digits"}},
        "recipes": {
            f"decay{i}": base | {"weight_decay": round(0.001 * (i + 1), 3)} for i in range(recipes)
        },
        "grids": {
            "wide": {
                "dataset": "digits", "classes": [3, 10], "type": "fc", "skip": ["resnet", "plain"],
                "depth": list(range(2, 12)), "width": [32, 48, 64, 96, 128],
                "recipe": [f"decay{i}" for i in range(recipes)], "seeds": [0, 1, 2],
            }
        },
        "figures": {
            "ra_depth": {"grids": ["wide"]},
            "ra1_trajectories": {"network": one | {"width": 64, "recipe": "decay3"}},
        },
    }  # fmt: skip


def snakemake(folder, *words):
    """(seconds, standard output) of a command in the folder."""
    words = [*words, "--cores", "1", "--quiet", "rules", "reason"]
    began = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-m", "snakemake", *words], cwd=folder, capture_output=True, text=True
    )
    seconds = time.monotonic() - began
    if process.returncode:
        raise RuntimeError(f"snakemake {words}\n{process.stdout}\n{process.stderr}")
    return seconds, process.stdout


def jobs_in(said):
    """The number of jobs in what a dry run says; 1 where it plans one alone."""
    totals = [line.split()[1] for line in said.splitlines() if line.startswith("total ")]
    return int(totals[0]) if totals else 1


def run():
    """The table as a DataFrame."""
    with tempfile.TemporaryDirectory() as folder:
        return pd.DataFrame(_rows(Path(folder)), columns=COLUMNS)


def _rows(folder):
    """Rows of the table; `folder` is the studies' (empty) working directory."""
    wide = folder / "wide.yaml"
    wide.write_text(yaml.safe_dump(wide_study()))
    studies = {"10,000 configurations": wide, "paper": ROOT / "workflow/studies/paper.yaml"}
    rows = []
    for name, file in studies.items():
        study = resolve(yaml.safe_load(file.read_text()), check_files=False)
        if len(study.networks) < 1000:
            name = f"{name}, {len(study.networks)} configurations"
        here = ["--snakefile", ROOT / "Snakefile", "--configfile", file.resolve()]
        here += ["--workflow-profile", ROOT / "profiles/default"]
        commands = {"dry run": ["-n"], "dry run of one figure": ["-n", FIGURE], "plan": ["plan"]}
        for command, words in commands.items():
            ours, said = snakemake(folder, *words, *here)
            jobs = jobs_in(said)
            (folder / "Empty").write_text(EMPTY_RULES.format(pairs=max(1, jobs // 2)))
            one = ["measured/0.txt"] if "figure" in command else []
            empty, _ = snakemake(
                folder, "-n", *one, "--snakefile", "Empty", "--scheduler", "greedy"
            )
            rows.append((name, command, jobs, ours, empty, ours / empty))
            print(f"{name}, {command}: {ours:.1f} s, {jobs} jobs", file=sys.stderr)
    return rows


def summary(table):
    """The table as text."""
    return table.to_string(index=False, float_format="{:.2f}".format)
