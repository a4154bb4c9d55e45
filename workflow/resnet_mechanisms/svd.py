"""Top singular triplets of Residual Jacobians, left and right vectors paired, with a certificate.

J v_k = s_k u_k and J^T u_k = s_k v_k: u_k and v_k come from one factorisation, so their signs and
their order inside (nearly) equal singular values belong together. Two routes, the cheaper by
`expected_seconds`: the matrix and LAPACK, or products alone (`lanczos.py`).
"""

import contextlib
import math
from dataclasses import dataclass, fields

import torch

from .costs import BLOCK, basis_size, svd_seconds
from .jacobians import NOT_FINITE, FullyConnectedJacobian
from .lanczos import Deflated, golub_kahan_lanczos, largest_seen

TOLERANCE = 1e-4
# Bases of this many bytes are worked on together: they are read once for every product, and are
# slow to read once they leave the cache. A GPU needs more at once to be busy.
CACHE = {"cpu": 20e6, "cuda": 4e9}


@dataclass
class Triplets:
    """The K largest singular triplets at N inputs, largest first.

    left: N x K x n_out and right: N x K x n_in, orthonormal rows u_k and v_k. values: N x K.
    Beyond the numerical rank, s_k < 16 eps s_1, there is no direction to tell from rounding: s_k,
    u_k and v_k are 0.
    residual: N x K, max(||J v_k - s_k u_k||, ||J^T u_k - s_k v_k||) / s_1, both products computed
    with the operator itself; 0 where J = 0. A triplet with s_k below the tolerance times s_1 may be
    certified without being resolved: look at s_k / s_1.
    frobenius: N, ||J||_F where the route knew all singular values, NaN elsewhere (see `frobenius`).
    """

    left: torch.Tensor
    values: torch.Tensor
    right: torch.Tensor
    residual: torch.Tensor
    frobenius: torch.Tensor

    def inputs(self, index):
        """The triplets at some of the inputs."""
        return Triplets(*(getattr(self, field.name)[index] for field in fields(self)))

    def first(self, number):
        """The `number` largest."""
        few = (a[:, :number] for a in (self.left, self.values, self.right, self.residual))
        return Triplets(*few, self.frobenius)


class NotConverged(ArithmeticError):
    """A triplet misses the tolerance; it is never returned silently."""


@contextlib.contextmanager
def full_precision():
    """Products in float32 proper: TensorFloat-32 alone would leave residuals of 1e-4."""
    backends = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = False
    try:
        yield
    finally:
        for backend, value in zip(backends, before, strict=True):
            backend.allow_tf32 = value


def expected_seconds(jacobian, count):
    """Rough seconds for one input by (the dense route, Lanczos); their ratio decides."""
    _, n_out, n_in = jacobian.shape
    core = None
    if isinstance(jacobian, FullyConnectedJacobian):
        core = jacobian.gates1.sum(1).double().mean().item()
    together = min(jacobian.shape[0], lockstep(jacobian, count))
    return svd_seconds(n_out, n_in, jacobian.flops, count, together, core)


def lockstep(jacobian, count):
    """Inputs whose bases fit the cache."""
    _, n_out, n_in = jacobian.shape
    size = (basis_size(count) + BLOCK) * (n_out + n_in)
    return max(1, int(CACHE[jacobian.device.type] / (size * jacobian.dtype.itemsize)))


@torch.no_grad()
def top_triplets(jacobian, count, tolerance=TOLERANCE, seed=0):
    """The `count` largest singular triplets of a Jacobian (fewer where the matrix is smaller) as
    `Triplets`, each certified.

    The random start of `seed` is the same for every input. Raises FloatingPointError where J is not
    finite, NotConverged where a residual exceeds `tolerance` (relative to s_1).
    """
    count = min(count, *jacobian.shape[1:])
    dense, lanczos = expected_seconds(jacobian, count)
    with full_precision():
        if lanczos < dense:
            return _by_lanczos(jacobian, count, tolerance, seed)
        return certified(jacobian, *dense_triplets(jacobian, count), tolerance)


