"""Verdicts against made-up results whose scores are known in closed form (synthetic.py)."""

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parent))

import synthetic  # noqa: E402
from resnet_mechanisms import claim_statistics, claims, tables  # noqa: E402
from resnet_mechanisms.errors import UserError  # noqa: E402

CLAIMS = Path(__file__).parents[2] / "workflow" / "claims.yaml"
ENTRY = {
    "claim": "test",
    "paper": "none",
    "statement": "a test",
    "table": "residual_alignment",
    "rows": "split == 'train'",
    "statistic": "alignment",
    "comparison": ">=",
    "threshold": 0.5,
    "origin": "pilot",
}


def judge(table, /, **changes):
    return claims.judge(ENTRY | changes, table)


def shipped(**found):
    """Verdicts of the shipped claims, by claim."""
    found = {name: pd.concat(parts) for name, parts in found.items()}
    return claims.evaluate(claims.read_claims(CLAIMS), found).set_index("claim")


def all_networks():
    """A study in which everything is as the papers say; s_1 is exactly 4/L."""
    rows = [
        synthetic.score_rows(
            synthetic.ALIGNED | {"sigma_1": 4 / depth},
            ("ok" if depth > 2 else "too_few_points",) * 3,
            depth=depth,
        )
        for depth in (2, 4, 8, 16)
    ]
    lost = [
        {"skip": "plain", "depth": depth, "train_accuracy": 1.0 if depth < 16 else 0.3}
        for depth in (4, 8, 16)
    ]
    lost += [{"recipe": recipe} for recipe in ("usual", "random_labels", "decay_off_batch_norm")]
    lost += [{"recipe": recipe} for recipe in ("noisy_labels_20", "decay_only_batch_norm")]
    lost += [{"recipe": "untrained", "train_accuracy": 0.1}]
    lost += [
        {"type": kind, "skip": "plain", "depth": 6, "recipe": recipe}
        for kind in ("conv", "conv_down")
        for recipe in ("conv_strong_decay", "conv_mild_decay")
    ]
    rows += [synthetic.score_rows(synthetic.PLAIN, ("ok",) * 2, **network) for network in lost]
    full = synthetic.ALIGNED | {"sigma_c1_ratio": 0.35}  # RA3 is of fully connected networks
    for kind in ("conv", "conv_down"):
        rows.append(synthetic.score_rows(full, type=kind, depth=6, recipe="conv_strong_decay"))
    return rows + scope() + counterfactuals()


def scope():
    """What RA is claimed of beside depths: widths, class counts, data sets."""
    rows = [synthetic.score_rows(width=width) for width in (64, 256)]
    rows += [synthetic.score_rows(classes=classes) for classes in (2, 3, 5)]
    sets = {"mnist": 10, "fashion_mnist": 10, "cifar10": 10, "cifar100": 100, "imagenette": 10}
    for name, classes in [*sets.items(), ("cifar10", 3)]:
        for recipe in ("strong_decay", "authors"):
            scores = synthetic.score_rows(dataset=name, classes=classes, recipe=recipe)
            rows.append(scores)
    return rows


def counterfactuals():
    """Training that keeps a part of RA."""
    kept = {
        "path_energy": {"inverse_slope": 0.04},
        "stochastic_depth_25": {"step_cv": 0.14},
        "stochastic_depth": {"step_cv": 0.3, "inverse_slope": 1.4},
    }
    return [
        synthetic.score_rows(synthetic.ALIGNED | scores, recipe=recipe)
        for recipe, scores in kept.items()
    ]


def errors(plain, resnet=0.0):
    """degradation.csv of both recipes: `plain` maps a depth to the last training error."""
    rows = []
    for recipe in ("strong_decay", "usual"):
        rows += [synthetic.degradation_rows(e, depth=d, recipe=recipe) for d, e in plain.items()]
        rows += [
            synthetic.degradation_rows(resnet, depth=d, recipe=recipe, skip="resnet") for d in plain
        ]
    return rows


def he_networks(plain, resnet=0.0):
    """degradation.csv of He et al.'s networks: `plain` maps a depth to the last training error."""
    he = {"type": "cifar", "recipe": "short"}
    rows = [synthetic.degradation_rows(e, depth=d, **he) for d, e in plain.items()]
    return rows + [synthetic.degradation_rows(resnet, depth=d, skip="resnet", **he) for d in plain]


