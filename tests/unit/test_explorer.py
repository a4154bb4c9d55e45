"""What the explorer's page holds: numbers within the stated rounding, evidence, the budget."""

import base64
import json
import re
import zlib

import numpy as np
import pandas as pd
import pytest

import synthetic
from resnet_mechanisms import claims
from resnet_mechanisms.explorer import collect, page


def unpacked(item):
    """The numbers of a packed array, as the page reads them."""
    if "half" in item:
        numbers = np.frombuffer(base64.b64decode(item["half"]), "<f2").astype(float)
        return numbers.reshape(item["shape"]) * item["scale"]
    code = np.frombuffer(base64.b64decode(item["log"]), np.uint8).astype(float)
    values = item["scale"] * 10 ** (-collect.DECADES * (255 - code) / 253)
    values[code == 1], values[code == 0] = 0, np.nan
    return values.reshape(item["shape"])


def opened(text):
    return json.loads(zlib.decompress(base64.b64decode(text)))


def test_rounding_is_what_the_page_says():
    """Half precision: 2^-11 relative down to 2^-14 of the largest, half of 2^-24 below; bytes: half
    a step, 10^(2/253) - 1 = 1.8 %, down to 10^-4 of the largest, then 0."""
    rng = np.random.default_rng(0)
    values = (10 ** rng.uniform(-9, 2, (40, 50)) * rng.choice([-1, 1], (40, 50))).astype("f4")
    values[3, 4] = np.nan
    top = np.nanmax(np.abs(values))
    found = unpacked(collect.packed(values))
    error = np.abs(found - values)
    assert np.isnan(found[3, 4]) and np.isnan(error).sum() == 1
    assert np.nanmax(error - np.maximum(2.0**-11 * np.abs(values), 2.0**-25 * top)) < 1e-6 * top
    found = unpacked(collect.packed_magnitudes(values))
    size = np.abs(values)
    large = size > 1.02e-4 * top
    assert np.abs(found[large] / size[large] - 1).max() < 10 ** (2 / 253) - 1 + 1e-3
    assert np.all(found[size < 0.97e-4 * top] == 0) and np.isnan(found[3, 4])
    for empty in (np.zeros((2, 3)), np.full((2, 3), np.nan)):
        np.testing.assert_array_equal(unpacked(collect.packed(empty)), empty)
        np.testing.assert_array_equal(unpacked(collect.packed_magnitudes(empty)), empty)


def test_a_network_in_the_page_is_its_dataset():
    data = synthetic.spectra(depth=5, statuses=("ok", "dead"))
    entry, content = collect.configuration(data)
    assert entry["status"] == [["ok", "ok"], ["dead", "dead"]] and entry["epochs"] == [50, 100]
    content = opened(collect.compressed(content))
    arrays = {name: unpacked(item) for name, item in content["arrays"].items()}
    for name in ("singular_values", "trajectory", "line_shape_score", "inverse_slope", "line_r2"):
        expected = data[name].values
        scale = np.nanmax(np.abs(expected))
        np.testing.assert_allclose(arrays[name], expected, rtol=5e-4, atol=3e-8 * scale)
    # Of an aligned network, closed form: all pairs have the vectors of all others.
    np.testing.assert_allclose(arrays["pairs"][0], 1, rtol=1e-3)
    assert np.isnan(arrays["pairs"][1]).all()
    shown = np.abs(data.alignment_matrix.values[..., : collect.SHOWN, : collect.SHOWN])
    np.testing.assert_allclose(arrays["alignment_matrix"], shown, rtol=0.02)
    assert content["labels"] == data.sample_label.values.tolist()


def test_alignment_across_a_change_of_shape_is_blank():
    data = synthetic.spectra(depth=4)
    data.alignment_matrix[:, :, :2, 2:] = np.nan
    _, content = collect.configuration(data)
    pairs = unpacked(content["arrays"]["pairs"])
    assert np.isnan(pairs[:, :, :2, 2:]).all() and np.isfinite(pairs[:, :, 2:, 2:]).all()
    cells = unpacked(content["arrays"]["alignment_matrix"])
    assert np.isnan(cells[:, :, :2, 2:]).all() and np.isfinite(cells[:, :, 2:, 2:]).all()


CLAIM = {
    "claim": "a line", "paper": "Li & Papyan 2023", "statement": "They lie on a line",
    "table": "residual_alignment", "rows": "skip == 'resnet' and split == 'train'",
    "statistic": "line_shape_score", "comparison": "<=", "threshold": 1.1, "origin": "pilot",
    "conditions": [{"statistic": "alignment", "comparison": ">=", "threshold": 0.5}],
}  # fmt: skip


