"""Measure how white the gradients of random convolutional networks are at a data set's images."""

import argparse
import json

from _command import run
from resnet_mechanisms import datasets, device, effective_rank, provenance
from resnet_mechanisms.tables import write


def main():
    import numpy as np

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="prepared .npz")
    parser.add_argument(
        "--settings", required=True, type=json.loads, help="its part of the config, JSON"
    )
    parser.add_argument("--table", required=True, help="effective_rank.csv")
    parser.add_argument("--pictures", required=True, help="correlations of a minibatch, npz")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()

    where = device.use(args.device, args.threads)
    images = datasets.load(args.data, where)
    write(effective_rank.table(args.settings, images), args.table)
    np.savez_compressed(args.pictures, **effective_rank.pictures(args.settings, images))
    provenance.write(args.table, settings=args.settings, device=str(where), threads=args.threads)


if __name__ == "__main__":
    run(main)