def _by_lanczos(jacobian, count, tolerance, seed):
    """In parts that fit the cache; a part that fails its certificate is done again, tighter and
    with both bases orthogonalised, and at last from its matrix."""
    parts = []
    together = lockstep(jacobian, count)
    for first in range(0, jacobian.shape[0], together):
        part = jacobian.inputs(slice(first, first + together))
        # The estimate stops short of the tolerance, by what rounding adds in the certificate.
        for estimate, one_sided in ((0.8 * tolerance, True), (0.1 * tolerance, False)):
            triplets = _none_missed(part, count, estimate, seed, one_sided)
            if triplets is None:
                continue
            residual = certificate(part, *triplets)
            if residual.max() <= tolerance and all(map(orthonormal, triplets[::2])):
                parts.append(certified(part, *triplets, None, tolerance, residual))
                break
        else:
            parts.append(certified(part, *dense_triplets(part, count), tolerance))
    if len(parts) == 1:
        return parts[0]
    return Triplets(
        *(torch.cat([getattr(p, field.name) for p in parts]) for field in fields(Triplets))
    )


def _none_missed(jacobian, count, estimate, seed, one_sided):
    """(left, values, right) by Lanczos, or None where it does not converge.

    Krylov spaces from a block of b random vectors hold b copies of an exactly equal singular value,
    and a certificate cannot tell that there are more. So J is looked at once again without the
    vectors found: as long as something larger is left, the same is done there, and the largest of
    all are kept.
    """
    found = golub_kahan_lanczos(jacobian, count, estimate, seed, one_sided=one_sided)
    triplets = found.left, found.values, found.right
    for again in range(1, 9):
        if not found.converged.all():
            return None
        left, values, right = triplets
        rest = Deflated(jacobian, right)
        larger = largest_seen(rest, seed + again) > values[:, -1] + 2 * estimate * values[:, 0]
        if not larger.any():
            return triplets
        found = golub_kahan_lanczos(rest, count, estimate, seed + again, one_sided=one_sided)
        left, values, right = (
            torch.cat(pair, 1)
            for pair in zip(triplets, (found.left, found.values, found.right), strict=True)
        )
        values, order = (a[:, :count] for a in values.sort(1, descending=True))
        inputs = torch.arange(len(order), device=order.device)[:, None]
        triplets = left[inputs, order], values, right[inputs, order]
    return None


def dense_triplets(jacobian, count):
    """(left, values, right, Frobenius norm) from the matrix, by LAPACK's divide and conquer; exact
    to rounding."""
    if isinstance(jacobian, FullyConnectedJacobian):
        return _from_open_gates(jacobian, count)
    u, s, vt = _svd(jacobian.dense)
    norm = torch.linalg.vector_norm(s, dim=1)
    return u.mT[:, :count].contiguous(), s[:, :count], vt[:, :count].contiguous(), norm


def _from_open_gates(jacobian, count):
    """J = A^T B with as many rows as there are open hidden units: after QR of both, the SVD is one
    of that size (a quarter of the width in trained nets), exact and without squaring."""
    inputs, n_out, n_in = jacobian.shape
    left = jacobian.weight1.new_zeros(inputs, count, n_out)
    values = left.new_zeros(inputs, count)
    right = left.new_zeros(inputs, count, n_in)
    norm = left.new_zeros(inputs)
    for index in range(inputs):
        a, b = jacobian.factors(index)
        if len(b) < 0.7 * min(n_out, n_in):
            qa, ra = torch.linalg.qr(a.T)
            qb, rb = torch.linalg.qr(b.T)
            u, s, vt = _svd(ra @ rb.T)
            k = min(count, len(s))
            ut, vt = u.T[:k] @ qa.T, vt[:k] @ qb.T
        else:
            u, s, vt = _svd(a.T @ b)
            k = min(count, len(s))
            ut, vt = u.T[:k], vt[:k]
        left[index, :k], values[index, :k], right[index, :k] = ut, s[:k], vt
        norm[index] = torch.linalg.vector_norm(s)
    return left, values, right, norm