def layers(plain=0.5, fall=-0.5, growth=1.2):
    """layer_responses.csv: ResNets whose responses fall with depth, plain networks whose do not."""
    rows = []
    for depth in (4, 8, 16):
        for epoch in (0, 100):
            rows += [
                synthetic.layer_rows(depth**fall, depth=depth, epoch=epoch),
                synthetic.layer_rows(plain, growth, skip="plain", depth=depth, epoch=epoch),
            ]
    return rows


def test_perfect_residual_alignment_is_reproduced():
    verdicts = shipped(
        residual_alignment=all_networks(),
        degradation=errors({8: 0.0, 16: 0.6, 24: 0.8}) + he_networks({9: 0.0, 27: 0.5}),
        unconstrained_jacobians=[synthetic.unconstrained_rows()],
        layer_responses=layers(),
    )
    papers = ("Li & Papyan 2023", "Papyan, Han & Donoho 2020", "He et al. 2016")
    mine = verdicts[verdicts["paper"].isin(papers)]
    assert set(mine["verdict"]) == {"reproduced"}, mine[["verdict", "status"]]
    assert set(mine["status"]) == {"ok"}
    exponent = mine.loc["RA4 total depth"]
    np.testing.assert_allclose([exponent["value"], exponent["low"]], -1)
    np.testing.assert_allclose(mine.loc["Degradation, strong decay", "value"], 0.6)
    # gradients: no table
    rest = verdicts[~verdicts["paper"].isin(papers)]
    assert (
        set(rest["verdict"]) == {"inconclusive"} and rest["status"].str.startswith("no rows").all()
    )


def test_networks_like_plain_ones_are_not_reproduced():
    rows = [synthetic.score_rows(synthetic.PLAIN, depth=depth) for depth in (4, 8, 16)]
    rows += [synthetic.score_rows(skip="plain", depth=depth) for depth in (4, 8, 16)]
    verdicts = shipped(
        residual_alignment=rows,
        degradation=errors({8: 0.0, 16: 0.05, 24: 0.05}, resnet=0.5) + he_networks({9: 0.5, 27: 0}),
        layer_responses=layers(plain=0.1, fall=0.5, growth=0.5),
    )["verdict"]
    wrong = ["RA1 line", "RA1 spacing", "RA2 alignment", "RA2 left with right", "RA4 block index"]
    wrong += ["RA together", "RA together, specific", "RA ceases without skips"]
    wrong += ["Degradation, strong decay", "Degradation, usual recipe", "No degradation with skips"]
    wrong += ["Degradation, He's networks", "Small responses, deeper smaller"]
    wrong += ["Small responses, smaller than plain"]
    wrong += ["Gradients do not vanish with batch norm, before training"]
    assert set(verdicts[wrong]) == {"not reproduced"}
    assert verdicts["RA3 rank"] == verdicts["Neural Collapse"] == "reproduced"  # plain nets have it


def gradients(**changes):
    """A study of gradients in which theorems hold with coins, and mean field with ReLU."""
    depths = np.array([1, 2, 4, 8, 16, 32, 50])
    halves = dict(zip(depths, 0.5**depths, strict=True))
    power = dict(zip(depths, 0.5 * depths**-1.2, strict=True))
    slow = dict(zip(depths, (1.0 + depths) ** -0.5, strict=True))
    rows = [
        synthetic.gradient_rows(halves, gates="bernoulli", normalisation="none"),
        synthetic.gradient_rows(halves),
        synthetic.gradient_rows(power, paper=halves, normalisation="none"),
    ]
    resnet = {"network": "resnet", "beta": 1.0}
    rows.append(synthetic.gradient_rows(slow, gates="bernoulli", normalisation="none", **resnet))
    rows.append(synthetic.gradient_rows(slow, gates="bernoulli", **resnet))
    wrong = {depth: 2 * value for depth, value in slow.items()}
    rows.append(synthetic.gradient_rows(slow, paper=wrong, **resnet))
    rows.append(synthetic.gradient_rows(slow, network="highway", gates="bernoulli"))
    rows.append(synthetic.gradient_rows(power, normalisation="none", **resnet))
    return [row.assign(**changes) for row in rows]


def ranks(plain=0.45):
    """effective_rank.csv: ranks of plain networks rise to `plain` and means fall to that of white
    noise; those of ResNets stay as they are."""
    rows = []
    for seed, depth in itertools.product((0, 1), (2, 24, 50)):
        keys = {"dataset": "digits", "batch": 256, "depth": depth, "seed": seed, "status": "ok"}
        keys |= {"gradient": "outputs"}
        deep = {"effective_rank": plain, "mean_gradient": 1 / 16}
        found = deep if depth > 2 else {"effective_rank": 0.1, "mean_gradient": 0.5}
        rows.append(keys | {"network": "plain", "beta": np.nan} | found)
        found = {"effective_rank": 0.06, "mean_gradient": 0.7}
        rows.append(keys | {"network": "resnet", "beta": 0.1} | found)
    return [pd.DataFrame(rows)]


