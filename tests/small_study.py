"""A study of two configurations that trains for some seconds, one with a recipe that diverges, and
whether two runs of it came to the same.
"""

from pathlib import Path

import numpy as np
import torch
import yaml

from helpers import copy_project

RECIPE = {"learning_rate": 0.1, "weight_decay": 0.01, "batch_size": 50}
NETWORK = {"dataset": "digits", "classes": 3, "type": "fc", "seeds": [0, 1]}
STUDY = {
    "standalone": True,
    "datasets": {"digits": {"source": "digits", "train": 300}},
    "recipes": {
        "slow": RECIPE | {"steps": 1500, "evaluate_every": 50},
        "hot": RECIPE | {"learning_rate": 100, "steps": 60, "evaluate_every": 1},
    },
    "grids": {
        "slow": NETWORK | {"skip": "resnet", "depth": 6, "width": 32, "recipe": "slow"},
        "hot": NETWORK | {"skip": "resnet", "depth": 8, "width": 16, "recipe": "hot"},
    },
    "measure": {"inputs": {"fc": 64}},
    "figures": {"ra_depth": {"grids": ["slow", "hot"]}},
}
SLOW = "digits/c3/fc-resnet/d6-w32/slow"
TABLES = ["results/tables/residual_alignment.csv", "results/tables/degradation.csv"]
CHECKPOINTS = Path(f"results/networks/{SLOW}/checkpoints.pt")


def new_project(folder):
    project = copy_project(folder)
    (project / "study.yaml").write_text(yaml.safe_dump(STUDY))
    return project


def weights(project):
    seeds = torch.load(project / CHECKPOINTS, weights_only=True)["seeds"]
    return {
        (seed, epoch, name): value.numpy()
        for seed, of in seeds.items()
        for epoch, network in of["checkpoints"].items()
        for name, value in network.items()
    }


def assert_same(project, other):
    for path in TABLES:
        assert (project / path).read_bytes() == (other / path).read_bytes(), path
    mine, theirs = weights(project), weights(other)
    assert mine.keys() == theirs.keys()
    assert all(np.array_equal(mine[key], theirs[key]) for key in mine)