def _svd(matrix):
    if not matrix.isfinite().all():
        raise FloatingPointError(NOT_FINITE)
    return torch.linalg.svd(matrix, full_matrices=False)


def certificate(jacobian, left, values, right):
    """max(||J v_k - s_k u_k||, ||J^T u_k - s_k v_k||) / s_1, N x K, with explicit products in full
    precision. One side says nothing: a solver makes it vanish by construction."""
    top = values[:, :1, None]
    safe = torch.where(top > 0, top, 1.0)
    with full_precision():
        # Divided before squaring: the squares of a tiny J are zero in float32.
        forward = ((jacobian.matvec(right) - values[..., None] * left) / safe).norm(dim=2)
        adjoint = ((jacobian.rmatvec(left) - values[..., None] * right) / safe).norm(dim=2)
    return torch.maximum(forward, adjoint)


def orthonormal(rows, tolerance=1e-4):
    """Whether rows N x K x n are orthonormal, to what their use needs."""
    eye = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
    return bool((rows @ rows.mT - eye).abs().max() <= tolerance)


def certified(jacobian, left, values, right, norm=None, tolerance=TOLERANCE, residual=None):
    """Checked `Triplets`, null ones set to zero."""
    if residual is None:
        residual = certificate(jacobian, left, values, right)
    if not residual.isfinite().all():
        raise FloatingPointError(NOT_FINITE)
    if residual.max() > tolerance:
        raise NotConverged(
            f"largest residual {residual.max():.1e} of s_1, tolerance {tolerance:.0e}"
        )
    null = values <= 16 * torch.finfo(values.dtype).eps * values[:, :1]
    left, right = (a.masked_fill(null[..., None], 0) for a in (left, right))
    norm = torch.full_like(values[:, 0], math.nan) if norm is None else norm
    return Triplets(left, values.masked_fill(null, 0), right, residual, norm)


@dataclass
class Norm:
    """||J||_F at N inputs and its standard error, 0 where it is exact."""

    value: torch.Tensor
    error: torch.Tensor


@torch.no_grad()
def frobenius(jacobian, triplets, method="auto", probes=64, seed=0):
    """||J||_F of every input as a `Norm`.

    method `exact`: from all singular values where they are known, from the matrix of fully
    connected blocks, by coloured probes of convolutional ones. `estimate`: the given triplets, and
    Hutchinson's mean of ||J g||^2 with random signs g for what they leave (Girard 1989; deflated as
    in Meyer et al. 2021). `auto`: exact where it costs at most 8 times `probes` products.
    """
    inputs, _, n_in = jacobian.shape
    known = triplets.frobenius
    coloured = hasattr(jacobian, "probes")
    needed = 0 if isinstance(jacobian, FullyConnectedJacobian) else n_in
    if coloured:
        needed = min(needed, jacobian.number_of_probes)
    if method != "estimate" and known.isfinite().all():
        return Norm(known, torch.zeros_like(known))
    if method == "exact" or (method == "auto" and needed <= 8 * probes):
        if coloured:
            images = (jacobian.rmatvec(p.expand(inputs, -1, -1)) for p in jacobian.probes())
            norms = torch.cat([torch.linalg.vector_norm(image, dim=2) for image in images], 1)
            value = norms.double().square().sum(1).sqrt()
        else:  # one input at a time: together they may not fit in memory
            each = (jacobian.inputs([index]).dense for index in range(inputs))
            value = torch.stack([torch.linalg.vector_norm(dense) for dense in each])
        return Norm(value.to(known.dtype), torch.zeros_like(known))
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (probes, n_in), generator=generator).to(jacobian.dtype) * 2 - 1
    signs = signs.to(jacobian.device).expand(inputs, -1, -1)
    right = triplets.right
    tail = jacobian.matvec(signs - (signs @ right.mT) @ right).double().square().sum(2)
    value = (triplets.values.double().square().sum(1) + tail.mean(1)).sqrt()
    error = tail.std(1) / math.sqrt(probes) / (2 * value).clamp(min=1e-300)
    return Norm(value.to(known.dtype), error.to(known.dtype))
