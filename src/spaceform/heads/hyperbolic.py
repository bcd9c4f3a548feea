"""HYPERBOLIC, eq. 2: softmax of signed distances to hyperplanes of the Poincaré ball.

With the embedding x = expmap0(z), points p_j = expmap0(p̃_j) and normals a_j = (1 − c‖p_j‖²) ã_j, all Möbius
additions of eq. 2 cancel. Let R = √c‖z‖, s = √c‖p̃‖, â = ã/‖ã‖ and t = ⟨p̃, â⟩. On the hyperboloid,

    logit_j = (2‖ã_j‖/√c) asinh(√c (⟨x, v_j⟩ − h o_j)),     x = (sinh 2R/R) z,          h = cosh 2R,
    v_j = â_j + c m_j t_j p̃_j,    o_j = g_j t_j,            m = 2 sinh² s/s²,           g = sinh 2s/s:

one gemm, no factor that explodes at the boundary, and 4⟨z − p̃_j, ã_j⟩ as c → 0.
"""

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.geometry import PoincareBall
from spaceform.geometry.hyperbolic import MARGIN, check_clip
from spaceform.heads._kernels.hyperboloid import (
    arsinh,
    clipped,
    distance_cross_entropy,
    length,
    signed_distances,
    working_type,
)
from spaceform.heads._kernels.hyperboloid import points as points_of
from spaceform.heads._kernels.softmax import chunk_size
from spaceform.heads.base import DeterministicHead
from spaceform.heads.class_weights import Init, class_weights
from spaceform.heads.curvature import Curvature
from spaceform.heads.declaration import Choice, LogUniform, Start
from spaceform.heads.soft_labels import TrainingLogits
from spaceform.special._autograd import first_order

_RADIUS = math.atanh(1 - MARGIN)
"""The R from which on the embedding is projected."""
_FARTHEST = 15.0
"""The largest s of a plane, at the distance 30/√c from 0: no embedding reaches it, and cosh 2s is finite."""
_ORIGIN = 1e-6
"""The smallest radius that is used: there sinh(2R)/R differs from 2 by 1e-12, and nothing is 0/0."""
_LARGEST = 1e17
"""The largest coordinate of z that is used, far beyond the projection: ‖z‖² does not overflow."""
_EQ_2 = 4.0
"""The factor of eq. 2 over a dot product as c → 0."""
_NORMAL = 1e-12
"""The shortest normal that is used."""


class _Embeddings(NamedTuple):
    """What eq. 2 needs of the embeddings: x, and columns."""

    x: Tensor
    h: Tensor
    r: Tensor
    f: Tensor


class _Planes(NamedTuple):
    """What eq. 2 needs of the hyperplanes: v, and columns."""

    v: Tensor
    o: Tensor
    n: Tensor
    s: Tensor
    t: Tensor
    g: Tensor
    m: Tensor


def _embeddings(z: Tensor, c: float) -> _Embeddings:
    z = z.clamp(-_LARGEST, _LARGEST)
    r = torch.linalg.vector_norm(z, dim=-1, keepdim=True).mul_(math.sqrt(c)).clamp_min_(_ORIGIN)
    twice = (2 * r).clamp_max_(2 * _RADIUS)
    f = _realized(torch.sinh(twice).div_(r))
    return _Embeddings(z.mul_(f), twice.cosh_(), r, f)


def _planes(points: Tensor, normals: Tensor, c: float) -> _Planes:
    n = torch.linalg.vector_norm(normals, dim=-1, keepdim=True).clamp_min_(_NORMAL)
    s = torch.linalg.vector_norm(points, dim=-1, keepdim=True).mul_(math.sqrt(c)).clamp_min_(_ORIGIN)
    t = torch.linalg.vecdot(points, normals).unsqueeze(-1).div_(n)
    near = s.clamp_max(_FARTHEST)
    m = _realized(torch.sinh(near).div_(s).square_().mul_(2))
    g = _realized(near.mul_(2).sinh_().div_(s))
    return _Planes((normals / n).addcmul_(points, m * t, value=c), t * g, n, s, t, g, m)


