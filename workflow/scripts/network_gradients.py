"""Measure gradients and responses of one network configuration, before training and at every
checkpoint."""

import json

from _command import device_of, network_parser, read_checkpoints, run
from resnet_mechanisms import datasets, network_gradients, provenance
from resnet_mechanisms.tables import write


def main():
    parser = network_parser(__doc__)
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument(
        "--settings", required=True, type=json.loads, help="the config's gradients: networks, JSON"
    )
    parser.add_argument("--covariance", required=True)
    parser.add_argument("--layers", required=True)
    parser.add_argument("--similarity", required=True)
    args = parser.parse_args()

    where = device_of(args)
    images = datasets.load(args.data, where)
    checkpoints = read_checkpoints(args.checkpoints)
    config = args.network
    frames = network_gradients.measure(config, args.recipe, images, checkpoints, args.settings)
    columns = network_gradients.COVARIANCE, network_gradients.LAYERS, network_gradients.SIMILARITY
    paths = args.covariance, args.layers, args.similarity
    for frame, names, path in zip(frames, columns, paths, strict=True):
        write(frame.reindex(columns=names), path, config)
    facts = dict(
        network=config,
        recipe=args.recipe,
        settings=args.settings,
        device=str(where),
        threads=args.threads,
    )
    provenance.write(args.covariance, **facts)


if __name__ == "__main__":
    run(main)
