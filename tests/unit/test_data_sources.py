"""Public data sets and folders of images: every pixel and label from files in their true format,
and every mistake in one line. Nothing here reaches a network."""

import gzip
import hashlib
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torchvision.datasets
from PIL import Image

from helpers import ROOT
from resnet_mechanisms import costs, data_readers, data_sources
from resnet_mechanisms.datasets import prepare
from resnet_mechanisms.errors import UserError

SETS = list(data_sources.SOURCES)
TRAIN, TEST = 20, 10  # images, where a test writes the files
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
CIFAR = ROOT.parent / "shared/data"


@pytest.fixture(autouse=True)
def attempts(monkeypatch):
    """What asked for the network, which is not there."""
    asked = []

    def refuse(*arguments, **_):
        asked.append(arguments)
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return asked


# --- Small data sets in the true format.


def write_idx(folder, x, y, split, packed=False):
    """The two files of a split of MNIST: big-endian header, then bytes."""
    for kind, array in (("images-idx3", x), ("labels-idx1", y)):
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
        file = folder / f"{split}-{kind}-ubyte{'.gz' if packed else ''}"
        content = header + array.astype(np.uint8).tobytes()
        file.write_bytes(gzip.compress(content) if packed else content)


def write_pickle(file, content):
    file.write_bytes(pickle.dumps(content, protocol=2))
    return [file.name, hashlib.md5(file.read_bytes()).hexdigest()]


def flat(x):
    """Rows of 3072 bytes as in CIFAR: all of red, then green, then blue."""
    return np.ascontiguousarray(x.transpose(0, 3, 1, 2)).reshape(len(x), -1)


@pytest.fixture
def write(monkeypatch):
    """write(name, root): the files of a small data set of this name below root, as torchvision lays
    them out, and what is in them."""

    def small(name):
        rng = np.random.default_rng(SETS.index(name))
        channels, side, _ = data_sources.SOURCES[name].shape
        count = len(data_sources.SOURCES[name].classes)
        arrays = {}
        for split, n in (("train", TRAIN), ("test", TEST)):
            shape = (n, side, side, channels)
            arrays[f"x_{split}"] = rng.integers(0, 256, shape, dtype=np.uint8)
            arrays[f"y_{split}"] = np.arange(n) % min(count, 10)
        monkeypatch.setitem(
            data_sources.SOURCES,
            name,
            replace(data_sources.SOURCES[name], train=TRAIN, test=TEST),
        )
        return arrays

    def cifar(name, folder, a):
        official = getattr(torchvision.datasets, data_sources.SOURCES[name].torchvision)
        train, test = [], []
        if name == "cifar10":
            for i, part in enumerate(np.array_split(np.arange(TRAIN), 5), start=1):
                labels = a["y_train"][part].tolist()
                content = {"data": flat(a["x_train"][part]), "labels": labels}
                train.append(write_pickle(folder / f"data_batch_{i}", content))
            content = {"data": flat(a["x_test"]), "labels": a["y_test"].tolist()}
            test.append(write_pickle(folder / "test_batch", content))
            names = {"label_names": list(data_sources.CIFAR10)}
        else:
            for split, files in (("train", train), ("test", test)):
                labels = {"fine_labels": a[f"y_{split}"].tolist()}
                labels["coarse_labels"] = (19 - a[f"y_{split}"]).tolist()
                content = {"data": flat(a[f"x_{split}"]), **labels}
                files.append(write_pickle(folder / split, content))
            names = {"fine_label_names": list(data_sources.CIFAR100)}
        meta, checksum = write_pickle(folder / official.meta["filename"], names)
        monkeypatch.setattr(official, "train_list", train)
        monkeypatch.setattr(official, "test_list", test)
        monkeypatch.setattr(official, "meta", {**official.meta, "md5": checksum})

    def write(name, root):
        arrays, folder = small(name), Path(root) / data_sources.SOURCES[name].folder
        if name == "imagenette":
            folder = Path(root) / "imagenette2-160"
        folder.mkdir(parents=True, exist_ok=True)
        if name in ("mnist", "fashion_mnist"):
            for split, file in (("train", "train"), ("test", "t10k")):
                write_idx(folder, arrays[f"x_{split}"][..., 0], arrays[f"y_{split}"], file)
        elif name.startswith("cifar"):
            cifar(name, folder, arrays)
        elif name == "svhn":
            for split, known in torchvision.datasets.SVHN.split_list.items():
                if split != "extra":
                    labels = np.where(arrays[f"y_{split}"] == 0, 10, arrays[f"y_{split}"])
                    content = {"X": arrays[f"x_{split}"].transpose(1, 2, 3, 0)}
                    content["y"] = labels[:, None].astype(np.uint8)
                    scipy.io.savemat(folder / known[1], content)
                    checksum = hashlib.md5((folder / known[1]).read_bytes()).hexdigest()
                    monkeypatch.setitem(
                        torchvision.datasets.SVHN.split_list, split, [*known[:2], checksum]
                    )
        else:
            imagenette(folder, arrays)
        return arrays

    def imagenette(folder, arrays):
        """Pictures of one colour, wider than high or the reverse, with other margins."""
        for split, name in (("train", "train"), ("test", "val")):
            x = arrays[f"x_{split}"]
            x[:] = x[:, :1, :1] // 8 * 8
            order = np.argsort(arrays[f"y_{split}"], kind="stable")
            arrays[f"x_{split}"], arrays[f"y_{split}"] = x[order], arrays[f"y_{split}"][order]
            for i, (pixels, label) in enumerate(
                zip(arrays[f"x_{split}"], arrays[f"y_{split}"], strict=True)
            ):
                picture = np.empty((160, 240, 3), np.uint8)
                picture[:] = 255 - pixels[0, 0]
                picture[:, 24:216] = pixels[0, 0]  # more than the square: JPEG smears edges
                if i % 2:
                    picture = picture.transpose(1, 0, 2)
                wnid = list(data_sources.IMAGENETTE)[label]
                (folder / name / wnid).mkdir(parents=True, exist_ok=True)
                file = folder / name / wnid / f"{wnid}_{i:04}.JPEG"
                Image.fromarray(picture).save(file, "JPEG", quality=95)

    return write


