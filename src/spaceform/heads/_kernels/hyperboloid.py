"""Signed distances to hyperplanes on the hyperboloid, from one gemm: logit_j = s_j asinh⟨u, w_j⟩.

A point at R = √c d from the origin in direction ẑ is u = (sinh R ẑ, cosh R). A plane with the unit normal v̂,
a away from the origin, is w = (cosh A v̂, −sinh A), A = √c a. Both follow from z, the class weights and c by
ordinary differentiable operations of size (batch, dim) and (classes, dim), so that c may be learned. What has
the size (batch, classes) is one autograd function, the class axis kept or streamed.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.geometry.hyperbolic import MARGIN
from spaceform.heads._checks import values_readable
from spaceform.heads._kernels.softmax import chunk_size
from spaceform.special._autograd import first_order
from spaceform.special._precision import no_autocast

RADIUS = 2 * math.atanh(1 - MARGIN)
"""Points have at most the distance R = 7.6 from the origin, as in the Poincaré ball."""
FARTHEST = 30.0
"""Planes have at most the distance A = 30 from the origin: no point reaches them, and cosh A is finite."""
_LARGEST = 1e17
"""The largest coordinate that is used, so that ‖z‖² does not overflow."""
_SHORTEST = 1e-12
"""The shortest length that is used."""
_PLAIN = 16.0
"""Up to this cosh R cosh A float32 keeps logits within 1e-5 of the largest logit of the same point."""


def working_type(
    z: Float[Tensor, "batch dim"], unit: Callable[[], float], planes: Callable[[], Tensor]
) -> torch.dtype:
    """float64 where a product in float32 would lose digits of logits, if the values can be looked at.

    `unit` times ‖z‖ is the distance R of a point, `unit` times what `planes` gives is at least the distance A
    of a plane, at curvature 1. The product of a point and a plane is a difference of two numbers as large as
    cosh R cosh A, and may itself be near 0, but not if A is far above R.
    """
    if z.dtype != torch.float32 or not values_readable(z):
        return z.dtype
    size = unit()
    R = min(size * torch.linalg.vector_norm(z.detach(), dim=1).amax().item(), RADIUS)
    if math.cosh(R) ** 2 <= _PLAIN:
        return z.dtype
    A = min(size * planes().detach().abs().amax().item(), R)
    return z.dtype if math.cosh(R) * math.cosh(A) <= _PLAIN else torch.float64


def length(v: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch 1"]:
    """‖v‖, at least 1e-12, where its gradient is 0."""
    return v.square().sum(-1, keepdim=True).clamp_min(_SHORTEST**2).sqrt()


def clipped(z: Float[Tensor, "batch dim"], most: float | None) -> Float[Tensor, "batch dim"]:
    """Embeddings; those longer than `most` are shortened to it (Guo et al., 2022), in the same direction."""
    if most is None:
        return z
    z = z.clamp(-_LARGEST, _LARGEST)
    return z * (most / length(z)).clamp_max(1)


def points(z: Float[Tensor, "batch dim"], c: Float[Tensor, ""]) -> Float[Tensor, "batch dim+1"]:
    """The tangent vector z at the origin as a point, ‖z‖ away from it, times √c: (sinh R ẑ, cosh R)."""
    z = z.clamp(-_LARGEST, _LARGEST)
    r = length(z)
    R = (c.sqrt() * r).clamp_max(RADIUS)
    return torch.cat([torch.sinh(R) / r * z, torch.cosh(R)], -1)


def planes(
    normals: Float[Tensor, "classes dim"], offsets: Float[Tensor, " classes"], c: Float[Tensor, ""]
) -> tuple[Float[Tensor, "classes dim+1"], Float[Tensor, " classes"]]:
    """Planes with these normals, `offsets` away from the origin, and the scales ‖v‖/√c of their logits."""
    n = length(normals)
    A = (c.sqrt() * offsets[:, None]).clamp(-FARTHEST, FARTHEST)
    return torch.cat([torch.cosh(A) / n * normals, -torch.sinh(A)], -1), n[:, 0] / c.sqrt()


def signed_distances(
    u: Float[Tensor, "batch n"], w: Float[Tensor, "classes n"], s: Float[Tensor, " classes"]
) -> Float[Tensor, "batch classes"]:
    """s_j asinh⟨u, w_j⟩. Differentiable once."""
    return _SignedDistances.apply(u, w, s)


def distance_cross_entropy(
    u: Float[Tensor, "batch n"],
    w: Float[Tensor, "classes n"],
    s: Float[Tensor, " classes"],
    y: Integer[Tensor, " batch"],
    class_chunk: int | None,
) -> Float[Tensor, " batch"]:
    """−log softmax(`signed_distances`)_y; streamed over the classes if many. Differentiable once."""
    chunk = chunk_size(len(u), len(w), class_chunk)
    if chunk == len(w):
        return F.cross_entropy(signed_distances(u, w, s), y, reduction="none")
    return _DistanceCrossEntropy.apply(u, w, s, y, chunk)


def arsinh(x: Tensor) -> tuple[Tensor, Tensor]:
    """The asinh of x and √(1 + x²), by log1p, which costs less than torch.asinh."""
    x2 = x.square()
    root = (x2 + 1).sqrt_()
    return x2.div_(root + 1).add_(x.abs()).log1p_().copysign_(x), root


class _SignedDistances(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor, s: Tensor) -> Tensor:
        asinh, root = arsinh(u @ w.T)
        ctx.save_for_backward(u, w, s, asinh, root)
        return asinh * s

    @staticmethod
    @first_order
    def backward(ctx: Any, d_logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        u, w, s, asinh, root = ctx.saved_tensors
        g = (d_logits * s).div_(root)
        with no_autocast(g):
            return g @ w, g.T @ u, (d_logits * asinh).sum(0)


class _DistanceCrossEntropy(torch.autograd.Function):
    """Cross entropy, `chunk` classes at a time; the backward pass computes each chunk again."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor, s: Tensor, y: Tensor, chunk: int) -> Tensor:
        target = torch.linalg.vecdot(u, w[y]).asinh().mul_(s[y])
        parts = [
            arsinh(u @ part.T)[0].mul_(scale).logsumexp(1)
            for part, scale in zip(w.split(chunk), s.split(chunk), strict=True)
        ]
        lse = torch.stack(parts).logsumexp(0)
        ctx.save_for_backward(u, w, s, y, lse)
        ctx.chunk = chunk
        return lse - target

    @staticmethod
    @first_order
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        with no_autocast(g):
            return *_streamed_backward(ctx, g), None, None


def _streamed_backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    u, w, s, y, lse = ctx.saved_tensors
    du, dw, ds = torch.zeros_like(u), torch.empty_like(w), torch.empty_like(s)
    for start in range(0, len(w), ctx.chunk):
        block = slice(start, start + ctx.chunk)
        asinh, root = arsinh(u @ w[block].T)
        d = (asinh * s[block]).sub_(lse[:, None]).exp_()
        column = y - start
        inside = (column >= 0) & (column < d.shape[1])
        column = column.clamp_(0, d.shape[1] - 1)[:, None]
        d = d.scatter_add_(1, column, -inside[:, None].to(d.dtype)).mul_(g[:, None])
        ds[block] = asinh.mul_(d).sum(0)
        d.mul_(s[block]).div_(root)
        du.addmm_(d, w[block])
        torch.mm(d.T, u, out=dw[block])
    return du, dw, ds
