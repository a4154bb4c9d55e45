"""The unconstrained Jacobians model against automatic differentiation, closed forms and theory."""

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from resnet_mechanisms import unconstrained_jacobians as model
from resnet_mechanisms.alignment import alignment_scores, line_fit, trajectory_scores
from resnet_mechanisms.errors import UserError
from resnet_mechanisms.jacobians import MatrixJacobian
from resnet_mechanisms.svd import top_triplets
from resnet_mechanisms.unconstrained_jacobians import Model, minimal_norm, scores, solve

LAMBDA, DEPTH = 0.01, 10
BLOCKS = np.arange(1, DEPTH + 1)


def solved(classes, penalty, ends, seed=0, **more):
    return solve(Model(classes, DEPTH, penalty, ends, LAMBDA), seed, **more)


def read(solution, penalty):
    """(Jacobians, scores) in the reading that claims are made of."""
    smallest = penalty == "path"
    jacobians = solution.jacobians
    jacobians = minimal_norm(jacobians, solution.inputs) if smallest else jacobians
    return jacobians, scores(jacobians, solution.inputs)[0]


@pytest.fixture(scope="module")
def solutions():
    """Solution of the first seed by (classes, penalty, ends)."""
    return {
        (classes, penalty, ends): solved(classes, penalty, ends)
        for classes in (2, 4, 10)
        for penalty in model.PENALTIES
        for ends in model.ENDS
    }


# ---- the objective


def written_out(description, parameters):
    """The objective in torch, term by term as the module's docstring has it."""
    strength, count = description.penalty_strength, description.inputs
    sizes = description.blocks * description.width**2, description.width * count
    jacobians, inputs, classifier = parameters.split([*sizes, sizes[1]])
    jacobians = jacobians.view(-1, description.width, description.width)
    inputs, h = inputs.view(-1, count), inputs.view(-1, count)
    energy = 0
    for jacobian in jacobians:
        step = jacobian @ h
        energy = energy + step.square().sum(0).mean()
        h = h + step
    classifier = classifier.view(count, -1)
    logits = (classifier @ h).T  # one row an input
    if description.classes == 2:
        logits = torch.cat([logits, torch.zeros_like(logits)], 1)
    value = torch.nn.functional.cross_entropy(logits, torch.arange(count))
    norm = jacobians.square().sum()
    value = value + strength / 2 * (norm if description.penalty == "frobenius" else energy)
    value = value + strength / 2 * description.frobenius_term * norm
    if description.ends == "free":
        value = value + strength / 2 * (inputs.square().sum(0).mean() + classifier.square().sum())
    return value


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("penalty", model.PENALTIES)
@pytest.mark.parametrize("ends", model.ENDS)
@pytest.mark.parametrize("term", [0.0, 0.5])
def test_objective_is_what_is_written_and_its_gradient_that_of_autograd(
    classes, penalty, ends, term
):
    description = Model(classes, 4, penalty, ends, 0.3, term)
    ends_size = 2 * description.width * description.inputs
    parameters = np.random.default_rng(0).normal(0, 0.5, 4 * description.width**2 + ends_size)
    value, gradient = model.objective(description, parameters)
    tensor = torch.tensor(parameters, requires_grad=True)
    expected = written_out(description, tensor)
    expected.backward()
    expected_gradient = tensor.grad.numpy()
    if ends == "fixed":
        expected_gradient[-ends_size:] = 0
    assert value == pytest.approx(expected.item(), rel=1e-12)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-10, atol=1e-13)


def test_two_classes_are_softmax_of_an_input_and_its_negative():
    logit = 1.7
    loss, gradient = model.cross_entropy(np.array([[logit]]))
    pair = np.array([[logit / 2, -logit / 2], [-logit / 2, logit / 2]])
    loss_of_pair, gradient_of_pair = model.cross_entropy(pair)
    assert loss == pytest.approx(loss_of_pair)
    assert gradient.item() == pytest.approx((gradient_of_pair * np.sign(pair)).sum() / 2)


