"""The Poincaré ball 𝔻_c = {x : c‖x‖² < 1}, curvature −c; the last axis is the point.

Every formula is written in x − y and in the gap 1 − c‖x‖², never as a difference of large numbers; gaps are
summed in float64, so float32 points keep their whole precision at the boundary. A point on or beyond the
boundary is read as lying just inside it (gap = epsilon of its dtype), so values and gradients stay finite.
"""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.geometry.base import Geometry, Ranking, alike, direction

__all__ = [
    "Hyperboloid",
    "PoincareBall",
    "conformal_factor",
    "distance",
    "expmap0",
    "hyperplane_logits",
    "logmap0",
    "mobius_add",
    "pairwise_distance",
    "project",
]

MARGIN = 1e-3
"""Embeddings are kept inside the radius (1 − MARGIN)/√c: at most 2 artanh(1 − MARGIN)/√c = 7.6/√c from 0."""

_TINY = 1e-30


def check_curvature(c: float) -> None:
    """Raise unless the curvature is a positive finite number."""
    if not (isinstance(c, (int, float)) and 0 < c < math.inf):
        raise ValueError(
            f"curvature must be a positive finite number, got {c!r}; c → 0 is spaceform.Euclidean()"
        )


def check_clip(clip: float | None) -> None:
    """Raise unless the clip is None or a positive finite number."""
    if clip is not None and not (isinstance(clip, (int, float)) and 0 < clip < math.inf):
        raise ValueError(f"clip must be None or a positive finite number, got {clip!r}")


def _check(c: float, **points: Tensor) -> None:
    check_curvature(c)
    for name, x in points.items():
        if not x.is_floating_point():
            raise TypeError(
                f"{name} must be a floating-point tensor, got {x.dtype}; convert it with .float()"
            )
        if x.ndim == 0:
            raise ValueError(f"{name} must have a last axis of coordinates, got a scalar")
    widths = {name: x.shape[-1] for name, x in points.items()}
    if len(set(widths.values())) > 1:
        raise ValueError(
            "the last axes must have one size, got " + ", ".join(f"{n}: {w}" for n, w in widths.items())
        )


def _wide(x: Tensor) -> Tensor:
    """The point in the widest float of the device: sums in it keep the digits of 1 − c‖x‖² for O(N·dim)."""
    return x if x.device.type == "mps" else x.double()


def _gap(x: Tensor, c: float, dtype: torch.dtype) -> Tensor:
    """1 − c‖x‖² with the last axis kept, at least the epsilon of the dtype the point was given in."""
    return (1 - c * x.square().sum(-1, keepdim=True)).clamp_min(torch.finfo(dtype).eps)


def _norm(x: Tensor, c: float) -> Tensor:
    """√c‖x‖ with the last axis kept, never zero: f(r)/r and its gradient are then finite at the origin."""
    return (c * x.square().sum(-1, keepdim=True)).clamp_min(_TINY).sqrt()


def conformal_factor(x: Float[Tensor, "*batch dim"], c: float) -> Float[Tensor, "*batch"]:
    """λ_x = 2/(1 − c‖x‖²), the ratio of hyperbolic to Euclidean length at x."""
    _check(c, x=x)
    return (2 / _gap(_wide(x), c, x.dtype)).squeeze(-1).to(x.dtype)


def mobius_add(
    x: Float[Tensor, "*#batch dim"], y: Float[Tensor, "*#batch dim"], c: float
) -> Float[Tensor, "*#batch dim"]:
    """Möbius: x ⊕ y = ((1 − c‖x‖²) s + c‖s‖² x) / ((1 − c‖x‖²)(1 − c‖y‖²) + c‖s‖²) with s = x + y."""
    _check(c, x=x, y=y)
    dtype = torch.promote_types(x.dtype, y.dtype)
    x, y, eps_x, eps_y = _wide(x), _wide(y), x.dtype, y.dtype
    gap_x, gap_y = _gap(x, c, eps_x), _gap(y, c, eps_y)
    s = x + y
    cs2 = c * s.square().sum(-1, keepdim=True)
    return ((gap_x * s + cs2 * x) / (gap_x * gap_y + cs2)).to(dtype)


def expmap0(v: Float[Tensor, "*batch dim"], c: float) -> Float[Tensor, "*batch dim"]:
    """tanh(√c‖v‖) v/(√c‖v‖): the tangent vector v at 0 as a point, 2‖v‖ away from 0."""
    _check(c, v=v)
    w = _wide(v)
    r = _norm(w, c)
    return (torch.tanh(r) / r * w).to(v.dtype)