def assert_same(arrays, expected, tolerance=0):
    for name in ("x_train", "x_test"):
        assert arrays[name].dtype == np.uint8 and arrays[name].shape == expected[name].shape
        difference = arrays[name].astype(int) - expected[name].astype(int)
        assert abs(difference).max() <= tolerance
    for name in ("y_train", "y_test"):
        assert arrays[name].dtype == np.int64
        assert arrays[name].tolist() == expected[name].tolist()


def entry_of(name, **keys):
    return {"source": name, **keys}


def tolerance_of(name):
    return 4 if name == "imagenette" else 0  # JPEG


# --- Public data sets.


@pytest.mark.parametrize("name", SETS)
def test_every_pixel_and_label(write, tmp_path, attempts, name):
    expected = write(name, tmp_path)
    before = sorted(tmp_path.rglob("*"))
    arrays = prepare(entry_of(name, download=False), 10, tmp_path)
    assert_same(arrays, expected, tolerance_of(name))
    assert tuple(arrays["classes"]) == data_sources.SOURCES[name].classes[:10]
    assert arrays["scale"] == 255
    assert sorted(tmp_path.rglob("*")) == before and attempts == []


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_packed_files_in_a_folder_of_their_own(write, tmp_path, name):
    expected = write(name, tmp_path / "made")
    (tmp_path / "flat").mkdir()
    for file in (tmp_path / "made" / data_sources.SOURCES[name].folder).iterdir():
        packed = gzip.compress(file.read_bytes(), 1)  # as Debian does: other bytes, same content
        (tmp_path / "flat" / f"{file.name}.gz").write_bytes(packed)
    assert_same(prepare(entry_of(name, path="flat"), 10, tmp_path), expected)
    assert_same(prepare(entry_of(name, path=str(tmp_path / "flat")), 10, "elsewhere"), expected)
    (tmp_path / "flat" / "t10k-labels-idx1-ubyte.gz").unlink()
    message = "lacks t10k-labels-idx1-ubyte .or .gz.; set download: true"
    with pytest.raises(UserError, match=message):
        prepare(entry_of(name, path="flat"), 10, tmp_path)


def test_where_packages_put_files(write, tmp_path, monkeypatch):
    expected = write("fashion_mnist", tmp_path / "made")
    place = str(tmp_path / "made/FashionMNIST/raw")
    source = replace(data_sources.SOURCES["fashion_mnist"], also=(place,))
    monkeypatch.setitem(data_sources.SOURCES, "fashion_mnist", source)
    assert_same(prepare(entry_of("fashion_mnist"), 10, tmp_path / "empty"), expected)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "imagenette"])
