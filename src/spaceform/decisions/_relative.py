"""How much nearer an item is to one of the classes than to all of them: the relative Mahalanobis distance.

With the covariance Σ within classes and class means μ_c around 0, all items have the covariance T = Σ + Σ_c
p_c μ_c μ_cᵀ, and the answer is (Ren et al. 2021)

    xᵀ T⁻¹ x − min_c (x − μ_c)ᵀ Σ⁻¹ (x − μ_c).

Σ and T differ along the class means alone. So what an item says in other directions cancels, and as many
directions as there are classes, less one, hold all of it, whatever the dimension. They are those of linear
discriminant analysis: W with Wᵀ Σ W = 1 and Wᵀ T W = 1 + diag(spread).
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.decisions.unknown_distance import nearest_squared, shrunk

_EXACT = 512
"""Up to this dimension eigenvectors are computed. Beyond it the first are found by two steps of subspace
iteration (Halko et al. 2011).
"""
_COLUMNS = 512


class ClassMeans(NamedTuple):
    """The means of classes of centred items."""

    labels: Int[Tensor, " classes"]
    share: Float[Tensor, " classes"]
    mean: Float[Tensor, "classes dim"]

    @staticmethod
    def of(x: Float[Tensor, "n dim"], y: Int[Tensor, " n"]) -> "ClassMeans":
        """The means of the classes that have items."""
        labels, ids, sizes = torch.unique(y, return_inverse=True, return_counts=True)
        mean = x.new_zeros(len(labels), x.shape[1]).index_add_(0, ids, x) / sizes[:, None]
        return ClassMeans(labels, sizes.double() / len(y), mean.double())


class Discriminant(NamedTuple):
    """The directions in which classes differ."""

    directions: Float[Tensor, "dim kept"]
    """W."""
    spread: Float[Tensor, " kept"]
    """The variances of the class means along these directions, in variances within classes."""
    points: Float[Tensor, "dim classes"]
    """Σ⁻¹ μ_c."""
    gram: Float[Tensor, "classes classes"]
    """μ_cᵀ Σ⁻¹ μ_d."""

    @staticmethod
    def of(S: Float[Tensor, "dim dim"], means: ClassMeans, n: int, most: int) -> "Discriminant":
        """From the covariance of n centred items around their class means; at most so many directions."""
        Σ = shrunk(S, n)
        factor, failed = torch.linalg.cholesky_ex(Σ)
        if int(failed):  # in single precision: what is next to nothing may be below it
            more = torch.finfo(S.dtype).eps * Σ.trace().double()
            factor = torch.linalg.cholesky(Σ.double() + more * torch.eye(len(Σ)).to(more))
        mean = means.mean.to(factor)
        A = torch.linalg.solve_triangular(factor, mean.T, upper=False)
        C = A * means.share.sqrt().to(A)
        kept = min(len(means.labels) - 1, len(S), most)
        U, spread = leading(lambda B: C @ (C.T @ B), C, kept)
        up = torch.linalg.solve_triangular(factor.T, torch.cat([U, A], 1), upper=True)
        up, A = up.double(), A.double()
        return Discriminant(up[:, :kept], spread.double().clamp_min(0), up[:, kept:], A.T @ A)


def relative(
    v: Float[Tensor, "batch kept"], centres: Float[Tensor, "classes kept"], spread: Float[Tensor, " kept"]
) -> Float[Tensor, " batch"]:
    """The answer for items v = Wᵀ x and class means in the same directions."""
    return (v.square() / (1 + spread)).sum(-1) - nearest_squared(v, centres)


def relative_among(
    h: Float[Tensor, "batch classes"],
    gram: Float[Tensor, "classes classes"],
    share: Float[Tensor, " classes"],
) -> Float[Tensor, " batch"]:
    """The answer if only some of the classes are known, from h = xᵀ Σ⁻¹ μ_c and the products of their means.

    The overall mean becomes that of these classes, and T⁻¹ is taken by the identity of Woodbury.
    """
    p = share / share.sum()
    own = gram @ p
    h = h - (h @ p)[:, None] - own + own @ p
    gram = gram - own[:, None] - own + own @ p
    b, B = h * p.sqrt(), gram * p.sqrt() * p.sqrt()[:, None]
    inside = torch.linalg.solve(B + torch.eye(len(p)).to(B), b.T).T
    return (2 * h - gram.diagonal()).amax(-1) - (b * inside).sum(-1)


def scatter(x: Float[Tensor, "n dim"]) -> Float[Tensor, "dim dim"]:
    """XᵀX/n; of its two equal halves little more than one is computed."""
    S = x.new_empty(x.shape[1], x.shape[1])
    for i in range(0, x.shape[1], _COLUMNS):
        own = x[:, i : i + _COLUMNS].T @ x[:, i:]
        S[i : i + _COLUMNS, i:] = own
        S[i:, i : i + _COLUMNS] = own.T
    return S.div_(len(x))


def leading(
    times: Callable[[Tensor], Tensor], like: Float[Tensor, "dim any"], kept: int
) -> tuple[Float[Tensor, "dim kept"], Float[Tensor, " kept"]]:
    """The first eigenvectors, and their eigenvalues, of the matrix by which `times` multiplies."""
    d = len(like)
    if d <= _EXACT:
        values, B = torch.linalg.eigh(times(torch.eye(d).to(like)))
        return B[:, d - kept :], values[d - kept :]
    start = torch.randn(d, kept, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    Q = torch.linalg.qr(start.to(like)).Q
    for _ in range(2):
        Q = torch.linalg.qr(times(Q)).Q
    values, turn = torch.linalg.eigh(Q.T @ times(Q))
    return Q @ turn, values
