"""Top singular triplets of Residual Jacobians, left and right vectors paired, with a certificate.

J v_k = s_k u_k and J^T u_k = s_k v_k: u_k and v_k come from one factorisation, so their signs and
their order inside (nearly) equal singular values belong together.
"""

from dataclasses import dataclass

import torch


@dataclass
class Triplets:
    """The K largest singular triplets at N inputs, largest first.

    left: N x K x n_out and right: N x K x n_in, orthonormal rows u_k and v_k. values: N x K.
    residual: N x K, max(||J v_k - s_k u_k||, ||J^T u_k - s_k v_k||) / s_1, both products computed
    with the operator itself and not with the matrix that was factorised; 0 where J = 0.
    frobenius: N, ||J||_F, exact.
    """

    left: torch.Tensor
    values: torch.Tensor
    right: torch.Tensor
    residual: torch.Tensor
    frobenius: torch.Tensor


class NotConverged(ArithmeticError):
    """A triplet misses the tolerance; it is never returned silently."""


@torch.no_grad()
def top_triplets(jacobian, count, tolerance=1e-4):
    """The `count` largest triplets of a BlockJacobian (fewer where the matrix is smaller), as
    `Triplets`.

    Dense route: J is formed and factorised by LAPACK's divide and conquer, exact to rounding, for
    all inputs at once. Raises FloatingPointError where J is not finite, NotConverged where a
    residual exceeds `tolerance`.
    """
    dense = jacobian.dense
    if not dense.isfinite().all():
        raise FloatingPointError(
            "the Residual Jacobian is not finite: weights or batch-norm statistics are not"
        )
    u, s, vt = torch.linalg.svd(dense, full_matrices=False)
    u, s, vt = u.mT[:, :count].contiguous(), s[:, :count], vt[:, :count].contiguous()
    right = (jacobian.matvec(vt) - s[..., None] * u).norm(dim=2)
    left = (jacobian.rmatvec(u) - s[..., None] * vt).norm(dim=2)
    residual = torch.where(s[:, :1] > 0, torch.maximum(left, right) / s[:, :1], 0.0)
    if residual.max() > tolerance:
        raise NotConverged(
            f"largest residual {residual.max():.1e} of s_1, tolerance {tolerance:.0e}"
        )
    return Triplets(u, s, vt, residual, dense.flatten(1).norm(dim=1))
