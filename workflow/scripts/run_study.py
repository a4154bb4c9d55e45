"""Run the study in this folder: `snakemake --cores all`, also after a run that was killed.

A killed run leaves Snakemake's lock behind. Whether a run is still alive is told by another lock,
held on results/.running by the process that runs the study and freed by the system when it ends.
What is given on the command line goes to Snakemake.
"""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

LOCKS = Path(".snakemake/locks")
RUNNING = Path("results/.running")
SNAKEMAKE = [sys.executable, "-m", "snakemake"]


def hold():
    """Take the lock for this process and those it becomes, or end with one line if a run has it.

    Returns whether the lock could be taken (some network file systems have none).
    """
    RUNNING.parent.mkdir(exist_ok=True)
    descriptor = os.open(RUNNING, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        pid = RUNNING.read_text().strip() or "unknown"
        sys.exit(f"error: a run of this study is going on (process {pid}); wait for it or stop it")
    except OSError:
        return False
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    os.set_inheritable(descriptor, True)  # past exec; jobs close what they inherit
    return True


def starting():
    """Whether some Snakemake took its lock just now: it takes the other one a moment later."""
    try:
        return any(time.time() - file.stat().st_mtime < 5 for file in LOCKS.glob("*"))
    except FileNotFoundError:  # let go while we looked
        return True


def main():
    if starting():
        time.sleep(5)
    if hold() and any(LOCKS.glob("*")):
        print("The last run was stopped; going on from what it has finished.", file=sys.stderr)
        # If this fails, the run below fails for the same reason, and says so.
        subprocess.run([*SNAKEMAKE, "--unlock", "--quiet", "all"], capture_output=True)
    os.execv(sys.executable, [*SNAKEMAKE, "--cores", "all", *sys.argv[1:]])


if __name__ == "__main__":
    main()
