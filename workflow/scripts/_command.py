"""What every command shares: the library on the path, and one clear line for what went wrong."""

import argparse
import json
import re
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from resnet_mechanisms import files  # noqa: E402
from resnet_mechanisms.errors import UserError  # noqa: E402


def run(main):
    """Call `main()`; a UserError, a full disk, too little memory or a signal to stop ends the
    command with `error: ...` and exit status 1, without a traceback."""
    signal.signal(signal.SIGTERM, stopped)
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")
    except (OSError, MemoryError, RuntimeError) as error:
        said = explained(error)
        if said is None:
            raise
        sys.exit(f"error: {said}")


def stopped(signal_number, frame):
    """What a scheduler's time limit, or scancel, comes to."""
    sys.exit("error: stopped (SIGTERM: time limit reached, or cancelled); run again to go on")


def explained(error):
    """One line on a full disk or too little memory; None for other errors."""
    text = str(error)
    if getattr(error, "errno", None) in files.FULL or "No space left on device" in text:
        free = shutil.disk_usage(".").free // 10**6
        return f"disk full ({text}; {free} MB left in this folder): free some and run again"
    # torch has no exception of its own for the memory of the CPU.
    out_of_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    if out_of_memory or "can't allocate memory" in text or "Cannot allocate memory" in text:
        tried = re.search(r"[Tt]ried to allocate ([0-9.]+ ?\w+)", text)
        return (
            f"out of memory{f' (tried to allocate {tried[1]})' if tried else ''}; "
            "a further attempt asks for more: snakemake --retries 1, or set-resources: mem_mb"
        )
    return None


def device_options(parser):
    """Add what a command that may compute on a GPU takes; give them to `device_of`."""
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--gpu", type=int, default=1, help="GPUs this job was given: 0 or 1")
    parser.add_argument("--jobs-per-gpu", type=int, default=1, help="that may share one")


def device_of(args):
    """The torch device of the options, set up for their threads."""
    from resnet_mechanisms import device

    return device.use(args.device, args.threads, args.gpu, args.jobs_per_gpu)


def network_parser(description):
    """An argument parser with what every command on one network configuration takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--network", required=True, type=json.loads, help="with its seeds, JSON")
    parser.add_argument("--recipe", required=True, type=json.loads, help="resolved recipe, JSON")
    parser.add_argument("--data", required=True, help="prepared .npz")
    device_options(parser)
    return parser


def read_checkpoints(path):
    """{seed: {"status": ..., "checkpoints": {epoch: state_dict}}} of a checkpoints.pt; UserError
    where it is damaged."""
    import torch

    files.check(path)
    try:
        return torch.load(path, weights_only=True)["seeds"]
    except Exception as error:
        if explained(error):  # too little memory does not make it damaged
            raise
        files.put_aside(path, str(error).splitlines()[0])
