"""Thick-restart block Golub-Kahan-Lanczos bidiagonalisation for many operators in lock step.

Golub & Kahan (1965); block form Golub, Luk & Overton (1981); thick restart Baglama & Reichel
(2005); orthogonalising one side only Simon & Zha (2000). With orthonormal rows V and U,

    J V_m = U_m T,     J^T U_m = V_m T^T + V_next S^T (last block),

T is upper triangular (block bidiagonal, and an arrow after a restart). From T = X diag(s) Y^T come
Ritz triplets (s, U X, V Y) that satisfy J v = s u by construction and ||J^T u - s v|| =
||S^T X[last block]||, known without a product.
"""

import math
from dataclasses import dataclass

import torch

from .costs import BLOCK, EIGENPROBLEM, PRODUCTS, basis_size
from .jacobians import NOT_FINITE, Jacobian

# Where U is orthogonalised against all of itself: until T is seen to be well conditioned. Its
# vectors lose orthogonality in proportion to 1 / (smallest singular value of T).
WELL_CONDITIONED, ILL_CONDITIONED = 0.02, 0.01
CYCLES = 100


def orthonormalised(rows):
    """(Q, R): rows = R^T Q with orthonormal rows Q (any orthonormal rows where `rows` has lower
    rank)."""
    q, r = torch.linalg.qr(rows.mT)
    return q.mT.contiguous(), r


def orthogonalised(rows, r, basis, generator):
    """Orthonormal rows made orthogonal to an orthonormal basis, N x b x n and N x m x n, and the
    r of r^T rows changed so that this product stays what it was, outside the basis.

    Rows that lie in the span of the basis, as rounding leaves them where J has no more to give, are
    replaced by random ones that do not enter the product.
    """
    for _ in range(6):
        coefficients = rows @ basis.mT
        rows = torch.baddbmm(rows, coefficients, basis, alpha=-1)
        overlap = coefficients.abs().max()
        if overlap < 1e-4:  # the norms have changed by less than the square of this
            break
        lost = rows.norm(dim=2) < 0.1
        if lost.any():
            random = torch.randn(rows.shape[1:], generator=generator, dtype=rows.dtype)
            random = random.to(rows.device) / rows.shape[2] ** 0.5
            rows = torch.where(lost[..., None], random, rows)
            r = r.masked_fill(lost[..., None], 0)
        rows, change = orthonormalised(rows)
        r = change @ r
        if overlap < 0.7 and not lost.any():
            break
    return rows, r


def ritz(t, number):
    """Singular triplets of the small T, N x m x m in float64: (X, s, Y), columns of X and Y,
    largest first, the first `number`; and the smallest over the largest singular value, N."""
    squares, x = torch.linalg.eigh(t @ t.mT)
    condition = (squares[:, 0].clamp(min=0) / squares[:, -1]).sqrt()
    x = x.flip(2)[:, :, :number]
    s = squares.flip(1)[:, :number].clamp(min=0).sqrt()
    # Columns of T^T X are s_k y_k: dividing them would make directions out of rounding where s is
    # null; QR in falling order does not.
    y, r = torch.linalg.qr(t.mT @ x)
    sign = torch.where(r.diagonal(dim1=1, dim2=2) < 0, -1.0, 1.0).to(y.dtype)
    return x, s, y * sign[:, None], condition


def steps_between_checks(jacobian, size, block):
    """Steps from one look at the Ritz values to the next, such that steps taken too many cost on
    average what the looks do."""
    step = 2 * block * jacobian.flops / PRODUCTS
    look = EIGENPROBLEM * (size / 64) ** 3
    return max(1, round(math.sqrt(look * size / block / step)))


@dataclass
class Found:
    """left: N x K x n_out, values: N x K, right: N x K x n_in. converged: N, by the estimate alone
    (zeros elsewhere). products: of one input, J v and J^T u, on average."""

    left: torch.Tensor
    values: torch.Tensor
    right: torch.Tensor
    converged: torch.Tensor
    products: float


