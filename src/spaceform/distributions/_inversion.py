"""Draws of the angle between a sample and its mean direction, by inverting its distribution function.

Every rotationally symmetric law on the sphere is a law of the angle θ to the mean times a uniform tangent
direction. Here the angle is an increasing function of one uniform number: the distribution function is
tabulated around the mode and inverted by a monotone rational spline through its values and densities. The
work is the same for every draw, nothing is rejected, and the derivative by the concentration is exact.
"""

from abc import ABC, abstractmethod
from math import prod, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.distributions._arguments import check_dim
from spaceform.special._autograd import first_order

# (drop of the log-density at the ends of the table, cells), to invert and to differentiate. What the first
# leaves out is less probable than a few roundings of a uniform number.
_INVERT = {torch.float32: (15.0, 64), torch.float64: (36.0, 640)}
_DIFFERENTIATE = {torch.float32: (21.0, 24), torch.float64: (40.0, 128)}

# The most concentrations whose tables are in memory at once: a million of them would take gigabytes.
_ROWS = 1 << 16


def fold_rows(x: Tensor, mapped: int | None, size: int, rows: int) -> Tensor:
    """The dimension that vmap maps over becomes part of the rows, which are independent already."""
    x = (
        x.unsqueeze(rows).expand(*x.shape[:rows], size, *x.shape[rows:])
        if mapped is None
        else x.movedim(mapped, rows)
    )
    return x.flatten(rows, rows + 1)


