"""Figures drawn from made-up results: what their artists carry, what they say of undefined
networks, how they fail.
"""

import importlib
import itertools
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle
from matplotlib.text import Text

sys.path.insert(0, str(Path(__file__).parent))

import synthetic  # noqa: E402
from resnet_mechanisms import claims, tables  # noqa: E402
from resnet_mechanisms.errors import UserError  # noqa: E402
from resnet_mechanisms.figures import he1_degradation, ra_depth, style, sweeps  # noqa: E402

SCRIPT = Path(__file__).parents[2] / "workflow" / "scripts" / "figure.py"
CLAIMS = Path(__file__).parents[2] / "workflow" / "claims.yaml"
OF_ONE_NETWORK = [
    "ra1_trajectories",
    "ra2_alignment",
    "ra2_alignment_swapped",
    "ra3_singular_values",
    "ra4_inverse_singular_values",
]
RECIPES = {  # what figures with values of recipes on an axis are told
    "ra_stochastic_depth": {
        "strong_decay": {"stochastic_depth": 0.0, "stochastic_depth_per": "batch"},
        "dropped": {"stochastic_depth": 0.5, "stochastic_depth_per": "batch"},
        "per_sample": {"stochastic_depth": 0.5, "stochastic_depth_per": "sample"},
    },
    "ra_weight_decay": {
        "strong_decay": {"weight_decay": 0.01, "weight_decay_batch_norm": 0.01},
        "usual": {"weight_decay": 0.0005, "weight_decay_batch_norm": 0.0005},
        "off": {"weight_decay": 0.01, "weight_decay_batch_norm": 0.0},
        "only": {"weight_decay": 0.0, "weight_decay_batch_norm": 0.02},
    },
    "sg6_looks_linear": {
        "fast": {"initialisation": "looks_linear", "learning_rate": 0.01},
        "slow": {"initialisation": "looks_linear", "learning_rate": 0.001},
        "strong_decay": {"initialisation": "kaiming", "learning_rate": 0.1},
    },
    "sg_momentum": {
        "strong_decay": {"learning_rate": 0.01, "momentum": 0.9},
        "none": {"learning_rate": 0.1, "momentum": 0.0},
    },
}


def depth_rows():
    """ResNets with s_1 = 8 L^-1.25, plain networks of which one is dead."""
    rows = []
    for depth in (2, 4, 8, 16):
        status = "ok" if depth > 2 else "too_few_points"
        scores = synthetic.ALIGNED | {"sigma_1": 8 * depth**-1.25}
        rows.append(synthetic.score_rows(scores, (status,) * 3, depth=depth))
        scores = synthetic.PLAIN | {"alignment": lambda seed: 0.01 * (seed - 1), "sigma_1": 2.0}
        statuses = (status,) * 2 if depth < 16 else ("dead", "dead")
        rows.append(
            synthetic.score_rows(scores, statuses, depth=depth, skip="plain", train_accuracy=0.5)
        )
    return rows


def history():
    rows = [
        synthetic.history_rows(error, depth=depth, skip=skip)
        for skip, errors in (("resnet", (0, 0)), ("plain", (0, 0.6)))
        for depth, error in zip((8, 16), errors, strict=True)
    ]
    return [*rows, synthetic.history_rows(0.5, depth=24, statuses=("diverged", "ok"))]


def linear_history():
    """Looks-linear networks that diverge at the higher rate when they are deep, and others."""
    linear = {"type": "fc_crelu", "skip": "plain"}
    rows = [
        synthetic.history_rows(0.0, recipe="fast", depth=4, **linear),
        synthetic.history_rows(0.2, recipe="slow", depth=4, **linear),
        synthetic.history_rows(0.0, recipe="fast", depth=50, statuses=("ok", "diverged"), **linear),
        synthetic.history_rows(0.1, recipe="slow", depth=50, **linear),
    ]
    for skip in ("plain", "resnet"):
        rows += [synthetic.history_rows(0.4, skip=skip, depth=depth) for depth in (4, 50)]
    return [*rows, synthetic.history_rows(0.9, type="fc_no_norm", statuses=("diverged",) * 2)]


def of_skips(rows, **network):
    """Rows of ResNets and plain networks of 8 and 16 blocks."""
    return [
        rows(*values, skip=skip, depth=depth, **network)
        for skip, depth, *values in (
            ("resnet", 8, 0.9), ("resnet", 16, 0.8), ("plain", 8, 0.4), ("plain", 16, 0.01),
        )
    ]  # fmt: skip