def logmap0(x: Float[Tensor, "*batch dim"], c: float) -> Float[Tensor, "*batch dim"]:
    """artanh(√c‖x‖) x/(√c‖x‖), the inverse of `expmap0`."""
    _check(c, x=x)
    w = _wide(x)
    r = _norm(w, c)
    # artanh r = asinh(r/√(1 − r²)) stays finite, with its gradient, where rounding has put r at 1 or beyond.
    return (torch.asinh(r * _gap(w, c, x.dtype).rsqrt()) / r * w).to(x.dtype)


def project(x: Float[Tensor, "*batch dim"], c: float, margin: float = MARGIN) -> Float[Tensor, "*batch dim"]:
    """The point itself inside radius (1 − margin)/√c, else its nearest point on that sphere."""
    _check(c, x=x)
    if not 0 < margin < 1:
        raise ValueError(f"margin must lie between 0 and 1, got {margin!r}")
    w = _wide(x)
    return (w * ((1 - margin) / _norm(w, c)).clamp_max(1)).to(x.dtype)


def distance(
    x: Float[Tensor, "*#batch dim"], y: Float[Tensor, "*#batch dim"], c: float
) -> Float[Tensor, "*#batch"]:
    """d(x, y) = (2/√c) asinh(√c‖x − y‖ / √((1 − c‖x‖²)(1 − c‖y‖²))); gradient 0 where x = y."""
    _check(c, x=x, y=y)
    dtype = torch.promote_types(x.dtype, y.dtype)
    gap = (_gap(_wide(x), c, x.dtype) * _gap(_wide(y), c, y.dtype)).squeeze(-1)
    chord = torch.linalg.vector_norm(_wide(x) - _wide(y), dim=-1)
    return (2 / math.sqrt(c) * torch.asinh(math.sqrt(c) * chord * gap.rsqrt())).to(dtype)


def pairwise_distance(x: Float[Tensor, "n dim"], y: Float[Tensor, "m dim"], c: float) -> Float[Tensor, "n m"]:
    """d(x_i, y_j) for all pairs in O(n·m) memory; exact differences, so near neighbours keep their digits."""
    _check(c, x=x, y=y)
    dtype = torch.promote_types(x.dtype, y.dtype)
    work = torch.promote_types(dtype, torch.float32)
    scale_x = (math.sqrt(c) * _gap(_wide(x), c, x.dtype).rsqrt()).to(work)
    scale_y = _gap(_wide(y), c, y.dtype).rsqrt().to(work)
    chord = torch.cdist(x.to(work), y.to(work), compute_mode="donot_use_mm_for_euclid_dist")
    return (2 / math.sqrt(c) * torch.asinh(chord * scale_x * scale_y.T)).to(dtype)


def hyperplane_logits(
    z: Float[Tensor, "*batch dim"],
    points: Float[Tensor, "classes dim"],
    normals: Float[Tensor, "classes dim"],
    c: float,
) -> Float[Tensor, "*batch classes"]:
    """The logits of eq. 2: λ_p‖a‖ × the signed distance from z to the hyperplane through p with normal a.

    ⟨−p ⊕ z, a⟩/(1 − c‖−p ⊕ z‖²) = (⟨z − p, a⟩ − c⟨p, a⟩‖z − p‖²/(1 − c‖p‖²)) / (1 − c‖z‖²): two gemms, ⟨z, a⟩
    and ⟨z, p⟩, and nothing of shape (batch, classes, dim). They run in float64: a float32 z near both a
    plane and the boundary keeps its distance.
    """
    _check(c, z=z, points=points, normals=normals)
    if points.shape != normals.shape or points.ndim != 2:
        raise ValueError(
            "points and normals must both be (classes, dim), "
            f"got {tuple(points.shape)} and {tuple(normals.shape)}"
        )
    dtype = torch.promote_types(z.dtype, points.dtype)
    gap_z, gap_p = _gap(_wide(z), c, z.dtype), _gap(_wide(points), c, points.dtype).squeeze(-1)
    z, p, a = _wide(z), _wide(points), _wide(normals)
    norm = _norm(a, 1.0).squeeze(-1)
    pa = (p * a).sum(-1)
    chord2 = z.square().sum(-1, keepdim=True) - 2 * (z @ p.T) + p.square().sum(-1)
    side = z @ a.T - pa - c * pa / gap_p * chord2
    return (2 * norm / (math.sqrt(c) * gap_p) * torch.asinh(2 * math.sqrt(c) * side / (gap_z * norm))).to(
        dtype
    )


