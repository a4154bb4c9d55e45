"""resnet18 of torchvision, random and trained, as docs/your-network.md has it, in one command."""

import re
import subprocess
import sys

import matplotlib.image
import pandas as pd
import pytest
import torch
import torchvision
import xarray as xr
import yaml

from helpers import ROOT, copy_project, snakemake
from resnet_mechanisms import datasets

PAGE = (ROOT / "docs/your-network.md").read_text()
CIFAR = ROOT.parent / "shared/data/cifar10_subset.npz"
FIGURES = [
    "ra1_trajectories", "ra2_alignment", "ra2_alignment_swapped", "ra3_singular_values",
    "ra4_inverse_singular_values",
]  # fmt: skip


def block(language, holds):
    """The code block of the page, in this language, that holds a text."""
    (found,) = [
        text for text in re.findall(rf"```{language}\n(.*?)```", PAGE, re.S) if holds in text
    ]
    return found


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """The page followed, on three classes of small subsets and with few inputs."""
    if not CIFAR.is_file():
        pytest.skip(f"no {CIFAR.name} in shared/data")
    project = copy_project(tmp_path_factory.mktemp("external") / "a project")
    study = yaml.safe_load(block("yaml", "resnet18_untrained"))
    del study["external"]["vit"]
    study["external"]["resnet18_untrained"]["seeds"] = [0]
    for entry in study["external"].values():
        entry["classes"] = entry["arguments"]["num_classes"] = 3
    subset = {"source": "npz", "path": str(CIFAR), "train": 300, "test": 60}
    study |= {"datasets": {"cifar": subset}, "standalone": True}
    study["measure"] = {"inputs": {"external": 2}}
    trained = {"resnet18": study["external"].pop("resnet18")}  # put back once it has weights
    (project / "mine.yaml").write_text(yaml.safe_dump(study))
    given = "--configfile", "mine.yaml"
    snakemake(project, "--cores", "1", "results/data/cifar-c3.npz", *given)
    script = block("python", "train_resnet18.py").replace("cifar-c10", "cifar-c3")
    script = script.replace("split(100)", "split(20)")  # the small subset has few batches
    environment = {"PYTHONPATH": str(project / "workflow"), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", script], cwd=project, env=environment, check=True)
    study["external"] |= trained
    (project / "mine.yaml").write_text(yaml.safe_dump(study))
    snakemake(project, "--cores", "2", "external", *given)
    return project


@pytest.mark.parametrize("name", ["resnet18", "resnet18_untrained"])
def test_spectra_and_figures(project, name):
    data = xr.load_dataset(project / f"results/spectra/external/{name}/spectra.nc")
    assert list(data.block_name.values) == [f"layer{s}.{b}" for s in (1, 2, 3, 4) for b in (0, 1)]
    assert float(data.residual.max()) < 1e-4
    assert bool((data.singular_values > 0).all()) and data.sizes["rank"] == 3 + 5
    # Within a stage blocks have alignment, across stages none.
    found = data.alignment_matrix.isel(seed=0, epoch=0, u=0, v=0).notnull().values
    same_shape = [[i == j or {i, j} == {0, 1} for j in range(8)] for i in range(8)]
    assert found.tolist() == same_shape
    for figure in FIGURES:
        path = project / f"results/figures/external/{name}/{figure}.png"
        picture = matplotlib.image.imread(path)
        assert picture.shape[1] >= 600 and picture[..., :3].std() > 0.01, figure
        assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")


def test_training_shows(project):
    """The weights of the file are what was measured: the accuracy is that of a model loaded by
    torch alone, above chance by five standard deviations of 300 guesses; before training it is
    not."""
    images = datasets.load(project / "results/data/cifar-c3.npz")
    model = torchvision.models.resnet18(num_classes=3).eval()
    model.load_state_dict(torch.load(project / "resnet18.pt", weights_only=True))
    with torch.no_grad():
        right = int((model(images.x_train).argmax(1) == images.y_train).sum())
    folder = project / "results/spectra/external"
    trained, untrained = (
        pd.read_csv(folder / f"{name}/residual_alignment.csv").train_accuracy[0]
        for name in ("resnet18", "resnet18_untrained")
    )
    # One image may stand between two classes and fall to either with the order of summation.
    assert abs(300 * trained - right) <= 1
    above_chance = 1 / 3 + 5 * (1 / 3 * 2 / 3 / 300) ** 0.5
    assert trained > above_chance > untrained


def test_the_lines_of_python(monkeypatch):
    """The page's example runs as it stands, and gives what the page says."""
    names = {}
    exec(block("python", "residual_alignment"), names)
    found = names["found"]
    assert len(found.scores) == 2 and len(found.triplets) == len(found.blocks) == 8
    assert found.alignment.shape == (2, 8, 8) and found.triplets[0].values.shape == (2, 10)
    assert max(t.residual.max() for t in found.triplets) < 1e-4
