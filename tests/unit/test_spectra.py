"""The measurement of a network as a whole: against numpy, and undefined cases that must stay
blank."""

import numpy as np
import pandas as pd
import pytest
import torch

from resnet_mechanisms import datasets, spectra, svd, tables, training
from resnet_mechanisms.errors import UserError
from resnet_mechanisms.jacobians import linearise
from resnet_mechanisms.networks import Network, reestimate_batch_norm
from test_training import RECIPE

SETTINGS = {"inputs": {"fc": 4, "conv": 4}, "inputs_seed": 0, "tolerance": 1e-4, "memory_mb": 100}


@pytest.fixture(scope="module")
def images():
    return datasets.as_images(datasets.prepare({"source": "digits", "train": 200, "test": 80}, 4))


def configuration(**changes):
    base = dict(
        dataset="digits",
        classes=4,
        type="fc",
        skip="resnet",
        depth=3,
        width=16,
        recipe="r",
        seeds=[1, 2],
    )
    return base | changes


def trained(images, folder, config, recipe):
    results = {
        seed: training.train(config, recipe, images, seed, folder) for seed in config["seeds"]
    }
    history = pd.DataFrame(
        [row for r in results.values() for row in r["history"]], columns=tables.HISTORY
    )
    return results, history


def test_singular_values_and_rows_against_numpy(images, tmp_path):
    config, recipe = configuration(), RECIPE | dict(epochs=6, checkpoints=[2])
    results, history = trained(images, tmp_path, config, recipe)
    data = spectra.measure(config, recipe, images, results, history, SETTINGS)
    assert data.sizes["seed"] == 2 and list(data.epoch.values) == [2, 6]
    assert (data.status == "ok").all() and data.residual.max() < 1e-5
    network = Network(config, (1, 8, 8), 4)
    network.load_state_dict(results[2]["checkpoints"][6])
    chosen = datasets.balanced_subset(images.y_train, 4, 0)
    _, jacobians, _ = linearise(network.eval(), images.x_train[chosen])
    dense = torch.stack([j.dense for j in jacobians], 1).double().numpy()
    s = np.linalg.svd(dense, compute_uv=False)
    ours = data.singular_values.sel(seed=2, epoch=6, split="train").values
    np.testing.assert_allclose(ours, s[..., :9], atol=2e-6 * s.max())
    # The diagonal cells of the alignment grid are the singular values of the first input.
    grid = data.alignment_matrix.sel(seed=2, epoch=6).values
    for block in range(3):
        np.testing.assert_allclose(
            np.diag(grid[block, block]), s[0, block, :9], atol=2e-6 * s.max()
        )

    # On the way, with batch-norm statistics of its own.
    network.load_state_dict(results[2]["checkpoints"][2])
    reestimate_batch_norm(network, images.x_train)
    _, jacobians, _ = linearise(network.eval(), images.x_train[chosen])
    early = torch.linalg.matrix_norm(torch.stack([j.dense for j in jacobians], 1), 2)
    ours = data.singular_values.sel(seed=2, epoch=2, split="train").values[..., 0]
    np.testing.assert_allclose(ours, early, rtol=1e-4)
    loss, accuracy = training.evaluate(network, images.x_train, images.y_train)
    np.testing.assert_allclose(data.train_loss.sel(seed=2, epoch=2), loss, rtol=1e-5)
    np.testing.assert_allclose(data.train_accuracy.sel(seed=2, epoch=2), accuracy, rtol=1e-5)

    rows = spectra.rows(data)
    assert len(rows) == 2 * 2 * 2
    row = rows[(rows.seed == 2) & (rows.epoch == 6) & (rows.split == "train")].iloc[0]
    expected = dict(
        sigma_1=s[..., 0].mean(),
        sigma_c_ratio=(s[..., 3] / s[..., 0]).mean(),
        sigma_c1_ratio=(s[..., 4] / s[..., 0]).mean(),
        energy_top_c=((s[..., :4] ** 2).sum(2) / (s**2).sum(2)).mean(),
        stable_rank=((s**2).sum(2) / s[..., 0] ** 2).mean(),
        inverse_slope=np.polyfit([1, 2, 3], 1 / s[..., 0].mean(0), 1)[0],
        overlap_chance=3 / 16,
        inputs=4,
    )
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, rel=1e-5), name
    assert not rows.drop(columns="status").isna().any().any()
    single = data.inverse_slope.sel(seed=2, epoch=6, split="train").values
    assert single == pytest.approx(
        [np.polyfit([1, 2, 3], 1 / x, 1)[0] for x in s[..., 0]], rel=1e-5
    )
    blocks = spectra.per_block(data)
    assert len(blocks) == 2 * 2 * 2 * 4 * 3
    cell = blocks.query(
        "seed == 2 and epoch == 6 and split == 'train' and input == 3 and block == 2"
    ).iloc[0]
    assert cell.sigma_2 == pytest.approx(s[3, 1, 1], rel=1e-5)
    assert blocks.filter(like="sigma_").shape[1] == 15 and np.isnan(cell.sigma_10)


