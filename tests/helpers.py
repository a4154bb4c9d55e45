"""Copies of the project to run in; Snakemake inside this process and from its command line."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# Takes the place of every command: it imports what the real one does only in the eyes of the
# workflow, and writes a digest of what it was given, so that what changed upstream shows.
STAND_IN = """
if False:
{imports}
import hashlib, os, pathlib, sys
digest = hashlib.sha256()
outputs = []
words = sys.argv[1:]
for option, word in zip([""] + words, words):
    if option in {outputs}:
        outputs.append(word)
    elif os.path.isfile(word):
        digest.update(pathlib.Path(word).read_bytes())
    elif not word.startswith("results/") and option not in {options}:
        digest.update(word.encode())
for output in outputs:
    if output == "results/explorer":
        pathlib.Path(output).mkdir(exist_ok=True)
    else:
        pathlib.Path(output).write_text(digest.hexdigest())
"""
# What a job gets from the machine, and does not depend on.
OF_MACHINE = ["--device", "--gpu", "--jobs-per-gpu", "--threads"]
OUTPUTS = {
    "data.py": ["--out"],
    "train.py": ["--checkpoints", "--history"],
    "spectra.py": ["--spectra", "--rows", "--per-block"],
    "external.py": ["--spectra", "--rows", "--per-block"],
    "gradients.py": [
        "--table", "--gradients", "--autocorrelation", "--coactivation", "--patterns", "--rasters",
        "--counts", "--lengths",
    ],
    "network_gradients.py": ["--covariance", "--layers", "--similarity"],
    "effective_rank.py": ["--table", "--pictures"],
    "unconstrained_jacobians.py": ["--table", "--per-block"],
    "table.py": ["--out"],
    "claims.py": ["--out", "--page"],
    "figure.py": ["--pdf", "--png"],
    "explorer.py": ["--page", "--folder"],
}  # fmt: skip


def copy_project(folder):
    """The files a run needs, in the folder."""
    folder.mkdir(parents=True)
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("workflow", "profiles", "envs"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("Snakefile", "config.yaml"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def put_stand_ins(project):
    """Replace the commands by ones that take no time."""
    for name, outputs in OUTPUTS.items():
        script = project / "workflow" / "scripts" / name
        nodes = ast.walk(ast.parse(script.read_text()))
        imports = [ast.unparse(n) for n in nodes if isinstance(n, ast.Import | ast.ImportFrom)]
        indented = "\n".join(f"    {line}" for line in ["pass", *imports])
        script.write_text(STAND_IN.format(imports=indented, outputs=outputs, options=OF_MACHINE))


def snakemake(project, *words, check=True):
    """Snakemake's command line in the project folder; returns the finished process, with text."""
    process = subprocess.run(
        [sys.executable, "-m", "snakemake", *words], cwd=project, capture_output=True, text=True
    )
    if check and process.returncode:
        raise AssertionError(f"snakemake {words}\n{process.stdout}\n{process.stderr}")
    return process


def planned(project, *targets, config=None, configfiles=()):
    """The outputs of the jobs that a run would execute: a dry run inside this process."""
    from snakemake.api import SnakemakeApi
    from snakemake.settings.types import (
        ConfigSettings,
        DAGSettings,
        OutputSettings,
        Quietness,
        ResourceSettings,
    )

    here, path, outputs = os.getcwd(), list(sys.path), []
    try:
        with SnakemakeApi(OutputSettings(dryrun=True, quiet={Quietness.ALL})) as api:
            workflow = api.workflow(
                resource_settings=ResourceSettings(cores=1),
                config_settings=ConfigSettings(config=config or {}, configfiles=configfiles),
                snakefile=project / "Snakefile",
                workdir=project,
            )
            dag = workflow.dag(DAGSettings(targets=set(targets)))
            dag.execute_workflow(executor="dryrun", updated_files=outputs)
    finally:
        os.chdir(here)
        sys.path[:] = path
    return {str(output) for output in outputs}
