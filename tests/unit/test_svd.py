"""Singular triplets against closed forms and float64 dense decompositions, by both routes."""

import numpy as np
import pytest
import torch

from resnet_mechanisms import svd
from resnet_mechanisms.costs import BLOCK, basis_size
from resnet_mechanisms.jacobians import (
    ConvolutionalJacobian,
    FullyConnectedJacobian,
    MatrixJacobian,
    linearise_block,
)
from resnet_mechanisms.lanczos import golub_kahan_lanczos, orthogonalised
from resnet_mechanisms.networks import Block
from resnet_mechanisms.svd import NotConverged, certificate, frobenius, top_triplets

ROUTES = ["dense", "lanczos"]


@pytest.fixture(params=ROUTES)
def route(request, monkeypatch):
    """Every test with this argument runs by both routes, whatever they would cost."""
    force(monkeypatch, request.param)
    return request.param


def force(monkeypatch, route):
    costs = (0.0, 1.0) if route == "dense" else (1.0, 0.0)
    monkeypatch.setattr(svd, "expected_seconds", lambda jacobian, count: costs)


def jacobian_of(matrix, inputs=2):
    """A fully connected Jacobian that is the given matrix, all gates open."""
    n_out, n_in = matrix.shape
    ones = (torch.ones(inputs, n, dtype=matrix.dtype) for n in (n_in, n_out))
    return FullyConnectedJacobian(torch.eye(n_in, dtype=matrix.dtype), matrix, *ones)


