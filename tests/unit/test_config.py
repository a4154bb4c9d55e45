"""The configuration: what it resolves to, and one clear line for every mistake."""

import copy
from dataclasses import replace

import pytest
import yaml

from helpers import ROOT
from resnet_mechanisms.config import (
    FIGURES,
    check_file,
    network_path,
    parse_network_path,
    resolve,
)
from resnet_mechanisms.data_sources import SOURCES
from resnet_mechanisms.errors import UserError

DEFAULT = yaml.safe_load((ROOT / "config.yaml").read_text())


def changed(path, value):
    """The default configuration with the value at a dotted path."""
    config = copy.deepcopy(DEFAULT)
    *parents, last = path.split(".")
    part = config
    for key in parents:
        part = part.setdefault(key, {})
    part[last] = value
    return config


def test_default_study():
    study = resolve(DEFAULT)
    # 4 + 4 + 1 + 2 + 2 + 3, then of width 2, classes 2, interventions 4 new ones, conv 1 + 2,
    # 2 without batch norm
    assert len(study.networks) == 27
    assert study.networks["digits/c10/fc-resnet/d8-w128/strong_decay"] == {
        "dataset": "digits",
        "classes": 10,
        "type": "fc",
        "skip": "resnet",
        "depth": 8,
        "width": 128,
        "recipe": "strong_decay",
        "seeds": [10, 11, 12],
    }
    assert study.grids["width"] == [
        f"digits/c10/fc-resnet/d8-w{width}/strong_decay" for width in (64, 128, 256)
    ]
    assert study.figures["ra_width"] == study.grids["width"]
    assert study.figures["ra_no_skip"] == [
        f"digits/c10/fc-{skip}/d8-w128/strong_decay" for skip in ("resnet", "plain")
    ]
    assert study.measure == {
        "inputs": {"fc": 16, "conv": 8, "conv_down": 8, "cifar": 0, "external": 8},
        "inputs_seed": 0,
        "tolerance": 1e-4,
        "memory_mb": 1000,
    }


def test_smoke_study_is_valid():
    study = resolve(yaml.safe_load((ROOT / "workflow/studies/smoke.yaml").read_text()))
    assert set(study.figures) == set(FIGURES)


def test_recipe_has_every_key_and_inherits():
    recipes = resolve(DEFAULT).recipes
    assert recipes["usual"] == {
        "learning_rate": 0.1,
        "momentum": 0.9,
        "weight_decay": 0.0005,
        "weight_decay_batch_norm": 0.0005,
        "schedule": "cosine",
        "milestones": [],
        "warm_up": 0.0,
        "initialisation": "kaiming",
        "batch_size": 125,
        "epochs": None,
        "steps": 1200,
        "evaluate_every": 10,
        "labels": "true",
        "label_noise": 0.0,
        "stochastic_depth": 0.0,
        "stochastic_depth_per": "batch",
        "augment": "none",
        "path_energy": 0.0,
        "step_alignment": 0.0,
        "mixed_precision": False,
        "compile": False,
        "checkpoints": [],
    }
    assert recipes["decay_off_batch_norm"]["weight_decay_batch_norm"] == 0
    assert recipes["untrained"]["steps"] == 0


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"epochs": 3}, {"epochs": 3, "steps": None}),  # replaces the parent's steps
        ({"labels": True}, {"labels": "true"}),  # YAML's true
        ({"labels": "noisy", "label_noise": 0.2}, {"label_noise": 0.2}),
        ({"weight_decay": "5e-4"}, {"weight_decay": 0.0005}),  # text to YAML, for want of a point
        ({"checkpoints": [20, 5], "epochs": 30}, {"checkpoints": [5, 20]}),
        ({"schedule": "step"}, {"milestones": [0.5, 0.75]}),
    ],
)
def test_recipe_values(entry, expected):
    recipe = resolve(changed("recipes.mine", {"based_on": "usual", **entry})).recipes["mine"]
    assert {key: recipe[key] for key in expected} == expected


def test_network_in_two_grids_has_all_seeds():
    grid = {**DEFAULT["grids"]["width"], "seeds": [12, 3]}
    study = resolve(changed("grids.again", grid))
    assert study.networks["digits/c10/fc-resnet/d8-w64/strong_decay"]["seeds"] == [3, 10, 11, 12]
    assert len(study.networks) == 27