def joined_depth():
    """Files of `mechanisms`: scores, histories, correlations; deep plain networks are dead."""
    scores = []
    for (skip, values), depth in itertools.product(
        (("resnet", synthetic.ALIGNED), ("plain", synthetic.PLAIN)), (8, 16)
    ):
        status = "dead" if (skip, depth) == ("plain", 16) else "ok"
        scores.append(synthetic.score_rows(values, (status,) * 2, skip=skip, depth=depth))
    return scores, of_skips(synthetic.history_rows), of_skips(synthetic.covariance_rows)


def rank_rows():
    """effective_rank.csv: the rank grows with depth as 1 - 1/depth in plain networks, is 0.1 beta
    in ResNets; two networks that differ by 0.1; one collapsed."""
    rows = []
    for beta, depth, run, kind in itertools.product(
        (np.nan, 1.0, 0.1), (2, 10, 50), (0, 1), ("outputs", "loss")
    ):
        rank = 0.1 * (1 - 2 * run) / 2 + (1 - 1 / depth if np.isnan(beta) else 0.1 * beta)
        network = "plain" if np.isnan(beta) else "resnet"
        row = {"dataset": "digits", "classes": 10, "network": network, "beta": beta, "depth": depth}
        row |= {"width": 8, "batch": 64, "seed": run, "gradient": kind, "gradient_norm": 1.0}
        row |= {"effective_rank": rank / 2, "effective_rank_centred": rank, "mean_gradient": 0.2}
        rows.append(row | {"status": "ok"})
    return pd.DataFrame([*rows, rows[0] | {"seed": 2, "status": "collapsed"}])


def rank_pictures(path):
    pictures = np.tile(np.eye(6, dtype=np.float32), (2, 2, 1, 1))
    np.savez(path, pictures=pictures, names=np.array(["plain", "resnet 0.1"]), depths=[2, 50])
    return path