def test_evidence_is_what_the_verdict_was_judged_on():
    rows = [synthetic.score_rows(skip="resnet", depth=d, epoch=e) for d in (4, 8) for e in (1, 100)]
    rows.append(synthetic.score_rows(synthetic.PLAIN, skip="plain"))
    external = synthetic.score_rows(skip="resnet", depth=3)
    external[["type", "recipe"]] = "external", "mine"
    table = pd.concat([*rows, external], ignore_index=True)
    frames = {"residual_alignment": table}
    paths = [f"digits/c10/fc-resnet/d{depth}-w128/strong_decay" for depth in (4, 8)]
    (found,) = collect.claims_of([CLAIM], frames, [*paths, "external/mine"], ["ra_depth"])
    expected = claims.evaluate([CLAIM], frames).iloc[0]
    assert (found["verdict"], found["value"]) == (expected.verdict, expected.value)
    assert found["figures"] == ["ra_depth"] and found["evidence"]["count"] == 9
    assert found["evidence"]["networks"] == [*paths, "external/mine"]
    shown = pd.DataFrame(found["evidence"]["rows"], columns=found["evidence"]["columns"])
    assert {"depth", "seed", "line_shape_score", "alignment", "status"} <= {*shown.columns}
    judged = claims.select("c", table, CLAIM["rows"])
    np.testing.assert_allclose(shown.line_shape_score, judged.line_shape_score)
    assert shown.depth.tolist() == judged.depth.tolist()
    (absent,) = collect.claims_of([CLAIM], {}, paths, [])
    assert absent["evidence"] is None and absent["verdict"] == "inconclusive"


def entries(*networks):
    base = {"dataset": "d", "classes": 3, "type": "fc", "width": 8, "recipe": "r", "seeds": [0]}
    base |= {"status": [["ok"]], "train_accuracy": 1.0}
    return [base | network for network in networks]


@pytest.mark.parametrize(
    ("networks", "pair"),
    [
        ([{"skip": "plain", "depth": 8}, {"skip": "resnet", "depth": 8}], [1, 0]),
        # Both fitted comes before depth; a twin of another recipe will do.
        (
            [
                {"skip": "resnet", "depth": 8},
                {"skip": "plain", "depth": 8, "train_accuracy": 0.5},
                {"skip": "resnet", "depth": 4}, {"skip": "plain", "depth": 4, "recipe": "s"},
            ],
            [2, 3],
        ),
        ([{"skip": "resnet", "depth": 8}], [0, 0]),
        ([{"skip": "resnet", "depth": 8}, {"skip": "resnet", "depth": 4}], [0, 1]),
    ],
)  # fmt: skip
def test_what_is_shown_first(networks, pair):
    assert collect.default_pair(entries(*networks)) == pair


def networks(*depths):
    for depth in depths:
        entry, content = collect.configuration(synthetic.spectra(depth=depth, statuses=("ok",)))
        yield entry | {"path": f"d{depth}"}, content


def test_what_does_not_fit_lies_beside_the_page(tmp_path):
    """Within the budget all in one file; beyond it in files that hold the same; old ones go."""
    whole, folder = tmp_path / "explorer.html", tmp_path / "explorer"
    folder.mkdir()
    (folder / "7.js").write_text("old")
    page.write(whole, folder, networks(3, 4, 5), [])
    text = whole.read_text()
    inside = re.findall(r'<script id="data-(\d+)" type="text/plain">(.*?)</script>', text)
    assert [number for number, _ in inside] == ["0", "1", "2"] and not list(folder.iterdir())
    assert len(text) < page.BUDGET and "3 networks, and needs no network" in text
    small = len(text) - len(inside[1][1]) - len(inside[2][1])
    page.write(whole, folder, networks(3, 4, 5), [], budget=small)
    text = whole.read_text()
    assert re.findall(r'<script id="data-(\d+)"', text) == ["0"]
    assert sorted(file.name for file in folder.iterdir()) == ["1.js", "2.js"]
    assert "2 more networks lie in the folder explorer" in text
    for number in (1, 2):
        held = re.fullmatch(
            r'explorerData\((\d), "(.*)"\);\n', (folder / f"{number}.js").read_text()
        )
        assert held[1] == str(number) and opened(held[2]) == opened(inside[number][1])


def test_the_page_asks_for_nothing():
    """No address outside it but those within plotly, which asks for none of them by itself."""
    own = [collect.__file__.replace("collect.py", f"page.{kind}") for kind in ("html", "css", "js")]
    for path in own:
        with open(path, encoding="utf-8") as file:
            assert not re.search(r"https?://|@import|url\(", file.read()), path
