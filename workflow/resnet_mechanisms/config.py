"""The study: what config.yaml says, checked, with every default filled in.

Pure Python, so that a notebook can ask it which networks a configuration holds. Every mistake is
a UserError of one line: the key, what was found, what was expected, the nearest valid name.
"""

import difflib
import itertools
import math
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from resnet_mechanisms import data_sources, network_types
from resnet_mechanisms.errors import UserError
from resnet_mechanisms.network_types import TYPES

SKIPS = ("resnet", "plain")
NETWORK_KEYS = ("dataset", "classes", "type", "skip", "depth", "width", "recipe")
DIGITS = {"train": 1500, "test": 297}
NPZ_LAYOUT = (
    "x_train, x_test (uint8, N x H x W x channels), y_train, y_test (int64, N) "
    "and optionally classes (names)"
)

# What each figure of a study shows: one network, several networks, grids, or nothing to choose.
FIGURES = {
    "ra1_trajectories": "network",
    "ra2_alignment": "network",
    "ra2_alignment_swapped": "network",
    "ra3_singular_values": "network",
    "ra4_inverse_singular_values": "network",
    "ra_no_skip": "networks",
    "ra_depth": "grids",
    "ra_width": "grids",
    "ra_classes": "grids",
    "ra_generalization": "grids",
    "ra_architectures": "grids",
    "ra_datasets": "grids",
    "ra_stochastic_depth": "grids",
    "ra_weight_decay": "grids",
    "ra_training_dynamics": "grids",
    "ra_intervention": "grids",
    "neural_collapse": "grids",
    "he1_degradation": "grids",
    "he7_layer_responses": "grids",
    "he_gradient_norms": "grids",
    "mechanisms": "grids",
    "sg6_looks_linear": "grids",
    "sg_momentum": "grids",
    "sg5_effective_rank": None,
    "sg_theorems": None,
    "sg3_coactivation": None,
    "sg4_activation_patterns": None,
    "sg_paths": None,
    "sg_linear_regions": None,
    "sg1_gradients": None,
    "sg2_autocorrelation": None,
    "unconstrained_jacobians": None,
    "claims": None,
}
# Those that show gradients or responses of the study's own networks.
OF_GRADIENTS = ("he7_layer_responses", "he_gradient_norms", "mechanisms", "sg_momentum")
OF_SPECTRA = ("ra", "neural_collapse", "mechanisms")  # how figures that show spectra start


@dataclass(frozen=True)
class Study:
    """A checked configuration.

    networks maps each configuration's path (see network_path) to its description with sorted seeds;
    grids and figures map their names to the paths they hold or show, in the order of the config.
    recipes hold every key of RECIPE but based_on; of epochs and steps one is None.
    """

    device: str
    threads: int
    jobs_per_gpu: int
    data_root: str
    datasets: dict
    recipes: dict
    networks: dict
    external: dict
    grids: dict
    measure: dict
    gradients: dict
    unconstrained_jacobians: dict
    figures: dict

    def measured(self, network):
        """Whether Residual Jacobians of this configuration (its path or description) are taken."""
        if network in self.external_paths:
            return True
        if isinstance(network, str):
            network = self.networks[network]
        kind = network["type"]
        inputs = self.measure["inputs"][network_types.base(kind)]
        return network_types.batch_norm(kind) and inputs > 0

    @property
    def external_paths(self):
        """Paths of the user's own networks: external/NAME."""
        return [f"external/{name}" for name in self.external]

    @property
    def followed(self):
        """Paths of the networks whose gradients some figure shows."""
        shown = (path for name in OF_GRADIENTS for path in self.figures.get(name, []))
        return list(dict.fromkeys(shown))

    @property
    def data_names(self):
        """Names of the prepared data (see data_name) that networks and figures need."""
        users = [*self.networks.values(), *self.external.values()]
        if "sg5_effective_rank" in self.figures:
            users.append(self.gradients["effective_rank"])
        return list(dict.fromkeys(map(data_name, users)))

    def data_file(self, name):
        """Path of the file a data set entry of source npz names, or None for other data."""
        entry = self.datasets[name]
        return str(Path(self.data_root) / entry["path"]) if entry["source"] == "npz" else None