def test_claims_of_minibatch_gradients():
    """A rank that does not rise is no whitening; the mean may still shrink."""
    verdicts = shipped(effective_rank=ranks(plain=0.12))["verdict"]
    assert verdicts["Minibatch gradients whiten in plain networks"] == "not reproduced"
    assert verdicts["Minibatch gradients average out in deep plain networks"] == "reproduced"


def random_networks(batch_growth=0.4):
    """Tables of which units are active, of paths and of linear pieces, as theory has them."""
    rows = synthetic.gradient_rows
    bare, resnet = {"normalisation": "none"}, {"network": "resnet", "beta": 1.0}
    depths = (2, 4, 8, 12)
    doubling = {depth: 2 ** (batch_growth * depth) for depth in depths}
    pieces = rows({2: 80.0, 4: 170.0, 8: 340.0}, quantity="pieces", **bare)
    return {
        "coactivation": [
            rows({1: 0.25, 8: 0.25}, quantity="coactive"),
            rows({1: 0.25, 8: 0.25}, quantity="coactive", **resnet),
            rows({4: 0.35, 8: 0.4, 50: 0.48}, quantity="coactive", **bare),
        ],
        "path_counts": [
            rows({8: -2.5, 50: -15.6}, -0.001, {8: -2.4, 50: -15.1}, quantity="coactive_share")
        ],
        "path_lengths": [
            rows({24: 7.0}, quantity=quantity, gates="bernoulli", length=1, **bare, **resnet)
            for quantity in ("variance", "covariance")
        ],
        "linear_regions": [
            pieces.assign(neurons=64 * pieces["depth"]),
            rows(doubling, quantity="sign_changes"),
            rows({8: 2.8, 16: 4.4, 32: 6.3}, quantity="sign_changes", **resnet),
        ],
    }


def test_claims_of_random_networks():
    slow = shipped(**random_networks(batch_growth=0.1))["verdict"]
    assert slow["Linear regions grow exponentially with batch norm"] == "not reproduced"
    assert slow["Linear regions grow slowly in ResNets"] == "reproduced"


def test_gradient_claims():
    own = [synthetic.covariance_rows(0.8, mean_field=0.8, skip="plain", depth=4)]
    own.append(synthetic.covariance_rows(0.05, ("ok", "not_resolved"), skip="plain", depth=16))
    own.append(synthetic.covariance_rows(0.8, depth=16))
    valid = [
        synthetic.similarity_rows({0.001: cosine}, {0: 3.0}, skip=skip, recipe="momentum")
        for skip, cosine in (("resnet", 0.5), ("plain", 0.1))
    ]
    verdicts = shipped(
        gradient_covariance=gradients(), gradient_covariance_networks=own,
        effective_rank=ranks(), gradient_similarity=valid, **random_networks(),
    )  # fmt: skip
    papers = ("Balduzzi et al. 2017", "Veit et al. 2016", "Hanin & Rolnick 2019")
    verdicts = verdicts[verdicts["paper"].isin(papers)]
    assert verdicts.loc["Theorem 3, ReLU gates", "verdict"] == "not reproduced"
    others = verdicts.drop("Theorem 3, ReLU gates")
    assert set(others["verdict"]) == {"reproduced"}, others["verdict"]
    rate = verdicts.loc["Theorem 1, batch norm"]
    np.testing.assert_allclose(rate["value"], 1)
    # weights 1/(log2 error)^2 are equal: the slope's error is the error over the spread of depths
    depths = np.array([1, 2, 4, 8, 16, 32, 50])
    error = 0.001 / np.log(2) / np.sqrt(((depths - depths.mean()) ** 2).sum())
    np.testing.assert_allclose(rate["high"] - rate["low"], 4 * error, rtol=1e-6)


