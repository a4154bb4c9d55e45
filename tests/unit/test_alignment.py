"""Residual Alignment scores on paths and Jacobians whose answers are known in closed form."""

import math

import pytest
import torch

from resnet_mechanisms.alignment import (
    TripletStore,
    alignment_cells,
    alignment_matrices,
    alignment_scores,
    alignment_with_inputs,
    line_fit,
    trajectory_scores,
)
from resnet_mechanisms.jacobians import FullyConnectedJacobian, MatrixJacobian, linearise
from resnet_mechanisms.networks import Network
from resnet_mechanisms.svd import top_triplets

N, WIDTH, DEPTH, TOP = 2, 12, 5, 3


def orthonormal(seed, rows=TOP):
    random = torch.randn(
        WIDTH, rows, dtype=torch.double, generator=torch.Generator().manual_seed(seed)
    )
    return torch.linalg.qr(random)[0]


def network_of(lefts, values, rights):
    """Jacobians sum_k s_k u_k v_k^T of each block and their triplets."""
    gates = torch.ones(N, WIDTH, dtype=torch.double)
    eye = torch.eye(WIDTH, dtype=torch.double)
    jacobians = [
        FullyConnectedJacobian(eye, u * s @ v.T, gates, gates)
        for u, s, v in zip(lefts, values, rights, strict=True)
    ]
    return jacobians, [top_triplets(j, TOP) for j in jacobians]


def inverse_in_depth(offset=1.0):
    """s_{k,l} = 1/(l - 1 + c_k) with c_k distinct: RA4."""
    c = offset + 0.2 * torch.arange(TOP, dtype=torch.double)
    return [1 / (block - 1 + c) for block in range(1, DEPTH + 1)]


def test_straight_equispaced_path():
    direction = torch.randn(
        1, WIDTH, dtype=torch.double, generator=torch.Generator().manual_seed(0)
    )
    states = [(3 + 2 * block) * direction.repeat(N, 1) for block in range(DEPTH + 1)]
    scores, lengths = trajectory_scores(states)
    for name, truth in dict(line_shape_score=1, step_cv=0, step_cosine=1, pc1_share=1).items():
        assert scores[name] == pytest.approx([truth] * N, abs=1e-12)
    assert torch.allclose(lengths, 2 * direction.norm().expand(N, DEPTH))


def test_right_angle_zigzag_and_unequal_steps():
    corner = torch.tensor([[[0.0, 0], [1, 0], [1, 1]]], dtype=torch.double)
    scores, _ = trajectory_scores(list(corner.unbind(1)))
    assert scores["line_shape_score"].item() == pytest.approx(math.sqrt(2))
    assert scores["step_cosine"].item() == pytest.approx(0, abs=1e-12)
    # Steps 1 and 3 on a line: mean 2, population deviation 1.
    uneven = torch.tensor([[[0.0, 0], [1, 0], [4, 0]]], dtype=torch.double)
    scores, lengths = trajectory_scores(list(uneven.unbind(1)))
    assert scores["step_cv"].item() == pytest.approx(0.5)
    assert scores["line_shape_score"].item() == pytest.approx(1)
    assert lengths.tolist() == [[1, 3]]
    # A square's four corners: both principal components carry half.
    square = torch.tensor([[[0.0, 0], [1, 0], [1, 1], [0, 1]]], dtype=torch.double)
    assert trajectory_scores(list(square.unbind(1)))[0]["pc1_share"].item() == pytest.approx(0.5)


def test_a_change_of_shape_breaks_the_path():
    narrow = [torch.full((N, 2), float(block)) for block in range(3)]
    wide = [torch.tensor([[float(block), 0, float(block), 0]] * N) for block in range(4)]
    scores, lengths = trajectory_scores(narrow + wide)
    assert scores["line_shape_score"] == pytest.approx([1] * N)
    assert torch.isnan(lengths[:, 2]).all() and torch.isfinite(lengths[:, [0, 1, 3, 4, 5]]).all()


def test_line_fit():
    block = torch.arange(1, 7, dtype=torch.double)
    zigzag = torch.tensor([1.0, 2, 1, 2, 1, 2], dtype=torch.double)
    fit = line_fit(torch.stack([1.5 * block - 0.5, zigzag]))
    assert fit["inverse_slope"][0].item() == pytest.approx(1.5)
    assert fit["inverse_intercept"][0].item() == pytest.approx(-0.5)
    assert fit["inverse_r2"][0].item() == pytest.approx(1)
    # Second row by hand: covariance 1.5, variance of the index 17.5, total 1.5.
    assert fit["inverse_slope"][1].item() == pytest.approx(1.5 / 17.5)
    assert fit["inverse_r2"][1].item() == pytest.approx(1.5**2 / 17.5 / 1.5)
    assert torch.isnan(line_fit(torch.ones(1, 2))["inverse_slope"]).all()


