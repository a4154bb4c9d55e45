"""A user's own network: the module that a callable builds, with the weights of a file, as a
ResidualModel.

An entry of the config's `external` names the callable (`torchvision.models:resnet18`, or
`models.py:build` for a function of a file), its keyword arguments, a file with weights (`.pt` of
tensors, or `.safetensors`), a data set and which submodules are residual blocks.
"""

import difflib
import importlib
import importlib.util
import inspect
import pickle
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from .errors import UserError
from .networks import reestimate_batch_norm
from .residual_blocks import ResidualModel
from .spectra import REFERENCES, Cell, fill

# Under what training code keeps weights among other things, and what it puts before their names.
WRAPPED = ("state_dict", "model_state_dict", "model_state", "model", "net", "module")
PREFIXES = ("module.", "_orig_mod.", "model.")


def _nearest(word, known):
    match = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {match[0]}?" if match else ""


def find_callable(text):
    """The callable that `package.module:name`, or `file.py:name`, stands for."""
    place, _, name = text.rpartition(":")
    if not place or not name:
        raise UserError(f"model: expected module:callable or file.py:callable, found {text!r}")
    if place.endswith(".py"):
        module = _module_of_file(Path(place))
    else:
        try:
            module = importlib.import_module(place)
        except ImportError as error:
            raise UserError(
                f"model: cannot import {place} ({error}); expected an importable module, or a "
                "file: path/to/file.py:callable"
            ) from None
    if not hasattr(module, name):
        names = [n for n, value in vars(module).items() if callable(value) and n[0] != "_"]
        hint = _nearest(name, names) or f"; it has {', '.join(sorted(names)[:8]) or 'none'}"
        raise UserError(f"model: {place} has no {name}{hint}")
    found = getattr(module, name)
    if not callable(found):
        raise UserError(f"model: {text} is no callable but of type {type(found).__name__}")
    return found


def _module_of_file(path):
    if not path.is_file():
        raise UserError(f"model: no file {path}")
    # What lies beside the file can be imported from it.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        where = _line_in(path, error)
        raise UserError(f"model: {path}{where}: {type(error).__name__}: {error}") from None
    return module