@pytest.mark.parametrize(
    "changes", [dict(type="conv", width=2, depth=2), dict(skip="plain"), dict(width=6)]
)
def test_other_shapes(images, tmp_path, changes):
    """Convolutional states, plain nets, and states with fewer dimensions than triplets asked
    for."""
    config = configuration(**changes)
    recipe = RECIPE | dict(epochs=0)
    networks = trained(images, tmp_path, config, recipe)
    data = spectra.measure(config, recipe, images, *networks, SETTINGS)
    rows = spectra.rows(data)
    assert set(rows.status) == {"too_few_points" if config["depth"] < 3 else "ok"}
    assert (
        rows.line_shape_score.notna().all()
        and (rows.inverse_slope.isna() == (config["depth"] < 3)).all()
    )
    tables.write(rows, tmp_path / "rows.csv")


def test_dead_chance_and_diverged_networks_are_blank_with_their_status(images, tmp_path):
    config = configuration(seeds=[1, 2, 3])
    results, history = trained(images, tmp_path, config, RECIPE | dict(epochs=6))
    weights = results[1]["checkpoints"][6]
    for name in ("blocks.1.norm2.weight", "blocks.1.norm2.bias"):
        weights[name].zero_()  # a dead block: J = 0
    history.loc[history.seed == 2, "train_accuracy"] = 0.28  # four classes, 200 images
    results[3] = {"status": "diverged", "checkpoints": {}}
    data = spectra.measure(config, RECIPE, images, results, history, SETTINGS)
    rows = spectra.rows(data)
    assert rows.groupby("seed").status.first().to_dict() == {
        1: "dead",
        2: "chance_accuracy",
        3: "diverged",
    }
    assert rows.loc[:, "line_shape_score":].isna().all().all()
    assert rows.train_accuracy.notna().tolist() == [True] * 4 + [False] * 2
    tables.write(rows, tmp_path / "rows.csv")
    text = (tmp_path / "rows.csv").read_text()
    assert "nan" not in text and "inf" not in text.replace("inputs", "")
    assert len(spectra.per_block(data)) == 0


def test_an_input_at_which_a_block_is_dead_is_left_out(images, tmp_path):
    values = np.ones((3, 2, 4), np.float32)
    values[1, 0] = 0
    result = {"singular_values": values, "alignment": np.ones(3, np.float32)}
    assert spectra.blank_dead_inputs(result).tolist() == [False, True, False]
    assert np.isnan(result["alignment"]).tolist() == [False, True, False]


def test_chance_level():
    labels = torch.arange(1000) % 10
    # 0.1 + 3 sqrt(.09/1000) = .1285
    assert spectra.at_chance(0.128, labels, 10) and not spectra.at_chance(0.129, labels, 10)


def test_weights_that_are_not_finite_name_seed_and_epoch(images, tmp_path):
    config = configuration(seeds=[1])
    results, history = trained(images, tmp_path, config, RECIPE)
    results[1]["checkpoints"][4]["blocks.0.linear1.weight"][0, 0] = float("nan")
    with pytest.raises(UserError, match="depth 3, seed 1, epoch 4: block 1: linear1.weight holds"):
        spectra.measure(config, RECIPE, images, results, history, SETTINGS)


def test_a_jacobian_that_is_not_finite_names_the_block(images, tmp_path):
    """Finite weights whose product is not."""
    config = configuration(seeds=[1])
    results, history = trained(images, tmp_path, config, RECIPE)
    results[1]["checkpoints"][4]["blocks.1.linear2.weight"] *= 1e38
    with pytest.raises(UserError, match="seed 1, epoch 4: block 2: its output is not finite"):
        spectra.measure(config, RECIPE, images, results, history, SETTINGS)


def test_a_triplet_that_misses_the_tolerance_stops_the_measurement(images, tmp_path, monkeypatch):
    config = configuration(seeds=[1])
    results, history = trained(images, tmp_path, config, RECIPE)
    exact = svd.dense_triplets

    def blunt(jacobian, count):
        left, values, right, norm = exact(jacobian, count)
        return left, 1.01 * values, right, norm

    monkeypatch.setattr(svd, "dense_triplets", blunt)
    with pytest.raises(
        UserError, match="seed 1, epoch 4: block 1: largest residual 9.9e-03 of s_1"
    ):
        spectra.measure(config, RECIPE, images, results, history, SETTINGS)


