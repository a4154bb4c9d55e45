"""Singular triplets against closed forms and numpy in float64."""

import numpy as np
import pytest
import torch

from resnet_mechanisms.jacobians import BlockJacobian
from resnet_mechanisms.svd import NotConverged, top_triplets


def jacobian_of(matrix):
    """A BlockJacobian that is the given N x n x n matrices' first one, all gates open."""
    n_out, n_in = matrix.shape
    ones = torch.ones(2, n_in, dtype=matrix.dtype), torch.ones(2, n_out, dtype=matrix.dtype)
    return BlockJacobian(torch.eye(n_in, dtype=matrix.dtype), matrix, *ones, (n_in,))


def orthogonal(n, seed):
    return torch.linalg.qr(
        torch.randn(n, n, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    )[0]


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("values", [
    [5, 4, 3, 2, 1, 0.5, 0.1, 0.01],
    [3, 3, 3, 3, 1, 1, 1, 0.5],  # equal singular values: no copy may be missing
    [2, 1, 0, 0, 0, 0, 0, 0],  # rank below the number of triplets asked for
    [1, 1, 1, 1, 1, 1, 1, 1],  # flat
])  # fmt: skip
def test_known_singular_values(values, dtype, tolerance):
    s = torch.tensor(values, dtype=torch.double)
    u, v = orthogonal(8, 0), orthogonal(8, 1)
    t = top_triplets(jacobian_of((u * s @ v.T).to(dtype)), 6)
    assert t.values.shape == (2, 6) and t.left.shape == (2, 6, 8)
    assert (t.values - s[:6]).abs().max() <= tolerance * s[0]
    assert t.residual.max() <= tolerance
    for vectors in (t.left, t.right):
        assert (vectors @ vectors.mT - torch.eye(6, dtype=dtype)).abs().max() <= tolerance
    assert abs(t.frobenius[0] - s.norm()) <= tolerance * s.norm()
    # Left and right are paired: u_k = J v_k / s_k with its sign.
    reconstructed = (t.left * t.values[..., None]).mT @ t.right
    truth = (u[:, :6] * s[:6] @ v[:, :6].T).to(dtype)
    if s[5] > s[6]:  # otherwise the top six are not unique
        assert (reconstructed[0] - truth).abs().max() <= 4 * tolerance * s[0]


def test_against_numpy_on_random_gated_blocks():
    generator = torch.Generator().manual_seed(3)
    w1, w2 = (torch.randn(20, 20, generator=generator) for _ in range(2))
    gates = [(torch.rand(5, 20, generator=generator) > 0.5).float() for _ in range(2)]
    t = top_triplets(BlockJacobian(w1, w2, *gates, (20,)), 10)
    for n in range(5):
        outer, inner = (np.diag(gates[side][n].double()) for side in (1, 0))
        s = np.linalg.svd(
            outer @ w2.double().numpy() @ inner @ w1.double().numpy(), compute_uv=False
        )
        np.testing.assert_allclose(t.values[n].numpy(), s[:10], atol=1e-6 * s[0])
        np.testing.assert_allclose(t.frobenius[n].item(), np.sqrt((s**2).sum()), rtol=1e-6)


def test_more_triplets_than_the_matrix_has():
    assert top_triplets(jacobian_of(torch.eye(3)), 10).values.shape == (2, 3)


def test_dead_block_has_zero_values_and_no_nan():
    t = top_triplets(jacobian_of(torch.zeros(4, 4)), 3)
    assert (t.values == 0).all() and (t.residual == 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(bad):
    matrix = torch.eye(4)
    matrix[0, 0] = bad
    with pytest.raises(FloatingPointError, match="not finite"):
        top_triplets(jacobian_of(matrix), 2)


def test_the_certificate_uses_the_operator_and_not_the_matrix():
    class Inconsistent(BlockJacobian):
        """An adjoint that is off by one percent, as a wrong convolution would be."""

        def rmatvec(self, vectors):
            return 1.01 * super().rmatvec(vectors)

    matrix = torch.eye(4)
    wrong = Inconsistent(matrix, matrix, torch.ones(1, 4), torch.ones(1, 4), (4,))
    with pytest.raises(NotConverged, match="residual 1.0e-02"):
        top_triplets(wrong, 2)
