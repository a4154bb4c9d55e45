"""Measure every checkpoint of one network configuration: spectra, alignment, trajectories, Neural
Collapse."""

import json

from _command import device_of, network_parser, read_checkpoints, run
from _spectra import output_options, write_spectra
from resnet_mechanisms import datasets, spectra


def main():
    import pandas as pd

    parser = network_parser(__doc__)
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--history", required=True)
    parser.add_argument(
        "--measure", required=True, type=json.loads, help="the config's `measure`, JSON"
    )
    output_options(parser)
    args = parser.parse_args()

    where = device_of(args)
    images = datasets.load(args.data, where)
    checkpoints = read_checkpoints(args.checkpoints)
    history = pd.read_csv(args.history)
    config = args.network
    data = spectra.measure(config, args.recipe, images, checkpoints, history, args.measure)
    write_spectra(data, args, network=config, recipe=args.recipe, device=str(where))


if __name__ == "__main__":
    run(main)
