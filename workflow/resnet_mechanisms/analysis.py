"""Residual Alignment of any network at some inputs, from Python:

found = residual_alignment(model, x)
found.triplets, found.alignment, found.scores
"""

from dataclasses import dataclass

import pandas as pd
import torch

from .alignment import alignment_matrices, alignment_pairs, line_fit, off_diagonal_mean
from .alignment import trajectory_scores as of_trajectory
from .errors import UserError
from .jacobians import linearise
from .networks import Network
from .residual_blocks import ResidualModel
from .svd import top_triplets


@dataclass
class ResidualAlignment:
    """What `residual_alignment` found at N inputs and L blocks, by K singular triplets.

    blocks: names of the blocks. states: h_0..h_L. jacobians: the Residual Jacobians as linear
    operators (jacobians.Jacobian). triplets: per block svd.Triplets, with left (N x K x n_out),
    values (N x K), right (N x K x n_in) and residual (N x K), the larger of ||J v - s u|| and
    ||J^T u - s v|| over s_1. alignment: N x L x L, entry i, j: sum of diag(U_j^T J_i V_j) over the
    sum of J_i's top K singular values, NaN where block j's vectors do not fit block i. step_length:
    N x L. scores: DataFrame, one row an input: RA1 (line_shape_score, step_cv, step_cosine,
    pc1_share), RA2 (alignment, alignment_swapped, overlap_uu, overlap_vv, overlap_uv,
    overlap_chance, matrix_distance, off_diagonal, means over pairs of different blocks), RA3 (rank:
    most singular values above 5 % of s_1 in a block, of the K; sigma_1: mean over blocks) and RA4
    (inverse_slope, inverse_intercept, inverse_r2 of 1/s_1 on the block index).
    """

    blocks: list
    states: list
    jacobians: list
    triplets: list
    alignment: torch.Tensor
    step_length: torch.Tensor
    scores: pd.DataFrame

    def singular_values(self):
        """s_k of every input and block, N x L x K, NaN where a block has fewer."""
        most = max(t.values.shape[1] for t in self.triplets)
        values = [t.values for t in self.triplets]
        padded = [
            torch.nn.functional.pad(v, (0, most - v.shape[1]), value=torch.nan) for v in values
        ]
        return torch.stack(padded, 1)

    def alignment_matrices(self):
        """U_j^T J_i V_j and V_j^T J_i U_j of all pairs of blocks, each N x L x L x K x K: the
        pictures of RA2."""
        return alignment_matrices(self.jacobians, self.triplets)


@torch.no_grad()
def residual_alignment(model, x, blocks=None, triplets=10, tolerance=1e-4):
    """Residual Alignment (Li & Papyan 2023) of a network at inputs `x`.

    Args:
        model: torch module in evaluation mode: one of ours or any other. x: inputs, N first.
        blocks: names of the submodules that are residual blocks, with * for anything within one
            part of a name; by default those that add their input to what they compute of it
            (residual_blocks.find_blocks).
        triplets: singular triplets of each Jacobian; C - 1 for a network of C classes is what the
            paper's alignment is about.
        tolerance: of every triplet, relative to s_1.

    Returns: ResidualAlignment. All N inputs are held at once: N L K (n_in + n_out) numbers.
    Raises UserError where the model is in training mode or no block is found, svd.NotConverged
    where a triplet misses the tolerance.
    """
    if model.training:
        raise UserError("Residual Jacobians are taken in evaluation mode; call eval() first")
    if isinstance(model, Network):
        names = [f"blocks.{index}" for index in range(len(model.blocks))]
        states, jacobians, _ = linearise(model, x)
    else:
        residual = ResidualModel(model, x[:2], blocks)
        names = [block.name for block in residual.blocks]
        states, jacobians, _ = residual.linearise(x)
    found = [top_triplets(jacobian, triplets, tolerance) for jacobian in jacobians]
    pairs = alignment_pairs(jacobians, found, triplets)
    scores, step_length = of_trajectory(states)
    top = torch.stack([t.values[:, 0] for t in found], 1)
    above = [(t.values > 0.05 * t.values[:, :1]).sum(1) for t in found]
    scores |= {name: off_diagonal_mean(value) for name, value in pairs.items()}
    scores |= {"rank": torch.stack(above, 1).amax(1), "sigma_1": top.mean(1)}
    scores |= line_fit(1 / top.double())
    frame = pd.DataFrame({name: value.cpu().numpy() for name, value in scores.items()})
    frame.index.name = "input"
    return ResidualAlignment(
        names, states, jacobians, found, pairs["alignment"], step_length, frame
    )