@pytest.mark.parametrize("kind, width", [("fc", 80), ("conv_down", 4)])
def test_results_do_not_depend_on_the_memory_they_may_use(kind, width, monkeypatch):
    """All inputs together, one by one, and one by one with their vectors in files."""
    torch.manual_seed(0)
    config = dict(type=kind, skip="resnet", depth=4, width=width)
    network = Network(config, (1, 8, 8), 4).requires_grad_(False)
    x = torch.rand(6, 1, 8, 8)
    network(x)
    network.eval()
    each = spectra.bytes_per_input(linearise(network, x[:1])[1], 9)
    folders, lines = [], []
    store = spectra.TripletStore

    def spy(folder):
        folders.append(folder)
        return store(folder)

    monkeypatch.setattr(spectra, "TripletStore", spy)
    found = {}
    for name, budget in (("together", 100e6), ("one by one", 2.2 * each), ("files", 1.0)):
        folders.clear()
        lines.clear()
        settings = SETTINGS | {"memory_mb": budget / 1e6}
        found[name] = spectra.measure_inputs(
            network, x, 4, settings, lambda share, text: lines.append((share, text))
        )
        assert len(folders) == (1 if name == "together" else 6)
        assert all((folder is None) == (name != "files") for folder in folders)
        assert lines[-1][0] == pytest.approx(1)
        shares = [share for share, _ in lines]
        assert shares == sorted(shares) and "block 3 of 4, worst residual" in lines[2][1]
    for other in ("one by one", "files"):
        for name, value in found["together"].items():
            # Other batches round otherwise; residuals are rounding themselves.
            if name != "residual":
                np.testing.assert_allclose(found[other][name], value, rtol=2e-3, atol=2e-5)


def test_many_classes_take_more_vectors_than_are_shown(images):
    assert spectra.vectors_taken(10) == spectra.vectors_shown(10) == 15
    assert spectra.vectors_taken(100) == 105 and spectra.vectors_shown(100) == 30


def test_progress_says_what_is_done_and_what_is_left(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(spectra.time, "monotonic", lambda: now[0])
    report = spectra.Report("seed 3, epoch 9", began=0.0, before=1, networks=4)
    for second, share in ((10.0, 0.0), (10.5, 0.25), (15.0, 0.5), (15.1, 1.0)):
        now[0] = second
        report(share, "inputs 1 to 8 of 8, block 2 of 4, worst residual 1.0e-06")
    lines = capsys.readouterr().err.splitlines()
    # One a second, and always the last: 1 of 4 networks in 10 s leaves 30 s; 1.5 in 15 s 25 s.
    assert len(lines) == 3
    assert lines[0].startswith("seed 3, epoch 9: inputs 1 to 8 of 8, block 2 of 4, worst residual")
    assert [line.split(", ")[-1] for line in lines] == ["30 s left", "25 s left", "15 s left"]


def test_principal_components_against_numpy():
    """Paths in the plane, long ones by products and short ones from the matrix."""
    torch.manual_seed(0)
    for width in (12, 200):
        network = Network(dict(type="fc", skip="resnet", depth=3, width=width), (1, 8, 8), 4)
        x = torch.rand(30, 1, 8, 8)
        paths, shares = spectra.project_trajectories(network.eval(), x)
        with torch.no_grad():
            points = torch.stack(network.states(x), 1).double().flatten(0, 1).numpy()
        centred = points - points.mean(0)
        u, s, vt = np.linalg.svd(centred, full_matrices=False)
        np.testing.assert_allclose(shares, (s**2 / (s**2).sum())[:2], rtol=1e-5)
        ours = paths[0].reshape(-1, 2)
        truth = centred @ vt[:2].T
        np.testing.assert_allclose(np.abs(ours), np.abs(truth), atol=2e-5 * s[0])


def test_tables_refuse_infinite_numbers(tmp_path):
    with pytest.raises(ValueError, match="infinite values in .'a'"):
        tables.write(pd.DataFrame({"a": [1, np.inf], "b": [1, np.nan]}), tmp_path / "t.csv")
    tables.write(pd.DataFrame({"a": [1.0], "b": [np.nan], "c": ["x"]}), tmp_path / "t.csv")
    assert (tmp_path / "t.csv").read_text() == "a,b,c\n1,,x\n"
    (tmp_path / "cut.csv").write_text("a,b")
    with pytest.raises(UserError, match="cut.csv: its columns differ from those of .*t.csv"):
        tables.read([tmp_path / "t.csv", tmp_path / "cut.csv"])
    with pytest.raises(UserError, match="missing.csv: cannot be read"):
        tables.read([tmp_path / "missing.csv"])