# --- Checks of one value: each takes the value and the path of its key, and returns the value.


def _fail(path, found, expected, hint=""):
    raise UserError(f"config: {path}: expected {expected}, found {found!r}{hint}")


def _nearest(word, known):
    match = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.5)
    if match:
        return f"; did you mean {match[0]}?"
    return f"; valid: {', '.join(known)}" if known else ""


def _expecting(text):
    """Marks a check with what it expects, for its messages and docs/config.md."""

    def mark(check):
        check.expected = text
        return check

    return mark


def _integer(low, high=None):
    expected = f"an integer >= {low}" if high is None else f"an integer from {low} to {high}"

    @_expecting(expected)
    def check(value, path):
        if not isinstance(value, int) or isinstance(value, bool):
            _fail(path, value, expected)
        if value < low or (high is not None and value > high):
            _fail(path, value, expected)
        return value

    return check


def _number(expected, valid):
    @_expecting(expected)
    def check(value, path):
        try:
            # YAML reads 5e-4, without a decimal point, as text: accept it as the number it means.
            number = float("nan") if isinstance(value, bool) else float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not math.isfinite(number) or not valid(number):
            _fail(path, value, expected)
        return number

    return check


def _choice(*choices):
    @_expecting(f"one of {', '.join(choices)}")
    def check(value, path):
        if value not in choices:
            _fail(path, value, check.expected, _nearest(value, choices))
        return value

    return check


@_expecting("one of true, random, noisy")
def _labels(value, path):
    # An unquoted true is a boolean in YAML.
    return _choice("true", "random", "noisy")("true" if value is True else value, path)


@_expecting("true or false")
def _boolean(value, path):
    if not isinstance(value, bool):
        _fail(path, value, _boolean.expected)
    return value


@_expecting("an even number from 2 on (two convolutions a module)")
def _even(value, path):
    if isinstance(value, bool) or not isinstance(value, int) or value < 2 or value % 2:
        _fail(path, value, _even.expected)
    return value


@_expecting("a text")
def _text(value, path):
    if not isinstance(value, str) or not value:
        _fail(path, value, _text.expected)
    return value


@_expecting("a name of letters, digits and _ (it becomes part of a path)")
def _name(value, path):
    if not isinstance(value, str) or not re.fullmatch(r"[A-Za-z0-9_]+", value):
        _fail(path, value, _name.expected)
    return value


@_expecting("what builds the network, as torchvision.models:resnet18 or models.py:build")
def _callable(value, path):
    if not isinstance(value, str) or not re.fullmatch(r"([\w.]+|.+\.py):\w+", value):
        _fail(path, value, _callable.expected)
    return value


@_expecting("a .pt (or .pth) or .safetensors file")
def _weights(value, path):
    if not isinstance(value, str) or not value.endswith((".pt", ".pth", ".safetensors")):
        _fail(path, value, _weights.expected)
    return value


@_expecting("names with values (keyword arguments)")
def _arguments(value, path):
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        _fail(path, value, _arguments.expected)
    return value


@_expecting("1 or 3")
def _channels(value, path):
    if isinstance(value, bool) or value not in (1, 3):
        _fail(path, value, _channels.expected)
    return value


@_expecting("the name of a class")
def _class(value, path):
    # Digits are numbers to YAML.
    if isinstance(value, bool) or not isinstance(value, str | int):
        _fail(path, value, _class.expected)
    return str(value)


def _list_of_numbers(check):
    """A list, or a single value, which becomes a list of one."""

    @_expecting(f"{check.expected}, or a list of such")
    def check_list(value, path):
        values = value if isinstance(value, list) else [value]
        return [check(item, path) for item in values] or _fail(path, value, "at least one number")

    return check_list


def _list(check):
    """A list, not empty and without duplicates, or a single value, which becomes a list of one."""

    @_expecting(f"{check.expected}, or a list of such")
    def check_list(value, path):
        values = value if isinstance(value, list) else [value]
        if not values:
            _fail(path, value, "at least one value")
        values = [check(item, path) for item in values]
        for item in values:
            if values.count(item) > 1:
                _fail(path, item, "each value once", " twice")
        return values

    return check_list


