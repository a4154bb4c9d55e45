"""The explorer used as a reader would: chosen, pointed at, clicked, typed; numbers compared."""

import numpy as np
import pytest

import synthetic
from resnet_mechanisms.explorer import collect, page

SMALL = {"inputs": 3, "classes": 3}
STUDY = {
    "digits/c3/fc-resnet/d6-w128/strong_decay": dict(skip="resnet", depth=6, statuses=("ok", "ok")),
    "digits/c3/fc-plain/d6-w128/strong_decay": dict(
        skip="plain", depth=6, statuses=("ok", "diverged")
    ),
    "external/mine": dict(skip="resnet", depth=4, statuses=("ok",), type="external", recipe="mine",
                          c=2.0),
}  # fmt: skip


def datasets():
    found = {}
    for path, how in STUDY.items():
        data = synthetic.spectra(**SMALL, **how)
        # Every seed, epoch and input apart from the others, and the blocks of two shapes in one.
        for index, name in ((0, "seed"), (1, "epoch"), (3, "input")):
            shape = [1] * 6
            shape[index] = data.sizes[name]
            data["singular_values"] *= 1 + 0.1 * (index + 1) * np.arange(shape[index]).reshape(
                shape
            )
        found[path] = data.assign(input_sample=("input", [0, 10, 20]))
    found["external/mine"].alignment_matrix[:, :, :2, 2:] = np.nan
    return found


MINE = "mine (own network), L = 4, digits, 3 classes"
CLAIMS = [
    {"claim": "a line", "paper": "Li & Papyan 2023", "statement": "It is a line", "value": 1.01,
     "low": 1, "high": 1.02, "statistic": "line_shape_score", "threshold": "<= 1.1",
     "origin": "pilot", "verdict": "reproduced", "status": "ok", "table": "residual_alignment",
     "query": "depth > 1", "figures": ["ra_depth"],
     "evidence": {"networks": list(STUDY)[1:], "columns": ["depth", "line_shape_score"],
                  "rows": [[6, 1.01], [4, None]], "count": 7}},
    {"claim": "worse", "paper": "He et al. 2016", "statement": "They train worse", "value": None,
     "low": None, "high": None, "statistic": "difference", "threshold": ">= 0", "origin": "paper",
     "verdict": "inconclusive", "status": "no rows", "table": "degradation", "query": "depth > 1",
     "figures": [], "evidence": None},
]  # fmt: skip


def write(folder, **how):
    networks = [collect.configuration(data) for data in datasets().values()]
    for path, (entry, _) in zip(STUDY, networks, strict=True):
        entry["path"] = path
    page.write(folder / "explorer.html", folder / "explorer", networks, CLAIMS, **how)
    return folder / "explorer.html"


@pytest.fixture(scope="module")
def explorer(tmp_path_factory):
    return write(tmp_path_factory.mktemp("explorer"))


@pytest.fixture
def shown(open_page, explorer):
    """The page, opened and drawn."""
    with open_page(explorer) as browser:
        browser.wait_for_selector("body[data-ready]")
        yield browser


def panel(browser, side):
    return browser.get_by_role("region", name=f"{side} network")


def choose(region, label, option):
    """Choose from a list of a panel, by the option's text, and wait for what it shows."""
    region.get_by_label(label, exact=True).select_option(label=option)
    region.page.wait_for_selector("body[aria-busy=false]")


def plotted(browser, side, name, axis="y"):
    """The numbers of a plot's traces."""
    return browser.evaluate(
        f"Array.from(document.querySelector('[data-side={side}] [data-plot={name}]').data,"
        f" (t) => Array.from(t.{axis}, (v) => Array.isArray(v) ? Array.from(v) : v))"
    )


def expected(path, **where):
    return datasets()[path].sel({k: v for k, v in where.items() if k != "input"}).isel(
        {k: v for k, v in where.items() if k == "input"}
    )  # fmt: skip


