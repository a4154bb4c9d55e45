"""Measure how white the gradients of random convolutional networks are at a data set's images."""

import argparse
import json

from _command import device_of, device_options, run
from resnet_mechanisms import datasets, effective_rank, files, provenance
from resnet_mechanisms.tables import write


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="prepared .npz")
    parser.add_argument(
        "--settings", required=True, type=json.loads, help="its part of the config, JSON"
    )
    parser.add_argument("--table", required=True, help="effective_rank.csv")
    parser.add_argument("--pictures", required=True, help="correlations of a minibatch, npz")
    device_options(parser)
    args = parser.parse_args()

    where = device_of(args)
    images = datasets.load(args.data, where)
    write(effective_rank.table(args.settings, images), args.table)
    files.write_arrays(effective_rank.pictures(args.settings, images), args.pictures)
    provenance.write(args.table, settings=args.settings, device=str(where), threads=args.threads)


if __name__ == "__main__":
    run(main)
