"""Draws of the angle between a sample and its mean direction, by inverting its distribution function.

Every rotationally symmetric law on the sphere is a law of the angle θ to the mean times a uniform tangent
direction. Here the angle is an increasing function of one uniform number: the distribution function is
tabulated around the mode, the cell is looked up, and a few Newton steps on the exact density finish. The work
is the same for every draw, nothing is rejected, and the derivative by the concentration is exact.
"""

from abc import ABC, abstractmethod
from math import prod, sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from spaceform.distributions._arguments import check_dim

# (cells, drop of the log-density at the ends of the table, Newton steps). The uniforms are kept eps/4 away
# from 0 and 1, and e^-drop is below that: what the table leaves out could never be drawn.
_TABLE = {torch.float32: (24, 21.0, 2), torch.float64: (128, 40.0, 3)}

# Concentrations whose tables are held at once; a million of them would otherwise take gigabytes.
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


Rows = Float[Tensor, " rows"]
Points = Float[Tensor, "*points rows"]


class Marginal(ABC):
    """A law of the angle, in a coordinate x with a smooth log-density ℓ; points are given as δ = x − mode.

    Every method broadcasts δ against the concentrations on the last dimension.
    """

    @abstractmethod
    def __init__(self, concentration: Rows, dim: int) -> None: ...

    @abstractmethod
    def reach(self, drop: float) -> tuple[Rows, Rows]:
        """Offsets (low, high) beyond which ℓ is at least `drop` below the mode, or the sphere ends."""

    @abstractmethod
    def log_density(self, delta: Points) -> Points:
        """ℓ at mode + δ, relative to the mode."""

    @abstractmethod
    def statistic(self, delta: Points) -> Points:
        """∂ℓ/∂κ at fixed x, up to a constant: what the concentration multiplies."""

    @abstractmethod
    def angle(self, delta: Points) -> tuple[Points, Points, Points | float]:
        """(cos θ, sin θ, dθ/dx) at mode + δ."""


def _lobatto_nodes(cells: int, like: Tensor) -> Float[Tensor, " nodes"]:
    """The four-point Gauss–Lobatto nodes of `cells` unit cells side by side, shared ends once."""
    k = torch.arange(3 * cells + 1, dtype=like.dtype, device=like.device)
    inner = 1 / 3 - (1 - 1 / sqrt(5)) / 2
    return k / 3 - inner * (k + 1).remainder(3).sub(1)


def _lobatto(width: Tensor, first: Tensor, second: Tensor, third: Tensor, last: Tensor) -> Tensor:
    """∫ over cells of that width, from the values at their four nodes; error width⁷ f⁽⁶⁾ / 1512000."""
    return (first + last).add(second + third, alpha=5) * (width / 12)


class _Table:
    """The nodes of one marginal, and integrals of functions given at them."""

    def __init__(self, marginal: Marginal, dtype: torch.dtype) -> None:
        self.cells, drop, self.steps = _TABLE[dtype]
        self.low, high = marginal.reach(drop)
        self.width = (high - self.low) / self.cells
        unit = _lobatto_nodes(self.cells, self.low)
        self.unit = unit[1:4, None, None]
        self.nodes = torch.addcmul(self.low, unit[:, None], self.width)

    def per_cell(self, f: Float[Tensor, "nodes rows"]) -> Float[Tensor, "cells rows"]:
        return _lobatto(self.width, f[:-1:3], f[1::3], f[2::3], f[3::3])


def _root(mass: Tensor, dim: int) -> tuple[Tensor, int]:
    """A root of the mass, which is ∝ xⁿ⁻¹ next to a pole, and its order.

    The root is convex in x there, so that Newton's steps never pass the pole.
    """
    order = min(dim - 1, 4)
    if order == 1:
        return mass, order
    if order == 3:
        return mass.pow(1 / 3), order
    return (mass.sqrt() if order == 2 else mass.sqrt().sqrt()), order


def _quantile(
    marginal: Marginal, uniform: Float[Tensor, "draws rows"], dim: int
) -> tuple[Float[Tensor, "draws rows"], Float[Tensor, "draws rows"]]:
    """δ with F(mode + δ) = u, and the density of x there. Mass is counted from the nearer end."""
    table = _Table(marginal, uniform.dtype)
    f = marginal.log_density(table.nodes).exp()
    cdf = table.per_cell(f).cumsum(0)
    total = cdf[-1]
    cdf = torch.cat([torch.zeros_like(cdf[:1]), cdf])

    eps = torch.finfo(uniform.dtype).eps
    target = uniform.clamp(eps / 4, 1 - eps / 2) * total
    i = torch.searchsorted(cdf[1:-1].T.contiguous(), target.T.contiguous()).T
    right = uniform > 0.5
    origin = right * total
    near, far = i + right, i + ~right
    target = torch.maximum((target - origin).abs(), total * (eps / 4))
    mass, next_mass = (cdf.gather(0, near) - origin).abs(), (cdf.gather(0, far) - origin).abs()
    start, f_start = table.low + near * table.width, f[::3].gather(0, near)
    inward = torch.where(right, -table.unit, table.unit)

    low, order = _root(mass, dim)
    x = (_root(target, dim)[0] - low) / (_root(next_mass, dim)[0] - low) * table.width
    for _ in range(table.steps):
        f_x = marginal.log_density(torch.addcmul(start, inward, x)).exp()
        m = mass + _lobatto(x, f_start, f_x[0], f_x[1], f_x[2])
        # Newton on the root of the mass: order m/f ((target/m)^(1/order) − 1)
        step = _root(target / m, dim)[0].sub(1) * (m / f_x[2])
        x = torch.minimum(x.add(step, alpha=order).clamp(min=0), table.width)
    return torch.addcmul(start, inward[2], x), f_x[2] / total