def test_numbers_follow_the_choice(shown):
    """Configuration, seed, epoch, split and input: singular values and 1/s_1 are the Dataset's."""
    resnet, plain, mine = STUDY
    left, right = panel(shown, "Left"), panel(shown, "Right")
    where = {"seed": 10, "epoch": 100, "split": "train", "input": 0}

    def check(side, path):
        s = expected(path, **where).singular_values
        # Traces from the last rank to the first; 1 over the first, of this input, before the last.
        found = np.array(plotted(shown, side, "values"), float)[::-1]
        np.testing.assert_allclose(found, s.transpose("rank", "block"), rtol=1e-3, atol=1e-6)
        inverse = 1 / s.isel(rank=0)
        np.testing.assert_allclose(plotted(shown, side, "inverse")[-1], inverse, rtol=1e-3)
        data = datasets()[path].sel(seed=where["seed"], epoch=where["epoch"])
        path_of = data.trajectory.sel(projection="pca").isel(sample=[0, 10, 20][where["input"]])
        if where["split"] == "train":
            np.testing.assert_allclose(
                plotted(shown, side, "paths")[-1], path_of.isel(component=1), rtol=1e-3, atol=1e-5
            )

    check("a", resnet)
    check("b", plain)
    choose(left, "Seed", "11")
    where["seed"] = 11
    check("a", resnet)
    assert "diverged" in right.get_by_role("status").inner_text()  # it follows, and says so
    assert not right.locator(".views").is_visible()
    choose(left, "Seed", "10")
    where["seed"] = 10
    choose(left, "Epoch", "50")
    where["epoch"] = 50
    check("a", resnet)
    choose(left, "Input", "3")
    where["input"] = 2
    check("a", resnet)
    where["epoch"] = 100
    check("b", plain)  # the input is shared, the epoch is not
    choose(left, "Images", "test")
    where["split"] = "test"
    check("b", plain)
    shown.get_by_label("same seed, split and input").uncheck()
    choose(right, "Images", "training")
    where |= {"split": "train"}
    check("b", plain)
    assert left.get_by_label("Images", exact=True).input_value() == "1"
    choose(right, "Network", MINE)
    where |= {"input": 0}
    check("b", mine)
    assert "mine (own network)" in right.get_by_role("heading", level=2).inner_text()


def test_scores_and_fit(shown):
    """Of the aligned network, in closed form: slope 1, line-shape score 1, alignment 1."""
    left = panel(shown, "Left")
    rows = dict(
        (cells[0], cells[1:])
        for cells in (
            row.locator("th, td").all_inner_texts()
            for row in left.locator(".scores tbody tr").all()
        )
    )
    assert rows["line-shape score (1: straight)"] == ["1.000", "1.000"]
    assert rows["alignment (1: perfect, 0: unrelated)"] == ["1.000", "1.000"]
    s = datasets()[next(iter(STUDY))].sel(seed=10, epoch=100, split="train").isel(input=0, rank=0)
    slope = np.polyfit(np.arange(1, 7), 1 / s.singular_values.values, 1)[0]
    assert f"This input (filled): slope {slope:.3f}, R² 1.000" in left.inner_text()


def test_alignment_grid_is_pointed_at_and_clicked(shown):
    right = panel(shown, "Right")
    choose(right, "Network", MINE)
    grid = shown.locator("[data-side=b] [data-plot=grid]")
    scores = "document.querySelector('[data-side=b] [data-plot=grid]').data[0].z"
    found = np.array(shown.evaluate(scores), float)
    # One basis, and singular values 1.2 times the matrices' at this epoch; blank (not 0) where the
    # shape has changed.
    assert np.isnan(found[:2, 2:]).all() and found.shape == (4, 4)
    np.testing.assert_allclose(found[2:, 2:], 1 / 1.2, rtol=1e-3)

    def place(i, j):
        return grid.evaluate(
            "(g, [i, j]) => { const b = g.getBoundingClientRect(), { xaxis: x, yaxis: y } ="
            " g._fullLayout; return [b.x + x._offset + x.d2p(j), b.y + y._offset + y.d2p(i)]; }",
            [i, j],
        )

    grid.scroll_into_view_if_needed()
    shown.mouse.move(*place(3, 2))
    label = grid.locator(".hoverlayer")
    label.get_by_text("i = 3, j = 2").wait_for()
    assert f"alignment {found[2, 1]:.3f}" in label.text_content()
    shown.mouse.click(*place(4, 3))
    right.get_by_text("i = 4, j = 3: alignment 0.833").wait_for()
    assert right.get_by_label("Block i", exact=True).input_value() == "4"
    cell = shown.evaluate(
        "document.querySelector('[data-side=b] [data-plot=cell]').data[0].customdata"
    )
    matrix = expected("external/mine", seed=10, epoch=100).alignment_matrix
    wanted = np.abs(matrix.sel(row_block=4, column_block=3).values)
    np.testing.assert_allclose(np.array(cell, float), wanted, rtol=0.02, atol=2e-4)
    right.get_by_label("Block i", exact=True).fill("1")
    right.get_by_label("Block i", exact=True).press("Tab")
    right.get_by_text("i = 1, j = 3: states of different shape").wait_for()


def test_claims_are_filtered_and_show_their_evidence(shown):
    section = shown.get_by_role("region", name="Claims and what came of them")
    assert "2 of 2 claims" in section.inner_text()
    section.get_by_label("Verdict", exact=True).select_option("inconclusive")
    assert "1 of 2 claims" in section.inner_text() and "It is a line" not in section.inner_text()
    assert "No evidence in this study" in section.inner_text()
    section.get_by_label("Verdict", exact=True).select_option("")
    section.get_by_label("Paper", exact=True).select_option("Li & Papyan 2023")
    assert "line_shape_score = 1.01 [1, 1.02], passes if <= 1.1" in section.inner_text()
    section.get_by_text("Evidence: 7 rows of residual_alignment").click()
    section.get_by_role("table").wait_for()  # browsers tell of an opened box a moment later
    cells = section.locator("table td").all_inner_texts()
    assert cells == ["6", "1.01", "4", ""] and "first 2 of 7 rows" in section.inner_text()
    assert (
        section.get_by_role("link", name="ra_depth").get_attribute("href") == "figures/ra_depth.png"
    )
    section.get_by_label("Show external/mine on the left").click()
    panel(shown, "Left").get_by_role("heading", name="mine (own network)").wait_for()
    assert "external%2Fmine%4010%40100%40train%401" in shown.url