def random_networks(folder):
    """Inputs of the figures of random networks, measured on tiny ones."""
    from resnet_mechanisms import activations, linear_regions, paths

    settings = dict(
        width=12, batch=6, input_dimension=8, networks=3, depth=[1, 2, 4], beta=[1.0], points=32,
        raster_depth=[2, 4], length_depth=4, line="grid", pieces=60, seed=0,
    )  # fmt: skip
    table, arrays = activations.patterns(settings)
    np.savez(folder / "patterns.npz", **arrays)
    found = {
        "coactivation": activations.coactivation_table(settings),
        "patterns": table,
        "path_counts": paths.path_counts_table(settings),
        "path_lengths": paths.path_lengths_table(settings),
        "regions": linear_regions.linear_regions_table(settings),
    }
    for name, rows in found.items():
        tables.write(rows, folder / f"{name}.csv")
    assert set(found["regions"]["status"]) == {"ok", "too_many"}
    return {
        "sg3_coactivation": [folder / "coactivation.csv"],
        "sg4_activation_patterns": [folder / "patterns.csv", folder / "patterns.npz"],
        "sg_paths": [folder / "path_counts.csv", folder / "path_lengths.csv"],
        "sg_linear_regions": [folder / "regions.csv"],
    }


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Inputs of every figure, by its name."""
    folder = tmp_path_factory.mktemp("results")
    resnet = synthetic.write_spectra(folder / "resnet.nc", statuses=("diverged", "ok", "ok"))
    plain = synthetic.write_spectra(folder / "plain.nc", skip="plain")
    dead = synthetic.write_spectra(folder / "dead.nc", skip="plain", statuses=("dead",) * 2)

    def table(name, rows):
        return [synthetic.write_rows(folder / f"{name}.csv", *rows)]

    depth = table("depth", depth_rows())
    verdicts = claims.evaluate(
        claims.read_claims(CLAIMS), {"residual_alignment": tables.read(depth)}
    )
    recipes = [synthetic.score_rows(recipe=r) for r in ("strong_decay", "stochastic_depth")]
    recipes.append(
        synthetic.score_rows(synthetic.PLAIN, ("ok", "diverged"), recipe="random_labels")
    )
    twins = [
        synthetic.score_rows(scores, statuses, skip=skip, type=kind, dataset=data)
        for kind, data in (("fc", "digits"), ("conv_down_pre", "digits"), ("fc", "clothes"))
        for skip, scores, statuses in (
            ("resnet", synthetic.ALIGNED, ("ok", "too_few_points")),
            ("plain", synthetic.PLAIN, ("ok", "dead")),
        )
    ]
    dropped = [synthetic.score_rows(recipe=r) for r in RECIPES["ra_stochastic_depth"]]
    blocks = [
        synthetic.block_rows(values["stochastic_depth"], recipe=r)
        for r, values in RECIPES["ra_stochastic_depth"].items()
    ]
    dynamics = [
        synthetic.score_rows(
            scores | {"nc1": 10.0 / (1 + epoch)}, epoch=epoch, skip=skip, train_accuracy=accuracy
        )
        for skip, scores in (("resnet", synthetic.ALIGNED), ("plain", synthetic.PLAIN))
        for epoch, accuracy in ((0, 0.1), (1, 0.8), (100, 1.0))
    ]
    layers = [
        synthetic.layer_rows(size, growth, skip=skip, depth=depth, epoch=epoch)
        for skip, growth in (("resnet", 1.02), ("plain", 1.2))
        for depth, size in ((8, 0.2), (16, 0.1))
        for epoch in (0, 100)
    ]
    layers.append(synthetic.layer_rows(0.1, statuses=("diverged", "ok"), type="fc_no_norm"))
    momentum = of_skips(synthetic.history_rows)
    momentum += of_skips(synthetic.history_rows, recipe="none")
    similar = [
        synthetic.similarity_rows({0.01: 0.9, 0.1: 0.3}, {0: 2.3, 100: 0.1}, skip=s, depth=d)
        for s in ("resnet", "plain")
        for d in (8, 16)
    ]
    return {
        **dict.fromkeys(OF_ONE_NETWORK, [resnet]),
        "ra_no_skip": [resnet, plain, dead],
        "ra_depth": depth,
        "neural_collapse": depth,
        "ra_width": table("width", [synthetic.score_rows(width=w) for w in (64, 128)]),
        "ra_classes": table("classes", [synthetic.score_rows(classes=c) for c in (3, 10)]),
        "ra_generalization": table("recipes", recipes),
        "ra_architectures": table("architectures", twins[:4]),
        "ra_datasets": table("datasets", twins[:2] + twins[4:]),
        "ra_stochastic_depth": table("dropped", dropped) + table("blocks", blocks),
        "ra_weight_decay": table(
            "decay", [synthetic.score_rows(recipe=r) for r in RECIPES["ra_weight_decay"]]
        ),
        "ra_training_dynamics": table("dynamics", dynamics),
        "ra_intervention": table("recipes", recipes),
        "he1_degradation": table("history", history()),
        "he7_layer_responses": table("layers", layers),
        "he_gradient_norms": table("layers", layers),
        "mechanisms": [table(f"joined{k}", rows)[0] for k, rows in enumerate(joined_depth())],
        "sg6_looks_linear": table("linear", linear_history()),
        "sg_momentum": table("momentum", momentum) + table("similarity", similar),
        **random_networks(folder),
        "sg5_effective_rank": table("rank", [rank_rows()]) + [rank_pictures(folder / "rank.npz")],
        "claims": table("claims", [verdicts]),
        "dead": [dead],
    }


@pytest.fixture(autouse=True)
def figures():
    import matplotlib.pyplot as plt

    style.use_style()
    yield
    plt.close("all")


def draw(name, inputs):
    recipes = [RECIPES[name]] if name in RECIPES else []
    return importlib.import_module(f"resnet_mechanisms.figures.{name}").draw(inputs, *recipes)


def lines(axis):
    """Data of an axes' lines, as (n, 2) arrays."""
    return [np.column_stack(line.get_data()).astype(float) for line in axis.get_lines()]


def has_line(axis, points):
    points = np.asarray(points, dtype=float)
    return any(
        line.shape == points.shape and np.allclose(line, points, rtol=1e-5) for line in lines(axis)
    )


def words(fig):
    return "\n".join(text.get_text() for text in fig.findobj(Text) if text.get_visible())