def _rate(marginal: Marginal, delta: Float[Tensor, "draws rows"]) -> Float[Tensor, "draws rows"]:
    """dx/dκ at fixed u: −(∂F/∂κ)/f, with ∂F/∂κ = ∫ (T − E T) f up to x, T the statistic.

    Summed from the nearer end, where the integrand has one sign, so that the tails keep their digits.
    """
    table = _Table(marginal, delta.dtype)
    f, T = marginal.log_density(table.nodes).exp(), marginal.statistic(table.nodes)
    mean = table.per_cell(T * f).sum(0) / table.per_cell(f).sum(0)
    g = (T - mean) * f
    cell = table.per_cell(g)
    zero = torch.zeros_like(cell[:1])
    below = torch.cat([zero, cell.cumsum(0)])
    above = torch.cat([cell.flip(0).cumsum(0).flip(0), zero])
    partial = torch.where(T[::3] > mean, below, -above)

    i = ((delta - table.low) / table.width).long().clamp(0, table.cells - 1)
    i = torch.where(marginal.statistic(delta) > mean, i, i + 1)
    start = table.low + i * table.width
    x = delta - start
    inside = start + table.unit * x
    f_x = marginal.log_density(inside).exp()
    g_x = (marginal.statistic(inside) - mean) * f_x
    F_kappa = partial.gather(0, i) + _lobatto(x, g[::3].gather(0, i), g_x[0], g_x[1], g_x[2])
    return -F_kappa / f_x[2].clamp(min=torch.finfo(delta.dtype).tiny)


class _Angle(torch.autograd.Function):
    """(cos θ, sin θ) from uniforms and concentrations, with the implicit gradient in both."""

    @staticmethod
    def forward(
        uniform: Tensor, concentration: Tensor, dim: int, family: type[Marginal]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        marginal = family(concentration, dim)
        delta, density = _quantile(marginal, uniform, dim)
        cos, sin, _ = marginal.angle(delta)
        return cos, sin, delta, density

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        _, concentration, ctx.dim, ctx.family = inputs
        _, _, delta, density = output
        ctx.mark_non_differentiable(delta, density)
        ctx.save_for_backward(delta, density, concentration)

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_cos: Tensor, grad_sin: Tensor, *_: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        delta, density, concentration = ctx.saved_tensors
        marginal = ctx.family(concentration, ctx.dim)
        cos, sin, rate = marginal.angle(delta)
        grad_x = (grad_sin * cos - grad_cos * sin) * rate
        grad_uniform = grad_x / density if ctx.needs_input_grad[0] else None
        grad_concentration = (grad_x * _rate(marginal, delta)).sum(0) if ctx.needs_input_grad[1] else None
        return grad_uniform, grad_concentration, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[Any, ...],
        uniform: Tensor,
        concentration: Tensor,
        dim: int,
        family: type[Marginal],
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        u = fold_rows(uniform, in_dims[0], info.batch_size, 1)
        k = fold_rows(concentration, in_dims[1], info.batch_size, 0)
        out = _Angle.apply(u, k, dim, family)
        return tuple(unfold_rows(x, info.batch_size, 1) for x in out), (1, 1, 1, 1)


def angle_quantile(
    family: type[Marginal],
    uniform: Float[Tensor, "*draws"],
    concentration: Float[Tensor, "*batch"],
    dim: int,
) -> tuple[Float[Tensor, "*draws"], Float[Tensor, "*draws"]]:
    """(cos θ, sin θ) at the quantiles `uniform`, whose shape ends in the shape of the concentration."""
    lead = uniform.ndim - concentration.ndim
    if lead < 0 or uniform.shape[lead:] != concentration.shape:
        raise ValueError(
            f"uniform must have a shape that ends in that of concentration, {tuple(concentration.shape)}, "
            f"but has shape {tuple(uniform.shape)}; expand one of the two"
        )
    if uniform.dtype != concentration.dtype or uniform.dtype not in _TABLE:
        raise TypeError(
            f"uniform and concentration must both be float32 or both float64, "
            f"but are {uniform.dtype} and {concentration.dtype}; cast them"
        )
    check_dim(dim)
    k = concentration.reshape(-1)
    u = uniform.reshape(prod(uniform.shape[:lead]), k.shape[0])
    blocks = [
        _Angle.apply(u[:, a : a + _ROWS], k[a : a + _ROWS], dim, family)[:2]
        for a in range(0, max(k.shape[0], 1), _ROWS)
    ]
    cos, sin = blocks[0] if len(blocks) == 1 else (torch.cat(b, 1) for b in zip(*blocks, strict=True))
    return cos.reshape(uniform.shape), sin.reshape(uniform.shape)
