"""Residual Alignment (Li & Papyan 2023): the measurements of RA1, RA2 and RA4 on states and
singular triplets.

All functions work on N inputs at once and return one number an input (N), NaN where undefined.
"""

from dataclasses import fields
from pathlib import Path

import torch

from .svd import Triplets

NAN = float("nan")
WORKSPACE = 2e8  # bytes of products in flight


def stages(states):
    """The states as runs of equal shape, each flattened to N x (length + 1) x n: one run, or one
    per resolution.

    A step between states of different shape is no vector; the state after it begins the next run.
    """
    runs = [[states[0]]]
    for state in states[1:]:
        if state.shape != runs[-1][-1].shape:
            runs.append([])
        runs[-1].append(state)
    return [torch.stack([h.flatten(1) for h in run], 1) for run in runs]


def trajectory_scores(states):
    """RA1 of the paths h_0..h_L: how straight and how equispaced.

    line_shape_score: steps / ||sum of unit steps|| >= 1, 1 iff all steps are parallel (Gai & Zhang
    2021).
    step_cv: population standard deviation over mean of the step lengths, 0 iff equispaced.
    step_cosine: mean cosine of consecutive steps. pc1_share: share of the path's variance on its
    first principal component. With several resolutions (Type 3): means over runs of equal shape,
    weighted by their steps; a run of one step, which is straight and even whatever it is, is left
    out. Returns (dict of N values, step lengths N x L with NaN where the shape
    changes).
    """
    names = ("line_shape_score", "step_cv", "step_cosine", "pc1_share")
    scores = {name: states[0].new_zeros(len(states[0])) for name in names}
    lengths, weight = [], 0
    for run in stages(states):
        if lengths:
            lengths.append(torch.full_like(lengths[0][:, :1], NAN))
        steps = run.diff(dim=1)
        count = steps.shape[1]
        if count == 0:
            continue
        length = steps.norm(dim=2)
        lengths.append(length)
        if count == 1:
            continue
        unit = steps / length[..., None]
        centred = run - run.mean(1, keepdim=True)
        # The Gram matrix of the points has the squared singular values of the centred path, and is
        # small.
        variance = torch.linalg.eigvalsh((centred @ centred.mT).double())
        scores["line_shape_score"] += count * (count / unit.sum(1).norm(dim=1))
        scores["step_cv"] += count * (length.std(1, correction=0) / length.mean(1))
        scores["step_cosine"] += count * (unit[:, 1:] * unit[:, :-1]).sum(2).mean(1)
        scores["pc1_share"] += count * (variance[:, -1] / variance.sum(1)).to(length.dtype)
        weight += count
    scores = {name: value / (weight or NAN) for name, value in scores.items()}
    return scores, torch.cat(lengths, 1)


def line_fit(values):
    """RA4: least-squares line of `values` (N x L, here 1/s_1) on the block index 1..L, all blocks.

    Returns a dict of inverse_slope, inverse_intercept, inverse_r2; NaN for fewer than three blocks,
    where a line says nothing. Exact Residual Alignment predicts slope 1.
    """
    depth = values.shape[1]
    names = ("inverse_slope", "inverse_intercept", "inverse_r2")
    if depth < 3:
        return {name: torch.full_like(values[:, 0], NAN) for name in names}
    index = torch.arange(1, depth + 1, dtype=values.dtype, device=values.device)
    centred = index - index.mean()
    mean = values.mean(1)
    slope = (values * centred).sum(1) / (centred**2).sum()
    total = ((values - mean[:, None]) ** 2).sum(1)
    r2 = slope**2 * (centred**2).sum() / total
    return dict(zip(names, (slope, mean - slope * index.mean(), r2), strict=True))