def unfold_rows(x: Tensor, size: int, rows: int) -> Tensor:
    """The inverse of `fold_rows` with the mapped dimension at `rows`."""
    return x.unflatten(rows, (size, x.shape[rows] // max(size, 1)))


_Rows = Float[Tensor, " rows"]
Points = Float[Tensor, "*points rows"]


class AngleDensity(ABC):
    """A law of the angle in a coordinate x, in which its log-density ℓ is smooth; points are δ = x − mode.

    Every method broadcasts δ against the concentrations on the last dimension.
    """

    dim: int

    @abstractmethod
    def __init__(self, concentration: _Rows, dim: int) -> None: ...

    @abstractmethod
    def reach(self, drop: float) -> tuple[_Rows, _Rows]:
        """Offsets (low, high) beyond which ℓ is at least `drop` below the mode, or the sphere ends."""

    @abstractmethod
    def log_density(self, delta: Points) -> tuple[Points, Points]:
        """(ℓ, ℓ′) at mode + δ, ℓ relative to the mode. Next to a pole only exp(ℓ) ℓ′ has to be right."""

    @abstractmethod
    def statistic(self, delta: Points) -> Points:
        """∂ℓ/∂κ at fixed x, up to a constant: what the concentration multiplies."""

    @abstractmethod
    def angle(self, delta: Points) -> tuple[Points, Points, Points | float]:
        """(cos θ, sin θ, dθ/dx) at mode + δ."""


def _quantile(
    law: AngleDensity, uniform: Float[Tensor, "draws rows"], refine: int
) -> Float[Tensor, "draws rows"]:
    """δ with F(mode + δ) = u, from `refine` times as many cells as usual."""
    drop, cells = _INVERT[uniform.dtype]
    cells *= refine
    if law.dim < 8:  # the mass next to a pole is ∝ xⁿ⁻¹, a power that the spline follows less well
        cells *= 2
    low, high = law.reach(drop)
    h = (high - low) / cells
    steps = torch.arange(cells + 1, dtype=h.dtype, device=h.device)
    l0, l1 = law.log_density(torch.addcmul(low, steps[:, None], h))
    f = l0.exp()
    # the trapezoid rule with its first correction: error h⁵ f⁗ / 720 a cell
    rest = f * l1 * (h / 6)
    cdf = (f[1:] + f[:-1]).cumsum(0) + (rest[0] - rest[1:])
    total = cdf[-1]
    cdf = torch.cat([torch.zeros_like(cdf[:1]), cdf])

    target = uniform * total
    i = torch.searchsorted(cdf[1:-1].T.contiguous(), target.T.contiguous()).T
    j = i + 1
    F0, F1 = cdf.gather(0, i), cdf.gather(0, j)
    # densities and secant on a common scale: the table holds F · 2/h
    f0, f1, secant = f.gather(0, i), f.gather(0, j), (F1 - F0) / 2
    # F = F₀ + ΔF (s ξ² + f₀ ξ(1−ξ)) / (s + (f₀ + f₁ − 2s) ξ(1−ξ)), solved for ξ in [0, 1]
    part = (target - F0) / 2
    p = part / secant.clamp(min=torch.finfo(h.dtype).tiny)
    bend = p * (f0 + f1 - 2 * secant)
    b = f0 - bend
    root = torch.addcmul(b * b, secant - f0 + bend, part, value=4).clamp(min=0).sqrt()
    xi = (2 * part / (b + root).clamp(min=torch.finfo(h.dtype).tiny)).clamp(0, 1)
    return low + (i + xi) * h


def _lobatto_nodes(cells: int, like: Tensor) -> Float[Tensor, " nodes"]:
    """The four-point Gauss–Lobatto nodes of `cells` unit cells side by side, shared ends once."""
    k = torch.arange(3 * cells + 1, dtype=like.dtype, device=like.device)
    inner = 1 / 3 - (1 - 1 / sqrt(5)) / 2
    return k / 3 - inner * (k + 1).remainder(3).sub(1)


def _lobatto(width: Tensor, first: Tensor, second: Tensor, third: Tensor, last: Tensor) -> Tensor:
    """∫ over cells of that width, from the values at their four nodes; error width⁷ f⁽⁶⁾ / 1512000."""
    return (first + last).add(second + third, alpha=5) * (width / 12)


def _density_and_rate(
    law: AngleDensity, delta: Float[Tensor, "draws rows"]
) -> tuple[Float[Tensor, "draws rows"], Float[Tensor, "draws rows"]]:
    """The density f of x, and dx/dκ at fixed u: −(∂F/∂κ)/f, with ∂F/∂κ = ∫ (T − E T) f up to x.

    Summed from the nearer end, where the integrand has one sign, so that the tails keep their digits.
    """
    drop, cells = _DIFFERENTIATE[delta.dtype]
    low, high = law.reach(drop)
    h = (high - low) / cells
    unit = _lobatto_nodes(cells, h)
    nodes = torch.addcmul(low, unit[:, None], h)

    def per_cell(f: Float[Tensor, "nodes rows"]) -> Float[Tensor, "cells rows"]:
        return _lobatto(h, f[:-1:3], f[1::3], f[2::3], f[3::3])

    f, T = law.log_density(nodes)[0].exp(), law.statistic(nodes)
    total = per_cell(f).sum(0)
    mean = per_cell(T * f).sum(0) / total
    g = (T - mean) * f
    cell = per_cell(g)
    zero = torch.zeros_like(cell[:1])
    below = torch.cat([zero, cell.cumsum(0)])
    above = torch.cat([cell.flip(0).cumsum(0).flip(0), zero])
    partial = torch.where(T[::3] > mean, below, -above)

    i = ((delta - low) / h).long().clamp(0, cells - 1)
    i = torch.where(law.statistic(delta) > mean, i, i + 1)
    start = low + i * h
    x = delta - start
    inside = start + unit[1:4, None, None] * x
    f_x = law.log_density(inside)[0].exp()
    g_x = (law.statistic(inside) - mean) * f_x
    F_kappa = partial.gather(0, i) + _lobatto(x, g[::3].gather(0, i), g_x[0], g_x[1], g_x[2])
    density = f_x[2].clamp(min=torch.finfo(delta.dtype).tiny)
    return density / total, -F_kappa / density


class _Angle(torch.autograd.Function):
    """(cos θ, sin θ) from uniforms and concentrations, with the implicit gradient in both."""

    @staticmethod
    def forward(
        uniform: Tensor, concentration: Tensor, dim: int, family: type[AngleDensity], refine: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        law = family(concentration, dim)
        delta = _quantile(law, inside(uniform), refine)
        cos, sin, _ = law.angle(delta)
        return cos, sin, delta

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, concentration, ctx.dim, ctx.family, _ = inputs
        _, _, delta = output
        ctx.mark_non_differentiable(delta)
        ctx.save_for_backward(delta, concentration)

    @staticmethod
    @first_order
    def backward(
        ctx: Any, grad_cos: Tensor, grad_sin: Tensor, _: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        delta, concentration = ctx.saved_tensors
        law = ctx.family(concentration, ctx.dim)
        cos, sin, turn = law.angle(delta)
        grad_x = (grad_sin * cos - grad_cos * sin) * turn
        density, rate = _density_and_rate(law, delta)
        grad_uniform = grad_x / density if ctx.needs_input_grad[0] else None
        return grad_uniform, (grad_x * rate).sum(0), None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        uniform: Tensor,
        concentration: Tensor,
        dim: int,
        family: type[AngleDensity],
        refine: int,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        u = fold_rows(uniform, in_dims[0], info.batch_size, 1)
        k = fold_rows(concentration, in_dims[1], info.batch_size, 0)
        out = _Angle.apply(u, k, dim, family, refine)
        return tuple(unfold_rows(x, info.batch_size, 1) for x in out), (1, 1, 1)


def angle_quantile(
    family: type[AngleDensity],
    uniform: Float[Tensor, "*draws"],
    concentration: Float[Tensor, "*batch"],
    dim: int,
    refine: int = 1,
) -> tuple[Float[Tensor, "*draws"], Float[Tensor, "*draws"]]:
    """(cos θ, sin θ) at the quantiles `uniform`, whose shape ends in the shape of the concentration."""
    check_levels(uniform, concentration, dim)
    k = concentration.reshape(-1)
    u = uniform.reshape(prod(uniform.shape[: uniform.ndim - concentration.ndim]), k.shape[0])
    # A compiled graph takes all rows at once: a loop over blocks would fix their number.
    whole = torch.compiler.is_compiling()
    rows = [slice(None)] if whole else [slice(a, a + _ROWS) for a in range(0, max(k.shape[0], 1), _ROWS)]
    blocks = [_Angle.apply(u[:, block], k[block], dim, family, refine)[:2] for block in rows]
    cos, sin = blocks[0] if len(blocks) == 1 else (torch.cat(b, 1) for b in zip(*blocks, strict=True))
    return cos.reshape(uniform.shape), sin.reshape(uniform.shape)


def widest(x: Tensor) -> Tensor:
    """The tensor in float64, except on Apple's GPUs, which do not have it."""
    return x if x.device.type == "mps" else x.double()


def inside(uniform: Float[Tensor, "*draws"]) -> Float[Tensor, "*draws"]:
    """The levels, moved away from 0 and 1."""
    eps = torch.finfo(uniform.dtype).eps
    return uniform.clamp(eps / 4, 1 - eps / 2)


def check_levels(uniform: Tensor, concentration: Tensor, dim: int) -> None:
    """Refuse levels and concentrations whose shapes or types do not go together."""
    lead = uniform.ndim - concentration.ndim
    if lead < 0 or uniform.shape[lead:] != concentration.shape:
        raise ValueError(
            f"uniform must have a shape that ends in that of concentration, {tuple(concentration.shape)}, "
            f"but has shape {tuple(uniform.shape)}; expand one of the two"
        )
    if uniform.dtype != concentration.dtype or uniform.dtype not in _INVERT:
        raise TypeError(
            f"uniform and concentration must both be float32 or both float64, "
            f"but are {uniform.dtype} and {concentration.dtype}; cast them"
        )
    check_dim(dim)
