"""Data preparation: the embedded digits, a user's own file, and every mistake in one line."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

from resnet_mechanisms.datasets import load, prepare
from resnet_mechanisms.errors import UserError


def test_digits_are_scikit_learns_images_split_once():
    arrays = prepare({"source": "digits"}, 10)
    assert arrays["x_train"].shape == (1500, 8, 8, 1) and arrays["x_test"].shape == (297, 8, 8, 1)
    both = np.concatenate([arrays["x_train"], arrays["x_test"]])[..., 0]
    ours = sorted(map(bytes, both))
    assert ours == sorted(map(bytes, load_digits().images.astype(np.uint8)))
    assert arrays["scale"] == 16 and arrays["x_train"].max() == 16


def test_first_classes_and_subset_sizes():
    whole = prepare({"source": "digits"}, 3)
    assert set(whole["y_train"]) == {0, 1, 2} and len(whole["classes"]) == 3
    all_ten = prepare({"source": "digits"}, 10)
    assert len(whole["y_train"]) == (all_ten["y_train"] < 3).sum()
    small, larger = (prepare({"source": "digits", "train": n, "test": 20}, 3) for n in (50, 60))
    assert len(small["y_train"]) == 50 and len(small["y_test"]) == 20
    assert np.array_equal(larger["x_train"][:50], small["x_train"])


SIZES = {"train": 12, "test": 6}


@pytest.fixture
def own(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"classes": np.array(["cat", "dog"])}
    for split, n in SIZES.items():
        arrays[f"x_{split}"] = rng.integers(0, 256, (n, 5, 5, 3), dtype=np.uint8)
        arrays[f"y_{split}"] = np.arange(n) % 2

    def write(**changes):
        path = tmp_path / "own.npz"
        np.savez(path, **{k: v for k, v in (arrays | changes).items() if v is not None})
        return {"source": "npz", "path": "own.npz"}

    return write


def test_names_of_classes_are_optional(own, tmp_path):
    assert prepare(own(classes=None), 2, tmp_path)["classes"].tolist() == ["0", "1"]


def test_own_file_and_pixels(own, tmp_path):
    arrays = prepare(own(), 2, tmp_path)
    np.savez(tmp_path / "out.npz", **arrays)
    images = load(tmp_path / "out.npz")
    assert images.classes == ["cat", "dog"] and images.x_train.shape == (12, 3, 5, 5)
    expected = arrays["x_train"][4, 1, 2, 0] / 255
    assert images.x_train[4, 0, 1, 2].item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_own_images_resized(own, tmp_path, channels):
    """Against torch's antialiased bilinear interpolation, to a grey level: PIL rounds twice."""
    rng = np.random.default_rng(1)
    x = {f"x_{s}": rng.integers(0, 256, (n, 8, 8, channels), np.uint8) for s, n in SIZES.items()}
    arrays = prepare(own(**x) | {"size": 4}, 2, tmp_path)
    assert arrays["x_test"].shape == (6, 4, 4, channels)
    images = torch.tensor(x["x_train"]).permute(0, 3, 1, 2).float()
    expected = F.interpolate(images, size=(4, 4), mode="bilinear", antialias=True)
    found = torch.tensor(arrays["x_train"]).permute(0, 3, 1, 2)
    assert (found - expected).abs().max() <= 1.5
    assert (expected - expected.mean()).abs().max() > 20  # there is something to get wrong
    flat = dict(x_train=np.zeros((12, 5, 5, 2), np.uint8), x_test=np.zeros((6, 5, 5, 2), np.uint8))
    with pytest.raises(UserError, match="2 channels; size is for images of 1 or 3"):
        prepare(own(**flat) | {"size": 4}, 2, tmp_path)


@pytest.mark.parametrize("changes, message", [
    (dict(y_test=None), "lacks y_test; found classes, x_test"),
    (dict(x_train=np.zeros((12, 5, 5, 3))), "x_train is float64 of shape"),
    (dict(y_train=np.zeros(3, int)), "y_train is int64 of shape .3,.; expected 12 integers"),
    (dict(y_train=np.arange(12)), "labels 0 to 11; expected 0 to 1"),
    (dict(x_test=np.zeros((6, 4, 4, 3), np.uint8)), "expected one shape"),
    (dict(classes=np.array(3)), "classes has shape .*; expected one name a class"),
    (dict(y_test=np.zeros(6, int)), "test: no image of class dog among 6"),
])  # fmt: skip
def test_mistakes_in_an_own_file(own, tmp_path, changes, message):
    with pytest.raises(UserError, match=message):
        prepare(own(**changes), 2, tmp_path)


def test_missing_damaged_or_pickled_files(own, tmp_path):
    with pytest.raises(UserError, match="nowhere.npz: not found; expected an .npz with x_train"):
        prepare({"source": "npz", "path": "nowhere.npz"}, 2, tmp_path)
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(UserError, match="text.npz: is no .npz"):
        prepare({"source": "npz", "path": "text.npz"}, 2, tmp_path)
    with pytest.raises(UserError, match="without pickles"):
        prepare(own(classes=np.array([{}, {}], dtype=object)), 2, tmp_path)


def test_too_many_classes_or_images():
    with pytest.raises(UserError, match="11 classes asked for, but the data have 10"):
        prepare({"source": "digits"}, 11)
    with pytest.raises(UserError, match="train: 2000 images asked for, but 10 classes have 1500"):
        prepare({"source": "digits", "train": 2000}, 10)