def test_by_keyboard_alone(shown):
    """From the address bar on: skip to the networks, then every control in its order."""
    shown.keyboard.press("Tab")
    assert shown.evaluate("document.activeElement.textContent") == "Skip to the networks"
    seen = []
    for _ in range(26):
        shown.keyboard.press("Tab")
        seen.append(shown.evaluate(
            "(document.activeElement.dataset && document.activeElement.dataset.name)"
            " || document.activeElement.id || document.activeElement.tagName"
        ))  # fmt: skip
        outline = shown.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", seen
    order = ["filter", "number", "seed", "epoch", "split", "input", "twin", "i", "j"]
    assert [name for name in seen if name in order] == order * 2
    panel(shown, "Left").get_by_label("Epoch", exact=True).focus()
    shown.keyboard.press("ArrowUp")
    shown.wait_for_selector("body[aria-busy=false]")
    assert panel(shown, "Left").get_by_label("Epoch", exact=True).input_value() == "0"
    values = np.array(plotted(shown, "a", "values"), float)[::-1]
    s = expected(next(iter(STUDY)), seed=10, epoch=50, split="train", input=0).singular_values
    np.testing.assert_allclose(values, s.transpose("rank", "block"), rtol=1e-3, atol=1e-6)


def test_twin_and_filter(shown):
    left, right = panel(shown, "Left"), panel(shown, "Right")
    choose(right, "Network", MINE)
    assert right.get_by_role("button", name="twin").is_disabled()
    left.get_by_role("button", name="twin").click()
    right.get_by_role("heading", name="plain network, fc, L = 6").wait_for()
    right.get_by_label("Filter networks", exact=True).fill("own")
    names = right.get_by_label("Network", exact=True).locator("option").all_inner_texts()
    assert names == ["plain network, fc, L = 6, width 128, strong decay",
                     MINE]  # fmt: skip


def test_the_address_holds_the_view(open_page, explorer):
    fragment = "#a=external%2Fmine%4010%4050%40test%402%403%401&b=unknown"
    with open_page(explorer, fragment=fragment) as browser:
        browser.wait_for_selector("body[data-ready]")
        left = panel(browser, "Left")
        assert left.get_by_label("Epoch", exact=True).input_value() == "0"
        assert left.get_by_label("Input", exact=True).input_value() == "1"
        assert "i = 3, j = 1" in left.inner_text()


@pytest.mark.parametrize("width", [360, 820])
def test_small_screens(open_page, explorer, width):
    """Nothing is wider than the screen, and the panels lie below each other."""
    with open_page(explorer, width=width, height=740) as browser:
        browser.wait_for_selector("body[data-ready]")
        browser.get_by_text("Evidence: 7 rows").click()
        browser.locator("#claims").get_by_role("table").wait_for()
        assert browser.evaluate("document.documentElement.scrollWidth") <= width
        boxes = [panel(browser, side).bounding_box() for side in ("Left", "Right")]
        assert boxes[0]["x"] == boxes[1]["x"] and boxes[0]["y"] < boxes[1]["y"]
        assert boxes[0]["width"] > 0.9 * (width - 40)


def test_a_large_study_reads_what_is_asked_for(open_page, tmp_path):
    """Beyond the budget data come from files, each when its network is chosen; one that is missing
    is told."""
    path = write(tmp_path, budget=0)
    assert len(list((tmp_path / "explorer").iterdir())) == 3
    (tmp_path / "explorer/2.js").rename(tmp_path / "elsewhere.js")
    with open_page(path) as browser:
        browser.wait_for_selector("body[data-ready]")
        asked = "Array.from(document.querySelectorAll('script[src]'), (s) => s.src)"
        names = [name.rpartition("/")[2] for name in browser.evaluate(asked)]
        assert sorted(names) == ["0.js", "1.js"]
        (tmp_path / "elsewhere.js").rename(tmp_path / "explorer/2.js")
        right = panel(browser, "Right")
        choose(right, "Network", MINE)
        right.get_by_role("heading", name="mine (own network)").wait_for()
        s = expected("external/mine", seed=10, epoch=100, split="train", input=0).singular_values
        found = np.array(plotted(browser, "b", "values"), float)[::-1]
        np.testing.assert_allclose(found, s.transpose("rank", "block"), rtol=1e-3, atol=1e-6)