def _realized(column: Tensor) -> Tensor:
    """The same column, which a compiler cannot fuse into a loop over dim, with a sinh in every step."""
    return column.as_strided(column.shape, column.stride()) if torch.compiler.is_compiling() else column


def _signed_distances(e: _Embeddings, planes: _Planes, c: float) -> tuple[Tensor, Tensor]:
    """asinh(X) and √(1 + X²), X = √c (⟨x, v⟩ − h o)."""
    return arsinh(torch.addmm(e.h @ planes.o.T, e.x, planes.v.T, beta=-math.sqrt(c), alpha=math.sqrt(c)))


def _embedding_gradient(dx: Tensor, dh: Tensor, e: _Embeddings, c: float, riemannian: bool) -> Tensor:
    """The gradient of z from those of x and h, by x rather than z, whose square may overflow."""
    x, h, r, f = e
    inside = r < _RADIUS
    df = (2 * h * inside - f) / (f * r).square()  # (1/f²R) df/dR
    radial = df * torch.linalg.vecdot(dx, x).unsqueeze(-1) + 2 * inside * dh
    dz = (f * dx).addcmul_(x, radial, value=c)
    return dz.div_((h + 1).square()) if riemannian else dz


def _plane_gradients(
    g_s: Tensor, dn: Tensor, e: _Embeddings, planes: _Planes, points: Tensor, normals: Tensor, c: float
) -> tuple[Tensor, Tensor]:
    """Gradients of p̃ and ã, from those of S = ⟨x, v⟩ − h o and of the factor ‖ã‖."""
    _, _, n, s, t, g, m = planes
    dv = g_s.T @ e.x
    do = -(g_s.T @ e.h)
    dv_p = torch.linalg.vecdot(dv, points).unsqueeze(-1)
    dv_a = torch.linalg.vecdot(dv, normals).unsqueeze(-1)
    dt = c * m * dv_p + g * do
    s2, near = s.square(), s < _FARTHEST
    dm, dg = 2 * (near * g - m), 2 * near * (1 + m * s2) - g  # s dm/ds, s dg/ds
    radial = c * t * (c * dv_p * dm + do * dg) / s2
    dt_n = dt / n
    d_points = (c * m * t * dv).addcmul_(normals, dt_n).addcmul_(points, radial)
    along = (dn - (dv_a / n + dt * t) / n) / n
    return d_points, dv.div_(n).addcmul_(points, dt_n).addcmul_(normals, along)


class _BallLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, points: Tensor, normals: Tensor, c: float, riemannian: bool) -> Tensor:
        e, planes = _embeddings(z, c), _planes(points, normals, c)
        asinh, root = _signed_distances(e, planes, c)
        ctx.save_for_backward(points, normals, asinh, root, *e, *planes)
        ctx.c, ctx.riemannian = c, riemannian
        return asinh * (planes.n.T * (2 / math.sqrt(c)))

    @staticmethod
    @first_order
    def backward(ctx: Any, d_logits: Tensor) -> tuple[Tensor | None, ...]:
        points, normals, asinh, root, *rest = ctx.saved_tensors
        e, planes, c = _Embeddings(*rest[:4]), _Planes(*rest[4:]), ctx.c
        g_s = (d_logits * (2 * planes.n.T)).div_(root)
        dz = dp = da = None
        if ctx.needs_input_grad[0]:
            dz = _embedding_gradient(g_s @ planes.v, -(g_s @ planes.o), e, c, ctx.riemannian)
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            dn = (d_logits * asinh).sum(0).unsqueeze(-1) * (2 / math.sqrt(c))
            dp, da = _plane_gradients(g_s, dn, e, planes, points, normals, c)
        return dz, dp, da, None, None


