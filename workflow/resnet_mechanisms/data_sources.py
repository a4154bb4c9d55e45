"""The image data that can be named in a study: classes, sizes, and where their files lie.

Plain Python, so that a mistake is told, and costs are planned, before anything is read. The files
are read by `data_readers`.
"""

import difflib
import math
from dataclasses import dataclass, field, replace
from pathlib import Path

from .errors import UserError

IDX = (
    "train-images-idx3-ubyte", "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte",
)  # fmt: skip
DIGIT_NAMES = tuple("0123456789")
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
CIFAR10 = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
CIFAR100 = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle",
    "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can", "castle",
    "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud", "cockroach", "couch",
    "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant", "flatfish", "forest", "fox",
    "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower", "leopard", "lion",
    "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom",
    "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree",
    "plain", "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail", "snake",
    "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table", "tank",
    "telephone", "television", "tiger", "tractor", "train", "trout", "tulip", "turtle",
    "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
)  # fmt: skip
CIFAR100_COARSE = (
    "aquatic_mammals", "fish", "flowers", "food_containers", "fruit_and_vegetables",
    "household_electrical_devices", "household_furniture", "insects", "large_carnivores",
    "large_man-made_outdoor_things", "large_natural_outdoor_scenes",
    "large_omnivores_and_herbivores", "medium_mammals", "non-insect_invertebrates", "people",
    "reptiles", "small_mammals", "trees", "vehicles_1", "vehicles_2",
)  # fmt: skip
IMAGENETTE = {
    "n01440764": "tench", "n02102040": "English springer", "n02979186": "cassette player",
    "n03000684": "chain saw", "n03028079": "church", "n03394916": "French horn",
    "n03417042": "garbage truck", "n03425413": "gas pump", "n03445777": "golf ball",
    "n03888257": "parachute",
}  # fmt: skip
# Shorter side of the images, torchvision's name of the archive, its folder.
IMAGENETTE_SIZES = (
    (160, "160px", "imagenette2-160"),
    (320, "320px", "imagenette2-320"),
    (math.inf, "full", "imagenette2"),
)


@dataclass(frozen=True)
class Source:
    """A public data set as torchvision knows it.

    shape is (channels, H, W), train and test count images; files (or folders) lie in `folder` below
    the user's data folder, or still packed in `archive`. also: other places, other_names: other
    names of classes.
    """

    title: str
    torchvision: str
    shape: tuple
    train: int
    test: int
    classes: tuple
    files: tuple
    folder: str = "."
    archive: str | None = None
    arguments: dict = field(default_factory=dict)
    splits: tuple = ({"train": True}, {"train": False})
    also: tuple = ()
    other_names: dict = field(default_factory=dict)
    hint: str = ""


