"""What made a file: written beside it as NAME.provenance.json, so that the file itself holds no
time or revision."""

import importlib.metadata
import json
import platform
import subprocess
import time
from pathlib import Path

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


def write(output, **facts):
    """Write OUTPUT.provenance.json with `facts` (JSON values: configuration, seeds, device,
    threads, ...), the git revision, the versions and the seconds since the command started."""
    revision, modified = git_revision()
    record = facts | {
        "revision": revision,
        "modified": modified,
        "versions": versions(),
        "seconds": round(time.monotonic() - STARTED, 2),
    }
    Path(f"{output}.provenance.json").write_text(
        json.dumps(record, indent=2, sort_keys=True) + "\n"
    )