def test_single_values_may_stand_for_lists():
    grid = {**DEFAULT["grids"]["resnet_deep"], "seeds": 4, "depth": [24]}
    assert resolve(changed("grids.resnet_deep", grid)).grids["resnet_deep"] == [
        "digits/c10/fc-resnet/d24-w128/strong_decay"
    ]


def test_null_leaves_an_entry_out():
    study = resolve(changed("figures.ra_depth", None))
    assert "ra_depth" not in study.figures
    assert "random_labels" in study.recipes


def test_null_drops_what_another_source_does_not_have():
    merged = {"source": "npz", "path": "mine.npz", "train": 30, "download": None}
    assert resolve(changed("datasets.mine", merged)).datasets["mine"]["train"] == 30


def test_defaults_of_an_empty_configuration():
    study = resolve({})
    assert (study.networks, study.figures, study.device) == ({}, {}, "auto")
    for name, settings in resolve(DEFAULT).gradients.items():
        assert study.gradients[name].keys() == settings.keys()
    assert study.unconstrained_jacobians == resolve(DEFAULT).unconstrained_jacobians


def test_paths_and_back():
    for path, network in resolve(DEFAULT).networks.items():
        assert network_path(network) == path
        assert {**parse_network_path(path), "seeds": network["seeds"]} == network
    with pytest.raises(UserError, match="not the path of a configuration"):
        parse_network_path("digits/c10/fc-resnet/d8/usual")


