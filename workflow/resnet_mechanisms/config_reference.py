"""docs/config.md: every key of the config, from the tables that check it and the words below."""

from . import config, data_sources
from .config import REQUIRED

INTRODUCTION = """# Configuration

Made from the schema by `python workflow/scripts/config_reference.py`; a test holds it to the code.

A study is `config.yaml`, and files given with `--configfile`, which are merged over it: keys are merged, lists replaced,
an entry set to `null` is left out. A file that says `standalone: true` is a whole study of its own. Every mistake is told in one line
with the key, what was found, what was expected and the nearest valid name. A single value stands for a list of one."""

TOP = {
    "standalone": "this file is the study: config.yaml is not read under it",
    "device": "where networks are trained and measured; auto: cuda where there is a GPU. Changing it "
    "reruns nothing",
    "threads": "CPU threads of each job that trains or measures; more change the last digits",
    "jobs_per_gpu": "jobs that may share one GPU",
    "data_root": "folder where relative paths of data start, and public data sets are looked for",
}
DATASET = {
    "source": "where the images come from; one of the sources below",
    "path": "file or folder, relative to `data_root`; of public data only if they lie elsewhere",
    "scale": "pixel value that becomes 1",
    "size": "side in pixels to which the largest central square of each image is resized",
    "channels": "1 makes images grey",
    "download": "let torchvision fetch the files where they are missing",
    "coarse": "the 20 superclasses instead of the 100 classes",
    "class_list": "names of classes, in the order from which `classes: C` takes the first C",
    "train": "training images, the first so many of the chosen classes in a fixed random order; "
    "default: all",
    "test": "test images, likewise",
}
RECIPE = {
    "based_on": "recipe from which all keys are taken that this one does not name",
    "learning_rate": "of SGD, at its highest",
    "momentum": "of SGD",
    "weight_decay": "L2 penalty on weights, and on what the next key does not say otherwise",
    "weight_decay_batch_norm": "on batch norm's scales and shifts and on biases; default: as "
    "weight_decay",
    "schedule": "of the learning rate: cosine to 0 at the last step, constant, or a tenth from each "
    "milestone on",
    "milestones": "shares of the steps at which schedule step divides by ten; default [0.5, 0.75]",
    "warm_up": "share of the steps with a tenth of the rate (He et al. 2016, 110 layers)",
    "initialisation": "Kaiming-normal (He et al. 2015), or looks_linear for fc_crelu (Balduzzi et "
    "al. 2017, section 4)",
    "batch_size": "images a step; a last, partial batch of an epoch is left out",
    "epochs": "passes over the training images; this or steps",
    "steps": "steps of SGD, to the nearest whole number of epochs: the same effort for any number of classes",
    "evaluate_every": "epochs between rows of history.csv",
    "labels": "true, random (a fixed permutation), or noisy",
    "label_noise": "share of the labels that noisy replaces by another class",
    "stochastic_depth": "drop probability p_L of the last block; block l survives with 1 - p_L l/L "
    "(Huang et al. 2016)",
    "stochastic_depth_per": "whether blocks are dropped for a batch or for each sample",
    "augment": "of training images: flip left to right, crop shifts by up to an eighth of the side",
    "path_energy": "strength of a penalty on the squared norm of branches (intervention)",
    "step_alignment": "strength of a penalty that straightens (> 0) or bends (< 0) paths "
    "(intervention)",
    "mixed_precision": "train in bfloat16 where the device has it",
    "compile": "torch.compile the network",
    "checkpoints": "epochs whose weights are kept and measured beside the last; 0: before training",
}
GRID = {
    "dataset": "entry of datasets",
    "classes": "number C of classes, the first of the data's or of class_list",
    "type": "kind of network: docs/methods.md and `networks.py`",
    "skip": "with skip connections, or their plain twin",
    "depth": "residual blocks L (two weight layers each); even for conv_down, a multiple of 3 for "
    "cifar",
    "width": "units of a fully connected block, channels of a convolutional one",
    "recipe": "entry of recipes",
    "seeds": "of initialisation and order of images, one network each",
}
EXTERNAL = {
    "model": "what builds the network; it is called, so name only code you trust",
    "arguments": "its keyword arguments",
    "weights": "file of tensors by name, read without executing anything; default: as built",
    "seeds": "from which networks without weights are built",
    "epoch": "what tables call this checkpoint",
    "dataset": "entry of datasets from which inputs are drawn",
    "classes": "number of its classes",
    "mean": "of pixels, subtracted; one number or one a channel",
    "std": "of pixels, divided by",
    "blocks": "names of the residual blocks, * for anything within one part; default: found",
}
MEASURE = {
    "inputs_seed": "from which inputs are drawn, the same for every network",
    "tolerance": "of every singular triplet, relative to s_1: the larger of ||J v - s u|| and "
    "||J^T u - s v||",
    "memory_mb": "for what is measured at once",
}
MEASURE_INPUTS = (
    "images of each split at which Jacobians of such networks are taken, balanced over classes; "
    "0: none are"
)
SHARED = {
    "width": "units of a layer (channels of effective_rank)",
    "batch": "inputs a network",
    "inputs": "images at whose pairs gradients are compared",
    "input_dimension": "of the random inputs",
    "networks": "random networks of each kind",
    "depth": "modules L of a network",
    "beta": "scales of the residual branch, x + beta F(x)",
    "seed": "of the first network",
    "dataset": "entry of datasets",
    "classes": "number of its classes",
    "points": "of the grid [-2, 2], or of the line",
    "raster_depth": "depths whose activations are pictured",
    "length_depth": "depth of the networks whose paths are counted by length",
    "line": "the grid [-2, 2], or between two random inputs",
    "pieces": "linear pieces at which counting stops",
    "runs": "random networks of each kind",
}
GRADIENTS = {
    "theorems": "correlation of gradients at two random inputs (Balduzzi et al. 2017, theorems 1 to "
    "3)",
    "networks": "gradients of the grids' own networks; batch: images of the measurements in training "
    "mode",
    "effective_rank": "gradients of random convolutional networks (figure 5)",
    "activations": "which units are active (figures 3 and 4)",
    "paths": "open and co-active paths (section 2)",
    "linear_regions": "linear pieces along a line",
    "toy": "networks of a scalar input (figures 1 and 2)",
}
UNCONSTRAINED_JACOBIANS = {
    "classes": "numbers of classes C",
    "blocks": "matrices J_l",
    "penalty_strength": "lambda of both penalties",
    "starts": "random starts of each minimisation",
    "seed": "of the first start",
}
FIGURES = {
    "network": "one network: its keys (dataset, classes, type, skip, depth, width, recipe), or "
    "`external/NAME`",
    "networks": "a list of such",
    "grids": "names of grids",
    None: "nothing to choose: `{}`",
}


