"""A user's own network: what builds it, its weights, and its measurement beside our own."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from helpers import ROOT
from resnet_mechanisms import config as study_config
from resnet_mechanisms import datasets, external, spectra
from resnet_mechanisms.errors import UserError
from test_spectra import SETTINGS, configuration, trained
from test_training import RECIPE

MODELS = """
from torch import nn

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
    def forward(self, h):
        return h + self.outer(self.inner(h).relu())

def build(width=12, depth=4, classes=4):
    blocks = [Block(width) for _ in range(depth)]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), *blocks, nn.Linear(width, classes))

def plain(width=12):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 4))

def tokens():
    return nn.Linear(8, 12)

def pair():
    return [1, 2]

number = 3
"""


@pytest.fixture(scope="module")
def images():
    return datasets.as_images(datasets.prepare({"source": "digits", "train": 200, "test": 80}, 4))


@pytest.fixture
def models(tmp_path):
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return path


def entry(model, **changes):
    given = {"model": str(model), "dataset": "digits", "classes": 4} | changes
    return study_config._read(given, "external.mine", study_config.EXTERNAL)


def settings(inputs=4):
    return SETTINGS | {"inputs": {"external": inputs}}


def test_measured_like_a_network_of_ours(images, tmp_path):
    """One of our networks, brought as a checkpoint, gives the Dataset of its own measurement."""
    config, recipe = configuration(type="conv_down", depth=4, width=4, seeds=[1]), RECIPE
    results, history = trained(images, tmp_path, config, recipe)
    own = spectra.measure(config, recipe, images, results, history, SETTINGS | {
        "inputs": {"conv_down": 4}
    })  # fmt: skip
    epoch = int(own.epoch[-1])
    torch.save(results[1]["checkpoints"][epoch], tmp_path / "weights.pt")
    network = {key: config[key] for key in ("type", "skip", "depth", "width")}
    arguments = {"network": network, "shape": [1, 8, 8], "classes": 4}
    mine = entry(
        "resnet_mechanisms.networks:Network", arguments=arguments, epoch=epoch,
        weights=str(tmp_path / "weights.pt"),
    )  # fmt: skip
    data = external.measure("mine", mine, images, settings())
    own = own.isel(epoch=[-1])
    assert data.status.item() == own.status.item() == "ok"
    assert [*data.block_name.values] == [f"blocks.{i}" for i in range(4)]
    # Both certify s within 1e-4 s_1, but stop where they stand; what is no triplet is the same.
    for name in ("singular_values", "frobenius"):
        scale = float(own.singular_values.max())
        error = np.nanmax(np.abs(data[name].values - own[name].values))
        assert error < (1e-4 if name == "singular_values" else 0.05) * scale, name
    for name in ("step_length", "line_shape_score", "step_cv", "step_difference", "trajectory",
                 "nc1", "nc2_norm", "nc2_angle", "nc3", "nc4", "train_accuracy",
                 "test_accuracy", "train_loss"):  # fmt: skip
        np.testing.assert_allclose(
            data[name].values, own[name].values, rtol=2e-3, atol=2e-4, err_msg=name
        )
    for name in ("alignment", "overlap_uu", "inverse_slope", "line_slope"):
        np.testing.assert_allclose(
            data[name].values, own[name].values, rtol=0.02, atol=5e-3, err_msg=name
        )
    row = spectra.rows(data).iloc[0]
    assert (row.type, row.recipe, row.depth, row.width) == ("external", "mine", 4, 4)


def test_random_weights_from_several_seeds(models, images):
    data = external.measure("mine", entry(f"{models}:build", seeds=[3, 4]), images, settings())
    assert list(data.seed.values) == [3, 4] and (data.status == "ok").all()
    assert float(data.residual.max()) < 1e-4
    first, second = (data.singular_values.sel(seed=seed).values for seed in (3, 4))
    assert not np.allclose(first, second)
    torch.manual_seed(4)
    spec = external.find_callable(f"{models}:build")
    model = spec().eval()
    chosen = datasets.balanced_subset(images.y_train, 4, 0)
    h = model[:2](images.x_train[chosen])
    block = model[2]
    gates = (block.inner(h) > 0).float()
    matrix = torch.einsum("oh,nh,hi->noi", block.outer.weight, gates, block.inner.weight)
    s = torch.linalg.svdvals(matrix.double())
    ours = data.singular_values.sel(seed=4, split="train").values[0, :, 0]
    np.testing.assert_allclose(ours, s[:, :9].detach().numpy(), rtol=1e-4, atol=1e-5)


def test_other_outputs_than_classes_leave_blanks(models, images):
    """A head of another number of classes: no accuracy, no Neural Collapse, all else measured."""
    mine = entry(f"{models}:build", arguments={"classes": 7})
    data = external.measure("mine", mine, images, settings())
    for name in ("train_accuracy", "test_accuracy", "train_loss", "nc1", "nc4"):
        assert np.isnan(data[name].values).all(), name
    assert np.isfinite(data.alignment.values).all() and data.status.item() == "ok"
    assert pd.isna(spectra.rows(data).train_accuracy).all()


def test_images_as_the_network_saw_them(models, images):
    mine = entry(f"{models}:build", mean=[0.3], std=[0.5])
    found = external.normalised(datasets.Images(**vars(images)), mine)
    torch.testing.assert_close(found.x_train, (images.x_train - 0.3) / 0.5)
    torch.testing.assert_close(found.x_test, (images.x_test - 0.3) / 0.5)
    with pytest.raises(UserError, match="std: 3 numbers, the images have 1 channel"):
        external.normalised(images, entry(f"{models}:build", std=[1, 2, 3]))


@pytest.mark.parametrize("how", ["pt", "nested", "parallel", "safetensors", "no count"])
def test_weights_of_any_usual_form(models, images, tmp_path, how):
    torch.manual_seed(5)
    model = nn.Sequential(external.find_callable(f"{models}:build")(), nn.BatchNorm1d(4))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    path = tmp_path / ("w.safetensors" if how == "safetensors" else "w.pt")
    if how == "safetensors":
        save_file(weights, path)
    else:
        kept = dict(weights)
        if how == "no count":
            del kept["1.num_batches_tracked"]
        if how == "parallel":
            kept = {f"module.{name}": value for name, value in kept.items()}
        torch.save({"epoch": 3, "state_dict": kept} if how == "nested" else kept, path)
    torch.manual_seed(6)
    other = nn.Sequential(external.find_callable(f"{models}:build")(), nn.BatchNorm1d(4))
    external.load_weights(other, path)
    for name, value in other.state_dict().items():
        assert torch.equal(value, weights[name]), name


class Runs:
    def __reduce__(self):
        return print, ("this must not run",)


def test_weights_that_do_not_fit(models, tmp_path, capsys):
    build = external.find_callable(f"{models}:build")
    path = tmp_path / "w.pt"

    def said(content, **how):
        torch.save(content, path)
        with pytest.raises(UserError) as raised:
            external.load_weights(build(**how), path)
        message = str(raised.value)
        assert message.startswith(f"weights: {path}") and "\n" not in message
        return message

    weights = build().state_dict()
    message = said({("2.iner" + n[7:] if n[:7] == "2.inner" else n): v for n, v in weights.items()})
    assert "2 of 20 are missing (2.inner.weight, 2.inner.bias)" in message
    assert "2 are not the model's (2.iner.weight, 2.iner.bias); did you mean 2.iner" in message
    assert "7.weight is 4 x 12" not in message
    assert "1.weight is 12 x 64, the model's 16 x 64; check arguments" in said(weights, width=16)
    assert "holds more than tensors and is not read" in said({"w": Runs()})
    assert "this must not run" not in capsys.readouterr().out
    assert "holds a dict of epoch; expected a state_dict" in said({"epoch": 3})
    path.write_bytes(b"nothing of this kind")
    for name in ("w.pt", "w.safetensors"):
        (tmp_path / name).write_bytes(b"nothing of this kind")
        with pytest.raises(UserError, match=f"{name} "):
            external.load_weights(build(), tmp_path / name)


@pytest.mark.parametrize(
    ("model", "arguments", "said"),
    [
        ("torchvision.models:resnet81", {}, "models has no resnet81; did you mean resnet18?"),
        ("torchvison.models:resnet18", {}, "import torchvison.models (No module named 'torchvison"),
        ("{file}:buidl", {}, "has no buidl; did you mean build?"),
        ("{file}:number", {}, "is no callable but of type int"),
        ("{file}:pair", {}, "returned a list; expected a torch module"),
        ("{file}:build", {"widht": 3}, "unexpected keyword argument 'widht' (it takes (width=12,"),
        ("{file}:plain", {}, "no module of Sequential adds its input to what it computes of it; m"),
        ("{file}:tokens", {}, "returns 2 x 1 x 8 x 12 for 2 images; expected one row of numbers"),
        ("torchvision.models:resnet18", {}, "does not take images of 1 x 8 x 8 (channels x heig"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_measured(models, images, model, arguments, said):
    mine = entry(model.format(file=models), arguments=arguments)
    with pytest.raises(UserError) as raised:
        external.open_model(mine, images)
    assert said in str(raised.value) and "\n" not in str(raised.value)


def test_a_file_with_a_mistake_names_its_line(tmp_path, images):
    for text, line in (("import torch\ndef build(:\n", 2), ("x = 1\ny = 2 + None\n", 2)):
        (tmp_path / "broken.py").write_text(text)
        with pytest.raises(UserError, match=rf"broken\.py, line {line}: (Syntax|Type)Error"):
            external.find_callable(f"{tmp_path / 'broken.py'}:build")


def test_the_command_ends_in_one_line(models, tmp_path, images):
    """The name of the entry before what is wrong; no traceback."""
    import subprocess

    arrays = datasets.prepare({"source": "digits", "train": 60, "test": 40}, 4)
    np.savez(tmp_path / "data.npz", **arrays)
    mine = entry("models.py:build", blocks=["2.inner"])
    command = [sys.executable, ROOT / "workflow/scripts/external.py", "--name", "mine"]
    command += ["--network", json.dumps(mine), "--measure", json.dumps(settings())]
    command += ["--data", "data.npz", "--device", "cpu"]
    for output in ("spectra", "rows", "per-block"):
        command += [f"--{output}", f"{output}.out"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 1 and "Traceback" not in process.stderr
    assert process.stderr.startswith(
        "error: external.mine: blocks: 2.inner (Linear) does not add its input to what it computes "
        "of it; modules that add their input: 2, 3, 4, 5"
    )
    assert not (tmp_path / "spectra.out").exists()