GRID = {**DEFAULT["grids"]["width"], "recipe": "usual"}
EXTERNAL = {"model": "torchvision.models:resnet18", "dataset": "digits", "classes": 10}
MISTAKES = [
    ("external.mine", EXTERNAL, None),
    ("external.mine", {**EXTERNAL, "model": "resnet18"}, ["external.mine.model: expected what bu"]),
    ("external.mine", {**EXTERNAL, "wieghts": "w.pt"}, ["unknown key", "did you mean weights?"]),
    (
        "external.mine",
        {**EXTERNAL, "weights": "w.bin"},
        ["weights: expected a .pt (or .pth) or .s"],
    ),
    ("external.mine", {**EXTERNAL, "weights": "w.pt"}, ["mine.weights: no file w.pt", "working"]),
    ("external.mine", {**EXTERNAL, "model": "m.py:f"}, ["external.mine.model: no file m.py"]),
    ("external.mine", {**EXTERNAL, "dataset": "digit"}, ["mine.dataset", "did you mean digits?"]),
    ("external.mine", {**EXTERNAL, "classes": 11}, ["mine.classes: expected an integer from 2 to"]),
    ("external.mine", {"dataset": "digits", "classes": 10}, ["external.mine.model: missing"]),
    ("external.mine", {**EXTERNAL, "arguments": [1]}, ["mine.arguments: expected names with val"]),
    ("external.mine", {**EXTERNAL, "std": [0.1, 0]}, ["mine.std: expected a number > 0, found 0"]),
    ("external.my-net", EXTERNAL, ["external: expected a name of letters"]),
    (
        "external.mine",
        {**EXTERNAL, "weights": "w.pt", "seeds": [0, 1]},
        ["mine.seeds: expected one seed, as weights are given"],
    ),
    (
        "figures.ra1_trajectories.network",
        "external/mine",
        ["ra1_trajectories.network: expected external/NAME of a network in external, or a netw"],
    ),
    ("devcie", "cpu", ["devcie: unknown key", "did you mean device?"]),
    ("device", "gpu", ["device: expected one of auto, cpu, cuda, found 'gpu'"]),
    ("grids.width.depht", 4, ["grids.width.depht: unknown key", "did you mean depth?"]),
    ("grids.width.depth", 0, ["grids.width.depth: expected an integer >= 1, found 0"]),
    ("grids.width.depth", "eight", ["grids.width.depth", "an integer >= 1, found 'eight'"]),
    ("grids.width.depth", True, ["grids.width.depth", "found True"]),
    ("grids.width.depth", [], ["grids.width.depth: expected at least one value"]),
    ("grids.width.classes", 11, ["grids.width.classes", "found 11", "digits has 10"]),
    ("grids.width.classes", [3, 3], ["grids.width.classes: expected each value once, found 3"]),
    ("grids.width.seeds", [1, 2, 1], ["grids.width.seeds: expected each value once, found 1"]),
    ("grids.width.dataset", "digit", ["grids.width.dataset", "'digit'", "did you mean digits?"]),
    ("grids.width.recipe", "usal", ["grids.width.recipe", "'usal'", "did you mean usual?"]),
    ("grids.width.type", "cnov", ["grids.width.type", "did you mean conv?"]),
    ("grids.width.type", "conv_down", None),  # depth 8 is even: no mistake
    ("grids.odd", {**GRID, "type": "conv_down", "depth": 3}, ["grids.odd.depth: expected an even"]),
    (
        "grids.he",
        {**GRID, "type": "cifar", "depth": 20},
        ["grids.he.depth: expected a multiple of"],
    ),
    ("grids.he", {**GRID, "type": "cifar", "depth": [9, 27]}, None),
    ("grids.bare", {**GRID, "type": "fc_crelu"}, ["grids.bare.skip: expected plain for fc_crelu"]),
    ("grids.bare", {**GRID, "type": "fc_no_norms"}, ["did you mean fc_no_norm?"]),
    (
        "recipes.usual.initialisation",
        "looks_linear",
        ["grids.resnet_usual.type: expected fc_crelu, as recipe usual has initialisation"],
    ),
    ("recipes.usual.milestones", [0.5], ["recipes.usual.milestones: expected none unless"]),
    (
        "recipes.usual",
        {"based_on": "strong_decay", "schedule": "step", "milestones": [0.5, 1.5]},
        ["recipes.usual.milestones: expected a number between 0 and 1, found 1.5"],
    ),
    (
        "measure.inputs.conv",
        0,
        None,  # their Jacobians are not measured, and no figure of the study shows them
    ),
    ("measure.inputs.fc", 0, ["figures.ra1_trajectories: expected networks whose Jacobians are"]),
    ("grids.my grid", GRID, ["grids: expected a name of letters", "'my grid'"]),
    ("grids.short", {"depth": 3}, ["grids.short.dataset: missing"]),
    ("grids", ["width"], ["grids: expected keys with values"]),
    ("recipes.a/b", {"based_on": "usual"}, ["recipes: expected a name of letters", "'a/b'"]),
    ("recipes.usual.learning_rate", -0.1, ["recipes.usual.learning_rate: expected a number > 0"]),
    ("recipes.usual.learning_rate", "fast", ["recipes.usual.learning_rate", "found 'fast'"]),
    ("recipes.usual.learning_rate", float("nan"), ["recipes.usual.learning_rate", "found nan"]),
    ("recipes.usual.based_on", "strong", ["recipes.usual.based_on", "did you mean strong_decay?"]),
    ("recipes.strong_decay.based_on", "usual", ["based on itself", "-> usual"]),
    ("recipes.usual.based_on", "usual", ["recipes.usual.based_on", "usual -> usual"]),
    ("recipes.strong_decay.epochs", 5, ["recipes.strong_decay: expected epochs or steps", "both"]),
    ("recipes.mine", {"learning_rate": 0.1}, ["recipes.mine: expected epochs or steps, found nei"]),
    ("recipes.mine", {"steps": 9}, ["recipes.mine.learning_rate: missing"]),
    ("recipes.usual.labels", "radnom", ["recipes.usual.labels", "did you mean random?"]),
    ("recipes.usual.labels", "noisy", ["recipes.usual.label_noise", "labels is noisy"]),
    ("recipes.usual.stochastic_depth", 1, ["recipes.usual.stochastic_depth", ">= 0 and < 1"]),
    ("datasets.digits.source", "digit", ["datasets.digits.source", "did you mean digits?"]),
    ("datasets.digits.path", "a.npz", ["datasets.digits.path: unknown key"]),
    ("datasets.mine", {"source": "npz"}, ["datasets.mine.path: missing"]),
    ("datasets.mine", {"source": "cifar"}, ["datasets.mine.source", "did you mean cifar10?"]),
    ("datasets.mine", {"source": "cifar10", "coarse": True}, ["datasets.mine.coarse: unknown key"]),
    ("datasets.mine", {"source": "mnist", "train": 60001}, ["train: expected an integer from 1"]),
    ("datasets.mine", {"source": "svhn", "download": "yes"}, ["download: expected true or false"]),
    ("datasets.mine", {"source": "folder", "path": "a"}, ["datasets.mine.size: missing"]),
    (
        "datasets.mine",
        {"source": "folder", "path": "a", "size": 8, "channels": 2},
        ["datasets.mine.channels: expected 1 or 3, found 2"],
    ),
    (
        "datasets.mine",
        {"source": "cifar10", "class_list": ["car", "brid"]},
        ["datasets.mine.class_list: no class 'brid'; did you mean bird?"],
    ),
    (
        "datasets.digits.class_list",
        [7, 3],
        ["grids.resnet_depth.classes: expected an integer from 2 to 2, found 10 (the class_list"],
    ),
    ("datasets.digits.class_list", [7, 7], ["expected each value once, found '7' twice"]),
    ("datasets.digits.class_list", [10], ["no class '10'; did you mean 1?"]),
    ("figures.ra_dept", {"grids": ["width"]}, ["figures.ra_dept", "did you mean ra_depth?"]),
    ("figures.ra_depth.grids", ["wdth"], ["figures.ra_depth.grids", "did you mean width?"]),
    ("figures.ra_depth", {}, ["figures.ra_depth.grids: missing"]),
    (
        "figures.ra2_alignment.network.depth",
        17,
        ["figures.ra1_trajectories.network", "d16-w128/strong"],
    ),
    ("figures.claims", {"grids": ["width"]}, ["figures.claims.grids: unknown key"]),
    ("measure.inputs.cnov", 3, ["measure.inputs.cnov", "did you mean conv?"]),
    ("gradients.theorems.depth", [0], ["gradients.theorems.depth: expected an integer >= 1"]),
    ("gradients.effective_rank.depth", [2, 5], ["depth: expected an even number from 2 on", "5"]),
    ("gradients.toys", {}, ["gradients.toys: unknown key", "did you mean toy?"]),
    ("unconstrained_jacobians.blocks", 1, ["unconstrained_jacobians.blocks", "an integer >= 2"]),
    ("unconstrained_jacobians.classes", [2, 2], ["each value once, found 2 twice"]),
    ("unconstrained_jacobians.penalty_strength", 0, ["penalty_strength: expected a number > 0"]),
    ("unconstrained_jacobians.start", 3, ["start: unknown key", "did you mean starts?"]),
    ("unconstrained_jacobian", {}, ["unknown key", "did you mean unconstrained_jacobians?"]),
]