@torch.no_grad()
def golub_kahan_lanczos(jacobian, count, tolerance, seed=0, one_sided=True):
    """The `count` largest singular triplets of every input's J.

    Args:
        jacobian: a Jacobian whose smaller dimension is at least `basis_size(count) + BLOCK`.
        tolerance: of ||J^T u - s v|| / s_1 as T predicts it, for every triplet.
        one_sided: allow to leave U's orthogonality to the recurrence where T is well conditioned.

    Returns: Found. Raises FloatingPointError where J is not finite.
    """
    inputs, n_out, n_in = jacobian.shape
    block, size = BLOCK, basis_size(count)
    if size + block > min(n_out, n_in):
        raise ValueError(f"{count} triplets of a {n_out} x {n_in} matrix: use the dense route")
    generator = torch.Generator().manual_seed(seed)
    like = dict(dtype=jacobian.dtype, device=jacobian.device)
    start = torch.randn(block, n_in, generator=generator, dtype=jacobian.dtype).to(jacobian.device)
    start, _ = orthonormalised(start)

    results = [
        torch.zeros(inputs, count, n_out, **like),
        torch.zeros(inputs, count, dtype=torch.double, device=jacobian.device),
        torch.zeros(inputs, count, n_in, **like),
        torch.zeros(inputs, dtype=torch.bool, device=jacobian.device),
    ]
    active = torch.arange(inputs, device=jacobian.device)
    v = torch.empty(inputs, size + block, n_in, **like)
    u = torch.empty(inputs, size, n_out, **like)
    t = torch.zeros(inputs, size, size, dtype=torch.double, device=jacobian.device)
    v[:, :block] = start
    m, coupled, coupling, whole = 0, 0, None, True
    scale, scaled = None, False
    between = steps_between_checks(jacobian, size, block) * block
    check_at, spent = count + 2 * block, 0

    for _ in range(CYCLES):
        while m + block <= size:
            rows, new = v[:, m : m + block], slice(m, m + block)
            w = jacobian.matvec(rows)
            if scale is None:
                # Squares of a tiny or huge J would leave the range of float32.
                scale = w.abs().amax((1, 2))[:, None, None]
                usual = (scale == 0) | ((scale > 1e-6) & (scale < 1e6))
                scale = torch.where(usual, 1.0, scale)
                scaled = not usual.all()
            w = w / scale if scaled else w
            if coupled:
                w = torch.baddbmm(w, coupling, u[:, m - coupled : m], alpha=-1)
                t[:, m - coupled : m, new] = coupling.mT.double()
            q, r = orthonormalised(w)
            if whole and m:
                q, r = orthogonalised(q, r, u[:, :m], generator)
            u[:, new], t[:, new, new] = q, r.double()
            z = jacobian.rmatvec(q)
            z = z / scale if scaled else z
            z = torch.baddbmm(z, r, rows, alpha=-1)
            q, s = orthonormalised(z)
            q, coupling = orthogonalised(q, s, v[:, : m + block], generator)
            v[:, m + block : m + 2 * block] = q
            coupled = block
            m += block
            spent += 2 * block * len(active)
            if m >= check_at:
                break
        number = min(m - block, count + max(4, (m - count) // 2))
        if not t.isfinite().all():
            raise FloatingPointError(NOT_FINITE)
        x, values, y, condition = ritz(t[:, :m, :m], number)
        arrow = coupling.double() @ x[:, m - block :]
        error = arrow[:, :, :count].norm(dim=1) / values[:, :1].clamp(min=1e-300)
        converged = (error <= tolerance).sum(1)
        done = converged == count
        if one_sided:
            whole = bool((condition < (WELL_CONDITIONED if whole else ILL_CONDITIONED)).any())
        if m + block <= size and not done.all():
            check_at = m + between
            continue

        # A full basis, or all done: keep the triplets that are, restart from the Ritz vectors.
        if not done.all():
            keep = min(number, count + max(4, int(converged[~done].min()) // 2))
        finished = done.nonzero()[:, 0]
        if len(finished):
            # All at once needs no copy of the bases.
            some = slice(None) if done.all() else finished
            index = active[some]
            results[0][index] = x[some, :, :count].mT.to(u.dtype) @ u[some, :m]
            results[1][index] = values[some, :count] * scale[some, :, 0].double()
            results[2][index] = y[some, :, :count].mT.to(v.dtype) @ v[some, :m]
            results[3][index] = True
        if done.all():
            break
        if len(finished):
            going = (~done).nonzero()[:, 0]
            active, scale, x, y = active[going], scale[going], x[going], y[going]
            values, arrow = values[going], arrow[going]
            u[: len(going)], v[: len(going)] = u[going], v[going]
            u, v, t = u[: len(going)], v[: len(going)], t[: len(going)]
            jacobian = jacobian.inputs(going)
        x, y, arrow = (a[:, :, :keep] for a in (x, y, arrow))
        next_rows = v[:, m : m + block].clone()
        kept_u, kept_v = x.mT.to(u.dtype) @ u[:, :m], y.mT.to(v.dtype) @ v[:, :m]
        u[:, :keep], v[:, :keep] = kept_u, kept_v
        v[:, keep : keep + block] = next_rows
        t.zero_()
        t[:, range(keep), range(keep)] = values[:, :keep]
        m, coupled, coupling = keep, keep, arrow.to(v.dtype)
        check_at = m + between
    left, values, right, converged = results
    return Found(left, values.to(left.dtype), right, converged, spent / inputs)


class Deflated(Jacobian):
    """J restricted to what is orthogonal to given right vectors, N x K x n_in orthonormal rows."""

    per_input = ("right",)

    def __init__(self, jacobian, right):
        self.jacobian, self.right = jacobian, right
        self.shape, self.flops = jacobian.shape, jacobian.flops
        self.dtype, self.device = jacobian.dtype, jacobian.device

    def inputs(self, index):
        return Deflated(self.jacobian.inputs(index), self.right[index])

    def outside(self, rows):
        return rows - (rows @ self.right.mT) @ self.right

    def matvec(self, vectors):
        return self.jacobian.matvec(self.outside(vectors))

    def rmatvec(self, vectors):
        return self.outside(self.jacobian.rmatvec(vectors))


@torch.no_grad()
def largest_seen(jacobian, seed, steps=6):
    """A lower bound of s_1 of a Deflated Jacobian for every input, N: the largest Ritz value of a
    few Golub-Kahan steps from one random vector."""
    inputs, _, n_in = jacobian.shape
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(1, n_in, generator=generator, dtype=jacobian.dtype).to(jacobian.device)
    u, beta, basis = None, None, []
    t = torch.zeros(inputs, steps, steps, dtype=torch.double, device=jacobian.device)

    def split(rows):
        size = rows.double().norm(dim=2, keepdim=True)
        safe = torch.where(size > 0, size, 1.0)
        return size[:, 0, 0], (rows / safe).to(rows.dtype)

    _, v = split(jacobian.outside(v.expand(inputs, 1, n_in)))
    for step in range(steps):
        basis.append(v)
        w = jacobian.matvec(v)
        if step:
            w = w - (beta[:, None, None] * u).to(w.dtype)
            t[:, step - 1, step] = beta
        alpha, u = split(w)
        t[:, step, step] = alpha
        z = jacobian.rmatvec(u)
        known = torch.cat(basis, 1)
        beta, v = split(z - (z @ known.mT) @ known)
    return torch.linalg.svdvals(t)[:, 0]
