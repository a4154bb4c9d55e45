"""What jobs cost before they run: seconds on one core and megabytes, from the configuration alone.

Plain arithmetic without torch, so that the workflow can ask while it plans. The rates are those of
one core of a server processor; compare with results/benchmarks (`make bench`) on yours.
"""

import math
from contextlib import suppress
from functools import cache
from zipfile import ZipFile

from .config import GRADIENTS
from .data_sources import SOURCES
from .network_types import base, convolutional, crelu, stage
from .stems import stem_of

PRODUCTS = 9e10  # flop/s of large matrix products and convolutions in float32
MEMORY_BOUND = 4e10  # flop/s of what streams bases, or batches of states, through memory
STARTED = 3.5, 570  # seconds and megabytes of a process that has imported torch
EIGENPROBLEM = 4e-4  # seconds for all eigenvectors of 64 x 64 in float64
# Vectors the Lanczos solver takes together: fewer need fewer products, more make each cheaper; the
# inputs in lock step make them cheap already.
BLOCK = 2
BLOCK_STEP = 4e-4  # seconds a block step of the Lanczos solver takes beside its arithmetic
# (channels, H, W, training images) of data that need not be looked at.
SHAPES = {"digits": (1, 8, 8, 1500)}
SHAPES |= {name: (*source.shape, source.train) for name, source in SOURCES.items()}


@cache
def _npz_shape(path):
    """(channels, H, W, images) of an .npz, from the header of x_train, without reading it."""
    from numpy.lib import format as npy

    with ZipFile(path) as archive, archive.open("x_train.npy") as file:
        read = {1: npy.read_array_header_1_0, 2: npy.read_array_header_2_0}
        shape, *_ = read[npy.read_magic(file)[0]](file)
    count, height, width, *channels = shape
    return (*channels, 1)[0], height, width, count


def image_shape(entry, path=None):
    """(channels, H, W, training images) of a data set entry, all classes; `path` of its file where
    it has one. A folder, and a file that cannot be read, count as ten thousand images, the latter
    of 32 x 32: what is wrong with it is for the job to say."""
    shape = SHAPES.get(entry["source"], (entry.get("channels") or 3, 32, 32, 10_000))
    if path is not None:
        with suppress(Exception):
            shape = _npz_shape(path)
    channels, height, width, count = shape
    if entry.get("size"):
        height = width = entry["size"]
    return channels, height, width, entry.get("train") or count


def blocks_of(network, shape):
    """(n_out, n_in, flops of one product with J, convolutional) of every block."""
    kind, depth, width = network["type"], network["depth"], network["width"]
    if not convolutional(kind):
        n = 2 * width if crelu(kind) else width
        return [(n, n, 4 * width * n, False)] * depth
    side = shape[1] if base(kind) == "cifar" else stem_of(shape[1]).state
    out, channels = [], width
    for block in range(1, depth + 1):
        n_in, before = channels * side**2, channels
        channels = width * 2 ** stage(kind, depth, block)
        if channels > before:
            side = (side + 1) // 2
        flops = 18 * side**2 * (before * channels + channels**2)
        out.append((channels * side**2, n_in, flops, True))
    return out


