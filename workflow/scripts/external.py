"""Measure a network of the user's own: spectra, alignment, trajectories, Neural Collapse."""

import argparse
import json
import os
import sys

from _command import device_of, device_options, run
from _spectra import output_options, write_spectra
from resnet_mechanisms import datasets, external
from resnet_mechanisms.errors import UserError


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True, help="of the entry in the config's `external`")
    parser.add_argument("--network", required=True, type=json.loads, help="the entry, JSON")
    parser.add_argument("--data", required=True, help="prepared .npz")
    parser.add_argument(
        "--measure", required=True, type=json.loads, help="the config's `measure`, JSON"
    )
    output_options(parser)
    device_options(parser)
    args = parser.parse_args()

    where = device_of(args)
    images = datasets.load(args.data, where)
    sys.path.insert(0, os.getcwd())  # modules in the working directory can be named
    try:
        data = external.measure(args.name, args.network, images, args.measure)
    except UserError as error:
        raise UserError(f"external.{args.name}: {error}") from None
    write_spectra(data, args, network=args.network, device=str(where))


if __name__ == "__main__":
    run(main)
