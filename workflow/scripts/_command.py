"""What every command shares: the library on the path, and one clear line for a user's mistake."""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from resnet_mechanisms.errors import UserError  # noqa: E402


def run(main):
    """Call `main()`; a UserError ends the command with `error: ...` and exit status 1, without a
    traceback."""
    try:
        main()
    except UserError as error:
        sys.exit(f"error: {error}")


def network_parser(description):
    """An argument parser with what every command on one network configuration takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--network", required=True, type=json.loads, help="with its seeds, JSON")
    parser.add_argument("--recipe", required=True, type=json.loads, help="resolved recipe, JSON")
    parser.add_argument("--data", required=True, help="prepared .npz")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")
    return parser


def read_checkpoints(path):
    """{seed: {"status": ..., "checkpoints": {epoch: state_dict}}} of a checkpoints.pt; UserError
    where it cannot be read."""
    import torch

    try:
        return torch.load(path, weights_only=True)["seeds"]
    except Exception as error:
        raise UserError(f"{path}: cannot be read ({error}); delete it and run again") from None