def test_small_losses_keep_their_precision():
    loss, gradient = model.cross_entropy(40 * np.eye(3))
    assert loss == pytest.approx(2 * np.exp(-40), rel=1e-12)
    np.testing.assert_allclose(gradient, np.exp(-40) * (1 - 3 * np.eye(3)) / 3, rtol=1e-12)


# ---- solutions


def test_every_start_ends_at_the_stated_gradient_norm(solutions):
    for key, solution in solutions.items():
        assert solution.converged, key
        assert solution.gradient_norm <= model.TOLERANCE * LAMBDA, key
        assert solution.evaluations < model.EVALUATIONS


# Objectives that independent code found with L = 10 and lambda = .01, free ends, and their rank:
# the Frobenius norm has several stationary points.
PILOT = {
    (4, "frobenius"): {(3, 0.02287), (2, 0.02065)},
    (10, "frobenius"): {(5, 0.0435), (4, 0.0415), (4, 0.0413)},
    (4, "path"): {(3, 0.0339)},
    (10, "path"): {(9, 0.06823)},
}


@pytest.mark.parametrize(("classes", "penalty"), PILOT)
def test_objectives_are_those_of_the_pilot(classes, penalty):
    expected, found = PILOT[classes, penalty], set()
    digits = max(len(str(value)) for _, value in expected) - 2
    for seed in range(10 if (classes, penalty) == (10, "frobenius") else 3):
        start = np.random.default_rng(seed).normal(size=(2, 2 * classes, classes))
        inputs, classifier = (np.linalg.qr(part)[0] for part in start)  # short: more ways to end
        more = {"inputs": inputs, "classifier": classifier.T}
        solution = solved(classes, penalty, "free", seed, **more)
        rank = read(solution, penalty)[1]["rank_last"]
        found.add((rank, round(solution.objective, digits)))
    assert expected <= found


def test_lower_rank_is_lower_with_the_frobenius_norm(solutions):
    """Four classes at the corners of a square are two binary problems."""
    two = solved(4, "frobenius", "free", seed=1)
    assert read(two, "frobenius")[1]["rank_last"] == 2
    assert two.objective == pytest.approx(2 * solutions[2, "frobenius", "free"].objective, rel=1e-9)
    assert two.objective < solutions[4, "frobenius", "free"].objective


def stationary_value(classes):
    """s of rank C - 1 with free ends: with logits g = sqrt(N) s (1 + s)^(L + 1) above the others,
    each of these has probability lambda / (sqrt(N) (1 + s)^L)."""
    root = 1 if classes == 2 else classes**0.5

    def excess(s):
        odds = np.exp(-root * s * (1 + s) ** (DEPTH + 1))
        return odds / (1 + (classes - 1) * odds) - LAMBDA / (root * (1 + s) ** DEPTH)

    return brentq(excess, 0.1, 1, xtol=1e-14)


@pytest.mark.parametrize("classes", [2, 4])
def test_frobenius_norm_in_closed_form(solutions, classes):
    jacobians, found = read(solutions[classes, "frobenius", "free"], "frobenius")
    s = stationary_value(classes)
    values = np.linalg.svd(jacobians, compute_uv=False)[:, : classes - 1]
    np.testing.assert_allclose(values, s, rtol=1e-5)
    assert found["rank_first"] == found["rank_last"] == classes - 1
    for ratio in ("step_ratio_first", "step_ratio_last"):
        assert found[ratio] == pytest.approx(1 + s, rel=1e-5)