def test_claims_of_the_unconstrained_model():
    claims_of = ["RA in the model, path energy", "No RA4 in the model, Frobenius norm"]
    good = synthetic.unconstrained_rows(("ok", "ok", "not_converged"))
    verdicts = shipped(unconstrained_jacobians=[good]).loc[claims_of]
    assert set(verdicts["verdict"]) == {"reproduced"}
    assert set(verdicts["status"]) == {"1 of 3 rows undefined"}
    lower = good.assign(rank_last=good["rank_last"].mask(good["seed"] == 1, 2))
    verdicts = shipped(unconstrained_jacobians=[lower]).loc[claims_of, "verdict"]
    assert list(verdicts) == ["inconclusive", "reproduced"]
    # A stationary point that is no minimum is not what theory speaks of.
    lower["objective"] = lower["objective"].mask(good["seed"] == 1, 0.035)
    row = shipped(unconstrained_jacobians=[lower]).loc[claims_of[0]]
    assert (row["verdict"], row["status"][:14]) == ("inconclusive", "too few seeds;")


def test_intervals_decide_gradient_claims():
    rows = synthetic.gradient_rows({4: 1.0}, error=0.1)
    entry = {"table": "gradient_covariance", "rows": "depth == 4", "statistic": "measured"}
    for threshold, verdict in (
        (0.75, "reproduced"),
        (0.9, "inconclusive"),
        (1.25, "not reproduced"),
    ):
        row = judge(rows, **entry, threshold=threshold)
        assert row["verdict"] == verdict
    np.testing.assert_allclose([row["low"], row["value"], row["high"]], [0.8, 1, 1.2])
    row = judge(rows.assign(status="not_resolved"), **entry)
    assert row["verdict"] == "inconclusive" and row["status"] == "no rows; 1 of 1 rows not resolved"


def test_every_seed_decides():
    good = synthetic.score_rows()
    assert judge(good)["verdict"] == "reproduced"
    mixed = synthetic.score_rows(
        synthetic.ALIGNED | {"alignment": lambda seed: [0.2, 0.9, 0.9][seed]}
    )
    row = judge(mixed)
    assert (row["verdict"], row["status"]) == ("inconclusive", "ok")
    np.testing.assert_allclose([row["value"], row["low"], row["high"]], [2 / 3, 0.2, 0.9])
    # one bad network spoils its seed only
    second = synthetic.score_rows(synthetic.PLAIN, ("ok",), depth=16)
    assert judge(pd.concat([good, second], ignore_index=True))["verdict"] == "inconclusive"
    one = judge(synthetic.score_rows(statuses=("ok",)))
    assert (one["verdict"], one["status"]) == ("inconclusive", "too few seeds")


def test_undefined_rows_do_not_count_and_are_told():
    table = synthetic.score_rows(statuses=("ok", "ok", "dead"))
    row = judge(table)
    assert (row["verdict"], row["status"]) == ("reproduced", "1 of 3 rows undefined")
    row = judge(synthetic.score_rows(statuses=("dead", "diverged")))
    assert row["verdict"] == "inconclusive"
    assert row["status"] == "no rows; 2 of 2 rows undefined" and np.isnan(row["value"])


def test_no_rows_is_never_reproduced():
    table = synthetic.score_rows()
    for comparison, threshold in (("<=", 0), (">=", 0)):
        row = judge(table, rows="recipe == 'other'", comparison=comparison, threshold=threshold)
        assert (row["verdict"], row["status"]) == ("inconclusive", "no rows")
    further = {"statistic": "train_accuracy", "comparison": ">=", "threshold": 0.9}
    row = judge(table, conditions=[further | {"rows": "depth == 4"}])
    assert (row["verdict"], row["status"]) == ("inconclusive", "no rows for train_accuracy")


def test_chance_accuracy_cannot_hide_a_bad_fit():
    """A network at chance has no scores, but its training accuracy counts."""
    table = pd.concat(
        [
            synthetic.score_rows(statuses=("ok",) * 2),
            synthetic.score_rows(statuses=("chance_accuracy",) * 2, depth=4, train_accuracy=0.1),
        ],
        ignore_index=True,
    )
    further = {"statistic": "train_accuracy", "comparison": ">=", "threshold": 0.9}
    assert judge(table)["verdict"] == "reproduced"
    assert judge(table, conditions=[further])["verdict"] == "not reproduced"


def test_last_epoch_counts_unless_the_query_names_one():
    early = synthetic.score_rows(synthetic.PLAIN, epoch=10)
    table = pd.concat([early, synthetic.score_rows()], ignore_index=True)
    assert judge(table)["verdict"] == "reproduced"
    assert judge(table, rows="split == 'train' and epoch == 10")["verdict"] == "not reproduced"