def test_ra2_to_ra4_imply_ra1():
    """With one shared basis u_k = v_k and s_{k,l} = 1/(l - 1 + c_k), h_l = (I + J_l) h_{l-1}
    telescopes along each u_k to (l + c_k)/c_k times its start: linear in l, equal steps."""
    basis = orthonormal(0)
    values = inverse_in_depth()
    jacobians, triplets = network_of([basis] * DEPTH, values, [basis] * DEPTH)
    h = [(basis @ torch.tensor([1.0, 2, -1], dtype=torch.double)).repeat(N, 1)]
    for jacobian in jacobians:
        h.append(h[-1] + jacobian.matvec(h[-1][:, None])[:, 0])
    scores, _ = trajectory_scores(h)
    assert scores["line_shape_score"] == pytest.approx([1] * N, abs=1e-12)
    assert scores["step_cv"] == pytest.approx([0] * N, abs=1e-12)
    fit = line_fit(1 / torch.stack([t.values[:, 0] for t in triplets], 1))
    assert fit["inverse_slope"] == pytest.approx([1] * N)
    assert fit["inverse_r2"] == pytest.approx([1] * N)


def test_perfect_alignment_and_the_diagonal():
    basis = orthonormal(0)
    jacobians, triplets = network_of([basis] * DEPTH, inverse_in_depth(), [basis] * DEPTH)
    straight, _ = alignment_matrices(jacobians, triplets)
    for i in range(DEPTH):
        expected = torch.diag_embed(triplets[i].values)
        assert torch.allclose(straight[:, i, i], expected, atol=1e-12)
    scores = alignment_scores(jacobians, triplets, TOP)
    assert scores.pop("overlap_chance") == pytest.approx([TOP / WIDTH] * N)
    for name in ("matrix_distance", "off_diagonal"):
        assert scores.pop(name) == pytest.approx([0] * N, abs=1e-12)
    for name, value in scores.items():
        assert value == pytest.approx([1] * N), name


def test_left_and_right_in_orthogonal_subspaces():
    both = orthonormal(1, 2 * TOP)
    left, right = both[:, :TOP], both[:, TOP:]
    jacobians, triplets = network_of([left] * DEPTH, inverse_in_depth(), [right] * DEPTH)
    scores = alignment_scores(jacobians, triplets, TOP)
    for name, truth in dict(
        alignment=1,
        alignment_neighbours=1,
        alignment_swapped=0,
        overlap_uu=1,
        overlap_vv=1,
        overlap_uv=0,
    ).items():
        assert scores[name] == pytest.approx([truth] * N, abs=1e-12), name


def test_alternating_bases_are_told_from_aligned_neighbours():
    both = orthonormal(2, 2 * TOP)
    bases = [both[:, :TOP], both[:, TOP:]]
    chain = [bases[block % 2] for block in range(DEPTH)]
    jacobians, triplets = network_of(chain, inverse_in_depth(), chain)
    scores = alignment_scores(jacobians, triplets, TOP)
    # Of the 20 ordered pairs of 5 blocks, 8 have equal parity; no neighbours do.
    assert scores["alignment"] == pytest.approx([8 / 20] * N)
    assert scores["alignment_neighbours"] == pytest.approx([0] * N, abs=1e-12)


def test_random_blocks_are_at_chance():
    """E ||A^T B||_F^2 / K = K/n for independent random subspaces; over 20 pairs its spread is below
    K/n / 3."""
    lefts, rights = ([orthonormal(10 * side + block) for block in range(DEPTH)] for side in (1, 2))
    jacobians, triplets = network_of(lefts, inverse_in_depth(), rights)
    scores = alignment_scores(jacobians, triplets, TOP)
    for name in ("overlap_uu", "overlap_vv", "overlap_uv"):
        assert scores[name] == pytest.approx([TOP / WIDTH] * N, rel=1 / 3), name
    # Entries on and off the diagonal alike, and together far from S_i.
    assert scores["off_diagonal"] == pytest.approx([1] * N, rel=0.5)
    assert (scores["matrix_distance"] > 0.7).all()
    assert scores["alignment"].abs().max() < 0.2


def test_alignment_applies_the_block_itself_and_not_its_truncation():
    lefts, rights = ([orthonormal(10 * side + block, 8) for block in range(2)] for side in (1, 2))
    values = [torch.linspace(2, 1, 8, dtype=torch.double)] * 2
    jacobians, triplets = network_of(lefts, values, rights)
    straight, swapped = alignment_matrices(jacobians, triplets)
    for i in range(2):
        for j in range(2):
            u, v, dense = triplets[j].left, triplets[j].right, jacobians[i].dense
            assert torch.allclose(straight[:, i, j], u @ dense @ v.mT)
            assert torch.allclose(swapped[:, i, j], v @ dense @ u.mT)