@pytest.mark.parametrize("ends", model.ENDS)
@pytest.mark.parametrize("classes", [2, 4, 10])
def test_stationary_points_of_the_frobenius_norm(solutions, classes, ends):
    """With A = I + J and the gradients g of the objective, at any point lambda (J_l + J_l J_l^T -
    J_{l+1} - J_{l+1}^T J_{l+1}) = g_l A_l^T - A_{l+1}^T g_{l+1}: the identity fails by no more than
    the gradient allows."""
    solution = solutions[classes, "frobenius", ends]
    jacobians, found = read(solution, "frobenius")
    largest = np.linalg.norm(np.eye(2 * classes) + jacobians, ord=2, axis=(1, 2)).max()
    bound = 2**0.5 * largest * solution.gradient_norm / LAMBDA
    assert found["identity_error"] <= bound / np.linalg.norm(jacobians, axis=(1, 2)).max()
    assert found["rank_first"] <= classes - 1 and found["rank_last"] <= classes - 1
    values = np.linalg.svd(jacobians, compute_uv=False)
    np.testing.assert_allclose(values, np.broadcast_to(values[0], values.shape), atol=1e-4)
    assert abs(found["inverse_slope"]) < 1e-4 and np.isnan(found["inverse_r2"])
    # Fixed ends turn on the way, by input and direction, so their growth is not quite the same.
    same = pytest.approx(found["step_ratio_last"], rel=1e-4 if ends == "free" else 1e-2)
    assert found["step_ratio_first"] == same
    if ends == "free":
        for name in ("alignment", "alignment_swapped", "overlap_uv", "line_shape_score"):
            assert found[name] == pytest.approx(1, abs=1e-6), name
        assert found["step_ratio_last"] > 1.2


@pytest.mark.parametrize("classes", [2, 4, 10])
def test_path_energy_with_free_ends_is_residual_alignment(solutions, classes):
    solution = solutions[classes, "path", "free"]
    lowest = model.lowest_path_energy(classes, DEPTH, LAMBDA)
    assert solution.objective == pytest.approx(lowest, rel=1e-10)
    jacobians, found = read(solution, "path")
    values = np.linalg.svd(jacobians, compute_uv=False)
    expected = np.where(np.arange(2 * classes) < classes - 1, 1 / BLOCKS[:, None], 0)
    np.testing.assert_allclose(values, expected, atol=1e-5)
    assert found["inverse_slope"] == pytest.approx(1, abs=1e-5)
    assert found["inverse_intercept"] == pytest.approx(0, abs=1e-4)
    for name in ("inverse_r2", "alignment", "alignment_swapped", "overlap_uv", "line_shape_score"):
        assert found[name] == pytest.approx(1, abs=1e-5), name
    assert found["step_cv"] < 1e-5
    assert found["rank_first"] == found["rank_last"] == found["rank_bound"] == classes - 1


def test_path_energy_leaves_its_jacobians_open(solutions):
    """As found, from two starts: the same path, other singular values."""
    both = [solutions[10, "path", "free"], solved(10, "path", "free", seed=1)]
    found = [scores(solution.jacobians, solution.inputs)[0] for solution in both]
    for one in found:
        assert one["inverse_slope"] < 0.5 and one["rank_last"] > 10
        assert one["line_shape_score"] == pytest.approx(1, abs=1e-6) and one["step_cv"] < 1e-5
    assert found[0]["inverse_slope"] != pytest.approx(found[1]["inverse_slope"], rel=0.01)


@pytest.mark.parametrize(("classes", "slope"), [(2, 0.992), (4, 0.986), (10, 0.981)])
def test_a_frobenius_term_picks_nearly_the_smallest(classes, slope):
    description = Model(classes, DEPTH, "path", "free", LAMBDA, model.FROBENIUS_TERM)
    solution = solve(description)
    found = scores(solution.jacobians, solution.inputs)[0]
    assert solution.converged
    assert found["inverse_slope"] == pytest.approx(slope, abs=1e-3)
    assert found["alignment"] == pytest.approx(1, abs=1e-4)
    assert found["rank_first"] == found["rank_last"] == classes - 1


def test_minimal_norm_takes_the_same_steps(solutions):
    for (_, penalty, _), solution in solutions.items():
        smallest = minimal_norm(solution.jacobians, solution.inputs)
        before, after = (model.states(j, solution.inputs) for j in (solution.jacobians, smallest))
        np.testing.assert_allclose(after, before, atol=1e-4)
        norms = (np.linalg.norm(j, axis=(1, 2)) for j in (smallest, solution.jacobians))
        assert np.all(np.subtract(*norms) < 1e-4), penalty


PILOT_COSINE = -0.762  # of the input and classifier that the pilot drew, by all its numbers