_any_number = _number("a number", lambda x: True)
_positive = _number("a number > 0", lambda x: x > 0)
_not_negative = _number("a number >= 0", lambda x: x >= 0)
_below_one = _number("a number >= 0 and < 1", lambda x: 0 <= x < 1)
_share = _number("a number from 0 to 1", lambda x: 0 <= x <= 1)
_inside = _number("a number between 0 and 1", lambda x: 0 < x < 1)

# --- Keys: (check, default). REQUIRED has none; None stands for "not given".

REQUIRED = object()

TOP = {
    "standalone": (_boolean, False),
    "device": (_choice("auto", "cpu", "cuda"), "auto"),
    "threads": (_integer(1), 1),
    "jobs_per_gpu": (_integer(1), 1),
    "data_root": (_text, "data"),
}


def _data_keys(keys, train=None, test=None):
    """The keys of a source: its own, and what all have."""
    return {
        "source": (_text, REQUIRED),
        **keys,
        "class_list": (_list(_class), None),
        "train": (_integer(1, train), None),
        "test": (_integer(1, test), None),
    }


def _public_keys(name):
    source = data_sources.SOURCES[name]
    keys = {
        "path": (_text, None),
        "download": (_boolean, False),
        "size": (_integer(1), source.shape[1] if name == "imagenette" else None),
    }
    if name == "cifar100":
        keys["coarse"] = (_boolean, False)
    return _data_keys(keys, source.train, source.test)


