"""Image data as arrays, whole, from their files: what `datasets.prepare` cuts to a study.

Every reader returns the arrays x_train, x_test (uint8, N x H x W x channels), y_train, y_test
(int64, counted from 0 in the order of classes), classes (names) and scale (the pixel value that
becomes 1). torchvision reads and downloads what it knows. Nothing is written beside the user's
files, and nothing downloaded, unless the entry says `download: true`.
"""

import contextlib
import fcntl
import gzip
import hashlib
import os
import pickle
import shutil
import socket
import tarfile
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from .data_sources import (
    IMAGENETTE,
    base_folder,
    class_names,
    find,
    folder_splits,
    missing,
    variants,
)
from .errors import UserError

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
DOWNLOAD_TIMEOUT = 60  # seconds without a byte


def read(entry, data_root):
    """The arrays of a config `datasets` entry, all classes and images."""
    if entry["source"] == "digits":
        return digits()
    if entry["source"] == "npz":
        path = Path(data_root) / entry["path"]
        return own_file(path, entry.get("scale") or 255, entry.get("size"))
    if entry["source"] == "folder":
        return image_folder(entry, data_root)
    return public(entry, data_root)


def digits():
    """The 1797 handwritten digits (8 x 8, values 0..16) that scikit-learn ships, split once and for
    all: 1500 / 297."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    x = data.images[order].astype(np.uint8)[..., None]
    y = data.target[order].astype(np.int64)
    return {
        "x_train": x[:1500], "y_train": y[:1500], "x_test": x[1500:], "y_test": y[1500:],
        "classes": np.array([str(name) for name in data.target_names]), "scale": 16.0,
    }  # fmt: skip


def own_file(path, scale, size=None):
    """The arrays of a user's `.npz`, images resized to size x size where it is given; raises
    UserError where one is missing or of another kind than documented."""
    path = Path(path)
    if not path.is_file():
        raise UserError(
            f"data file {path}: not found; expected an .npz with {', '.join(ARRAYS)} "
            "and optionally classes"
        )
    if not zipfile.is_zipfile(path):
        raise UserError(f"data file {path}: is no .npz (np.savez makes one)")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except Exception as error:
        raise UserError(
            f"data file {path}: cannot be read as .npz without pickles ({error})"
        ) from None
    missing_arrays = [name for name in ARRAYS if name not in arrays]
    if missing_arrays:
        raise UserError(
            f"data file {path}: lacks {', '.join(missing_arrays)}; "
            f"found {', '.join(sorted(arrays)) or 'nothing'}"
        )
    if "classes" not in arrays:
        arrays["classes"] = np.arange(arrays["y_train"].max(initial=0) + 1)
    arrays = checked(arrays | {"scale": float(scale)}, f"data file {path}")
    if size is not None:
        channels = arrays["x_train"].shape[3]
        if channels not in (1, 3):
            raise UserError(f"data file {path}: {channels} channels; size is for images of 1 or 3")
        for split in ("train", "test"):
            arrays[f"x_{split}"] = all_resized(arrays[f"x_{split}"], size)
    return arrays


def checked(arrays, where):
    """The arrays in the documented layout; raises UserError where they do not have it."""
    if arrays["classes"].ndim != 1:
        raise UserError(
            f"{where}: classes has shape {arrays['classes'].shape}; expected one name a class"
        )
    for split in ("train", "test"):
        x, y = arrays[f"x_{split}"], arrays[f"y_{split}"]
        if x.ndim == 3:
            x = arrays[f"x_{split}"] = x[..., None]
        if x.ndim != 4 or x.dtype != np.uint8 or len(x) == 0:
            raise UserError(
                f"{where}: x_{split} is {x.dtype} of shape {x.shape}; "
                "expected uint8, N x H x W x channels"
            )
        if y.shape != (len(x),) or not np.issubdtype(y.dtype, np.integer):
            raise UserError(
                f"{where}: y_{split} is {y.dtype} of shape {y.shape}; expected {len(x)} integers"
            )
        if y.min() < 0 or y.max() >= len(arrays["classes"]):
            raise UserError(
                f"{where}: y_{split} holds labels {y.min()} to {y.max()}; "
                f"expected 0 to {len(arrays['classes']) - 1}, one per entry of classes"
            )
        arrays[f"y_{split}"] = y.astype(np.int64)
    if arrays["x_train"].shape[1:] != arrays["x_test"].shape[1:]:
        raise UserError(
            f"{where}: training images are {arrays['x_train'].shape[1:]} but test images "
            f"{arrays['x_test'].shape[1:]}; expected one shape"
        )
    return arrays | {"classes": arrays["classes"].astype(str)}


# --- Folders of images.


def image_folder(entry, data_root):
    """The arrays of an entry of source folder: train/CLASS/IMAGE and test/CLASS/IMAGE (or val/)."""
    train, test, names = folder_splits(entry, data_root)
    return labelled_images(train, test, names, entry["size"], entry.get("channels") or 3)


def labelled_images(train, test, names, size, channels, classes=None):
    """The arrays of two folders that hold a folder of images for each name; classes: what to call
    them instead."""
    from PIL import Image
    from torchvision.datasets import ImageFolder

    arrays = {"classes": np.array(names if classes is None else classes), "scale": 255.0}
    for split, folder in (("train", train), ("test", test)):
        try:
            files = ImageFolder(folder, allow_empty=True)
        except Exception as error:
            raise UserError(f"{folder}: {said(error)}; expected a folder a class") from None
        x, y = [], []
        for path, label in files.samples:
            try:
                with Image.open(path) as image:
                    if image.mode.startswith(("I", "F")):
                        raise ValueError(f"mode {image.mode}; expected 8 bits a channel")
                    image = image.convert("L" if channels == 1 else "RGB")
            except Exception as error:
                raise UserError(f"{path}: cannot be read as an image ({said(error)})") from None
            x.append(resized(image, size))
            y.append(names.index(files.classes[label]))
        if not x:
            raise UserError(f"{folder}: no image; expected PNG or JPEG files in a folder a class")
        x = np.stack(x)
        arrays[f"x_{split}"] = x if x.ndim == 4 else x[..., None]
        arrays[f"y_{split}"] = np.array(y)
    return checked(arrays, f"images in {train.parent}")


def resized(image, size):
    """uint8 size x size (x 3): the largest central square, bilinear over all the pixels that one
    of the result covers (antialiased)."""
    from PIL import Image, ImageOps

    return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR))


def all_resized(x, size):
    """uint8 N x size x size (x 3) or (x 1), each image `resized`."""
    from PIL import Image

    images = x[..., 0] if x.shape[-1] == 1 else x
    return np.stack([resized(Image.fromarray(image), size) for image in images]).reshape(
        len(x), size, size, *x.shape[3:]
    )


# --- Public data sets.


def public(entry, data_root):
    """The arrays of an entry of one of SOURCES."""
    found = find(entry, data_root)
    if found is None:
        if not entry.get("download"):
            raise UserError(missing(entry, data_root))
        download(entry, data_root)
        found = find(entry, data_root)
    source, files = found
    where = f"{source.title} in {next(iter(files.values())).parent}"
    # torchvision reads them from its own layout in a folder of links: the user's folder, which may
    # not be writable, stays as it is.
    with TemporaryDirectory() as folder:
        try:
            unpack(source, files, Path(folder))
            read_files = read_imagenette if entry["source"] == "imagenette" else read_torchvision
            arrays = read_files(entry, source, folder)
        except UserError:
            raise
        except Exception as error:  # torchvision's differ from data set to data set
            damaged = "a file is damaged or not the official one"
            reason = damaged if isinstance(error, RuntimeError) else said(error)
            raise UserError(f"{where}: cannot be read ({reason})") from None
    for split, count in (("train", source.train), ("test", source.test)):
        if len(arrays[f"x_{split}"]) != count:
            raise UserError(
                f"{where}: {len(arrays[f'x_{split}'])} {split} images; expected {count}: "
                "the files are incomplete or not the official ones"
            )
    return checked(arrays, where)


def unpack(source, files, folder):
    """The files of a Source, {name: path}, in torchvision's layout in the folder: linked, or
    unpacked where they are packed."""
    if source.archive in files:
        # By hand, since Pythons before 3.11.4 know no filter that keeps names inside the folder.
        with tarfile.open(files[source.archive]) as archive:
            for member in filter(tarfile.TarInfo.isreg, archive):
                path = (folder / member.name).resolve()
                if not path.is_relative_to(folder.resolve()):
                    raise ValueError(f"{member.name!r} would be written outside the folder")
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.extractfile(member) as packed, open(path, "wb") as plain:
                    shutil.copyfileobj(packed, plain)
        return
    target = folder / source.folder
    target.mkdir(parents=True, exist_ok=True)
    for name, path in files.items():
        if path.suffix == ".gz":
            with gzip.open(path) as packed, open(target / name, "wb") as plain:
                shutil.copyfileobj(packed, plain)
        else:
            (target / name).symlink_to(path.resolve())


def read_torchvision(entry, source, folder):
    from torchvision import datasets as torchvision_datasets

    arrays = {"classes": np.array(class_names(entry)), "scale": 255.0}
    for split, arguments in zip(("train", "test"), source.splits, strict=True):
        data = getattr(torchvision_datasets, source.torchvision)(folder, **arguments)
        x = np.asarray(data.data)
        if source.torchvision == "SVHN":
            x, y = x.transpose(0, 2, 3, 1), data.labels
        elif entry.get("coarse"):
            # torchvision has compared the checksums, so that this is safe to unpickle.
            path = Path(folder, source.folder, split)
            y = pickle.loads(path.read_bytes(), encoding="latin1")["coarse_labels"]
        else:
            y = data.targets
        if entry.get("size"):
            x = all_resized(x, entry["size"])
        arrays[f"x_{split}"], arrays[f"y_{split}"] = np.ascontiguousarray(x), np.asarray(y)
    return arrays


def read_imagenette(entry, source, folder):
    train, test = (Path(folder, source.folder, name) for name in source.files)
    size = entry.get("size") or source.shape[1]
    return labelled_images(train, test, list(IMAGENETTE), size, 3, source.classes)


def download(entry, data_root):
    """Let torchvision fetch the files of an entry of SOURCES into the user's data folder.

    They arrive in a folder of their own and are then moved, so that a file that is there is whole.
    """
    from torchvision import datasets as torchvision_datasets

    source, base = variants(entry)[0], base_folder(entry, data_root)
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(DOWNLOAD_TIMEOUT)
    try:
        base.mkdir(parents=True, exist_ok=True)
        # Jobs for other classes of the same data wait, and find them.
        with open(base / ".download.lock", "w") as lock:
            with contextlib.suppress(OSError):  # of a file system without locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            if find(entry, data_root) is not None:
                return
            with TemporaryDirectory(dir=base, prefix=".download-") as folder:
                for arguments in source.splits:
                    fetch = getattr(torchvision_datasets, source.torchvision)
                    fetch(folder, download=True, **arguments, **source.arguments)
                (base / source.folder).mkdir(parents=True, exist_ok=True)
                for name in source.files:
                    if not (base / source.folder / name).exists():
                        os.rename(Path(folder, source.folder, name), base / source.folder / name)
    except Exception as error:  # torchvision's differ from data set to data set
        raise UserError(
            f"download: {source.title} cannot be fetched into {base} ({said(error)}); without a "
            f"network, put {', '.join(source.files)} into {base / source.folder} yourself"
        ) from None
    finally:
        socket.setdefaulttimeout(timeout)


def said(error):
    """What an exception says, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


# --- Where arrays came from.


def checksums(entry, data_root):
    """{path: SHA-256} of what `read` reads; of a folder, that of its files' names and SHA-256s in
    order; of the digits, that of their pixels and labels."""
    if entry["source"] == "digits":
        arrays = digits()
        content = b"".join(arrays[name].tobytes() for name in ARRAYS)
        return {"scikit-learn's digits": hashlib.sha256(content).hexdigest()}
    if entry["source"] == "npz":
        paths = [Path(data_root) / entry["path"]]
    elif entry["source"] == "folder":
        paths = folder_splits(entry, data_root)[:2]
    else:
        paths = find(entry, data_root)[1].values()
    return {str(path): sha256(path) for path in paths}


def sha256(path):
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.is_file())
        lines = [f"{sha256(each)}  {each.relative_to(path).as_posix()}\n" for each in files]
        return hashlib.sha256("".join(lines).encode()).hexdigest()
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
