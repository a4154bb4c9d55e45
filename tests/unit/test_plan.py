"""What a study is said to take: counted jobs, and costs that measured jobs correct."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import yaml

from helpers import ROOT, snakemake
from resnet_mechanisms import costs, plan
from resnet_mechanisms.config import resolve
from resnet_mechanisms.networks import Network, size_of

CONFIG = yaml.safe_load((ROOT / "config.yaml").read_text())
STUDY = resolve(CONFIG)
ALL = {"train": list(STUDY.networks), "figures": 3}


@pytest.mark.parametrize(
    "study", ["config.yaml", "workflow/studies/paper.yaml", "workflow/studies/smoke.yaml"]
)
def test_counts_the_jobs_that_a_dry_run_counts(untouched, study):
    words = ["--cores", "1", "--configfile", study]
    said = snakemake(untouched, *words, "--quiet", "all", "--", "plan").stdout
    dry = snakemake(untouched, "-n", *words).stdout
    # Snakemake counts `all` as a job.
    total = int(re.search(r"^total +(\d+)$", dry, re.M)[1]) - 1
    networks = resolve(yaml.safe_load((ROOT / study).read_text()), check_files=False).networks
    seeds = sum(len(network["seeds"]) for network in networks.values())
    first = f"{len(networks)} configurations, {seeds} networks, {total} jobs"
    assert said.splitlines()[0] == first
    assert re.search(rf"^train +{len(networks)} +{seeds} ", said, re.M)
    assert not list(untouched.glob("results/tables/*"))


def test_measured_jobs_correct_the_others(tmp_path):
    (before,) = (s for s in plan.stages(STUDY, ALL, tmp_path) if s.rule == "train")
    assert before.factor == 1 and before.measured == 0
    for path in list(STUDY.networks)[:3]:
        expected, _ = costs.train_cost_in(STUDY, STUDY.networks[path])
        file = tmp_path / "networks" / f"{path}.tsv"
        file.parent.mkdir(parents=True)
        file.write_text(f"s\th:m:s\n{2 * expected}\t0:00:00\n")
    (after,) = (s for s in plan.stages(STUDY, ALL, tmp_path) if s.rule == "train")
    assert after.measured == 3 and after.factor == pytest.approx(2)
    assert after.seconds == pytest.approx(2 * before.seconds)
    file.write_text("s\n-\n")  # a job too short to be measured
    (after,) = (s for s in plan.stages(STUDY, ALL, tmp_path) if s.rule == "train")
    assert after.measured == 2


def test_text_says_it_all():
    found = plan.stages(STUDY, ALL, "nowhere", gpu=True)
    text = plan.text(found, 27, cores=2)
    hours = sum(costs.train_cost_in(STUDY, n)[0] for n in STUDY.networks.values()) / 3600
    assert f"{hours:.3g} GPU hours (if a GPU were no faster" in text
    assert "train (GPU)" in text and "3 jobs" not in text.splitlines()[0]
    assert "results/benchmarks has no jobs yet" in text


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.5, "0.5 s"), (59, "59 s"), (90, "1.5 min"), (5400, "1.5 h"), (2.6e6, "30.1 days")],
)
def test_durations(seconds, said):
    assert plan.duration(seconds) == said


@pytest.mark.parametrize("kind", ["fc", "fc_pre", "conv", "conv_down", "cifar"])
@pytest.mark.parametrize("side", [8, 32])
def test_weights_as_the_networks_have_them(kind, side):
    config = dict(type=kind, skip="resnet", depth=6, width=16, classes=10)
    parameters, _ = size_of(Network(config, (3, side, side), 10), (3, side, side))
    # Batch norm and shortcuts of another width are left out.
    assert costs.weights_of(config, (3, side, side, 0)) == pytest.approx(parameters, rel=0.1)


@pytest.mark.parametrize(("kind", "width"), [("fc", 512), ("conv", 32), ("cifar", 16)])
def test_memory_of_training(tmp_path, kind, width):
    """What the job of a network with large images is planned with, against what it takes."""
    rng = np.random.default_rng(0)
    arrays = {"classes": np.arange(10).astype(str), "scale": 255.0}
    for split, count in (("train", 2000), ("test", 400)):
        arrays[f"x_{split}"] = rng.integers(0, 255, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(count) % 10
    np.savez(tmp_path / "data.npz", **arrays)
    network = dict(type=kind, skip="resnet", depth=6, width=width, classes=10, dataset="mine")
    network |= dict(recipe="short", seeds=[0])
    recipe = STUDY.recipes["strong_decay"] | {"steps": 16, "evaluate_every": 1}
    subprocess.run(
        [sys.executable, ROOT / "workflow/scripts/train.py", "--network", json.dumps(network),
         "--recipe", json.dumps(recipe), "--data", "data.npz", "--state", "state",
         "--gpu", "0", "--checkpoints", "checkpoints.pt", "--history", "history.csv"],
        cwd=tmp_path, check=True, capture_output=True,
    )  # fmt: skip
    record = json.loads((tmp_path / "checkpoints.pt.provenance.json").read_text())
    _, expected = costs.train_cost(network, recipe, (3, 32, 32, 2000))
    # A job asks for a quarter more than expected, and must not be a node's worth too much.
    assert 0.8 * record["megabytes"] < expected < 1.6 * record["megabytes"]