@pytest.mark.parametrize(
    "name",
    [
        *OF_ONE_NETWORK,
        "ra_no_skip",
        "ra_depth",
        "ra_width",
        "ra_classes",
        "ra_generalization",
        "ra_architectures",
        "ra_datasets",
        "ra_stochastic_depth",
        "ra_weight_decay",
        "ra_training_dynamics",
        "ra_intervention",
        "neural_collapse",
        "he1_degradation",
        "sg3_coactivation",
        "sg4_activation_patterns",
        "sg_paths",
        "sg_linear_regions",
        "sg5_effective_rank",
        "he7_layer_responses",
        "he_gradient_norms",
        "mechanisms",
        "sg6_looks_linear",
        "sg_momentum",
        "claims",
    ],
)
def test_every_figure_is_drawn_within_its_page(name, files, tmp_path):
    fig = draw(name, files[name])
    assert fig.get_figwidth() in (style.COLUMN, style.TEXT)
    assert_within_page(fig, tmp_path)


def assert_within_page(fig, folder):
    """All text of a figure, as saved, is of a legible size and inside of it."""
    fig.savefig(folder / "figure.png", dpi=100)
    ticks = {
        id(label)
        for axis in fig.findobj(Axes)
        for label in (*axis.get_xticklabels(which="both"), *axis.get_yticklabels(which="both"))
    }
    for text in fig.findobj(Text):
        if text.get_visible() and text.get_text().strip() and id(text) not in ticks:
            assert 6.4 <= text.get_fontsize() <= 8, text
            box = text.get_window_extent()
            assert box.x0 >= -1 and box.x1 <= fig.bbox.width + 1, text
            assert box.y0 >= -1 and box.y1 <= fig.bbox.height + 1, text


def test_trajectories_are_the_file_s(files):
    fig = draw("ra1_trajectories", files["ra1_trajectories"])
    network = xr.load_dataset(files["ra1_trajectories"][0]).isel(epoch=-1)
    shown = network["trajectory"].sel(seed=11, projection="pca")  # seed 10 diverged
    assert has_line(fig.axes[0], shown.isel(sample=3).transpose("layer", "component"))
    assert "line-shape score 1.000 [1.000, 1.000]" in words(fig)
    assert "undefined: diverged, 1 of 3 seeds" in words(fig)


def test_remote_trajectories_are_counted_and_stages_named(files, tmp_path):
    """Two images a hundred times as far away as the others, and states of which the first five
    have another shape."""
    network = xr.load_dataset(files["ra1_trajectories"][0])
    paths = network["trajectory"].transpose("sample", "layer", ...).values
    assert paths.base is not None  # a view: what follows changes the data set
    paths[:, :5] = np.nan
    paths[[0, 7]] *= 100
    changed = tmp_path / "changed.nc"
    network.to_netcdf(changed)
    fig = draw("ra1_trajectories", [changed])
    for axis in fig.axes[:2]:
        assert f"far outside, not drawn:\n2 of {len(paths)} images" in axis.get_xlabel()
        assert len(axis.lines) == len(paths) - 2
    assert "$h_{5}$ to $h_L$" in words(fig)
    assert_within_page(fig, tmp_path)
    assert_within_page(draw("ra_no_skip", [changed, changed]), tmp_path)
    assert "not drawn" not in words(draw("ra1_trajectories", files["ra1_trajectories"]))
    paths[::2] *= 100  # no longer single ones
    network.to_netcdf(tmp_path / "many.nc")
    assert "not drawn" not in words(draw("ra1_trajectories", [tmp_path / "many.nc"]))


def test_alignment_grid_has_rows_of_jacobians(files):
    fig = draw("ra2_alignment", files["ra2_alignment"])
    grid = np.asarray(fig.axes[0].get_images()[0].get_array()).reshape(8, 15, 8, 15)
    for i, j in ((0, 7), (5, 2)):
        expected = np.where(np.arange(15) < 9, 1 / (i + 2 + np.arange(15)), 0)  # s_k of block i
        np.testing.assert_allclose(grid[i, :, j], np.diag(expected), rtol=1e-6)
    scales = {id(image.norm) for axis in fig.axes for image in axis.get_images()}
    assert len(scales) == 1  # one colour scale for the grid and its enlarged cell


def test_singular_values_and_inverse_line(files):
    fig = draw("ra3_singular_values", files["ra3_singular_values"])
    blocks = np.arange(1, 9)
    assert has_line(fig.axes[0], np.column_stack([blocks, 1 / (blocks + 1)]))
    assert has_line(fig.axes[0], np.column_stack([blocks, 1 / (blocks + 9)]))

    fig = draw("ra4_inverse_singular_values", files["ra4_inverse_singular_values"])
    assert has_line(fig.axes[0], np.column_stack([blocks, blocks + 1]))  # each seed's mean
    assert has_line(fig.axes[0], [[1, 2], [8, 9]])  # the least-squares line, all blocks
    assert "slope 1.00 [1.00, 1.00]" in words(fig)