def basis_size(count):
    """Vectors the Lanczos solver keeps before a restart: a multiple of the block, twice the number
    wanted and some, at least 20."""
    return -(-max(2 * count + 4, 20) // BLOCK) * BLOCK


def svd_seconds(n_out, n_in, flops, count, together, core=None):
    """Seconds for `count` triplets of one input by (the dense route, Lanczos), without the
    certificate; infinite where a route is closed.

    together: inputs in lock step. core: open hidden units of a fully connected block, to which the
    dense route reduces its matrix.
    """
    n = min(n_out, n_in)
    if core is None:
        dense = 2e-4 + 3e-10 * n**3 + n_in * flops / PRODUCTS
    else:
        core = min(n, core)
        dense = 2e-4 + 3e-10 * core**3 + 2e-10 * n * core**2
    size = basis_size(count)
    if size + 2 * BLOCK > n:
        return dense, math.inf
    products = 8 * count + 60  # spectra that fall fast take half, flat ones twice as many
    arithmetic = products * (flops / PRODUCTS + 2 * size * (n_in + n_out) / MEMORY_BOUND)
    steps = products / (2 * BLOCK) * BLOCK_STEP / together
    return dense, arithmetic + steps + EIGENPROBLEM * (size / 64) ** 3


def vectors_taken(classes):
    """Triplets computed of every Jacobian: C + 5."""
    return classes + 5


def vectors_shown(classes):
    """Triplets whose alignment matrices are kept for the pictures: C + 5, at most 30."""
    return min(vectors_taken(classes), 30)


def paths_kept(classes):
    """Images whose paths are kept for the pictures: ten of a class, at most 200."""
    return min(10 * classes, 200)


def numbers_held(sizes, count):
    """Numbers that the measurement of one input holds until all blocks are aligned: `count`
    triplets, gates, states. sizes: (n_out, n_in) of every block."""
    return sum((count + 3) * (n_out + n_in) for n_out, n_in in sizes)


def shape_of(study, network):
    """`image_shape` of the data that a network of a config.Study is trained on."""
    name = network["dataset"]
    return image_shape(study.datasets[name], study.data_file(name))


def spectra_cost_in(study, network):
    """`spectra_cost` of a network of a config.Study."""
    recipe, shape = study.recipes[network["recipe"]], shape_of(study, network)
    return spectra_cost(network, recipe, network["classes"], study.measure, shape)


def spectra_cost(network, recipe, classes, measure, shape):
    """(seconds, megabytes) of the job that measures one network configuration.

    Args:
        network: type, depth, width, seeds. recipe: its checkpoints (epochs kept beside the last).
        classes: C. measure: inputs (per type), memory_mb. shape: (channels, H, W, images).
    """
    blocks = blocks_of(network, shape)
    depth, ranks = len(blocks), classes - 1
    count, shown, paths = vectors_taken(classes), vectors_shown(classes), paths_kept(classes)
    inputs = 2 * measure["inputs"][base(network["type"])]
    budget = measure["memory_mb"] * 1e6
    each = 4 * numbers_held([block[:2] for block in blocks], count)

    seconds = 0.2
    is_convolutional = convolutional(network["type"])
    for n_out, n_in, flops, _ in blocks:
        core = None if is_convolutional else n_in / 2
        together = max(1, min(inputs, int(1e6 / (basis_size(count) * (n_out + n_in) / 5))))
        svd = min(svd_seconds(n_out, n_in, flops, count, together, core))
        # ||J||_F: probes of a convolutional block, the matrix of a fully connected one.
        probes = min(n_in, 512) if is_convolutional else n_in / 4
        aligned = (2 * depth + 2) * ranks * (1 if is_convolutional else 0.5)  # and two other inputs
        seconds += inputs * (svd + (2 * count + probes + aligned) * flops / PRODUCTS)
        seconds += inputs * depth * 2e-5 + 2 * depth * shown * flops / PRODUCTS
        seconds += (shape[3] + paths) * flops / MEMORY_BOUND
    networks = len(network["seeds"]) * (1 + len(recipe.get("checkpoints") or []))

    pictures = 4 * depth**2 * shown**2 * 4
    widest = max(max(n_out, n_in) for n_out, n_in, *_ in blocks)
    held = min(inputs * each, budget / 2) + 25e6
    products = min(budget / 8, 2 * inputs * depth * ranks * 8 * widest)
    projected = paths * (depth + 1) * widest * 20
    features = min(budget / 8, 24 * widest * min(2000, shape[3]))
    # Of a fully connected block: as trained, with batch norm folded in, transposed.
    weights = 0 if is_convolutional else sum(10 * flops for _, _, flops, _ in blocks)
    images = 6 * math.prod(shape)
    peak = max(held + products, projected, features) + weights + images + pictures * networks
    return STARTED[0] + networks * seconds, STARTED[1] + peak / 1e6


# --- Training and gradients.

LAYER = {False: 3e-4, True: 1.7e-3}  # seconds a block of a step takes beside its arithmetic
TRAINING = {False: 5.5e10, True: 5.7e10}  # flop/s of a step, by convolutional
EVALUATION = 5e10  # flop/s of images forward
PENALISED = 1.8  # a step with a penalty on the path over one without, whose gradient is written out
TRAINER = 710  # megabytes of a process that trains, before its images and network


def weights_of(network, shape):
    """Number of weights of the stem, the blocks and the classifier, about."""
    count = 0
    for block, (n_out, _, flops, is_convolutional) in enumerate(blocks_of(network, shape), 1):
        channels = network["width"] * 2 ** stage(network["type"], network["depth"], block)
        # flops: two for each weight and each pixel it is applied at.
        count += flops / 2 / (n_out / channels if is_convolutional else 1)
    side = 25 if convolutional(network["type"]) else math.prod(shape[1:3])
    return count + network["width"] * (shape[0] * side + network["classes"])


def epochs_of(recipe, images):
    """(steps, evaluations) of a training, without the checkpoints."""
    steps_per_epoch = max(1, images // recipe["batch_size"])
    epochs = recipe["epochs"]
    if recipe["steps"] is not None:
        epochs = round(recipe["steps"] / steps_per_epoch)
    return epochs * steps_per_epoch, epochs // recipe["evaluate_every"]


def images_of(network, shape, all_classes=10):
    """Training images of the classes a network is trained on, about: a data set whose number of
    classes is not known is taken to have ten."""
    return max(1, shape[3] * min(network["classes"], all_classes) // all_classes)


def train_cost(network, recipe, shape):
    """(seconds, megabytes) of the job that trains one network configuration from all its seeds.

    Args:
        network: type, depth, width, classes, seeds. recipe: resolved. shape: (channels, H, W,
        images).
    """
    blocks, images = blocks_of(network, shape), images_of(network, shape)
    is_convolutional = convolutional(network["type"])
    steps, evaluations = epochs_of(recipe, images)
    forward = sum(flops for _, _, flops, _ in blocks)
    step = 5e-4 + len(blocks) * LAYER[is_convolutional]
    step += 3 * forward * min(recipe["batch_size"], images) / TRAINING[is_convolutional]
    if recipe["path_energy"] or recipe["step_alignment"]:
        step *= PENALISED
    kept = 1 + len(recipe["checkpoints"])
    evaluation = 1.2 * images * forward / EVALUATION + 0.002 * len(blocks)
    # A checkpoint evaluates once more, and runs the images through to re-estimate batch norm.
    seed = steps * step + (evaluations + 3 * kept) * evaluation
    seconds = STARTED[0] + len(network["seeds"]) * seed

    widest = max(n_out for n_out, *_ in blocks)
    # Kept for the backward pass: five tensors of a block; of an evaluation, four of the widest.
    states = max(5 * recipe["batch_size"] * sum(n_out for n_out, *_ in blocks), 4 * 2000 * widest)
    weights = weights_of(network, shape) * (4 + 2 * kept * len(network["seeds"]))
    pixels = 2 * 1.2 * math.prod(shape[:3]) * images
    return seconds, TRAINER + 4 * (states + weights + pixels) / 1e6


def train_cost_in(study, network):
    """`train_cost` of a network of a config.Study."""
    return train_cost(network, study.recipes[network["recipe"]], shape_of(study, network))


def gradients_cost_in(study, network):
    """(seconds, megabytes) of the job that measures gradients of a network of a config.Study."""
    recipe, shape = study.recipes[network["recipe"]], shape_of(study, network)
    settings, blocks = study.gradients["networks"], blocks_of(network, shape)
    forward = sum(flops for _, _, flops, _ in blocks)
    outputs = min(network["classes"], 20)
    # Before training and at each checkpoint: a gradient of each output at every image and its noisy
    # copy, and some steps on the batch, one after another.
    passes = 6 * settings["inputs"] * outputs + 40 * settings["batch"] + 3 * shape[3]
    networks = len(network["seeds"]) * (2 + len(recipe["checkpoints"]))
    overhead = 0.02 * len(blocks) * (3 if convolutional(network["type"]) else 1)
    seconds = STARTED[0] + networks * (passes * forward / EVALUATION + overhead)
    states = 8 * max(settings["batch"], 500) * sum(n_out for n_out, *_ in blocks)
    _, megabytes = train_cost(network, recipe, shape)
    return seconds, megabytes + 4 * states / 1e6


# --- Jobs that are not of one network.

# Seconds with the default settings, megabytes, and which settings of `gradients` scale the seconds.
OF_STUDY = {
    "prepare_data": (3.0, 600, None),
    "gradient_theorems": (31.0, 1200, "theorems"),
    "gradient_toy": (11.0, 650, "toy"),
    "gradient_activations": (10.0, 630, "activations"),
    "gradient_paths": (6.5, 610, "paths"),
    "gradient_linear_regions": (10.0, 610, "linear_regions"),
    "effective_rank": (60.0, 1500, "effective_rank"),
    "unconstrained_model": (9.0, 600, None),
    "measure_external": (120.0, 2000, None),  # of a network nobody has looked at: a guess
    "table": (1.0, 300, None),
    "finished_table": (0.1, 300, None),
    "claims_table": (3.0, 300, None),
    "explorer": (20.0, 300, None),
    "figures": (3.0, 300, None),
}


def _volume(settings):
    """Random networks times inputs, modules and width^2; plain, and residual at every beta."""
    inputs = settings.get("batch") or settings["points"]
    networks = settings.get("networks") or settings["runs"]
    kinds = 1 + len(settings["beta"])
    return networks * inputs * sum(settings["depth"]) * kinds * settings["width"] ** 2


def study_cost(rule, study):
    """(seconds, megabytes) of a job by its rule's name, one of OF_STUDY."""
    seconds, megabytes, settings = OF_STUDY[rule]
    if settings is not None:
        default = {key: value for key, (_, value) in GRADIENTS[settings].items()}
        seconds *= _volume(study.gradients[settings]) / _volume(default)
    return seconds, megabytes


# --- Disk.


def disk_of_training(network, recipe, shape):
    """Bytes of checkpoints and of the states they are made from."""
    kept = len(network["seeds"]) * (1 + len(recipe["checkpoints"]))
    return 2 * kept * (4 * weights_of(network, shape) + 2000 * network["depth"]) + 50_000


def disk_of_spectra(network, recipe, classes, shape, inputs):
    """Bytes of spectra.nc: alignment matrices, paths, and the rest."""
    depth, shown = network["depth"], vectors_shown(classes)
    kept = len(network["seeds"]) * (1 + len(recipe["checkpoints"]))
    pictures = 2 * depth**2 * shown**2
    paths = 4 * paths_kept(classes) * (depth + 1)
    values = 2 * inputs * depth * (2 * vectors_taken(classes) + 8)
    return 100_000 + 4 * kept * 0.9 * (pictures + paths + values)