DATASET = {
    "digits": _data_keys({}, **DIGITS),
    "npz": _data_keys(
        {"path": (_text, REQUIRED), "scale": (_positive, 255.0), "size": (_integer(1), None)}
    ),
    "folder": _data_keys(
        {"path": (_text, REQUIRED), "size": (_integer(1), REQUIRED), "channels": (_channels, 3)}
    ),
    **{name: _public_keys(name) for name in data_sources.SOURCES},
}
RECIPE = {
    "based_on": (_name, None),
    "learning_rate": (_positive, REQUIRED),
    "momentum": (_below_one, 0.9),
    "weight_decay": (_not_negative, 0.0),
    "weight_decay_batch_norm": (_not_negative, None),
    "schedule": (_choice("cosine", "constant", "step"), "cosine"),
    "milestones": (_list(_inside), None),
    "warm_up": (_below_one, 0.0),
    "initialisation": (_choice("kaiming", "looks_linear"), "kaiming"),
    "batch_size": (_integer(2), 125),
    "epochs": (_integer(0), None),
    "steps": (_integer(0), None),
    "evaluate_every": (_integer(1), 10),
    "labels": (_labels, "true"),
    "label_noise": (_share, None),
    "stochastic_depth": (_below_one, 0.0),
    "stochastic_depth_per": (_choice("batch", "sample"), "batch"),
    "augment": (_choice("none", "flip", "crop", "crop_flip"), "none"),
    "path_energy": (_not_negative, 0.0),
    "step_alignment": (_any_number, 0.0),
    "mixed_precision": (_boolean, False),
    "compile": (_boolean, False),
    "checkpoints": (_list(_integer(0)), []),
}
NETWORK = {
    "dataset": (_name, REQUIRED),
    "classes": (_integer(2), REQUIRED),
    "type": (_choice(*TYPES), REQUIRED),
    "skip": (_choice(*SKIPS), REQUIRED),
    "depth": (_integer(1), REQUIRED),
    "width": (_integer(1), REQUIRED),
    "recipe": (_name, REQUIRED),
}
GRID = {key: (_list(check), REQUIRED) for key, (check, _) in NETWORK.items()}
SEED = _integer(0, 2**31 - 1)
GRID["seeds"] = (_list(SEED), REQUIRED)
# A network of the user's own.
EXTERNAL = {
    "model": (_callable, REQUIRED),
    "arguments": (_arguments, {}),
    "weights": (_weights, None),
    "seeds": (_list(SEED), [0]),
    "epoch": (_integer(0), 0),
    "dataset": (_name, REQUIRED),
    "classes": (_integer(2), REQUIRED),
    "mean": (_list_of_numbers(_any_number), None),
    "std": (_list_of_numbers(_positive), None),
    "blocks": (_list(_text), None),
}
MEASURE_INPUTS = {"fc": 16, "conv": 8, "conv_down": 8, "cifar": 0, "external": 8}
MEASURE_INPUTS = {base: (_integer(0), default) for base, default in MEASURE_INPUTS.items()}
MEASURE = {
    "inputs_seed": (SEED, 0),
    "tolerance": (_number("a number from 1e-5 to 1e-2", lambda value: 1e-5 <= value <= 1e-2), 1e-4),
    "memory_mb": (_integer(1), 1000),
}
GRADIENTS = {
    "theorems": {
        "width": (_integer(1), 256),
        "batch": (_integer(2), 64),
        "input_dimension": (_integer(1), 128),
        "networks": (_integer(2), 80),
        "depth": (_list(_integer(1)), [1, 2, 4, 8, 16, 24, 32, 50]),
        "beta": (_list(_positive), [1.0, 0.3, 0.1]),
        "seed": (SEED, 0),
    },
    "networks": {
        "inputs": (_integer(2), 64),
        "batch": (_integer(2), 250),
        "seed": (SEED, 0),
    },
    "effective_rank": {
        "dataset": (_name, "digits"),
        "classes": (_integer(2), 10),
        "width": (_integer(1), 32),
        "batch": (_integer(2), 256),
        "networks": (_integer(2), 20),
        "depth": (_list(_even), [2, 4, 10, 24, 50]),
        "beta": (_list(_positive), [1.0, 0.3, 0.1]),
        "seed": (SEED, 0),
    },
    "activations": {
        "width": (_integer(1), 100),
        "batch": (_integer(2), 64),
        "input_dimension": (_integer(1), 128),
        "networks": (_integer(2), 100),
        "depth": (_list(_integer(1)), [1, 2, 4, 8, 16, 24, 32, 50]),
        "beta": (_list(_positive), [1.0]),
        "points": (_integer(2), 256),
        "raster_depth": (_list(_integer(1)), [2, 10, 50]),
        "seed": (SEED, 0),
    },
    "paths": {
        "width": (_integer(1), 128),
        "batch": (_integer(2), 16),
        "input_dimension": (_integer(1), 128),
        "networks": (_integer(2), 24),
        "depth": (_list(_integer(1)), [1, 2, 4, 8, 16, 24, 32, 50]),
        "beta": (_list(_positive), [1.0]),
        "length_depth": (_integer(1), 24),
        "seed": (SEED, 0),
    },
    "linear_regions": {
        "width": (_integer(1), 64),
        "points": (_integer(2), 256),
        "networks": (_integer(2), 8),
        "depth": (_list(_integer(1)), [1, 2, 4, 8, 12, 16, 24, 32]),
        "beta": (_list(_positive), [1.0, 0.1]),
        "line": (_choice("grid", "inputs"), "grid"),
        "input_dimension": (_integer(1), 128),
        "pieces": (_integer(1), 10_000),
        "seed": (SEED, 0),
    },
    "toy": {
        "width": (_integer(1), 200),
        "points": (_integer(16), 256),
        "runs": (_integer(2), 20),
        "depth": (_list(_integer(1)), [2, 4, 10, 24, 50]),
        "beta": (_list(_positive), [1.0, 0.1]),
        "seed": (SEED, 0),
    },
}
UNCONSTRAINED_JACOBIANS = {
    "classes": (_list(_integer(2)), [2, 4, 10]),
    "blocks": (_integer(2), 10),
    "penalty_strength": (_positive, 0.01),
    "starts": (_integer(1), 3),
    "seed": (SEED, 0),
}


def _section(config, path):
    """The mapping at the key, empty if it is missing; entries set to null are left out."""
    value = config.get(path.rpartition(".")[2])
    if value is None:
        return {}
    if not isinstance(value, dict):
        _fail(path, value, "keys with values")
    return {key: item for key, item in value.items() if item is not None}