@pytest.mark.parametrize("name", OF_ONE_NETWORK)
def test_undefined_networks_say_so(name, files):
    fig = draw(name, files["dead"])
    assert "undefined:\ndead,\n2 of 2 seeds" in words(fig)


def test_depth_panels_carry_means_ranges_and_crosses(files):
    fig = draw("ra_depth", files["ra_depth"])
    panel = dict(zip(sweeps.SCORES, fig.axes, strict=False))
    depths = np.array([2, 4, 8, 16])
    assert has_line(panel["alignment"], np.column_stack([depths / 1.05, np.ones(4)]))
    assert has_line(panel["alignment"], np.column_stack([depths[:3] * 1.05, np.full(3, -0.005)]))
    crosses = [line for line in panel["alignment"].get_lines() if line.get_marker() == "x"]
    assert [float(line.get_xdata()[0]) for line in crosses] == [16 * 1.05]
    pluses = [line for line in panel["inverse_slope"].get_lines() if line.get_marker() == "+"]
    assert len(pluses) == 2  # two blocks make no line
    ranges = np.concatenate([c.get_segments() for c in panel["alignment"].collections])
    assert any(np.allclose(segment[:, 1], [-0.01, 0]) for segment in ranges)
    assert "exponent \N{MINUS SIGN}1.25" in words(fig) and "undefined (dead)" in words(fig)


def marks(axis, kind):
    """The points of an axes' lines with this marker, in order."""
    return [line.get_xydata()[0] for line in axis.get_lines() if line.get_marker() == kind]


def test_architectures_are_marked_seed_by_seed(files):
    fig = draw("ra_architectures", files["ra_architectures"])
    alignment = fig.axes[1]
    np.testing.assert_allclose([x for x, _ in marks(alignment, "o")], [1] * 4)  # ResNets
    np.testing.assert_allclose([x for x, _ in marks(alignment, "s")], [0, 0])
    assert len(marks(alignment, "x")) == 2  # the dead
    assert len(marks(fig.axes[2], "+")) == 2  # no line without three blocks
    labels = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert labels == ["fully connected", "convolutional,\ndown-sampling,\npre-activation"]


def test_datasets_have_their_chance_level(files):
    fig = draw("ra_datasets", files["ra_datasets"])
    assert has_line(fig.axes[-1], [[0.1, -0.4], [0.1, 0.4]])
    labels = [label.get_text() for label in fig.axes[0].get_yticklabels()]
    assert labels == ["digits, 10 classes", "clothes, 10 classes"]


def test_stochastic_depth_with_and_without_survival(files):
    fig = draw("ra_stochastic_depth", files["ra_stochastic_depth"])
    spacing, slope = fig.axes[1], fig.axes[3]
    assert has_line(spacing, [[0, 0], [0.5, 0]])  # steps over survival are equal
    assert has_line(slope, [[0, 1], [0.5, 1]])
    theory = [line for line in lines(spacing) if len(line) == 50]
    survival = 1 - 0.5 * np.arange(1, 9) / 8
    np.testing.assert_allclose(theory[0][-1], [0.5, survival.std() / survival.mean()])
    text = words(fig)
    assert "a draw per batch" in text and "a draw per sample" in text


def test_weight_decay_stands_at_its_value(files):
    fig = draw("ra_weight_decay", files["ra_weight_decay"])
    assert has_line(fig.axes[2], [[0.0005 / 1.05, 1], [0.01 / 1.05, 1]])
    assert has_line(fig.axes[2], [[0.01, 1]]) and has_line(fig.axes[2], [[0.02 * 1.05, 1]])
    for name in ("on everything", "off batch norm", "only on batch norm"):
        assert f"decay {name}" in words(fig)


def test_dynamics_over_epochs(files):
    fig = draw("ra_training_dynamics", files["ra_training_dynamics"])
    epochs = np.array([0, 1, 100])
    assert has_line(fig.axes[0], np.column_stack([epochs / 1.05, [0.1, 0.8, 1]]))
    assert has_line(fig.axes[5], np.column_stack([epochs * 1.05, [10, 5, 10 / 101]]))