@pytest.mark.parametrize(("path", "value", "parts"), MISTAKES, ids=lambda value: str(value)[:30])
def test_mistakes_are_told_in_one_line(path, value, parts):
    config = changed(path, value)
    if parts is None:
        resolve(config)
        return
    with pytest.raises(UserError) as raised:
        resolve(config)
    message = str(raised.value)
    assert message.startswith("config: ")
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_images_of_the_effective_rank():
    """They are checked where its figure is asked for, and only there."""
    config = changed("gradients.effective_rank", {"dataset": "digit"})
    resolve(config)
    config["figures"]["sg5_effective_rank"] = {}
    with pytest.raises(UserError, match="effective_rank.dataset: .*did you mean digits?"):
        resolve(config)
    config["gradients"]["effective_rank"] = {"classes": 11}
    with pytest.raises(UserError, match="effective_rank.classes: expected an integer from 2 to 10"):
        resolve(config)


def test_networks_of_the_users_own():
    config = changed("external.mine", {**EXTERNAL, "mean": 0.5, "blocks": "layer*.*"})
    config["external"]["gone"] = None
    config["datasets"]["others"] = {"source": "digits", "train": 100}
    config["external"]["mine"]["dataset"] = "others"
    config["figures"]["ra1_trajectories"] = {"network": "external/mine"}
    config["figures"]["ra_no_skip"]["networks"].append("external/mine")
    study = resolve(config)
    assert list(study.external) == ["mine"] and study.external_paths == ["external/mine"]
    assert study.external["mine"] == EXTERNAL | {
        "dataset": "others", "arguments": {}, "weights": None, "seeds": [0], "epoch": 0,
        "mean": [0.5], "std": None, "blocks": ["layer*.*"],
    }  # fmt: skip
    assert study.figures["ra1_trajectories"] == ["external/mine"]
    assert study.figures["ra_no_skip"][-1] == "external/mine"
    assert "others-c10" in study.data_names and study.measured("external/mine")