def _known_keys(value, path, known):
    if not isinstance(value, dict):
        _fail(path, value, f"keys with values ({', '.join(known)})")
    for key in value:
        if key not in known:
            where = f"{path}.{key}" if path else key
            raise UserError(f"config: {where}: unknown key{_nearest(key, known)}")


def _given(value, path, fields):
    """The checked values of the keys that are there and not null."""
    _known_keys(value, path, fields)
    prefix = f"{path}." if path else ""
    return {
        key: fields[key][0](item, f"{prefix}{key}")
        for key, item in value.items()
        if item is not None
    }


def _fill(given, path, fields):
    """A value for every key of fields, in their order: as given, or the default."""
    for key, (_, default) in fields.items():
        if default is REQUIRED and key not in given:
            raise UserError(f"config: {path}.{key}: missing")
    return {key: given.get(key, default) for key, (_, default) in fields.items()}


def _read(value, path, fields):
    return _fill(_given(value, path, fields), path, fields)


# --- The parts of a study.


def _dataset(entry, path):
    _known_keys(entry, path, {key: None for keys in DATASET.values() for key in keys})
    source = entry.get("source")
    _choice(*DATASET)(source, f"{path}.source")
    # A file merged over another drops with null what a new source does not have.
    given = {key: value for key, value in entry.items() if value is not None}
    dataset = _read(given, path, DATASET[source])
    names = data_sources.class_names(dataset)
    if names is not None:
        _at(path, data_sources.class_order, dataset, names)
    return dataset


def _at(path, function, *arguments):
    """The function's result; its UserError, which starts with a key, says below which one."""
    try:
        return function(*arguments)
    except UserError as error:
        raise UserError(f"config: {path}.{error}") from None


def _check_classes(classes, path, name, dataset, names):
    """A data set must have as many classes; names: of all its classes, None if not known yet."""
    available, whose = names, name
    if dataset["class_list"] is not None:
        available, whose = dataset["class_list"], f"the class_list of {name}"
    if available is not None and classes > len(available):
        hint = f" ({whose} has {len(available)})"
        _fail(f"{path}.classes", classes, f"an integer from 2 to {len(available)}", hint)


def _recipes(section):
    """Every recipe with what it takes from those it is based on; flat, without based_on."""
    given = {}
    for name, entry in section.items():
        path = f"recipes.{_name(name, 'recipes')}"
        own = given[name] = _given(entry, path, RECIPE)
        if "epochs" in own and "steps" in own:
            raise UserError(
                f"config: {path}: expected epochs or steps, found both (epochs: {own['epochs']}, "
                f"steps: {own['steps']}; a file merged over another says `steps: null` to drop it)"
            )
    return {name: _resolve_recipe(name, given) for name in given}


def _resolve_recipe(name, given):
    path = f"recipes.{name}"
    chain = [name]
    while "based_on" in given[chain[-1]]:
        child, parent = chain[-1], given[chain[-1]]["based_on"]
        if parent not in given:
            hint = _nearest(parent, given)
            _fail(f"recipes.{child}.based_on", parent, "the name of a recipe", hint)
        if parent in chain:
            loop = " -> ".join([*chain[chain.index(parent) :], parent])
            _fail(f"recipes.{child}.based_on", parent, "no recipe based on itself", f" ({loop})")
        chain.append(parent)
    merged = {}
    for own in (given[link] for link in reversed(chain)):
        if "epochs" in own or "steps" in own:  # the child's choice replaces the parent's
            merged.pop("epochs", None)
            merged.pop("steps", None)
        merged.update(own)
    recipe = _fill(merged, path, RECIPE)
    del recipe["based_on"]
    if recipe["epochs"] is None and recipe["steps"] is None:
        raise UserError(f"config: {path}: expected epochs or steps, found neither")
    if recipe["weight_decay_batch_norm"] is None:
        recipe["weight_decay_batch_norm"] = recipe["weight_decay"]
    if recipe["schedule"] != "step":
        if "milestones" in given[name]:
            _fail(f"{path}.milestones", recipe["milestones"], "none unless schedule is step")
        recipe["milestones"] = []
    elif recipe["milestones"] is None:
        recipe["milestones"] = [0.5, 0.75]
    if recipe["labels"] != "noisy":
        if "label_noise" in given[name]:
            _fail(f"{path}.label_noise", recipe["label_noise"], "none unless labels is noisy")
        recipe["label_noise"] = 0.0
    elif not recipe["label_noise"]:
        _fail(f"{path}.label_noise", recipe["label_noise"], "a number > 0, as labels is noisy")
    if recipe["epochs"] is not None and max(recipe["checkpoints"], default=0) > recipe["epochs"]:
        _fail(f"{path}.checkpoints", recipe["checkpoints"], f"epochs up to {recipe['epochs']}")
    recipe["checkpoints"] = sorted(recipe["checkpoints"])
    for key in ("path_energy", "step_alignment"):
        if recipe[key] and (recipe["stochastic_depth"] or recipe["compile"]):
            _fail(f"{path}.{key}", recipe[key], "0 with stochastic_depth or compile")
    return recipe


