"""Train every seed of one network configuration and keep checkpoints and history."""

import hashlib
import json
from pathlib import Path

from _command import device_of, network_parser, run
from resnet_mechanisms import (
    backpropagation,
    datasets,
    files,
    network_types,
    networks,
    provenance,
    stems,
    training,
)
from resnet_mechanisms.config import network_path
from resnet_mechanisms.tables import HISTORY, write

CODE_OF_WEIGHTS = (backpropagation, datasets, network_types, networks, stems, training)


def state_key(config, recipe, data, threads, kind):
    """A name for everything that determines the weights: configuration, recipe, images, threads,
    device, torch, code."""
    import torch

    digest = hashlib.sha256()
    fixed = {name: value for name, value in config.items() if name != "seeds"}
    for part in (fixed, recipe, threads, kind, torch.__version__):
        digest.update(json.dumps(part, sort_keys=True).encode())
    digest.update(Path(data).read_bytes())
    for module in CODE_OF_WEIGHTS:
        digest.update(Path(module.__file__).read_bytes())
    return digest.hexdigest()[:16]


def main():
    parser = network_parser(__doc__)
    parser.add_argument(
        "--state", required=True, type=Path, help="folder of finished and running seeds, of all"
    )
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--history", required=True)
    args = parser.parse_args()
    import pandas as pd
    import torch

    where = device_of(args)
    config = args.network
    key = state_key(config, args.recipe, args.data, args.threads, where.type)
    state = args.state / network_path(config) / key
    state.mkdir(parents=True, exist_ok=True)
    images = datasets.load(args.data, where)
    kept, history = {}, []
    with training.exclusive(state):
        for seed in config["seeds"]:
            result = training.train(config, args.recipe, images, seed, state)
            kept[seed] = {"status": result["status"], "checkpoints": result["checkpoints"]}
            history += result["history"]
    network = training.initialised(config, args.recipe, images, config["seeds"][0])
    parameters, multiplications = networks.size_of(network, images.x_train.shape[1:])
    with files.atomically(args.checkpoints) as partial:
        torch.save({"network": config, "recipe": args.recipe, "seeds": kept}, partial)
    rows = pd.DataFrame(history, columns=HISTORY)
    rows = rows.assign(parameters=parameters, multiplications=multiplications)
    write(rows, args.history, config)
    facts = dict(network=config, recipe=args.recipe, device=str(where), threads=args.threads)
    provenance.write(args.checkpoints, **facts)


if __name__ == "__main__":
    run(main)