def test_missing_data_file(tmp_path):
    config = changed("datasets.mine", {"source": "npz", "path": "mine.npz"})
    config["data_root"] = str(tmp_path)
    resolve(config)  # no grid needs it
    config["grids"]["mine"] = {**GRID, "dataset": "mine"}
    with pytest.raises(UserError) as raised:
        resolve(config)
    for part in ("datasets.mine.path", str(tmp_path / "mine.npz"), "data_root", "x_train", "uint8"):
        assert part in str(raised.value)
    (tmp_path / "mine.npz").touch()
    study = resolve(config)
    assert study.data_file("mine") == str(tmp_path / "mine.npz")
    assert study.data_file("digits") is None


def with_data(tmp_path, classes=3, **entry):
    """A study of one network on a data set called mine."""
    config = changed("datasets", {"mine": entry})
    config["data_root"] = str(tmp_path)
    config["grids"] = {"mine": {**GRID, "dataset": "mine", "classes": classes}}
    return config | {"figures": {}}


def said(config):
    with pytest.raises(UserError) as raised:
        resolve(config)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("name", SOURCES)
def test_public_data_that_are_not_there(tmp_path, monkeypatch, name):
    monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], also=()))
    message = said(with_data(tmp_path, source=name))
    assert message.startswith(f"config: datasets.mine: no {SOURCES[name].title} in {tmp_path}")
    for part in (*SOURCES[name].files, "set download: true"):
        assert part in message
    message = said(with_data(tmp_path, source=name, path="there"))
    assert f"datasets.mine.path: no {SOURCES[name].title} in {tmp_path / 'there'}: lacks" in message
    resolve(with_data(tmp_path, source=name, download=True))
    for file in SOURCES[name].files:
        (tmp_path / "there" / file).mkdir(parents=True)
    study = resolve(with_data(tmp_path, source=name, path="there"))
    assert study.data_file("mine") is None


def test_classes_of_public_data(tmp_path):
    many = with_data(tmp_path, 21, source="cifar100", coarse=True, download=True)
    assert "grids.mine.classes: expected an integer from 2 to 20, found 21 (mine" in said(many)
    resolve(with_data(tmp_path, 21, source="cifar100", download=True))
    listed = with_data(tmp_path, source="cifar10", class_list=["car", "bird"], download=True)
    assert "an integer from 2 to 2, found 3 (the class_list of mine has 2)" in said(listed)


def test_folder_of_images(tmp_path):
    entry = {"source": "folder", "path": "own", "size": 32}
    assert f"datasets.mine.path: no folder {tmp_path / 'own'}" in said(with_data(tmp_path, **entry))
    for split in ("train", "val"):
        (tmp_path / "own" / split / "ant").mkdir(parents=True)
        (tmp_path / "own" / split / "bee").mkdir()
    study = resolve(with_data(tmp_path, 2, **entry))
    assert study.datasets["mine"]["channels"] == 3 and study.data_file("mine") is None
    message = said(with_data(tmp_path, **entry))
    assert "grids.mine.classes: expected an integer from 2 to 2, found 3 (mine has 2)" in message
    message = said(with_data(tmp_path, 2, **entry, class_list=["bea", "ant"]))
    assert "datasets.mine.class_list: no class 'bea'; did you mean bee?" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: {c: 2, c: 3}\n", "line 2: not valid YAML: c twice"),
        ("a: 1\nb: [1\n", "line 3: not valid YAML"),
        ("a: &x {b: 1}\nc: {<<: *x, b: 2}\n", None),
    ],
)
def test_files_are_checked(tmp_path, text, message):
    file = tmp_path / "study.yaml"
    file.write_text(text)
    if message is None:
        assert check_file(file) == file
        return
    with pytest.raises(UserError, match=message):
        check_file(file)