def _check_data(settings, path, datasets):
    """The data set that `settings` name must be one of the study, with as many classes."""
    name = settings["dataset"]
    if name not in datasets:
        _fail(
            f"{path}.dataset", name, "the name of a dataset in datasets", _nearest(name, datasets)
        )
    names = data_sources.class_names(datasets[name])
    _check_classes(settings["classes"], path, name, datasets[name], names)


def _check_network(network, path, datasets, recipes):
    """What the parts of a network must satisfy together."""
    for key, known in (("dataset", datasets), ("recipe", recipes)):
        if network[key] not in known:
            hint = _nearest(network[key], known)
            _fail(f"{path}.{key}", network[key], f"the name of a {key} in {key}s", hint)
    dataset = datasets[network["dataset"]]
    # The classes of an own file are counted by the command that prepares it.
    names = data_sources.class_names(dataset)
    _check_classes(network["classes"], path, network["dataset"], dataset, names)
    kind, recipe = network["type"], recipes[network["recipe"]]
    base = network_types.base(kind)
    if base == "conv_down" and network["depth"] % 2:
        _fail(f"{path}.depth", network["depth"], f"an even depth for {kind}")
    if base == "cifar" and network["depth"] % 3:
        hint = " (three stages of blocks; 20, 32, 44, 56, 110 layers are 9, 15, 21, 27, 54 blocks)"
        _fail(f"{path}.depth", network["depth"], f"a multiple of 3 for {kind}", hint)
    if kind in network_types.PLAIN_ONLY and network["skip"] != "plain":
        _fail(f"{path}.skip", network["skip"], f"plain for {kind}")
    if recipe["initialisation"] == "looks_linear" and not network_types.crelu(kind):
        expected = f"fc_crelu, as recipe {network['recipe']} has initialisation looks_linear"
        _fail(f"{path}.type", kind, expected)
    if (recipe["path_energy"] or recipe["step_alignment"]) and network_types.crelu(kind):
        _fail(f"{path}.recipe", network["recipe"], f"one without a penalty for {kind}")
    if network["skip"] == "plain" and recipes[network["recipe"]]["stochastic_depth"]:
        expected = f"resnet, as stochastic depth (recipe {network['recipe']}) needs a skip"
        _fail(f"{path}.skip", "plain", expected)


def _grids(section, datasets, recipes):
    """Networks by path with the sorted seeds of all grids that hold them; each grid's paths."""
    networks, grids = {}, {}
    for name, entry in section.items():
        path = f"grids.{_name(name, 'grids')}"
        grid = _read(entry, path, GRID)
        grids[name] = []
        for values in itertools.product(*(grid[key] for key in NETWORK_KEYS)):
            network = dict(zip(NETWORK_KEYS, values, strict=True))
            _check_network(network, path, datasets, recipes)
            key = network_path(network)
            seeds = networks.get(key, {}).get("seeds", [])
            networks[key] = {**network, "seeds": sorted({*seeds, *grid["seeds"]})}
            grids[name].append(key)
    return networks, grids