def binary(penalty, cosine):
    """Fixed ends of two classes at this cosine."""
    inputs = np.array([[1.0], [0], [0], [0]])
    classifier = np.array([[cosine, (1 - cosine**2) ** 0.5, 0, 0]])
    return solved(2, penalty, "fixed", inputs=inputs, classifier=classifier)


@pytest.mark.parametrize(("cosine", "slope"), [(0.0, 0.847), (PILOT_COSINE, 0.765)])
def test_path_energy_with_fixed_ends_in_closed_form(cosine, slope):
    """Equal steps d along the classifier with lambda d = 1 / (1 + exp(c + L d)), so
    1/s_l = ||h_{l-1}|| / d; at the pilot's cosine its slope and ends."""
    step = brentq(lambda d: 1 / (1 + np.exp(cosine + DEPTH * d)) - LAMBDA * d, 1e-9, 10)
    walked = step * (BLOCKS - 1)
    inverse = np.sqrt(1 + 2 * walked * cosine + walked**2) / step
    jacobians, found = read(binary("path", cosine), "path")
    values = np.linalg.svd(jacobians, compute_uv=False)[:, 0]
    np.testing.assert_allclose(1 / values, inverse, rtol=1e-4)
    assert found["inverse_slope"] == pytest.approx(slope, abs=1e-3)
    if cosine:
        assert (1 / values)[[0, -1]] == pytest.approx([1.70, 7.78], abs=0.01)
        names = ("inverse_r2", "alignment", "alignment_swapped")
        assert [found[n] for n in names] == pytest.approx([0.936, 0.526, 0.343], abs=0.001)


def test_frobenius_norm_with_fixed_ends_at_the_pilot_s_cosine():
    solution = binary("frobenius", PILOT_COSINE)
    found = scores(solution.jacobians, solution.inputs)[0]
    assert 1 / found["sigma_1_first"] == pytest.approx(3.08, abs=0.01)
    assert found["line_shape_score"] == pytest.approx(1.154, abs=0.001)
    assert found["step_ratio_last"] == pytest.approx(1.251, abs=0.001)
    assert found["alignment"] == pytest.approx(0.599, abs=0.001)
    assert found["alignment_swapped"] == pytest.approx(0.102, abs=0.001)


def test_slope_1_needs_free_ends(solutions):
    for classes in (2, 4, 10):
        found = read(solutions[classes, "path", "fixed"], "path")[1]
        assert found["step_cv"] < 1e-5  # equal steps all the same
        assert 0.84 < found["inverse_slope"] < 0.9
        assert found["alignment"] < 0.85
        # Inputs and classifier in no relation to each other, as in the pilot (.64 to .77).
        random = np.random.default_rng(classes).normal(size=(2, 2 * classes, classes))
        inputs, classifier = (np.linalg.qr(part)[0] for part in random)
        if classes > 2:
            more = {"inputs": inputs, "classifier": classifier.T}
            found = read(solved(classes, "path", "fixed", **more), "path")[1]
            assert 0.5 < found["inverse_slope"] < 0.84


def test_ra2_to_ra4_imply_ra1():
    """One basis for u and v in all blocks and s_k = 1 / (l - 1 + c_k): the path telescopes to
    (l + c_k) / c_k along u_k, linear in l."""
    rng = np.random.default_rng(0)
    width, rank = 7, 3
    basis = np.linalg.qr(rng.normal(size=(width, rank)))[0]
    offsets = np.array([1.0, 1.5, 2.5])
    jacobians = np.stack([basis / (block - 1 + offsets) @ basis.T for block in BLOCKS])
    inputs = basis @ rng.normal(size=(rank, 2))
    path = model.states(jacobians, inputs)
    expected = (np.arange(DEPTH + 1)[:, None, None] + offsets[:, None]) / offsets[:, None]
    np.testing.assert_allclose(basis.T @ path, expected * (basis.T @ inputs))
    shape, _ = trajectory_scores([torch.from_numpy(h.T.copy()) for h in path])
    torch.testing.assert_close(shape["line_shape_score"], torch.ones(2, dtype=torch.float64))
    assert shape["step_cv"].max() < 1e-12
    operators = [MatrixJacobian(torch.from_numpy(jacobian)[None]) for jacobian in jacobians]
    triplets = [top_triplets(operator, rank, tolerance=1e-10) for operator in operators]
    pairs = alignment_scores(operators, triplets, rank)
    assert pairs["alignment"].item() == pytest.approx(1)
    assert pairs["alignment_swapped"].item() == pytest.approx(1)
    line = line_fit(1 / torch.stack([t.values[:, 0] for t in triplets], 1))
    assert line["inverse_slope"].item() == pytest.approx(1)
    assert line["inverse_intercept"].item() == pytest.approx(0, abs=1e-12)  # c_1 - 1