def test_interventions_stand_at_their_scores(files):
    fig = draw("ra_intervention", files["ra_intervention"])
    points = np.array(marks(fig.axes[5], "o"))  # alignment, test accuracy
    np.testing.assert_allclose(points, [[1, 0.98]] * 3)
    assert len(marks(fig.axes[5], "x")) == 1  # the diverged one has no alignment


def test_numbers_beyond_the_axis_are_marked_at_its_end(tmp_path):
    scores = synthetic.ALIGNED | {"inverse_slope": lambda seed: [1.0, -1700.0][seed]}
    rows = [synthetic.score_rows(scores, ("ok",) * 2)]
    path = synthetic.write_rows(tmp_path / "rows.csv", *rows)
    for name, mark in (("ra_architectures", "<"), ("ra_width", "v")):
        fig = draw(name, [path])
        panel = next(axis for axis in fig.axes if "RA4: $1/s_1" in axis.get_title("left"))
        assert len(marks(panel, mark)) == 1
        assert min(panel.get_xlim() if mark == "<" else panel.get_ylim()) == -1
        assert "beyond the axis" in words(fig)


def test_power_law():
    depths = np.array([4, 8, 16, 24])
    exponent, factor, r2 = ra_depth.power_law(depths, 3 * depths**-1.3)
    np.testing.assert_allclose([exponent, factor, r2], [-1.3, 3, 1])
    assert ra_depth.power_law([4, 8], [1, 2]) is None


def test_degradation_ends_at_the_last_epoch(files):
    fig = draw("he1_degradation", files["he1_degradation"])
    panels = [axis for axis in fig.axes if axis.get_ylabel() == "training error (%)"]
    assert has_line(panels[0], np.column_stack([np.array([8, 16, 24]) * 1.05, [0, 60, 50]]))
    assert any(line.get_marker() == "x" for line in panels[0].get_lines())
    assert has_line(fig.axes[1], [[1, 90], [50, 90 * 50 / 99], [100, 0]])


def test_pieces_that_are_too_many_are_marked(files):
    fig = draw("sg_linear_regions", files["sg_linear_regions"])
    assert any(line.get_marker() == "x" for line in fig.axes[0].get_lines())
    assert "too many to count" in words(fig)
    table = tables.read(files["sg_linear_regions"])
    neurons = table.drop_duplicates("depth")[["depth", "neurons"]]
    assert has_line(fig.axes[0], neurons)


def test_shares_of_path_lengths_are_shown_with_theory(files):
    fig = draw("sg_paths", files["sg_paths"])
    lengths = tables.read(files["sg_paths"][1:])
    rows = lengths[
        (lengths["gates"] == "relu") & (lengths["normalisation"] == "none")
        & (lengths["quantity"] == "variance")
    ]  # fmt: skip
    theory = rows["mean_field"] / rows["mean_field"].sum()
    assert has_line(fig.axes[2], np.column_stack([rows["length"], theory]))


def test_sizes_of_twins_are_compared(files):
    assert "as many, and as many multiplications, with skips as without" in words(
        draw("he1_degradation", files["he1_degradation"])
    ).replace("\n", " ")
    rows = tables.read(files["he1_degradation"])
    rows.loc[(rows["skip"] == "plain") & (rows["depth"] == 8), "parameters"] += 1
    text = he1_degradation.sizes(rows).replace("\N{NO-BREAK SPACE}", " ")
    assert "some differ" in text and text.endswith("2 L + 2: 18, 34, 50")


def test_the_best_rate_is_chosen_and_divergence_is_the_worst(files):
    fig = draw("sg6_looks_linear", files["sg6_looks_linear"])
    shift = 1.04**-1  # the first of four families
    line = np.column_stack([np.array([10, 102]) * shift, [1.0, 0.9]])
    assert has_line(fig.axes[0], line)
    rates = np.column_stack([np.array([10, 102]) * shift, [0.01, 0.001]])
    assert has_line(fig.axes[2], rates)
    assert any(line.get_marker() == "x" for line in fig.axes[0].get_lines())
    # No rate is chosen where every one diverged: of the second of the four.
    chosen = [len(line.get_xdata()) > 0 for line in fig.axes[2].get_lines()]
    assert chosen == [True, False, True, True]