def alignment_cells(jacobians, triplets, number, memory=WORKSPACE):
    """Pairs of blocks one by one: yields (i, j, straight, swapped) with

        straight = U_j^T J_i V_j and swapped = V_j^T J_i U_j, N x K x K (row, column),

    of the first `number` vectors, J_i itself applied and not its truncation; None where block j's
    vectors do not fit block i. U_j^T J_i V_j is taken as (J_i^T U_j)^T V_j: at i = j that is the
    half of J v = s u, J^T u = s v which a solver does not make true by construction.

    jacobians: L Jacobians. triplets: L Triplets, a list or TripletStore. memory: bytes for products
    in flight; vectors of several blocks go through J_i together as far as it lasts.
    """
    count, _, _ = jacobians[0].shape
    for i, jacobian in enumerate(jacobians):
        _, n_out, n_in = jacobian.shape
        vector = (n_out + n_in) * jacobian.dtype.itemsize
        together = max(1, int(memory // (2 * count * number * vector)))
        for first in range(0, len(triplets), together):
            group = range(first, min(first + together, len(triplets)))
            some = {j: triplets[j].first(number) for j in group}
            cells = {j: [None, None] for j in group}
            products = (jacobian.rmatvec, (n_out, n_in)), (jacobian.matvec, (n_in, n_out))
            for side, (product, sizes) in enumerate(products):
                fits = [j for j, t in some.items() if (t.left.shape[2], t.right.shape[2]) == sizes]
                if not fits:
                    continue
                images = product(torch.cat([some[j].left for j in fits], 1))
                images = images.split([some[j].left.shape[1] for j in fits], 1)
                for j, image in zip(fits, images, strict=True):
                    cell = image @ some[j].right.mT  # (J_i^T U_j)^T V_j, (J_i U_j)^T V_j
                    cells[j][side] = cell if side == 0 else cell.mT
            for j in group:
                yield i, j, *cells[j]


def alignment_matrices(jacobians, triplets, number=None):
    """All cells of `alignment_cells` at once: two tensors N x L x L x K x K, [:, i, j] the pair of
    row block i and column block j, NaN where they do not fit. `number` (all) vectors of each."""
    depth = len(jacobians)
    like = triplets[0].left
    count = len(like)
    number = number or max(t.values.shape[1] for t in triplets)
    shape = count, depth, depth, number, number
    both = [torch.full(shape, NAN, dtype=like.dtype, device=like.device) for _ in range(2)]
    for i, j, *cells in alignment_cells(jacobians, triplets, number):
        for matrices, cell in zip(both, cells, strict=True):
            if cell is not None:
                matrices[:, i, j, : cell.shape[1], : cell.shape[2]] = cell
    return tuple(both)


def off_diagonal_mean(values):
    """Mean over i != j of N x L x L values, leaving out NaN; NaN with no pair."""
    depth = values.shape[1]
    mask = ~torch.eye(depth, dtype=torch.bool, device=values.device)
    return values[:, mask].nanmean(1)


def alignment_scores(jacobians, triplets, number, memory=WORKSPACE):
    """RA2 in numbers: means of `alignment_pairs` over i != j, N each, and

    alignment_neighbours: the mean of `alignment` over |i - j| = 1.
    """
    pairs = alignment_pairs(jacobians, triplets, number, memory)
    depth, like = len(triplets), pairs["alignment"]
    near = torch.ones(depth, depth, device=like.device).triu(-1).tril(1).bool()
    pairs["alignment_neighbours"] = like.masked_fill(~near, NAN)
    return {name: off_diagonal_mean(value) for name, value in pairs.items()}


def alignment_pairs(jacobians, triplets, number, memory=WORKSPACE):
    """RA2 of every pair of blocks (i, j), by the top `number` = C - 1 triplets: a dict of
    N x L x L, NaN where the vectors of one do not fit the other.

    alignment: sum of diag(U_j^T J_i V_j) over the sum of J_i's top singular values, signed; 1 is
    perfect, 0 unrelated.
    alignment_swapped: V_j^T J_i U_j in place of
    U_j^T J_i V_j. overlap_uu, overlap_vv, overlap_uv: ||A_i^T B_j||_F^2 / number, immune to
    rotations inside equal singular values; random subspaces of dimension n give number / n:
    overlap_chance, over the pairs of overlap_uu.
    matrix_distance: || |U_j^T J_i V_j| - S_i ||_F / ||s_i||, 0 where the matrix is that of i = j.
    off_diagonal: mean |entry| off over on the diagonal of U_j^T J_i V_j; unrelated vectors give 1.
    """
    depth = len(triplets)
    values = torch.stack([t.values[:, :number].sum(1) for t in triplets], 1)
    names = (
        "alignment", "alignment_swapped", "overlap_uu", "overlap_vv", "overlap_uv",
        "overlap_chance", "matrix_distance", "off_diagonal",
    )  # fmt: skip
    pairs = {name: torch.full_like(values[:, :, None].expand(-1, -1, depth), NAN) for name in names}
    row, mine = None, None
    for i, j, straight, swapped in alignment_cells(jacobians, triplets, number, memory):
        if i != row:
            row, mine = i, triplets[i].first(number)
        for name, cell in (("alignment", straight), ("alignment_swapped", swapped)):
            if cell is not None:
                pairs[name][:, i, j] = cell.diagonal(dim1=1, dim2=2).sum(1) / values[:, i]
        if straight is not None and straight.shape[1] == mine.values.shape[1] > 1:
            size = straight.abs()
            distance = size - torch.diag_embed(mine.values)
            pairs["matrix_distance"][:, i, j] = distance.flatten(1).norm(dim=1) / mine.values.norm(
                dim=1
            )
            on = size.diagonal(dim1=1, dim2=2).sum(1)
            off = size.sum((1, 2)) - on
            pairs["off_diagonal"][:, i, j] = off / on / (straight.shape[1] - 1)
        other = triplets[j].first(number)
        sides = {"u": (mine.left, other.left), "v": (mine.right, other.right)}
        for first, second in ("uu", "vv", "uv"):
            a, b = sides[first][0], sides[second][1]
            if a.shape == b.shape:
                overlap = (a @ b.mT).square().sum((1, 2)) / number
                pairs[f"overlap_{first}{second}"][:, i, j] = overlap
        if mine.left.shape == other.left.shape:
            pairs["overlap_chance"][:, i, j] = number / mine.left.shape[2]
    return pairs


def alignment_with_inputs(jacobian, values, references, own):
    """RA2 across inputs at one block: sum of diag(U^T J(x) V) over the sum of J(x)'s singular
    values, with the vectors of R reference inputs in place of x's own, mean over them, N.

    values: N x K of J(x). references: Triplets at the R inputs. own: N, which of them an input is
    itself and leaves out, -1 where it is none. NaN where no other is left.
    """
    count, number = values.shape
    many = references.left.flatten(0, 1).expand(count, -1, -1)
    images = jacobian.rmatvec(many)
    products = (images * references.right.flatten(0, 1)).sum(2).view(count, -1, number).sum(2)
    scores = products / values.sum(1, keepdim=True)
    itself = own[:, None] == torch.arange(scores.shape[1], device=own.device)
    dead = references.values[:, 0] == 0
    return scores.masked_fill(itself | dead, NAN).nanmean(1)


class TripletStore:
    """Triplets of all blocks, in memory or, with a folder, in one file a block: what is bound for
    cross-block products may be larger than memory."""

    def __init__(self, folder=None):
        self.folder, self.items = folder, []

    def append(self, triplets):
        if self.folder is None:
            self.items.append(triplets)
        else:
            path = Path(self.folder) / f"{len(self.items)}.pt"
            torch.save([getattr(triplets, field.name) for field in fields(Triplets)], path)
            self.items.append(path)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, block):
        item = self.items[block]
        return Triplets(*torch.load(item, weights_only=True)) if self.folder else item

    def __iter__(self):
        return (self[block] for block in range(len(self)))