def _external(section, datasets):
    """Networks of the user's own, by their names."""
    found = {}
    for name, entry in section.items():
        path = f"external.{_name(name, 'external')}"
        found[name] = _read(entry, path, EXTERNAL)
        _check_data(found[name], path, datasets)
        if found[name]["weights"] is not None and len(found[name]["seeds"]) > 1:
            hint = " (seeds draw the weights of networks that have none)"
            _fail(f"{path}.seeds", found[name]["seeds"], "one seed, as weights are given", hint)
    return found


def _network_shown(entry, path, external):
    """The path of a network that a figure names: a configuration, or external/NAME."""
    if not isinstance(entry, str):
        return network_path(_read(entry, path, NETWORK))
    if entry not in external:
        expected = "external/NAME of a network in external, or a network's keys"
        _fail(path, entry, expected, _nearest(entry, external))
    return entry


def _figures(section, networks, grids, external):
    """The paths of the networks each figure shows."""
    _known_keys(section, "figures", FIGURES)
    figures = {}
    for name, entry in section.items():
        path, kind = f"figures.{name}", FIGURES[name]
        _known_keys(entry, path, [kind] if kind else [])
        if kind is None:
            figures[name] = []
            continue
        if kind not in entry:
            raise UserError(f"config: {path}.{kind}: missing")
        path, shown = f"{path}.{kind}", entry[kind]
        if kind == "grids":
            chosen = _list(_text)(shown, path)
            for grid in chosen:
                if grid not in grids:
                    _fail(path, grid, "the name of a grid", _nearest(grid, grids))
            shown = list(dict.fromkeys(key for grid in chosen for key in grids[grid]))
        else:
            entries = shown if kind == "networks" and isinstance(shown, list) else [shown]
            if not entries:
                _fail(path, shown, "at least one network")
            shown = [_network_shown(network, path, external) for network in entries]
            for key in shown:
                if key not in networks and key not in external:
                    _fail(path, key, "a network of some grid", _nearest(key, networks))
        figures[name] = shown
    return figures


def resolve(config, check_files=True):
    """Check a configuration (as read from YAML) and fill in its defaults.

    Entries of datasets, recipes, grids and figures that are null are left out. With check_files, a
    data file that a grid needs must exist (relative paths start at the working directory).
    Returns a Study; raises UserError, in one line, at the first mistake.
    """
    sections = ("datasets", "recipes", "grids", "external", "measure")
    sections += ("gradients", "unconstrained_jacobians", "figures")
    _known_keys(config, "", [*TOP, *sections])
    top = _read({key: config[key] for key in TOP if key in config}, "", TOP)
    datasets = {
        _name(name, "datasets"): _dataset(entry, f"datasets.{name}")
        for name, entry in _section(config, "datasets").items()
    }
    recipes = _recipes(_section(config, "recipes"))
    networks, grids = _grids(_section(config, "grids"), datasets, recipes)
    external = _external(_section(config, "external"), datasets)
    external_paths = [f"external/{name}" for name in external]

    measure = _section(config, "measure")
    inputs = _read(_section(measure, "measure.inputs"), "measure.inputs", MEASURE_INPUTS)
    _known_keys(measure, "measure", ["inputs", *MEASURE])
    measure.pop("inputs", None)

    gradients = _section(config, "gradients")
    _known_keys(gradients, "gradients", GRADIENTS)
    unconstrained = _section(config, "unconstrained_jacobians")
    study = Study(
        **{key: top[key] for key in ("device", "threads", "jobs_per_gpu", "data_root")},
        datasets=datasets,
        recipes=recipes,
        networks=networks,
        external=external,
        grids=grids,
        measure={"inputs": inputs, **_read(measure, "measure", MEASURE)},
        gradients={
            name: _read(gradients.get(name, {}), f"gradients.{name}", fields)
            for name, fields in GRADIENTS.items()
        },
        unconstrained_jacobians=_read(
            unconstrained, "unconstrained_jacobians", UNCONSTRAINED_JACOBIANS
        ),
        figures=_figures(_section(config, "figures"), networks, grids, external_paths),
    )
    for name, shown in study.figures.items():
        if name.startswith(OF_SPECTRA):
            for network in shown:
                if not study.measured(network):
                    kind = network_types.base(study.networks[network]["type"])
                    expected = f"networks whose Jacobians are measured (measure.inputs.{kind} > 0"
                    _fail(f"figures.{name}", network, f"{expected}, types with batch norm)")
    if "sg5_effective_rank" in study.figures:
        _check_data(study.gradients["effective_rank"], "gradients.effective_rank", datasets)
    if check_files:
        _check_files(study)
    return study


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML would silently drop the first."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for (key, _), name in zip(node.value, keys, strict=False):
            if keys.count(name) > 1 and name != "<<":
                raise yaml.MarkedYAMLError(problem=f"{name} twice", problem_mark=key.start_mark)
        return super().construct_mapping(node, deep)