def test_passes_needs_every_condition():
    conditions = [
        {"statistic": "alignment", "comparison": ">=", "threshold": 0.5},
        {"statistic": "inverse_slope", "comparison": "between", "threshold": [0.75, 1.25]},
    ]
    rows = synthetic.score_rows(
        synthetic.ALIGNED
        | {
            "alignment": lambda seed: [0.9, 0.1, 0.9, 0.1][seed],
            "inverse_slope": lambda seed: [1.0, 1.0, np.nan, np.nan][seed],
        },
        ("ok",) * 4,
    )
    values = claim_statistics.passes(rows[rows["split"] == "train"], conditions)["value"]
    np.testing.assert_array_equal(values, [1, 0, np.nan, 0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"treshold": 1}, ["unknown key 'treshold'", "'threshold'"]),
        ({"statistic": "alignement"}, ["unknown column 'alignement'", "'alignment'"]),
        ({"rows": "dept >= 8"}, ["unknown column 'dept'", "'depth'"]),
        ({"rows": "depth >="}, ["malformed query"]),
        ({"rows": "depth"}, ["malformed query"]),
        ({"rows": "depth >= 'a'"}, ["malformed query"]),
        ({"rows": "depth.max() == 8"}, ["malformed query"]),
        ({"comparison": "=>"}, ["unknown comparison '=>'", ">="]),
        ({"comparison": "between"}, ["[low, high]"]),
        ({"threshold": "0.5"}, ["expected a number"]),
        ({"origin": "guess"}, ["unknown origin 'guess'", "theory, paper, pilot"]),
        ({"table": "spectra"}, ["unknown table 'spectra'", "spectra_per_block"]),
        ({"statistic": {"function": "ratios", "column": "nc1", "to": "nc3"}}, ["'ratio'"]),
        ({"statistic": {"function": "ratio", "column": "nc1"}}, ["'to' is missing"]),
        ({"statistic": {"function": "ratio", "column": "nc", "to": "nc1"}}, ["column 'nc'"]),
        ({"statistic": "recipe"}, ["holds no numbers"]),
        ({"conditions": [{"statistic": "nc1"}]}, ["'comparison' is missing"]),
        ({"statement": None}, ["'statement' is missing"]),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, changes, words):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([ENTRY | changes]))
    with pytest.raises(UserError) as error:
        claims.evaluate(claims.read_claims(path), {"residual_alignment": synthetic.score_rows()})
    message = str(error.value)
    assert message.startswith("claim 'test': ") and "\n" not in message
    assert all(word in message for word in words), message


def test_two_claims_of_one_name(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump([ENTRY, ENTRY]))
    with pytest.raises(UserError, match="two of this name"):
        claims.read_claims(path)
    path.write_text("claims: [")
    with pytest.raises(UserError, match="cannot read"):
        claims.read_claims(path)


def test_thresholds_of_the_claims_are_those_drawn():
    """Panels show the thresholds that the claims use."""
    from resnet_mechanisms.figures import neural_collapse, sweeps

    entries = {entry["claim"]: entry for entry in claims.read_claims(CLAIMS)}
    together = {
        c["statistic"]: c["threshold"] for c in entries["RA together"]["statistic"]["conditions"]
    }
    drawn = {name: score.thresholds for name, score in sweeps.SCORES.items()}
    assert drawn["line_shape_score"] == (together["line_shape_score"],)
    assert drawn["alignment"] == (together["alignment"],)
    assert drawn["inverse_slope"] == tuple(together["inverse_slope"])
    assert drawn["step_cv"] == (entries["RA1 spacing"]["threshold"],)
    collapse = entries["Neural Collapse"]
    for condition in (collapse, *collapse["conditions"][:2]):
        score = neural_collapse.MEASURES[condition["statistic"]]
        assert score.thresholds == (condition["threshold"],)


def test_command(tmp_path):
    synthetic.write_rows(tmp_path / "residual_alignment.csv", *all_networks())
    script = CLAIMS.parent / "scripts" / "claims.py"
    command = [sys.executable, script, "--tables", tmp_path, "--out", tmp_path / "claims.csv"]
    command += ["--page", tmp_path / "claims.html"]
    subprocess.run([*command, "--claims", CLAIMS], check=True)
    written = tables.read([tmp_path / "claims.csv"])
    assert list(written.columns) == claims.COLUMNS
    assert written.set_index("claim").loc["RA1 line", "verdict"] == "reproduced"

    (tmp_path / "claims.yaml").write_text(yaml.safe_dump([ENTRY | {"statistic": "alignement"}]))
    failed = subprocess.run(
        [*command, "--claims", tmp_path / "claims.yaml"], capture_output=True, text=True
    )
    assert failed.returncode == 1 and failed.stderr.startswith(
        "error: claim 'test': unknown column"
    )
    assert failed.stderr.count("\n") == 1
