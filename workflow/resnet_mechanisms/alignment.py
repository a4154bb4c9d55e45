"""Residual Alignment (Li & Papyan 2023): the measurements of RA1, RA2 and RA4 on states and
singular triplets.

All functions work on N inputs at once and return one number an input (N), NaN where undefined.
"""

import torch

NAN = float("nan")


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
    weighted by their steps. Returns (dict of N values, step lengths N x L with NaN where the shape
    changes).
    """
    scores = {name: 0.0 for name in ("line_shape_score", "step_cv", "step_cosine", "pc1_share")}
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
        unit = steps / length[..., None]
        centred = run - run.mean(1, keepdim=True)
        # The Gram matrix of the points has the squared singular values of the centred path, and is
        # small.
        variance = torch.linalg.eigvalsh((centred @ centred.mT).double())
        scores["line_shape_score"] += count * (count / unit.sum(1).norm(dim=1))
        scores["step_cv"] += count * (length.std(1, correction=0) / length.mean(1))
        cosine = (unit[:, 1:] * unit[:, :-1]).sum(2)
        scores["step_cosine"] += count * (
            cosine.mean(1) if count > 1 else torch.full_like(length[:, 0], NAN)
        )
        scores["pc1_share"] += count * (variance[:, -1] / variance.sum(1)).to(length.dtype)
        weight += count
    scores = {name: value / weight for name, value in scores.items()}
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


def alignment_matrices(jacobians, triplets):
    """All pairs of blocks: U_j^T J_i V_j and, with left and right exchanged, V_j^T J_i U_j, with
    J_i itself applied.

    jacobians: L BlockJacobian. triplets: L Triplets, K vectors each.
    Returns two tensors N x L x L x K x K, [:, i, j] the pair of row block i and column block j; NaN
    where block j's vectors do not fit block i. The swapped one is NaN too where a block's in- and
    output differ in size.
    """
    depth = len(jacobians)
    count, number = triplets[0].values.shape
    like = triplets[0].left
    straight = torch.full(
        (count, depth, depth, number, number), NAN, dtype=like.dtype, device=like.device
    )
    swapped = straight.clone()
    lefts, rights = [t.left for t in triplets], [t.right for t in triplets]
    for matrices, onto, source in ((straight, lefts, rights), (swapped, rights, lefts)):
        for i, jacobian in enumerate(jacobians):
            n_out, n_in = jacobian.shape[1:]
            fits = [
                j for j in range(depth) if (onto[j].shape[2], source[j].shape[2]) == (n_out, n_in)
            ]
            if not fits:
                continue
            applied = jacobian.matvec(torch.cat([source[j] for j in fits], 1))
            for j, part in zip(fits, applied.split(number, 1), strict=True):
                matrices[:, i, j] = onto[j] @ part.mT
    return straight, swapped


def off_diagonal_mean(values):
    """Mean over i != j of N x L x L values, leaving out NaN; NaN with no pair."""
    depth = values.shape[1]
    mask = ~torch.eye(depth, dtype=torch.bool, device=values.device)
    return values[:, mask].nanmean(1)


def alignment_scores(straight, swapped, triplets, number):
    """RA2 in numbers, over pairs i != j and the top `number` = C - 1 triplets.

    alignment: sum of diag(U_j^T J_i V_j) over the sum of J_i's top singular values, signed; 1 is
    perfect, 0 unrelated.
    alignment_neighbours: the same over |i - j| = 1. alignment_swapped: V_j^T J_i U_j in place of
    U_j^T J_i V_j. overlap_uu, overlap_vv, overlap_uv: ||A_i^T B_j||_F^2 / number, immune to
    rotations inside equal singular values; random subspaces of dimension n give number / n.
    """
    top = torch.stack([t.values[:, :number].sum(1) for t in triplets], 1)
    depth = top.shape[1]

    def score(matrices):
        diagonal = matrices.diagonal(dim1=3, dim2=4)[..., :number].sum(3)
        return diagonal / top[:, :, None]

    pairs = score(straight)
    near = torch.ones(depth, depth, device=pairs.device).triu(-1).tril(1).bool()
    scores = {
        "alignment": off_diagonal_mean(pairs),
        "alignment_neighbours": off_diagonal_mean(pairs.masked_fill(~near, NAN)),
        "alignment_swapped": off_diagonal_mean(score(swapped)),
    }
    sides = {
        "u": [t.left[:, :number] for t in triplets],
        "v": [t.right[:, :number] for t in triplets],
    }
    for first, second in ("uu", "vv", "uv"):
        overlap = torch.full_like(pairs, NAN)
        for i, a in enumerate(sides[first]):
            for j, b in enumerate(sides[second]):
                if a.shape == b.shape:
                    overlap[:, i, j] = (a @ b.mT).square().sum((1, 2)) / number
        scores[f"overlap_{first}{second}"] = off_diagonal_mean(overlap)
    return scores