# ---- tables

SETTINGS = {"classes": [3], "blocks": 3, "penalty_strength": 0.02, "starts": 2, "seed": 5}


@pytest.fixture(scope="module")
def tables():
    return model.model_tables(SETTINGS)


def test_tables_hold_every_reading_and_block(tables):
    rows, blocks = tables
    assert len(rows) == 2 * (2 + 3 * 2) and len(blocks) == 3 * len(rows)
    assert set(rows["status"]) == {"ok"} and set(rows["seed"]) == {5, 6}
    readings = {"as_found", "minimal_norm", "frobenius_term"}
    assert set(rows.loc[rows["penalty"] == "path", "reading"]) == readings
    assert set(rows.loc[rows["penalty"] == "frobenius", "reading"]) == {"as_found"}
    known = (rows["penalty"] == "path") & (rows["ends"] == "free")
    known &= rows["reading"] != "frobenius_term"
    assert rows["objective_minimum"].notna().equals(known)
    # The table's alignment is the mean over the blocks'.
    mean = blocks.groupby(["penalty", "ends", "reading", "start"], sort=False)["alignment"].mean()
    np.testing.assert_allclose(mean, rows["alignment"])


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"penalty_strength": 5.0}, "dead"),
        ({"blocks": 2}, "too_few_points"),
        (None, "not_converged"),
    ],
)
def test_statuses(tmp_path, monkeypatch, change, status):
    if change is None:
        monkeypatch.setattr(model, "EVALUATIONS", 5)
    rows, blocks = model.model_tables(SETTINGS | {"starts": 1} | (change or {}))
    # However strong the penalty, fixed ends move.
    rows, blocks = (table[table["ends"] == "free"] for table in (rows, blocks))
    assert set(rows["status"]) == {status}
    assert rows["inverse_slope"].isna().all() and rows["gradient_norm"].notna().all()
    assert rows["alignment"].isna().all() == (status != "too_few_points")
    assert blocks["sigma_1"].isna().all() == (status != "too_few_points")


def test_figure_shows_theory_and_says_what_is_undefined(tables, tmp_path):
    from resnet_mechanisms.figures import style, unconstrained_jacobians
    from resnet_mechanisms.tables import write

    files = tmp_path / "rows.csv", tmp_path / "blocks.csv"
    for table, file in zip(tables, files, strict=True):
        write(table, file)
    style.use_style()
    fig = unconstrained_jacobians.draw(files)
    lines = [np.column_stack(line.get_data()) for line in fig.axes[0].get_lines()]
    theory = [[1, 1], [2, 2], [3, 3]]
    assert sum(line.shape == (3, 2) and np.allclose(line, theory, atol=1e-4) for line in lines) == 2
    assert "slope 1.00 free" in fig.axes[0].get_title(loc="left")
    for table, file in zip(tables, files, strict=True):
        free = table["ends"] == "free"
        write(table.assign(status=table["status"].mask(free, "dead")), file)
    fig = unconstrained_jacobians.draw(files)
    assert "undefined: 8 of 16 (dead)" in fig.get_suptitle()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classes": [1]}, "classes is"),
        ({"classes": []}, "classes is"),
        ({"blocks": 1}, "blocks is 1; expected at least 2"),
        ({"penalty_strength": 0.0}, "penalty_strength is 0.0; expected a number > 0"),
    ],
)
def test_settings_out_of_range_are_named(change, message):
    with pytest.raises(UserError, match=message):
        model.model_tables(SETTINGS | change)
