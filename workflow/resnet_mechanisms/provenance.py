"""What made a file: written beside it as NAME.provenance.json, so that the file itself holds no
time or revision."""

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import time
from pathlib import Path

from . import files
from .gpus import scheduler_job

PACKAGES = (
    "torch",
    "torchvision",
    "pillow",
    "numpy",
    "pandas",
    "scipy",
    "scikit-learn",
    "xarray",
    "matplotlib",
    "snakemake",
)
STARTED = time.monotonic()


def git_revision():
    """(revision, whether files differ from it) of the checkout this library lies in; (None, None)
    outside one."""
    here = Path(__file__).parent

    def git(*words):
        return subprocess.run(
            ["git", "-C", here, *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def versions():
    """Installed versions of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def peak_megabytes():
    """The most memory this process has held, or None where the system does not say."""
    # Not getrusage: a process starts with the peak of the one that started it.
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return round(int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024 / 1e6)


def write(output, **facts):
    """Write OUTPUT.provenance.json with `facts` (JSON values: configuration, seeds, device,
    threads, ...), the git revision, the versions, the machine, the scheduler's job and GPU, the
    file's SHA-256, the seconds, of the clock and of the CPU, since the command started, and the
    megabytes it took at most."""
    measured = {
        "job": scheduler_job(),
        "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "sha256": files.sha256(output),
        "seconds": round(time.monotonic() - STARTED, 2),
        "cpu_seconds": round(time.process_time(), 2),
        "megabytes": peak_megabytes(),
    }
    _write(facts | surroundings() | measured, files.provenance_of(output))


def write_run(results, **facts):
    """Write RESULTS/provenance.json, the record of a run: `facts` (JSON values: configuration,
    targets, outcome, seconds, ...), revision, versions, machine, and the SHA-256 of each table and
    figure there is."""
    results = Path(results)
    made = [*results.glob("tables/*.csv"), *results.glob("figures/**/*.p[dn][fg]")]
    made = {str(path.relative_to(results)): files.sha256(path) for path in made}
    _write(facts | surroundings() | {"sha256": made}, results / "provenance.json")


def surroundings():
    """Revision, whether files differ from it, versions, machine."""
    revision, modified = git_revision()
    return {
        "revision": revision,
        "modified": modified,
        "versions": versions(),
        "machine": platform.node(),
    }


def _write(record, path):
    files.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", path)
