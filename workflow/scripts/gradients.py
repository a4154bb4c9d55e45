"""Measure gradients at initialisation: covariance against depth (theorems), or the toy networks of
a scalar input.
"""

import argparse
import json

from _command import run
from resnet_mechanisms import device, provenance
from resnet_mechanisms.tables import write


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    theorems = commands.add_parser("theorems", help="the table gradient_covariance")
    theorems.add_argument("--table", required=True)
    toy = commands.add_parser("toy", help="gradient curves (npz) and their autocorrelation (csv)")
    toy.add_argument("--gradients", required=True)
    toy.add_argument("--autocorrelation", required=True)
    for command in (theorems, toy):
        command.add_argument(
            "--settings", required=True, type=json.loads, help="its part of the config, JSON"
        )
        command.add_argument("--threads", type=int, default=1)
        command.add_argument("--device", default="auto")
    args = parser.parse_args()

    import numpy as np

    from resnet_mechanisms import gradients

    where = device.use(args.device, args.threads)
    facts = dict(settings=args.settings, device=str(where), threads=args.threads)
    if args.command == "theorems":
        write(gradients.theorem_table(args.settings, where), args.table)
        provenance.write(args.table, **facts)
    else:
        write(gradients.autocorrelation_table(args.settings, where), args.autocorrelation)
        np.savez_compressed(args.gradients, **gradients.figure_curves(args.settings, where))
        provenance.write(args.autocorrelation, **facts)


if __name__ == "__main__":
    run(main)