def test_mechanisms_shows_errors_and_gradients_of_dead_networks_too(files):
    fig = draw("mechanisms", files["mechanisms"])
    depths = np.array([8, 16])
    for panel, resnet, plain in ((2, (0.9, 0.8), (0.4, 0.01)), (3, (90, 80), (40, 1))):
        assert has_line(fig.axes[panel], np.column_stack([depths / 1.05, resnet]))
        assert has_line(fig.axes[panel], np.column_stack([depths * 1.05, plain]))
    assert any(line.get_marker() == "x" for line in fig.axes[0].get_lines())


def test_responses_are_of_the_last_epoch_and_gradients_named_by_ratio(files):
    fig = draw("he7_layer_responses", files["he7_layer_responses"])
    place = (np.arange(16) + 0.5) / 16
    assert has_line(fig.axes[0], np.column_stack([place, np.full(16, 0.2)]))
    text = words(draw("he_gradient_norms", files["he_gradient_norms"]))
    assert f"{1.2**15:.0f}" in text and f"{1.2**31:.0f}" in text and f"{1.02**15:.2g}" in text


def test_ranks_carry_means_and_errors(files):
    fig = draw("sg5_effective_rank", files["sg5_effective_rank"])
    rank = fig.axes[5]  # after four pictures and their colour bar
    assert rank.get_title(loc="left").endswith("rank, outputs")
    assert has_line(rank, [[2, 0.5], [10, 0.9], [50, 0.98]])
    assert has_line(rank, [[2, 0.1], [10, 0.1], [50, 0.1]])
    assert has_line(rank, [[2, 0.25], [10, 0.45], [50, 0.49]])  # not centred
    # Two networks 0.1 apart: the standard error is 0.1 / 2.
    ends = np.concatenate([c.get_segments() for c in rank.collections])
    np.testing.assert_allclose(ends[:, 1, 1] - ends[:, 0, 1], 4 * 0.05)
    white = [line.get_ydata()[0] for line in fig.axes[7].get_lines()]
    assert 1 / 8 in white


def test_claims_are_coloured_by_verdict(files):
    fig = draw("claims", files["claims"])
    tints = [to_rgba(p.get_facecolor()) for p in fig.findobj(Rectangle) if p.axes is fig.axes[0]]
    table = tables.read(files["claims"])
    verdicts = table.loc[
        table["value"].notna() | table["status"].str.contains("undefined"), "verdict"
    ]
    assert tints[: len(verdicts)] == [to_rgba(style.COLOURS[verdict]) for verdict in verdicts]
    assert len(verdicts) < len(table) and "for want of such networks" in words(fig)
    for claim in tables.read(files["claims"])["claim"]:
        assert claim.split(",")[0].split()[0] in words(fig)


def test_same_inputs_give_the_same_bytes(files, tmp_path):
    for run in ("first", "second"):
        fig = draw("ra_width", files["ra_width"])
        style.save(fig, tmp_path / run / "figure.pdf", tmp_path / run / "figure.png")
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name


def test_command_draws_without_torch(files, tmp_path):
    program = f"""
import runpy, sys
sys.argv = {["figure.py", "ra4_inverse_singular_values", "--input", str(files["ra_no_skip"][0])]!r}
sys.argv += ["--pdf", {str(tmp_path / "f.pdf")!r}, "--png", {str(tmp_path / "f.png")!r}]
sys.path.insert(0, {str(SCRIPT.parent)!r})
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert (tmp_path / "f.pdf").read_bytes().startswith(b"%PDF")
    assert (tmp_path / "f.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("ra_depht", "", "no figure 'ra_depht'; nearest is 'ra_depth'"),
        ("ra_depth", None, "ra_depth: no file"),
        ("ra_depth", "a,b\n1,2\n", "has no column"),
        ("ra4_inverse_singular_values", "no netCDF file", "as a netCDF file"),
    ],
)
def test_mistakes_are_one_line(name, content, message, tmp_path, monkeypatch):
    path = tmp_path / "input"
    if content is not None:
        path.write_text(content)
    outputs = ["--pdf", str(tmp_path / "f.pdf"), "--png", str(tmp_path / "f.png")]
    monkeypatch.setattr(sys, "argv", ["figure.py", name, "--input", str(path), *outputs])
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    text = str(end.value.code)
    assert text.startswith("error: ") and message in text and "\n" not in text


def test_empty_table(tmp_path):
    path = tmp_path / "empty.csv"
    synthetic.score_rows().head(0).to_csv(path, index=False)
    with pytest.raises(UserError, match="no rows"):
        draw("ra_depth", [path])