class _BallCrossEntropy(torch.autograd.Function):
    """Cross entropy of the logits, `chunk` classes at a time; the backward pass computes each chunk again."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        y: Tensor,
        points: Tensor,
        normals: Tensor,
        c: float,
        riemannian: bool,
        chunk: int,
    ) -> Tensor:
        e = _embeddings(z, c)
        target = e.x.new_zeros(len(z))
        lse = torch.full_like(target, -math.inf)
        for start in range(0, len(points), chunk):
            block = slice(start, start + chunk)
            planes = _planes(points[block], normals[block], c)
            logits = _signed_distances(e, planes, c)[0].mul_(planes.n.T * (2 / math.sqrt(c)))
            lse = torch.logaddexp(lse, logits.logsumexp(1))
            here, column = _column(y, start, logits.shape[1])
            target = torch.where(here, logits.gather(1, column).squeeze(1), target)
        ctx.save_for_backward(y, points, normals, lse, *e)
        ctx.c, ctx.riemannian, ctx.chunk = c, riemannian, chunk
        return lse - target

    @staticmethod
    @first_order
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        y, points, normals, lse, *rest = ctx.saved_tensors
        e, c, g = _Embeddings(*rest), ctx.c, g.unsqueeze(-1)
        dx, dh = torch.zeros_like(e.x), torch.zeros_like(e.h)
        d_points, d_normals = torch.empty_like(points), torch.empty_like(normals)
        for start in range(0, len(points), ctx.chunk):
            block = slice(start, start + ctx.chunk)
            planes = _planes(points[block], normals[block], c)
            asinh, root = _signed_distances(e, planes, c)
            scale = planes.n.T * (2 / math.sqrt(c))
            d_logits = (asinh * scale).sub_(lse.unsqueeze(-1)).exp_().mul_(g)
            here, column = _column(y, start, d_logits.shape[1])
            d_logits.scatter_add_(1, column, torch.where(here.unsqueeze(-1), -g, 0))
            dn = asinh.mul_(d_logits).sum(0).unsqueeze(-1) * (2 / math.sqrt(c))
            g_s = d_logits.mul_(2 * planes.n.T).div_(root)
            dx.addmm_(g_s, planes.v)
            dh.addmm_(g_s, planes.o, alpha=-1)
            d_points[block], d_normals[block] = _plane_gradients(
                g_s, dn, e, planes, points[block], normals[block], c
            )
        dz = _embedding_gradient(dx, dh, e, c, ctx.riemannian)
        return dz, None, d_points, d_normals, None, None, None


def _column(y: Tensor, start: int, width: int) -> tuple[Tensor, Tensor]:
    """Whether each label lies in the chunk that begins at `start`, and its column there."""
    column = y - start
    return (column >= 0) & (column < width), column.clamp(0, width - 1).unsqueeze(1)


def hyperbolic_logits(
    z: Float[Tensor, "batch dim"],
    points: Float[Tensor, "classes dim"],
    normals: Float[Tensor, "classes dim"],
    curvature: float,
    *,
    riemannian_gradient: bool = False,
) -> Float[Tensor, "batch classes"]:
    """The logits of eq. 2 from tangent vectors at 0: p_j = expmap0(points_j), a_j = (1 − c‖p_j‖²) normals_j.

    Against float64, float32 is within 4e-6 of the largest logit. Differentiable once.
    """
    return _BallLogits.apply(z, points, normals, curvature, riemannian_gradient)


def hyperbolic_cross_entropy(
    z: Float[Tensor, "batch dim"],
    y: Integer[Tensor, " batch"],
    points: Float[Tensor, "classes dim"],
    normals: Float[Tensor, "classes dim"],
    curvature: float,
    *,
    riemannian_gradient: bool = False,
    class_chunk: int | None = None,
) -> Float[Tensor, " batch"]:
    """−log softmax(`hyperbolic_logits`)_y; streamed over the classes if many. Differentiable once."""
    chunk = chunk_size(len(z), len(points), class_chunk)
    if chunk == len(points):
        logits = hyperbolic_logits(z, points, normals, curvature, riemannian_gradient=riemannian_gradient)
        return F.cross_entropy(logits, y, reduction="none")
    return _BallCrossEntropy.apply(z, y, points, normals, curvature, riemannian_gradient, chunk)


def _with_curvature(
    z: Float[Tensor, "batch dim"],
    points: Float[Tensor, "classes dim"],
    normals: Float[Tensor, "classes dim"],
    c: Float[Tensor, ""],
    riemannian: bool,
) -> tuple[Float[Tensor, "batch dim+1"], Float[Tensor, "classes dim+1"], Float[Tensor, " classes"]]:
    """Points, planes and scales on the hyperboloid, by operations that are differentiable in c.

    A step takes 1.5 to 2.6 times as long as with a fixed curvature, for which there are special functions.
    """
    u = points_of(2 * z, c)
    if riemannian:
        factor = (u[:, -1:].detach() + 1).square().reciprocal()
        u = points_of(2 * (z.detach() + (z - z.detach()) * factor), c)
    n = length(normals)
    s = (c.sqrt() * length(points)).clamp_max(_FARTHEST)
    half = torch.sinh(s) / length(points)
    t = torch.linalg.vecdot(points, normals)[:, None] / n
    w = torch.cat([normals / n + 2 * half.square() * t * points, -2 * torch.cosh(s) * half * t], -1)
    return u, w, 2 * n[:, 0] / c.sqrt()


@final
class HyperbolicHead(DeterministicHead):
    """Softmax of signed distances to hyperplanes of the Poincaré ball of curvature −c, eq. 2.

    The embedding enters the ball by the exponential map at 0 and is kept inside the radius (1 − 10⁻³)/√c. The
    parameters are free vectors, so any optimiser can be used: plane j passes through expmap0(`points`_j),
    with the normal (1 − c‖p_j‖²) `normals`_j. Both start as `init` says. The paper's curvature is 10⁻⁵ on all
    data.

    With `riemannian_gradient` (default) the network gets the Riemannian gradient of the training objective,
    ((1 − c‖x‖²)/2)² times the derivative, as in the paper's runs. As c → 0 eq. 2 is 4 times a dot product;
    this gradient removes the factor 4, so that the learning rates of other heads can be used, and it is small
    near the boundary. Turn it off if the objective is added to other losses on z, or attributed to inputs.
    Logits and probabilities always have their plain derivative.

    As c → 0 the logits are `scale` times ⟨z − p̃_j, ã_j⟩. In eq. 2 it is 4: then hyperplanes learn 4 times as
    fast as the weights of STANDARD with Adam, and 16 times with SGD. With 1 all rates of STANDARD can be
    used, and the Riemannian gradient goes to the plain gradient as c → 0.

    `clip` shortens longer embeddings to this norm (Guo et al., 2022). With `learn_curvature` the curvature
    starts at `curvature` and is learned as exp of a parameter, by the functions of `LorentzHead`. Logits are
    as exact as those of `LorentzHead`.
    """

    name, title = "hyperbolic", "Hyperbolic"
    searched = MappingProxyType({"curvature": LogUniform(1e-6, 1e-2), "clip": Choice((None, 10.0, 30.0))})
    defaults = MappingProxyType(
        {
            "features": Start(lr=0.03, weight_decay=5e-3, options={"curvature": 1e-4, "scale": 1.0}),
            "pixels": Start(lr=0.05, weight_decay=1e-4, options={"curvature": 1e-5, "scale": 1.0}),
        }
    )

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        curvature: float = 1e-5,
        learn_curvature: bool = False,
        clip: float | None = None,
        riemannian_gradient: bool = True,
        scale: float = 4.0,
        init: Init = "xavier",
        class_chunk: int | None = None,
    ) -> None:
        super().__init__(dim, num_classes, class_chunk=class_chunk)
        check_clip(clip)
        self.clip = clip
        if not (math.isfinite(scale) and scale > 0):
            raise ValueError(f"scale must be positive and finite, got {scale!r}")
        self.riemannian_gradient, self.scale = riemannian_gradient, scale
        self.points = class_weights(num_classes, dim, init)
        self.normals = class_weights(num_classes, dim, init)
        self.curvature = Curvature(curvature, learn_curvature)

    @property
    def geometry(self) -> PoincareBall:
        """The ball of the curvature that the head has now."""
        return PoincareBall(self.curvature.value, self.clip)

    def _logits(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        return self._signed_distances(z, riemannian=False)(slice(None))

    def _training_logits(self, z: Float[Tensor, "batch dim"]) -> TrainingLogits:
        distances = self._signed_distances(z, riemannian=self.riemannian_gradient)
        return lambda _share, block: distances(block)

    def _signed_distances(
        self, z: Float[Tensor, "batch dim"], *, riemannian: bool
    ) -> Callable[[slice], Float[Tensor, "batch block"]]:
        x, points, normals = self._inputs(z, riemannian)
        c = self.curvature.given
        if self.curvature.learned:
            u, w, s = _with_curvature(x, points, normals, self.curvature(x.dtype), riemannian)
            return lambda block: signed_distances(u, w[block], s[block]).to(z.dtype)
        return lambda block: hyperbolic_logits(
            x, points[block], normals[block], c, riemannian_gradient=riemannian
        ).to(z.dtype)

    def _inputs(
        self, z: Float[Tensor, "batch dim"], riemannian: bool
    ) -> tuple[
        Float[Tensor, "batch dim"],
        Float[Tensor, "{self.num_classes} dim"],
        Float[Tensor, "{self.num_classes} dim"],
    ]:
        """The arguments of eq. 2: embeddings, points, and normals times scale/4 (eq. 2 has the factor 4).

        They are in float64 where float32 would lose digits of the logits.
        """
        factor = self.scale / _EQ_2
        if factor != 1 and riemannian:
            z = z.detach() + (z - z.detach()) / factor
        z = clipped(z, self.clip)
        dtype = working_type(
            z,
            lambda: 2 * math.sqrt(self.curvature.value),
            lambda: torch.linalg.vector_norm(self.points, dim=1),
        )
        z, points, normals = z.to(dtype), self.points.to(dtype), self.normals.to(dtype)
        return z, points, normals if factor == 1 else normals * factor

    def _loss(self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        riemannian, chunk = self.riemannian_gradient, self.class_chunk
        x, points, normals = self._inputs(z, riemannian)
        if self.curvature.learned:
            found = _with_curvature(x, points, normals, self.curvature(x.dtype), riemannian)
            return distance_cross_entropy(*found, y, chunk).to(z.dtype)
        c = self.curvature.given
        return hyperbolic_cross_entropy(
            x, y, points, normals, c, riemannian_gradient=riemannian, class_chunk=chunk
        ).to(z.dtype)

    def numbers(self) -> dict[str, float]:
        """The curvature c, and the norm to which embeddings are clipped."""
        return {"curvature": self.curvature.value} | ({} if self.clip is None else {"clip": self.clip})

    def parameter_groups(self) -> list[dict[str, Any]]:
        """`hyperplanes`, for which weight decay has no meaning, and the curvature if it is learned."""
        return self.curvature.parameter_groups(self.points, self.normals)

    def extra_repr(self) -> str:
        """The base's text, the curvature, the kind of gradient, the scale."""
        return (
            f"{super().extra_repr()}, {self.curvature.description}, "
            f"riemannian_gradient={self.riemannian_gradient}, scale={self.scale:g}, clip={self.clip}"
        )