def test_blocks_of_other_shape_give_blanks():
    def block(n_out, n_in, seed):
        g = torch.Generator().manual_seed(seed)
        weight = torch.randn(n_out, n_in, generator=g)
        gates = torch.ones(1, n_in), torch.ones(1, n_out)
        return FullyConnectedJacobian(torch.eye(n_in), weight, *gates)

    jacobians = [block(6, 6, 0), block(6, 6, 1), block(4, 6, 2), block(4, 4, 3)]
    triplets = [top_triplets(j, 3) for j in jacobians]
    straight, swapped = alignment_matrices(jacobians, triplets)
    blank = torch.isnan(straight).all(4).all(3)[0]
    shapes = [(6, 6), (6, 6), (4, 6), (4, 4)]
    assert blank.tolist() == [[a != b for b in shapes] for a in shapes]
    scores = alignment_scores(jacobians, triplets, 2)
    assert all(torch.isfinite(value).all() for value in scores.values())
    assert scores["overlap_chance"].item() == pytest.approx((2 / 6 + 2 / 4) / 2), (
        "left sizes 6, 6; 4, 4"
    )


def test_alignment_with_the_vectors_of_other_inputs():
    """Rank-one blocks s u v^T: the score with another's vectors is (u.u')(v.v') by hand; an input
    does not count itself, and one whose block is dead is no reference."""
    u, v = orthonormal(3, 4).T, orthonormal(4, 4).T
    both = torch.stack([u[0], 0.6 * u[0] + 0.8 * u[1], u[2]]), torch.stack([v[0], v[0], v[1]])
    values = torch.tensor([2.0, 3.0, 0.0], dtype=torch.double)
    matrices = values[:, None, None] * both[0][:, :, None] * both[1][:, None, :]
    jacobian = MatrixJacobian(matrices)
    t = top_triplets(jacobian, 1)
    own = torch.tensor([0, 1, -1])
    scores = alignment_with_inputs(jacobian.inputs([0, 1]), t.values[:2], t, own[:2])
    assert scores.tolist() == pytest.approx([0.6, 0.6])
    one = alignment_with_inputs(jacobian.inputs([0]), t.values[:1], t.inputs([1, 2]), own[2:])
    assert one.item() == pytest.approx(0.6)


@pytest.fixture(scope="module")
def real_network():
    """Jacobians and triplets of a down-sampling network: three shapes of block."""
    torch.manual_seed(0)
    config = dict(type="conv_down", skip="resnet", depth=6, width=6)
    network = Network(config, (1, 8, 8), 10)
    x = torch.rand(4, 1, 8, 8)
    network(x)
    _, jacobians, _ = linearise(network.eval(), x)
    return jacobians, [top_triplets(j, 8, 1e-4) for j in jacobians]


def test_own_cell_is_the_diagonal_of_singular_values_within_the_certificate(real_network):
    jacobians, triplets = real_network
    straight, _ = alignment_matrices(jacobians, triplets)
    for i, t in enumerate(triplets):
        error = straight[:, i, i] - torch.diag_embed(t.values)
        # Row k is J^T u_k - s_k v_k seen in the v's: no longer than the residual, and rounding.
        allowed = (t.residual + 2e-6) * t.values[:, :1]
        assert (error.norm(dim=2) <= allowed).all()
        assert t.residual.max() > 0


def test_cells_do_not_depend_on_the_memory_they_may_use(real_network, tmp_path):
    jacobians, triplets = real_network
    store = TripletStore(tmp_path)
    for t in triplets:
        store.append(t)
    assert len(list(tmp_path.iterdir())) == len(store) == 6
    whole = alignment_matrices(jacobians, triplets)
    streamed = [torch.full_like(m, float("nan")) for m in whole]
    for i, j, *cells in alignment_cells(jacobians, store, 8, memory=1):
        for matrices, cell in zip(streamed, cells, strict=True):
            if cell is not None:
                matrices[:, i, j] = cell
    for a, b in zip(whole, streamed, strict=True):
        # Fewer vectors at once are summed in another order.
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6, equal_nan=True)
    scores = alignment_scores(jacobians, triplets, 5)
    small = alignment_scores(jacobians, store, 5, memory=1)
    assert scores.keys() == small.keys()
    for name, value in scores.items():
        assert value == pytest.approx(small[name], abs=1e-5), name
    # Blocks 1-3, 4 and 5-6 have different shapes: their pairs are blank.
    blank = torch.isnan(whole[0][0, :, :, 0, 0])
    sizes = [j.shape[1:] for j in jacobians]
    assert blank.tolist() == [[a != b for b in sizes] for a in sizes]
