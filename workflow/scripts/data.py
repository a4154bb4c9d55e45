"""Prepare one data set, cut to its first classes, as the .npz that the other commands read."""

import argparse
import json

from _command import run
from resnet_mechanisms import datasets, provenance
from resnet_mechanisms.errors import UserError


def main():
    import numpy as np

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--dataset", required=True, type=json.loads, help="the config's entry, JSON"
    )
    parser.add_argument("--name", required=True)
    parser.add_argument("--classes", required=True, type=int)
    parser.add_argument("--data-root", default=".")
    parser.add_argument("--out", required=True)
    args = parser.parse_args()
    try:
        arrays = datasets.prepare(args.dataset, args.classes, args.data_root)
    except UserError as error:
        raise UserError(f"datasets.{args.name}: {error}") from None
    np.savez_compressed(args.out, **arrays)
    provenance.write(args.out, dataset=args.dataset, name=args.name, classes=args.classes)


if __name__ == "__main__":
    run(main)