SOURCES = {
    "mnist": Source(
        "MNIST", "MNIST", (1, 28, 28), 60000, 10000, DIGIT_NAMES, IDX, "MNIST/raw"
    ),
    "fashion_mnist": Source(
        "Fashion-MNIST", "FashionMNIST", (1, 28, 28), 60000, 10000, FASHION, IDX,
        "FashionMNIST/raw", also=("/usr/share/datasets/fashion-mnist",),
        hint="install Debian's package dataset-fashion-mnist, which puts them into "
        "/usr/share/datasets/fashion-mnist",
    ),
    "cifar10": Source(
        "CIFAR-10", "CIFAR10", (3, 32, 32), 50000, 10000, CIFAR10,
        (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"),
        "cifar-10-batches-py", "cifar-10-python.tar.gz",
        other_names={"car": "automobile", "plane": "airplane"},
    ),
    "cifar100": Source(
        "CIFAR-100", "CIFAR100", (3, 32, 32), 50000, 10000, CIFAR100, ("train", "test", "meta"),
        "cifar-100-python", "cifar-100-python.tar.gz",
    ),
    "svhn": Source(
        "SVHN", "SVHN", (3, 32, 32), 73257, 26032, DIGIT_NAMES,
        ("train_32x32.mat", "test_32x32.mat"), splits=({"split": "train"}, {"split": "test"}),
    ),
    "imagenette": Source(
        "ImageNette", "Imagenette", (3, 32, 32), 9469, 3925, tuple(IMAGENETTE.values()),
        ("train", "val"), splits=({"split": "train"}, {"split": "val"}), other_names=IMAGENETTE,
    ),
}  # fmt: skip


def class_names(entry):
    """The names of all classes of a data set entry, or None where only its files tell."""
    if entry["source"] == "digits":
        return DIGIT_NAMES
    if entry["source"] not in SOURCES:
        return None
    return CIFAR100_COARSE if entry.get("coarse") else SOURCES[entry["source"]].classes


def class_order(entry, names):
    """Indices into `names` of the entry's `class_list`, or of all of them in their order.

    A class may be given by another name of its source; case, - and _ do not matter.
    """

    def plain(name):
        return str(name).casefold().replace("_", " ").replace("-", " ")

    if entry.get("class_list") is None:
        return list(range(len(names)))
    index = {}
    for other, name in getattr(SOURCES.get(entry["source"]), "other_names", {}).items():
        if name in names:
            index[plain(other)] = names.index(name)
    index |= {plain(name): number for number, name in enumerate(names)}
    order = []
    for name in entry["class_list"]:
        if plain(name) not in index:
            near = difflib.get_close_matches(plain(name), list(index), n=1, cutoff=0.5)
            hint = f"did you mean {names[index[near[0]]]}" if near else f"valid: {', '.join(names)}"
            raise UserError(f"class_list: no class {name!r}; {hint}{'?' if near else ''}")
        if index[plain(name)] in order:
            raise UserError(f"class_list: expected each class once, found {name!r} twice")
        order.append(index[plain(name)])
    return order


def variants(entry):
    """The forms, best first, in which the files of an entry of SOURCES may come.

    ImageNette comes in three sizes: the smallest that is at least as large as the images wanted.
    """
    source = SOURCES[entry["source"]]
    if entry["source"] != "imagenette":
        return [source]
    return [
        replace(source, folder=folder, archive=f"{folder}.tgz", arguments={"size": size})
        for side, size, folder in IMAGENETTE_SIZES
        if side >= (entry.get("size") or source.shape[1])
    ]


def base_folder(entry, data_root):
    """Where the files of an entry of SOURCES are looked for, and downloaded to."""
    return Path(data_root, entry.get("path") or ".")


def places(entry, source, data_root):
    """The folders in which the files of a Source may lie: torchvision's and, with a `path`, the
    path itself, without one where packages put them."""
    base = base_folder(entry, data_root)
    if entry.get("path"):
        return [base, base / source.folder]
    return [base / source.folder, *map(Path, source.also)]


def lying_in(source, folder):
    """{name: path} of those files of a Source that lie in the folder, packed by gzip or not."""
    found = {name: (folder / name, folder / f"{name}.gz") for name in source.files}
    found = {name: [path for path in paths if path.exists()] for name, paths in found.items()}
    return {name: paths[0] for name, paths in found.items() if paths}


def find(entry, data_root):
    """(Source, {name: path}) of an entry whose files are all there, packed or not; else None.

    Of an archive the name is its own.
    """
    for source in variants(entry):
        for place in places(entry, source, data_root):
            found = lying_in(source, place)
            if len(found) == len(source.files):
                return source, found
        if source.archive and (archive := base_folder(entry, data_root) / source.archive).is_file():
            return source, {source.archive: archive}
    return None


def missing(entry, data_root):
    """What to say where `find` has found nothing."""
    source = variants(entry)[0]
    place = max(places(entry, source, data_root), key=lambda place: len(lying_in(source, place)))
    lacking = [name for name in source.files if name not in lying_in(source, place)]
    packed = " (or .gz)" if source.files == IDX else ""
    ways = ["set download: true", "put them there"]
    if source.archive:
        ways.append(f"put {source.archive} into {base_folder(entry, data_root)}")
    if source.hint:
        ways.append(source.hint)
    return (
        f"no {source.title} in {place}: lacks {', '.join(lacking)}{packed}; "
        f"{', '.join(ways[:-1])} or {ways[-1]}"
    )


def folder_splits(entry, data_root):
    """The train and test folders of an entry of source folder, which hold a folder a class, and the
    names of the classes; raises UserError where they are not there."""
    base = Path(data_root, entry["path"])
    if not base.is_dir():
        raise UserError(
            f"path: no folder {base} (data_root: {data_root}); "
            "expected one that holds train/CLASS/IMAGE and test/CLASS/IMAGE (or val/)"
        )
    train, *tests = (base / name for name in ("train", "test", "val"))
    test = next((folder for folder in tests if folder.is_dir()), tests[0])
    for folder in (train, test):
        if not folder.is_dir():
            there = sorted(path.name for path in base.iterdir() if path.is_dir())
            raise UserError(
                f"path: no folder {folder}; expected train/ and test/ (or val/) in {base}, "
                f"found {', '.join(there) or 'no folder'}"
            )
    names, others = (
        [each.name for each in sorted(folder.iterdir()) if each.is_dir()]
        for folder in (train, test)
    )
    if not names:
        raise UserError(f"path: no folder in {train}; expected one a class, holding its images")
    for name in others:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"path: class {name} in {test} is none of {train}{hint}")
    return train, test, names