def check_file(path):
    """Check that a file is YAML without duplicate keys and return its path.

    Raises UserError, with the line, if it is not.
    """
    try:
        yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_UniqueKeys)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1
        raise UserError(f"{path}, line {line}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: not valid YAML: {reason}") from None
    return path


def _check_files(study):
    for name, entry in study.external.items():
        if entry["weights"] is not None and not Path(entry["weights"]).is_file():
            raise UserError(
                f"config: external.{name}.weights: no file {entry['weights']} (paths start at the "
                "working directory)"
            )
        script = entry["model"].rpartition(":")[0]
        if script.endswith(".py") and not Path(script).is_file():
            raise UserError(
                f"config: external.{name}.model: no file {script} (paths start at the working "
                "directory)"
            )
    users = [*study.networks.values(), *study.external.values()]
    used = {network["dataset"]: None for network in users}
    if "sg5_effective_rank" in study.figures:
        used[study.gradients["effective_rank"]["dataset"]] = None
    for name in used:
        path, dataset = f"datasets.{name}", study.datasets[name]
        file = study.data_file(name)
        if file is not None and not Path(file).is_file():
            raise UserError(
                f"config: {path}.path: no file {file} (data_root: {study.data_root}); "
                f"expected an .npz with {NPZ_LAYOUT}"
            )
        if dataset["source"] == "folder":
            *_, names = _at(path, data_sources.folder_splits, dataset, study.data_root)
            _at(path, data_sources.class_order, dataset, names)
            users = [
                (f"grids.{grid}", study.networks[key])
                for grid, keys in study.grids.items()
                for key in keys
            ]
            users += [(f"external.{key}", entry) for key, entry in study.external.items()]
            for where, network in users:
                if network["dataset"] == name:
                    _check_classes(network["classes"], where, name, dataset, names)
        if dataset["source"] not in data_sources.SOURCES or dataset["download"]:
            continue
        if data_sources.find(dataset, study.data_root) is None:
            key = f"{path}.path" if dataset["path"] else path
            said = data_sources.missing(dataset, study.data_root)
            raise UserError(f"config: {key}: {said}")


# --- Paths.


def network_path(network):
    """The path of a configuration: digits/c10/fc-resnet/d8-w128/strong_decay."""
    return "{dataset}/c{classes}/{type}-{skip}/d{depth}-w{width}/{recipe}".format(**network)


_PATH_PARTS = (
    r"(?P<dataset>\w+)/c(?P<classes>\d+)/(?P<type>{})-(?P<skip>{})"
    r"/d(?P<depth>\d+)-w(?P<width>\d+)/(?P<recipe>\w+)"
).format("|".join(TYPES), "|".join(SKIPS))
NETWORK_PATH = re.sub(r"\?P<\w+>", "?:", _PATH_PARTS)  # a pattern of such paths


def parse_network_path(path):
    """The configuration (without seeds) that has this path; the inverse of network_path."""
    match = re.fullmatch(_PATH_PARTS, path)
    if match is None:
        form = "{dataset}/c{classes}/{type}-{skip}/d{depth}-w{width}/{recipe}"
        raise UserError(f"{path!r} is not the path of a configuration: expected {form}")
    network = match.groupdict()
    return {**network, **{key: int(network[key]) for key in ("classes", "depth", "width")}}


def data_name(network):
    """The name of the prepared data a network is trained on: digits-c10."""
    return f"{network['dataset']}-c{network['classes']}"
