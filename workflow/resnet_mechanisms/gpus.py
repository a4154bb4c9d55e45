"""Which GPU a job computes on: one job a GPU, or as many as the study allows.

Schedulers hand out GPUs through CUDA_VISIBLE_DEVICES. On a workstation nobody does: there each job
takes a lease, a lock that the system frees when the process ends, however it ends. Leases hold
between all jobs of a machine, those of different studies included.
"""

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# What schedulers call the job they run: GPUs are numbered anew in each.
JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID", "KUBERNETES_SERVICE_HOST")
LOCKS = Path(tempfile.gettempdir(), "resnet_mechanisms-gpus")  # on a local disk
DEVICES = Path("/dev")
_held = []


def visible():
    """Names of the GPUs that this process may use, without asking CUDA: those of
    CUDA_VISIBLE_DEVICES where it is set, up to the first that is none, else all of the machine."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        found = [path.name[6:] for path in DEVICES.glob("nvidia[0-9]*")]
        found = [name for name in found if name.isdecimal()]
        if not found and shutil.which("nvidia-smi"):  # Windows' Linux has no such files
            said = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
            found = re.findall(r"^GPU (\d+):", said, re.M)
        return sorted(found, key=int)
    names = []
    for name in (part.strip() for part in listed.split(",")):
        if not name.isdecimal() and not name.startswith(("GPU-", "MIG-")):
            break  # as CUDA does with -1 or NoDevFiles
        names.append(name)
    return names


def scheduler_job():
    """The scheduler's name of the job that this process belongs to, or None."""
    return next((os.environ[name] for name in JOB_VARIABLES if os.environ.get(name)), None)


def lease(jobs_per_gpu=1):
    """Take one of the visible GPUs for the life of this process, waiting for one to be free, and
    leave it the only one visible. Returns its name, or None where there is none.

    With several jobs a GPU, all first jobs come before any second one.
    """
    names = visible()
    if not names:
        return None
    scope = scheduler_job() or "machine"
    LOCKS.mkdir(exist_ok=True)
    with contextlib.suppress(PermissionError):  # another user's
        LOCKS.chmod(0o1777)
    waited = False
    while True:
        for slot in range(jobs_per_gpu):
            for name in names:
                file = _open(LOCKS / f"{scope}-{name}.{slot}.lock".replace("/", "_"))
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    os.close(file)
                    continue
                _held.append(file)
                os.environ["CUDA_VISIBLE_DEVICES"] = name
                return name
        if not waited:
            print(f"waiting for a GPU: all of {', '.join(names)} are taken", file=sys.stderr)
            waited = True
        time.sleep(0.2)


def _open(path):
    """A descriptor of the file, which may be another user's: a lock needs no right to write."""
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