@final
@dataclass(frozen=True)
class PoincareBall(Geometry):
    """Minus the geodesic distance of the points `project(expmap0(z))` of the ball of radius 1/√curvature.

    With `clip`, an embedding longer than that is shortened to it first.
    """

    kind, title = "hyperbolic", "Poincaré ball"

    curvature: float
    clip: float | None = None

    def __post_init__(self) -> None:
        check_curvature(self.curvature)
        check_clip(self.clip)

    @property
    def _reach(self) -> float:
        """The √c‖z‖ from which on embeddings are projected."""
        most = math.atanh(1 - MARGIN)
        return most if self.clip is None else min(most, math.sqrt(self.curvature) * self.clip)

    def point(self, z: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Where the embedding lies in the ball: exponential map at 0, then projection."""
        return project(expmap0(z, self.curvature), self.curvature, 1 - math.tanh(self._reach))

    def similarity(
        self, z: Float[Tensor, "*#batch dim"], z2: Float[Tensor, "*#batch dim"]
    ) -> Float[Tensor, "*#batch"]:
        """−d of aligned pairs."""
        z, z2 = alike(z, z2)
        return -distance(self.point(z), self.point(z2), self.curvature)

    def pairwise(self, z: Float[Tensor, "n dim"], z2: Float[Tensor, "m dim"]) -> Float[Tensor, "n m"]:
        """−d of all pairs."""
        z, z2 = alike(z, z2, axes=2)
        return -pairwise_distance(self.point(z), self.point(z2), self.curvature)

    def ranking(self, z: Float[Tensor, "n dim"]) -> Ranking:
        """1 − cosh(√c d)/cosh 2rᵢ, an inner product on the hyperboloid; r = √c‖z‖ up to the projection.

        cosh(√c dᵢⱼ) = cosh 2rᵢ cosh 2rⱼ − ⟨fᵢ, fⱼ⟩ with f = sinh(2r) z/‖z‖. Taken from cosh 2rᵢ it
        leaves ⟨fᵢ, fⱼ⟩ − 2 sinh²(rⱼ) cosh 2rᵢ: no 1 is lost to rounding near the origin.
        """
        r = self._radius(z)
        return Ranking(
            direction(z) * torch.sinh(2 * r)[:, None], 1 / torch.cosh(2 * r), 2 * torch.sinh(r).square()
        )

    def midpoint(self, z: Float[Tensor, "*batch n dim"]) -> Float[Tensor, "*batch dim"]:
        """The mean of points on the hyperboloid, brought back along the ray from 0; exact for two points.

        A point is (cosh 2r, sinh(2r) z/‖z‖), and the mean (t, x) lies at the radius 2r = artanh(‖x‖/t).
        """
        w = _wide(z)
        r = self._radius(w)
        t, x = torch.cosh(2 * r).mean(-1), (torch.sinh(2 * r)[..., None] * direction(w)).mean(-2)
        length = torch.linalg.vector_norm(x, dim=-1)
        middle = torch.asinh(length * ((t - length) * (t + length)).rsqrt()) / 2
        return (direction(x) * (middle / math.sqrt(self.curvature))[..., None]).to(z.dtype)

    def _radius(self, z: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch"]:
        """√c‖z‖ up to the projection: half of the distance from 0, in units of the curvature."""
        r = math.sqrt(self.curvature) * torch.linalg.vector_norm(z, dim=-1)
        return r.clamp_max(self._reach)


@final
@dataclass(frozen=True)
class Hyperboloid(Geometry):
    """Minus the geodesic distance of points ‖z‖ away from the origin in direction z.

    The same space as the Poincaré ball, whose embeddings lie twice their norm away from 0, up to the same
    7.6/√c: distances are those of z/2 there. With `clip`, a longer embedding is shortened to it first.
    """

    kind, title = "hyperbolic", "hyperboloid"

    curvature: float
    clip: float | None = None

    def __post_init__(self) -> None:
        check_curvature(self.curvature)
        check_clip(self.clip)

    @property
    def _ball(self) -> PoincareBall:
        return PoincareBall(self.curvature, None if self.clip is None else self.clip / 2)

    def similarity(
        self, z: Float[Tensor, "*#batch dim"], z2: Float[Tensor, "*#batch dim"]
    ) -> Float[Tensor, "*#batch"]:
        """−d of aligned pairs."""
        z, z2 = alike(z, z2)
        return self._ball.similarity(z / 2, z2 / 2)

    def pairwise(self, z: Float[Tensor, "n dim"], z2: Float[Tensor, "m dim"]) -> Float[Tensor, "n m"]:
        """−d of all pairs."""
        z, z2 = alike(z, z2, axes=2)
        return self._ball.pairwise(z / 2, z2 / 2)

    def ranking(self, z: Float[Tensor, "n dim"]) -> Ranking:
        """As in the ball."""
        return self._ball.ranking(z / 2)

    def midpoint(self, z: Float[Tensor, "*batch n dim"]) -> Float[Tensor, "*batch dim"]:
        """As in the ball."""
        return 2 * self._ball.midpoint(z / 2)