def default_text(default):
    if default is REQUIRED:
        return "required"
    if default is None:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, list):
        return f"[{', '.join(map(default_text, default))}]"
    return f"{default:g}" if isinstance(default, float) else str(default)


def table(fields, words):
    """Rows of a section: key, what it is, allowed values, default."""
    lines = ["| key | what | value | default |", "|---|---|---|---|"]
    for key, (check, default) in fields.items():
        expected = check.expected.replace("|", "\\|")
        lines.append(f"| `{key}` | {words[key]} | {expected} | {default_text(default)} |")
    return "\n".join(lines)


def text():
    """The page, Markdown."""
    example = "`digits: {source: digits, train: 300}`"
    parts = [INTRODUCTION, "## Top level", table(config.TOP, TOP)]
    parts += [
        "## datasets", f"A mapping of names to entries, for instance {example}. Which files go "
        "where: [file formats](file-formats.md#images). Keys by source:",
    ]  # fmt: skip
    own = {name: keys for name, keys in config.DATASET.items() if name not in data_sources.SOURCES}
    fields = {key: value for keys in config.DATASET.values() for key, value in keys.items()}
    lines = ["| source | keys |", "|---|---|"]
    common = ("source", "class_list", "train", "test")
    for name, keys in {**own, **config.DATASET}.items():
        further = [
            f"`{key}`" + (" (required)" if keys[key][1] is REQUIRED else "")
            for key in keys
            if key not in common
        ]
        lines.append(f"| {name} | {', '.join(further)} |")
    parts += ["\n".join(lines), "All have " + ", ".join(f"`{key}`" for key in common) + "."]
    # Where sources differ in a default, the table above says what is required.
    neutral = {key: (check, None) for key, (check, _) in fields.items()}
    neutral |= {
        "source": (config._choice(*config.DATASET), REQUIRED),
        "scale": config.DATASET["npz"]["scale"],
        "channels": config.DATASET["folder"]["channels"],
        "download": config.DATASET["cifar10"]["download"],
        "coarse": config.DATASET["cifar100"]["coarse"],
        "train": (config._integer(1), None),
        "test": (config._integer(1), None),
    }
    parts.append(table(neutral, DATASET))
    parts += [
        "## recipes", "How networks are trained, by name.", table(config.RECIPE, RECIPE),
        "## grids", "Each is the Cartesian product of its lists; a network in two grids is trained "
        "once, from the seeds of both.", table(config.GRID, GRID),
        "## external", "Networks of your own, by name ([how](your-network.md)). Paths start at the "
        "working directory.", table(config.EXTERNAL, EXTERNAL),
        "## measure", table(config.MEASURE, MEASURE),
        f"`inputs`: {MEASURE_INPUTS}.",
        table(config.MEASURE_INPUTS, {
            key: "networks of your own" if key == "external" else f"types {key}, with any suffix"
            for key in config.MEASURE_INPUTS
        }),
        "## gradients", "Gradients at initialisation, of plain networks and, for each beta, residual "
        "ones; and of the grids' own networks.",
    ]  # fmt: skip
    for name, keys in config.GRADIENTS.items():
        parts += [f"### {name}", GRADIENTS[name].capitalize() + ".", table(keys, SHARED)]
    parts += [
        "## unconstrained_jacobians", "[The model](methods.md#the-unconstrained-jacobians-model) of "
        "free matrices.", table(config.UNCONSTRAINED_JACOBIANS, UNCONSTRAINED_JACOBIANS),
        "## figures", "Which figures the study has, by name, and what each shows.",
    ]  # fmt: skip
    lines = ["| shows | what to give | figures |", "|---|---|---|"]
    for kind, words in FIGURES.items():
        names = ", ".join(name for name, shows in config.FIGURES.items() if shows == kind)
        lines.append(f"| {f'`{kind}`' if kind else ''} | {words} | {names} |")
    return "\n\n".join([*parts, "\n".join(lines)]) + "\n"