def test_archives_are_unpacked_elsewhere(write, tmp_path, attempts, name):
    expected = write(name, tmp_path / "made")
    source = data_sources.variants(entry_of(name))[0]
    with tarfile.open(tmp_path / source.archive, "w:gz") as archive:
        archive.add(tmp_path / "made" / source.folder, source.folder)
    shutil.rmtree(tmp_path / "made")
    assert_same(prepare(entry_of(name), 10, tmp_path), expected, tolerance_of(name))
    assert [path.name for path in tmp_path.iterdir()] == [source.archive] and attempts == []


def test_archives_stay_in_their_folder(tmp_path):
    """Neither a name with .. in it nor one behind a link leads out of where they are unpacked."""
    source = data_sources.variants(entry_of("cifar10"))[0]
    for name, linked in (("../outside", False), ("link/outside", True)):
        with tarfile.open(tmp_path / source.archive, "w:gz") as archive:
            if linked:
                link = tarfile.TarInfo("link")
                link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
                archive.addfile(link)
            archive.addfile(tarfile.TarInfo(name))
        folder = tmp_path / "inside" / str(linked)
        folder.mkdir(parents=True)
        if linked:
            data_readers.unpack(source, {source.archive: tmp_path / source.archive}, folder)
        else:
            with pytest.raises(ValueError, match="'../outside' would be written outside"):
                data_readers.unpack(source, {source.archive: tmp_path / source.archive}, folder)
    names = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("outside")}
    assert names == {"inside/True/link/outside"}


@pytest.mark.parametrize("name", SETS)
def test_missing_files(tmp_path, monkeypatch, attempts, name):
    source = replace(data_sources.SOURCES[name], also=())
    monkeypatch.setitem(data_sources.SOURCES, name, source)
    with pytest.raises(UserError) as raised:
        prepare(entry_of(name), 10, tmp_path / "data")
    said = str(raised.value)
    assert "\n" not in said and said.startswith(f"no {source.title} in {tmp_path / 'data'}")
    for part in (*source.files, "set download: true", "put them there"):
        assert part in said
    assert ("dataset-fashion-mnist" in said) == (name == "fashion_mnist")
    assert ("gz into" in said or "tgz into" in said) == (name not in ("svhn", *SETS[:2]))
    assert attempts == [] and not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", SETS)