def _line_in(path, error):
    """`, line 3` of the file where an error arose; nothing where that was elsewhere."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    step, line = error.__traceback__, None
    while step is not None:
        if Path(step.tb_frame.f_code.co_filename).resolve() == path.resolve():
            line = step.tb_lineno
        step = step.tb_next
    return "" if line is None else f", line {line}"


def build(entry, seed=0):
    """The torch module that `entry["model"]` builds with `entry["arguments"]`, in evaluation mode
    and float32; where it draws weights, from `seed`."""
    make = find_callable(entry["model"])
    torch.manual_seed(seed)
    try:
        module = make(**entry["arguments"])
    except Exception as error:
        said = str(error).splitlines()
        hint = ""
        if isinstance(error, TypeError):
            try:
                inspect.signature(make).bind(**entry["arguments"])
            except (TypeError, ValueError):
                hint = f" (it takes {inspect.signature(make)})"
        raise UserError(
            f"model: {entry['model']} failed with arguments {entry['arguments']}: "
            f"{type(error).__name__}: {said[0] if said else ''}{hint}"
        ) from None
    if not isinstance(module, nn.Module):
        raise UserError(
            f"model: {entry['model']} returned a {type(module).__name__}; expected a torch module"
        )
    return module.float().eval()


def read_weights(path):
    """{name: tensor} of a `.pt` or `.safetensors` file; nothing in it is executed."""
    path = Path(path)
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path)
        except SafetensorError as error:
            raise UserError(f"weights: {path} is no safetensors file: {error}") from None
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"weights: {path} holds more than tensors and is not read ({reason}); save the "
            "weights alone: torch.save(model.state_dict(), path)"
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"weights: {path} is no file of torch.save: {reason}") from None
    while isinstance(found, dict):
        inner = next((k for k in WRAPPED if isinstance(found.get(k), dict)), None)
        if inner is None or any(isinstance(value, torch.Tensor) for value in found.values()):
            break
        found = found[inner]
    tensors = isinstance(found, dict) and {
        str(k): v for k, v in found.items() if isinstance(v, torch.Tensor)
    }
    if not tensors:
        kind = f"a dict of {', '.join(map(str, list(found)[:6]))}" if isinstance(
            found, dict
        ) else f"a {type(found).__name__}"  # fmt: skip
        raise UserError(f"weights: {path} holds {kind}; expected a state_dict, {{name: tensor}}")
    return tensors


def load_weights(module, path):
    """Put the weights of a file into a module; UserError where names or shapes differ."""
    weights = read_weights(path)
    own = module.state_dict()
    for prefix in PREFIXES:
        if all(name.startswith(prefix) for name in weights) and not own.keys() & weights.keys():
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    missing = [name for name in own if name not in weights]
    # Saved before torch counted them; batch norm does not need it in evaluation mode.
    missing = [name for name in missing if not name.endswith("num_batches_tracked")]
    unknown = [name for name in weights if name not in own]
    if missing or unknown:
        said = []
        if missing:
            said.append(f"{len(missing)} of {len(own)} are missing ({_some(missing)})")
        if unknown:
            said.append(f"{len(unknown)} are not the model's ({_some(unknown)})")
        hint = _nearest(missing[0], unknown) if missing and unknown else ""
        raise UserError(f"weights: {path}: {' and '.join(said)}{hint}")
    for name, value in weights.items():
        if value.shape != own[name].shape:
            raise UserError(
                f"weights: {path}: {name} is {_shape(value)}, the model's {_shape(own[name])}; "
                "check arguments (number of classes, width)"
            )
    module.load_state_dict(weights, strict=False)


def _some(names):
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def _shape(tensor):
    return " x ".join(map(str, tensor.shape)) or "a number"


def open_model(entry, images, seed=0):
    """The ResidualModel of an entry for `images` (datasets.Images); UserError where something is
    wrong with it."""
    module = build(entry, seed)
    if entry["weights"] is not None:
        load_weights(module, entry["weights"])
    module.to(images.x_train.device)
    for name, value in module.state_dict().items():
        if not value.isfinite().all():
            raise UserError(f"model: {name} holds numbers that are not finite")
    x = images.x_train[:REFERENCES]
    try:
        with torch.no_grad():
            output = module(x)
    except Exception as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"model: {entry['model']} does not take images of "
            f"{' x '.join(map(str, x.shape[1:]))} (channels x height x width): {said}"
        ) from None
    if not isinstance(output, torch.Tensor) or output.dim() != 2 or len(output) != len(x):
        found = _shape(output) if isinstance(output, torch.Tensor) else type(output).__name__
        raise UserError(
            f"model: {entry['model']} returns {found} for {len(x)} images; expected one row of "
            "numbers for each"
        )
    if entry["weights"] is None:
        # As our own untrained networks: at 0 and 1, the statistics would be nobody's.
        reestimate_batch_norm(module, images.x_train)
    return ResidualModel(module, x, entry["blocks"])


def normalised(images, entry):
    """The images as the entry's network saw them in training: less `mean`, over `std`, of each
    channel."""
    if entry["mean"] is None and entry["std"] is None:
        return images
    channels = images.x_train.shape[1]
    values = {}
    for key, neutral in (("mean", 0.0), ("std", 1.0)):
        given = [neutral] if entry[key] is None else entry[key]
        if len(given) not in (1, channels):
            raise UserError(
                f"{key}: {len(given)} numbers, the images have {channels} channels; expected one "
                "number, or one for each"
            )
        values[key] = torch.tensor(given, device=images.x_train.device).view(-1, 1, 1)
    for name in ("x_train", "x_test"):
        setattr(images, name, (getattr(images, name) - values["mean"]) / values["std"])
    return images


def outcomes_of(model, images):
    """Accuracies and loss of a ResidualModel on the data's labels; none where it does not end in as
    many numbers as the data have classes."""
    found = {}
    for split in ("train", "test"):
        logits, _ = model.outputs(getattr(images, f"x_{split}"))
        labels = getattr(images, f"y_{split}")
        if logits.shape[1] != len(images.classes):
            return {}
        found[f"{split}_accuracy"] = (logits.argmax(1) == labels).double().mean().item()
        if split == "train":
            found["train_loss"] = F.cross_entropy(logits, labels).item()
    return found


def measure(name, entry, images, settings):
    """Measure a user's own network as our own are.

    Args: name, entry: of the config's `external`. images: datasets.Images on the device to measure
    on. settings: the config's `measure`.

    Returns: the Dataset of `spectra.measure`, with type `external`, the entry's name as recipe, its
    number of blocks as depth, and the channels, or features, of its first state as width;
    `block_name` names the blocks. Accuracies, loss and Neural Collapse are blank where the network
    does not end in as many numbers as the data have classes, Neural Collapse also where these do
    not come from an nn.Linear.
    """
    images = normalised(images, entry)
    first = open_model(entry, images, entry["seeds"][0])
    state = first.first_state(images.x_train[:1])
    config = {
        "dataset": entry["dataset"], "classes": entry["classes"], "type": "external",
        "skip": "resnet", "depth": len(first.blocks), "width": state.shape[1], "recipe": name,
        "seeds": entry["seeds"],
    }  # fmt: skip

    def cell(seed, epoch):
        model = first if seed == entry["seeds"][0] else open_model(entry, images, seed)
        return Cell(model, outcomes_of(model, images))

    data = fill(config, [entry["epoch"]], images, lambda seed: images.y_train, settings, cell)
    data.attrs |= {"model": entry["model"], "weights": entry["weights"] or "as built"}
    return data.assign_coords(block_name=("block", [block.name for block in first.blocks]))