def orthogonal(n, seed):
    return torch.linalg.qr(
        torch.randn(n, n, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    )[0]


def spectrum(values, n, seed=0, tail=()):
    """An n x n matrix with these leading singular values, then `tail`, then zeros; and U, V."""
    s = torch.zeros(n, dtype=torch.double)
    s[: len(values)] = torch.tensor(values, dtype=torch.double)
    s[len(values) : len(values) + len(tail)] = torch.tensor(tail, dtype=torch.double)
    u, v = orthogonal(n, 2 * seed), orthogonal(n, 2 * seed + 1)
    return u * s @ v.T, s, u, v


def falling(count, first, last):
    return np.geomspace(first, last, count).tolist()


N = 60  # large enough for both routes with K = 8
SPECTRA = {
    "distinct": [5, 4, 3, 2, 1, 0.5, 0.1, 0.01] + falling(52, 9e-3, 1e-3),
    "equal": [3] * 6 + [1] * 5 + [0.5] * 3 + [0.1] * 46,
    "nine equal, then a tail": [1] * 9 + [0.1] * 51,
    "rank 3": [2, 1, 0.5],
    "rank 8, the number asked for": [2, 1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4],
    "rank 1": [1],
    "flat": [1] * N,
    "nearly flat": np.linspace(1, 0.9, N).tolist(),
    "steep": falling(N, 1, 1e-12),
}


@pytest.mark.parametrize("dtype, precision", [(torch.float64, 1e-8), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("scale", [1.0, 1e-18, 1e12])
def test_known_singular_values(route, name, dtype, precision, scale):
    """Values to 1e-5 of s_1 and, where the spectrum has a gap, the subspace to 1e-4; every copy of
    equal values; nothing made of rounding beyond the rank."""
    count = 8
    matrix, s, u, v = spectrum(SPECTRA[name], N)
    tolerance = 1e-9 if dtype == torch.float64 else 1e-4
    t = top_triplets(jacobian_of((scale * matrix).to(dtype)), count, tolerance)
    assert t.values.shape == (2, count) and t.left.shape == (2, count, N)
    top = s[0] * scale
    assert ((t.values.double() - scale * s[:count]).abs() / top).max() <= precision
    assert t.residual.max() <= tolerance
    rank = int((s[:count] > 1e-6 * s[0]).sum()) if dtype == torch.float32 else count
    if name.startswith("rank"):
        rank = min(count, len(SPECTRA[name]))
        assert (t.values[:, rank:] == 0).all() and (t.left[:, rank:] == 0).all()
        assert (t.right[:, rank:] == 0).all()
    for vectors in (t.left[:, :rank], t.right[:, :rank]):
        assert (vectors @ vectors.mT - torch.eye(rank, dtype=dtype)).abs().max() <= 1e-5
    # The subspace up to the largest gap among the first K, and its pairing: sum s u v^T there.
    gaps = s[:count] - s[1 : count + 1]
    cut = int(gaps.argmax()) + 1
    if gaps.max() > 0.05 * s[0]:
        truth_left, truth_right = u[:, :cut].to(dtype), v[:, :cut].to(dtype)
        for ours, truth in ((t.left, truth_left), (t.right, truth_right)):
            outside = ours[0, :cut].mT - truth @ (truth.T @ ours[0, :cut].mT)
            assert outside.norm(dim=0).max() <= 1e-4
        ours = (t.left[0, :cut] * t.values[0, :cut, None] / top).mT @ t.right[0, :cut]
        truth = (u[:, :cut] * s[:cut] / s[0]) @ v[:, :cut].T
        assert (ours.double() - truth).norm() <= 4e-4


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("copies", [3, 9, 14])
@pytest.mark.parametrize("tail", ["equal .5", "equal .01", "falling", "rank 20", "none"])
def test_no_copy_of_equal_singular_values_is_missed(monkeypatch, seed, copies, tail):
    """More copies than the block has vectors, and starts that run out in an invariant subspace."""
    force(monkeypatch, "lanczos")
    rest = {
        "equal .5": [0.5] * (100 - copies),
        "equal .01": [0.01] * (100 - copies),
        "falling": falling(100 - copies, 0.8, 0.1),
        "rank 20": falling(20 - copies, 0.8, 0.1),
        "none": [],
    }[tail]
    matrix, s, *_ = spectrum([1] * copies, 100, seed, tail=rest)
    t = top_triplets(jacobian_of(matrix.float()), 15, seed=seed)
    assert (t.values - s[:15]).abs().max() <= 1e-5


def real_blocks():
    """Random blocks with gates as in use: (Jacobian, K)."""
    torch.manual_seed(3)
    for convolutional, n_in, n_out, stride, side, count in [
        (False, 96, 96, 1, (), 30),
        (True, 6, 6, 1, (5, 5), 10),
        (True, 5, 10, 2, (6, 7), 10),
    ]:
        block = Block("conv" if convolutional else "fc", n_in, n_out, stride, "resnet").double()
        h = torch.randn(5, n_in, *side, dtype=torch.double).relu()
        block(h)
        yield linearise_block(block.eval(), h)[0], count


@pytest.mark.parametrize("dtype, precision", [(torch.float64, 1e-9), (torch.float32, 1e-6)])
@pytest.mark.parametrize("which", range(3))
def test_against_numpy_on_random_gated_blocks(route, which, dtype, precision):
    jacobian, count = list(real_blocks())[which]
    truth = np.linalg.svd(jacobian.dense.numpy(), compute_uv=False)
    for name in vars(jacobian):
        value = getattr(jacobian, name)
        if torch.is_tensor(value):
            setattr(jacobian, name, value.to(dtype))
    jacobian.dtype = dtype
    t = top_triplets(jacobian, count, 1e-8 if dtype == torch.float64 else 1e-4)
    np.testing.assert_allclose(
        t.values.double().numpy(), truth[:, :count], atol=precision * truth.max()
    )
    norm = frobenius(jacobian, t, "exact")
    np.testing.assert_allclose(
        norm.value.double().numpy(), np.sqrt((truth**2).sum(1)), rtol=max(precision, 1e-6)
    )
    assert (norm.error == 0).all()


def test_certificate_is_two_sided():
    """||J v - s u|| = 0 by construction while the other half is wrong, and the other way round."""
    matrix = torch.diag(torch.tensor([2.0, 1.0, 0.5, 0.1]))
    jacobian = MatrixJacobian(matrix[None])
    v = torch.nn.functional.normalize(torch.tensor([[[1.0, 0.1, 0, 0]]]), dim=2)
    image = jacobian.matvec(v)
    s = image.norm(dim=2)
    residual = certificate(jacobian, image / s[..., None], s, v)
    # J^T J v - s^2 v by hand, over s s_1 with the Ritz value s as s_1.
    hand = ((matrix @ matrix @ v[0, 0]) / s - s * v[0, 0]).norm() / s
    assert residual.item() == pytest.approx(hand.item(), rel=1e-5) and hand > 0.05
    flipped = certificate(jacobian, v, s, image / s[..., None])
    assert flipped.item() == pytest.approx(hand.item(), rel=1e-5)


def test_the_certificate_uses_the_operator_and_not_the_matrix(monkeypatch):
    class Inconsistent(FullyConnectedJacobian):
        """An adjoint that is off by one percent, as a wrong convolution would be."""

        def rmatvec(self, vectors):
            return 1.01 * super().rmatvec(vectors)

    matrix = torch.eye(N)
    gates = torch.ones(1, N)
    for route in ROUTES:
        force(monkeypatch, route)
        with pytest.raises(NotConverged, match="residual 1.0e-02 of s_1, tolerance 1e-04"):
            top_triplets(Inconsistent(matrix, matrix, gates, gates), 2)


def test_a_failed_certificate_is_tried_again_and_then_made_from_the_matrix(monkeypatch):
    """The solver's estimate is not believed: here it returns noise and says that it converged."""
    force(monkeypatch, "lanczos")
    calls = []

    def wrong(jacobian, count, tolerance, seed, one_sided):
        calls.append((tolerance, one_sided))
        found = golub_kahan_lanczos(jacobian, count, tolerance, seed, one_sided=one_sided)
        found.left = torch.randn_like(found.left)
        return found

    monkeypatch.setattr(svd, "golub_kahan_lanczos", wrong)
    matrix, s, *_ = spectrum(SPECTRA["distinct"], N)
    t = top_triplets(jacobian_of(matrix.float()), 4)
    assert [two for _, two in calls] == [True, False] and calls[1][0] < calls[0][0]
    assert t.residual.max() <= 1e-5 and (t.values[0] - s[:4]).abs().max() <= 1e-4


def test_more_triplets_than_the_matrix_has():
    t = top_triplets(jacobian_of(torch.eye(3)), 10)
    assert t.values.shape == (2, 3) and (t.values == 1).all()


def test_dead_block_has_zero_values_and_no_nan(route):
    t = top_triplets(jacobian_of(torch.zeros(N, N)), 3)
    for value in (t.values, t.residual, t.left, t.right):
        assert (value == 0).all()
    assert (frobenius(jacobian_of(torch.zeros(N, N)), t, "exact").value == 0).all()


def test_one_dead_input_among_others(route):
    """Lock step: an input without open gates leaves the others as they are."""
    torch.manual_seed(0)
    weights = [torch.randn(N, N) / N**0.5 for _ in range(2)]
    gates = (torch.rand(3, N) > 0.4).float()
    gates[1] = 0
    jacobian = FullyConnectedJacobian(*weights, gates, torch.ones(3, N))
    t = top_triplets(jacobian, 5)
    truth = torch.linalg.svdvals(jacobian.dense.double())[:, :5]
    assert (t.values[1] == 0).all() and torch.isfinite(t.left).all()
    assert (t.values - truth).abs().max() <= 1e-5


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(route, bad):
    matrix = torch.eye(N)
    matrix[0, 0] = bad
    with pytest.raises(FloatingPointError, match="not finite"):
        top_triplets(jacobian_of(matrix), 2)


def test_the_same_seed_gives_the_same_bits_and_inputs_do_not_disturb_each_other(monkeypatch):
    force(monkeypatch, "lanczos")
    jacobian, count = next(real_blocks())
    first, again = (top_triplets(jacobian, count, 1e-6, seed=4) for _ in range(2))
    for name in ("left", "values", "right", "residual"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    alone = top_triplets(jacobian.inputs([2]), count, 1e-6, seed=4)
    assert (alone.values[0] - first.values[2]).abs().max() <= 1e-11 * first.values.max()


def test_inputs_converge_at_their_own_pace():
    """A rank-3 input leaves the lock step while a flat one goes through restarts."""
    easy, *_ = spectrum([3, 2, 1], N)
    hard, s, *_ = spectrum(np.linspace(1, 0.5, N).tolist(), N, 1)
    jacobian = MatrixJacobian(torch.stack([easy, hard, easy]))
    found = golub_kahan_lanczos(jacobian, 5, 1e-10)
    assert found.converged.all()
    truth = torch.stack([torch.linalg.svdvals(m)[:5] for m in jacobian.matrix])
    assert (found.values - truth).abs().max() <= 1e-12
    assert found.products < 20 * N


def test_orthogonalisation_keeps_the_product():
    """Rows inside the span are replaced, and r^T rows stays the part outside."""
    generator = torch.Generator().manual_seed(0)
    basis = orthogonal(20, 0)[:6][None]
    inside, outside = basis[:, 0], orthogonal(20, 1)[:1]
    rows = torch.linalg.qr(torch.stack([inside, outside], 1).mT)[0].mT
    r = torch.tensor([[[1e-9, 0.2], [0.0, 2.0]]], dtype=torch.double)
    before = r.mT @ rows
    new, changed = orthogonalised(rows, r, basis, generator)
    both = torch.cat([basis, new], 1)
    assert (both @ both.mT - torch.eye(8)).abs().max() < 1e-12
    projected = before - (before @ basis.mT) @ basis
    assert (changed.mT @ new - projected).abs().max() < 1e-8


def test_the_route_is_the_cheaper_one():
    """Small blocks and many triplets by LAPACK, large blocks and few triplets by products."""

    def cheaper(width, count, open_share=0.5):
        gates = torch.zeros(1, width)
        gates[:, : int(open_share * width)] = 1
        weight = torch.zeros(1).expand(width, width)
        jacobian = FullyConnectedJacobian(
            weight, weight, gates.expand(32, -1), gates.expand(32, -1)
        )
        dense, lanczos = svd.expected_seconds(jacobian, count)
        return "dense" if dense <= lanczos else "lanczos"

    assert cheaper(64, 15) == cheaper(128, 30) == "dense"
    assert cheaper(1024, 30) == cheaper(2048, 15) == "lanczos"
    assert cheaper(512, 400) == "dense"
    weight, gates = torch.zeros(64, 64, 3, 3), torch.zeros(1, 64, 16, 16)
    conv = ConvolutionalJacobian(weight, weight, gates, gates, (64, 16, 16))
    dense, lanczos = svd.expected_seconds(conv, 30)
    assert lanczos < dense / 100


def test_a_block_too_small_for_the_solver_is_refused_by_it():
    assert basis_size(5) + BLOCK > 16
    with pytest.raises(ValueError, match="dense route"):
        golub_kahan_lanczos(MatrixJacobian(torch.eye(16)[None]), 5, 1e-4)


def test_frobenius_norm_estimated_within_its_standard_error(monkeypatch):
    force(monkeypatch, "lanczos")
    jacobian, count = list(real_blocks())[1]
    t = top_triplets(jacobian, count)
    assert t.frobenius.isnan().all(), "the solver alone does not know it"
    exact = frobenius(jacobian, t, "exact").value
    assert exact == pytest.approx(jacobian.dense.flatten(1).norm(dim=1), rel=1e-12)
    deviations = torch.stack(
        [
            (norm.value - exact) / norm.error
            for norm in (
                frobenius(jacobian, t, "estimate", probes=64, seed=seed) for seed in range(40)
            )
        ]
    )
    # 200 deviations in units of their stated error: mean square 1 within 3 sqrt(2/200), widened
    # for the t-like tails of an error that is itself estimated from 64 probes.
    assert deviations.square().mean().item() == pytest.approx(1, abs=0.45)
    assert deviations.mean().abs() <= 3 / 200**0.5
    assert frobenius(jacobian, t).error.max() == 0, "a small state is probed exactly"


@pytest.mark.parametrize("stride, side", [(1, (9, 8)), (2, (9, 8)), (2, (8, 8)), (1, (2, 3))])
def test_coloured_probes_do_not_overlap(stride, side):
    """The images of what is probed together touch different input pixels, so norms add up."""
    torch.manual_seed(0)
    block = Block("conv", 2, 3, stride, "plain").double().eval()
    h = torch.randn(1, 2, *side, dtype=torch.double)
    jacobian, _, _ = linearise_block(block, h)
    jacobian.gates1.fill_(1)
    jacobian.gates2.fill_(1)
    probes = torch.cat(list(jacobian.probes()))
    assert len(probes) == jacobian.number_of_probes
    assert torch.equal(probes.sum(0), torch.ones(jacobian.shape[1], dtype=torch.double))
    total = jacobian.rmatvec(probes[None]).square().sum()
    assert total.item() == pytest.approx(jacobian.dense.square().sum().item(), rel=1e-12)


def test_verification_is_never_in_tensorfloat32(monkeypatch):
    seen = []
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]

    class Spy(MatrixJacobian):
        def rmatvec(self, vectors):
            seen.extend(backend.allow_tf32 for backend in backends)
            return super().rmatvec(vectors)

    try:
        for backend in backends:
            backend.allow_tf32 = True
        for route in ROUTES:
            force(monkeypatch, route)
            top_triplets(Spy(torch.eye(N)[None]), 3)
        assert seen and not any(seen)
        assert all(backend.allow_tf32 for backend in backends), "left as it was found"
    finally:
        for backend, value in zip(backends, before, strict=True):
            backend.allow_tf32 = value
