"""Minimise the unconstrained Jacobians model and measure Residual Alignment on its solutions."""

import argparse
import json

from _command import run
from resnet_mechanisms import device, provenance
from resnet_mechanisms.tables import write


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--table", required=True, help="a row a solution and reading, CSV")
    parser.add_argument("--per-block", required=True, help="a row a block of these, CSV")
    parser.add_argument(
        "--settings", required=True, type=json.loads, help="its part of the config, JSON"
    )
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()

    from resnet_mechanisms.unconstrained_jacobians import model_tables

    device.use("cpu", args.threads)
    table, per_block = model_tables(args.settings)
    write(table, args.table)
    write(per_block, args.per_block)
    provenance.write(args.table, settings=args.settings, device="cpu", threads=args.threads)


if __name__ == "__main__":
    run(main)
