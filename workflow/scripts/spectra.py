"""Measure every checkpoint of one network configuration: spectra, alignment, trajectories, Neural
Collapse."""

import json

from _command import device_of, network_parser, read_checkpoints, run
from resnet_mechanisms import datasets, files, provenance, spectra
from resnet_mechanisms.tables import write


def main():
    import pandas as pd

    parser = network_parser(__doc__)
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--history", required=True)
    parser.add_argument(
        "--measure", required=True, type=json.loads, help="the config's `measure`, JSON"
    )
    parser.add_argument("--spectra", required=True)
    parser.add_argument("--rows", required=True)
    parser.add_argument("--per-block", required=True)
    args = parser.parse_args()

    where = device_of(args)
    images = datasets.load(args.data, where)
    checkpoints = read_checkpoints(args.checkpoints)
    history = pd.read_csv(args.history)
    config = args.network
    data = spectra.measure(config, args.recipe, images, checkpoints, history, args.measure)
    compressed = {name: {"zlib": True} for name, value in data.items() if value.dtype.kind == "f"}
    with files.atomically(args.spectra) as partial:
        data.to_netcdf(partial, engine="h5netcdf", encoding=compressed)
    write(spectra.rows(data), args.rows)
    write(spectra.per_block(data), args.per_block)
    facts = dict(
        network=config,
        recipe=args.recipe,
        measure=args.measure,
        device=str(where),
        threads=args.threads,
    )
    provenance.write(args.spectra, **facts)


if __name__ == "__main__":
    run(main)