def test_damaged_files(write, tmp_path, name):
    write(name, tmp_path)
    files = [path for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    file = next(path for path in files if "meta" not in path.name)
    file.write_bytes(file.read_bytes()[:-50])
    if name == "imagenette":
        file.write_bytes(b"no picture")
    with pytest.raises(UserError) as raised:
        prepare(entry_of(name), 10, tmp_path)
    said = str(raised.value)
    assert "\n" not in said and "cannot be read" in said and "download=True" not in said


def test_incomplete_files(write, tmp_path):
    write("imagenette", tmp_path)
    next(tmp_path.glob("imagenette2-160/val/*/*")).unlink()
    with pytest.raises(UserError, match="ImageNette in .*: 9 test images; expected 10: the files"):
        prepare(entry_of("imagenette"), 10, tmp_path)


@pytest.mark.parametrize("name", SETS)
def test_download(write, tmp_path, monkeypatch, attempts, name):
    """What torchvision fetches lands in the user's data folder, whole, once, with a time-out."""
    fetched, expected = [], {}

    def fetch(url, root, *_, **keys):
        assert socket.getdefaulttimeout() == data_readers.DOWNLOAD_TIMEOUT
        if not fetched:
            expected.update(write(name, tmp_path / "server"))
        fetched.append(url)
        server, root = tmp_path / "server", Path(root)
        if name in ("mnist", "fashion_mnist"):
            shutil.copy(server / data_sources.SOURCES[name].folder / keys["filename"][:-3], root)
        else:
            shutil.copytree(server, root, dirs_exist_ok=True)

    def fetch_named(url, download_root, **keys):
        fetch(url, download_root, **keys)

    for module in ("mnist", "cifar", "imagenette"):
        path = f"torchvision.datasets.{module}.download_and_extract_archive"
        monkeypatch.setattr(path, fetch if module != "mnist" else fetch_named)
    monkeypatch.setattr("torchvision.datasets.svhn.download_url", fetch)
    source = replace(data_sources.SOURCES[name], also=())
    monkeypatch.setitem(data_sources.SOURCES, name, source)
    data_root = tmp_path / "new" / "data"
    arrays = prepare(entry_of(name, download=True), 10, data_root)
    assert_same(arrays, expected, tolerance_of(name))
    count = len(fetched)
    again = prepare(entry_of(name, download=True), 10, data_root)
    assert_same(again, arrays)
    assert len(fetched) == count
    assert socket.getdefaulttimeout() is None
    left = [path.name for path in data_root.iterdir() if path.name.startswith(".download-")]
    assert left == [] and attempts == []


@pytest.mark.parametrize("name", SETS)
def test_failed_download(tmp_path, monkeypatch, attempts, name):
    source = replace(data_sources.SOURCES[name], also=())
    monkeypatch.setitem(data_sources.SOURCES, name, source)
    with pytest.raises(UserError) as raised:
        prepare(entry_of(name, download=True), 10, tmp_path)
    said = str(raised.value)
    assert "\n" not in said and "no network in tests" in said
    assert said.startswith(f"download: {source.title} cannot be fetched into {tmp_path} (")
    assert source.files[-1] in said and len(attempts) > 0
    assert [path.name for path in tmp_path.iterdir()] == [".download.lock"]


def test_other_size(write, tmp_path):
    expected = write("mnist", tmp_path)
    half = prepare(entry_of("mnist", size=14), 10, tmp_path)
    # Bilinear over what a pixel covers: weights 1 3 3 1 along each side.
    x = expected["x_train"][..., 0].astype(float)
    weights = np.array([1, 3, 3, 1]) / 8
    rows = sum(w * x[:, 1 + k : 25 + k : 2] for k, w in enumerate(weights))
    means = sum(w * rows[:, :, 1 + k : 25 + k : 2] for k, w in enumerate(weights))
    assert half["x_train"].shape == (TRAIN, 14, 14, 1)
    assert abs(half["x_train"][:, 1:-1, 1:-1, 0] - means).max() <= 1


def test_imagenette_of_the_size_wanted(write, tmp_path):
    write("imagenette", tmp_path)
    (tmp_path / "imagenette2-160").rename(tmp_path / "imagenette2")
    assert prepare(entry_of("imagenette", size=200), 10, tmp_path)["x_test"].shape[1] == 200
    assert prepare(entry_of("imagenette"), 3, tmp_path)["x_test"].shape[1:] == (32, 32, 3)
    folders = [source.folder for source in data_sources.variants(entry_of("imagenette", size=161))]
    assert folders == ["imagenette2-320", "imagenette2"]


# --- Classes.


def test_class_list_orders_the_classes_before_the_cut(write, tmp_path):
    expected = write("cifar10", tmp_path)
    authors = ["car", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck", "plane"]
    whole = prepare(entry_of("cifar10", class_list=authors), 10, tmp_path)
    assert whole["classes"].tolist() == [*data_sources.CIFAR10[1:], "airplane"]
    assert whole["y_train"].tolist() == ((expected["y_train"] - 1) % 10).tolist()
    assert np.array_equal(whole["x_train"], expected["x_train"])
    few = prepare(entry_of("cifar10", class_list=authors), 3, tmp_path)
    assert few["classes"].tolist() == ["automobile", "bird", "cat"]
    keep = np.isin(expected["y_train"], [1, 2, 3])
    # One transform throughout a sweep: the pixels do not depend on the classes.
    assert np.array_equal(few["x_train"], expected["x_train"][keep])
    assert few["y_train"].tolist() == (expected["y_train"][keep] - 1).tolist()
    part = prepare(entry_of("cifar10", class_list=["truck", "Ship"]), 2, tmp_path)
    assert part["classes"].tolist() == ["truck", "ship"] and set(part["y_test"]) == {0, 1}
    with pytest.raises(UserError, match="3 classes asked for, but class_list names 2"):
        prepare(entry_of("cifar10", class_list=["truck", "ship"]), 3, tmp_path)


def test_class_list_of_digits():
    whole = prepare({"source": "digits"}, 10)
    odd = prepare({"source": "digits", "class_list": ["7", "3"]}, 2)
    assert odd["classes"].tolist() == ["7", "3"]
    for label, digit in ((0, 7), (1, 3)):
        chosen, true = odd["y_train"] == label, whole["y_train"] == digit
        assert np.array_equal(odd["x_train"][chosen], whole["x_train"][true])


@pytest.mark.parametrize(("source", "class_list", "message"), [
    ("cifar10", ["cars", "bird"], "class_list: no class 'cars'; did you mean automobile?"),
    ("cifar10", ["zzz"], "class_list: no class 'zzz'; valid: airplane, automobile, bird, cat"),
    ("cifar10", ["plane", "airplane"], "expected each class once, found 'airplane' twice"),
    ("imagenette", ["n01440765"], "no class 'n01440765'; did you mean tench?"),
    ("cifar100", ["maple"], "no class 'maple'; did you mean apple?"),
])  # fmt: skip
def test_mistakes_in_a_class_list(source, class_list, message):
    entry = entry_of(source, class_list=class_list)
    with pytest.raises(UserError) as raised:
        data_sources.class_order(entry, data_sources.class_names(entry))
    assert message in str(raised.value)


def test_superclasses(write, tmp_path):
    expected = write("cifar100", tmp_path)
    classes = [data_sources.CIFAR100_COARSE[19 - i] for i in range(10)]
    arrays = prepare(entry_of("cifar100", coarse=True, class_list=classes), 10, tmp_path)
    assert_same(arrays, expected)
    assert arrays["classes"].tolist()[0] == "vehicles_2"
    assert len(data_sources.CIFAR100) == len(set(data_sources.CIFAR100)) == 100
    assert len(set(data_sources.CIFAR100_COARSE)) == 20


# --- Folders of images.


def picture(file, pixels):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def images(tmp_path):
    """A folder of 2 x 3 training and 2 x 1 test images of different shapes, and the centres."""
    rng = np.random.default_rng(0)
    centres = {"train": [], "test": []}
    for split, count in (("train", 3), ("test", 1)):
        for name in ("ant", "bee"):
            for i in range(count):
                pixels = rng.integers(0, 256, (8 + 2 * i, 8 + 4 * (i == 0), 3), dtype=np.uint8)
                picture(tmp_path / "own" / split / name / f"{i}.png", pixels)
                height, width = pixels.shape[:2]
                top, left = (height - 8) // 2, (width - 8) // 2
                centres[split].append(pixels[top : top + 8, left : left + 8])
    return {split: np.stack(pixels) for split, pixels in centres.items()}


def test_folder_of_images(images, tmp_path):
    entry = {"source": "folder", "path": "own", "size": 8}
    arrays = prepare(entry, 2, tmp_path)
    assert np.array_equal(arrays["x_train"], images["train"])
    assert np.array_equal(arrays["x_test"], images["test"])
    assert arrays["y_train"].tolist() == [0, 0, 0, 1, 1, 1]
    assert arrays["classes"].tolist() == ["ant", "bee"]
    grey = prepare({**entry, "channels": 1}, 2, tmp_path)["x_train"]
    luminance = images["train"] @ np.array([0.299, 0.587, 0.114])
    assert grey.shape == (6, 8, 8, 1) and abs(grey[..., 0] - luminance).max() <= 1
    (tmp_path / "own/test").rename(tmp_path / "own/val")
    bees = prepare({**entry, "class_list": ["bee", "ant"]}, 2, tmp_path)
    assert bees["classes"].tolist() == ["bee", "ant"]
    assert bees["y_train"].tolist() == [1, 1, 1, 0, 0, 0]
    small = prepare({**entry, "size": 4}, 2, tmp_path)
    assert small["x_train"].shape == (6, 4, 4, 3)


def test_mistakes_in_a_folder(images, tmp_path):
    entry = {"source": "folder", "path": "own", "size": 8}

    def said(keys=None):
        with pytest.raises(UserError) as raised:
            prepare({**entry, **(keys or {})}, 2, tmp_path)
        return str(raised.value)

    assert "path: no folder" in said({"path": "nowhere"}) and "data_root" in said({"path": "no"})
    assert "no class 'bea'; did you mean bee?" in said({"class_list": ["bea", "ant"]})
    picture(tmp_path / "own/test/ants/0.png", np.zeros((8, 8, 3), np.uint8))
    assert "class ants in" in said() and "did you mean ant?" in said()
    shutil.rmtree(tmp_path / "own/test/ants")
    (tmp_path / "own/train/bee/text.png").write_text("no picture")
    assert "text.png: cannot be read as an image" in said()
    deep = Image.fromarray(np.full((8, 8), 1000, np.uint16))
    deep.save(tmp_path / "own/train/bee/text.png")
    assert "expected 8 bits a channel" in said()
    (tmp_path / "own/train/bee/text.png").unlink()
    shutil.rmtree(tmp_path / "own/test/bee")
    assert "test: no image of class bee among 1" in said()
    shutil.rmtree(tmp_path / "own/test")
    assert "expected train/ and test/ (or val/)" in said() and "found train" in said()
    shutil.rmtree(tmp_path / "own/train")
    (tmp_path / "own/train").mkdir()
    (tmp_path / "own/test").mkdir()
    assert "expected one a class, holding its images" in said()


# --- Where data came from, and what they cost.


def test_checksums(write, images, tmp_path):
    write("mnist", tmp_path)
    sums = data_readers.checksums(entry_of("mnist"), tmp_path)
    assert sums == {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in (tmp_path / "MNIST/raw").iterdir()
    }
    entry = {"source": "folder", "path": "own", "size": 8}
    before = data_readers.checksums(entry, tmp_path)
    assert list(before) == [str(tmp_path / "own" / split) for split in ("train", "test")]
    (tmp_path / "own/test/bee/0.png").rename(tmp_path / "own/test/bee/1.png")
    after = data_readers.checksums(entry, tmp_path)
    assert [before[path] == after[path] for path in before] == [True, False]
    (only,) = data_readers.checksums({"source": "digits"}, ".").values()
    assert len(only) == 64


@pytest.mark.parametrize("name", ["digits", "fashion_mnist"])
def test_the_same_bytes_again(write, tmp_path, name):
    entry = '{"source": "digits"}'
    if name == "fashion_mnist":
        if not DEBIAN.is_dir():
            pytest.skip(f"no {DEBIAN}: Debian's package dataset-fashion-mnist is not installed")
        entry = '{"source": "fashion_mnist", "train": 500, "test": 100}'
    made = []
    for number in (1, 2):
        out = tmp_path / f"{number}.npz"
        command = [sys.executable, str(ROOT / "workflow/scripts/data.py"), "--dataset", entry]
        command += ["--name", name, "--classes", "10", "--out", str(out)]
        subprocess.run(command, check=True, cwd=tmp_path, env={**os.environ, "TZ": f"UTC{number}"})
        assert '"source_sha256": {' in out.with_name(f"{out.name}.provenance.json").read_text()
        made.append(out.read_bytes())
    assert made[0] == made[1]


def test_shapes_that_costs_are_planned_with():
    assert costs.image_shape({"source": "digits"}) == (1, 8, 8, 1500)
    assert costs.image_shape({"source": "digits", "train": 300}) == (1, 8, 8, 300)
    assert costs.image_shape({"source": "fashion_mnist", "train": None}) == (1, 28, 28, 60000)
    assert costs.image_shape({"source": "cifar100", "train": 500}) == (3, 32, 32, 500)
    assert costs.image_shape({"source": "imagenette", "size": 64}) == (3, 64, 64, 9469)
    assert costs.image_shape({"source": "folder", "channels": 1, "size": 9}) == (1, 9, 9, 10_000)


# --- The real thing, where it is.


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_fashion_mnist_of_debian():
    arrays = prepare(entry_of("fashion_mnist"), 10, "no such folder")
    assert arrays["x_train"].shape == (60000, 28, 28, 1) and len(arrays["x_test"]) == 10000
    assert (np.bincount(arrays["y_train"]) == 6000).all()
    assert arrays["y_train"][:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert arrays["x_train"].mean() == pytest.approx(72.94, abs=0.01)


@pytest.mark.parametrize("count", [10, 100])
def test_cifar_subsets(count):
    file = f"cifar{count}_subset.npz"
    if not (CIFAR / file).is_file():
        pytest.skip(f"no {CIFAR / file}: the project holds no CIFAR")
    names = data_sources.CIFAR10 if count == 10 else data_sources.CIFAR100
    entry = {"source": "npz", "path": file, "class_list": list(reversed(names)), "train": 200}
    arrays = prepare(entry, count // 2, CIFAR)
    assert tuple(arrays["classes"]) == names[::-1][: count // 2]
    with np.load(CIFAR / file) as official:
        assert tuple(official["classes"]) == names
        x, y = official["x_test"], official["y_test"]
    keep = y >= count // 2
    assert np.array_equal(arrays["x_test"], x[keep])
    assert np.array_equal(arrays["y_test"], count - 1 - y[keep])
