"""The angle θ of a draw to its mean direction as a polynomial of one normal number, for millions of draws.

In y = artanh cos θ the law of θ has its mode at y* = artanh T and a scale of about 1/√(n−1), whatever κ. So
y = y* + g(x, T)/√(n−1) with x standard normal has a g near x, smooth in both: for a given dimension a
polynomial in x whose coefficients are polynomials in T. It is found once from the law's own quantiles
(`AngularLaw.angle`); then a draw costs a few multiplications and an exponential, and its derivative by κ at
fixed x, the pathwise derivative, is that of the polynomial.

Measured for n = 16 .. 2048 and κ = 0 .. 30n: |F(θ(x)) − Φ(−x)| ≤ 3e-6; E[∂ cos θ/∂κ] within 2e-5 of its
value. Below n = 16 the law's quantiles are used directly.

Why a second way beside `AngularLaw.angle`: with its derivative an angle takes a third of the time (3.1, 3.2
and 3.4 times faster at n = 16, 64 and 512, `python benchmarks/distributions.py`).
"""

import math
from functools import cache
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.polynomial import chebyshev
from torch import Tensor

from spaceform.distributions.law import AngularLaw
from spaceform.distributions.von_mises_fisher import VON_MISES_FISHER
from spaceform.heads._kernels.exact_buffers import ExactBuffers, making_constants
from spaceform.special._autograd import first_order

REACH = 5.5  # |x| is clamped here; one normal number in 26 million exceeds it
_TABLE_FROM = 16
_NODES = 32
_TOLERANCE = 1e-6

Polar = tuple[Tensor, Tensor, Tensor, Tensor]
"""(cos θ, sin θ, ∂ cos θ/∂κ, ∂ sin θ/∂κ)."""


@final
class AngleTable(ExactBuffers):
    """Draws of θ for one law and dimension."""

    coefficients: Float[Tensor, "powers two_degrees"]

    def __init__(self, law: AngularLaw, dim: int) -> None:
        super().__init__()
        self.law, self.dim = law, dim
        if dim >= _TABLE_FROM:
            self._add_constants(coefficients=_tabulate(law, dim))

    def antithetic(
        self, x: Float[Tensor, "batch pairs"], kappa: Float[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "batch draws"], Float[Tensor, "batch draws"]]:
        """(cos θ, sin θ) at the normal scores (x, −x) of cos θ, differentiable in κ: draws = 2 · pairs."""
        if self.dim == 3 and self.law.angle is VON_MISES_FISHER.angle:
            return _Polar.apply(kappa, *_in_three_dimensions(torch.cat([x, -x], 1), kappa.detach()))
        if self.dim < _TABLE_FROM:
            cos, sin = self._inverted(torch.cat([x, -x], 1).T, kappa)
            return cos.T, sin.T
        # With the examples along memory, loops are as long as the batch and not as the pairs.
        polar = self._tabulated(x.T.contiguous(), kappa.detach())
        return _Polar.apply(kappa, *(a.T.contiguous() for a in polar))

    def draw(
        self, x: Float[Tensor, "*draws rows"], kappa: Float[Tensor, " rows"]
    ) -> tuple[Float[Tensor, "*draws rows"], Float[Tensor, "*draws rows"]]:
        """(cos θ, sin θ) at normal scores x, with a concentration for each column; x is consumed."""
        if self.dim < _TABLE_FROM:
            return self._inverted(x, kappa)
        T, peak, _ = self.law.peak(kappa, self.dim)
        x = x.clamp_(-REACH, REACH).div_(REACH)
        *low, top = (self._polynomials(T)[0] * (2 / math.sqrt(self.dim - 1))).unbind()
        y = torch.addcmul(low.pop(), x, top)
        for a in reversed(low):
            y = torch.addcmul(a, y, x)
        e2y = y.exp_().mul_(peak)
        half_sech = (1 + e2y).reciprocal_()
        return 1 - 2 * half_sech, e2y.sqrt_().mul_(half_sech).mul_(2)

    def _inverted(
        self, x: Float[Tensor, "*draws rows"], kappa: Float[Tensor, " rows"]
    ) -> tuple[Float[Tensor, "*draws rows"], Float[Tensor, "*draws rows"]]:
        """The same by the law's own quantiles. The angle falls as the cosine rises."""
        level = torch.special.ndtr(-x.double()).to(kappa.dtype)
        return self.law.angle(level, kappa, self.dim)

    def _tabulated(self, x: Float[Tensor, "pairs batch"], kappa: Float[Tensor, " batch"]) -> Polar:
        T, peak, rate = self.law.peak(kappa, self.dim)
        g, dg = _even_and_odd(self._polynomials(T), x.clamp(-REACH, REACH).div_(REACH))
        scale = 1 / math.sqrt(self.dim - 1)
        e2y = (g * (2 * scale)).exp_().mul_(peak)
        half_sech = (1 + e2y).reciprocal_()
        cos, sin = 1 - 2 * half_sech, 2 * e2y.sqrt() * half_sech
        dT = 4 * rate / ((1 + peak) * (1 + 1 / peak))  # (1 − T²) dy*/dκ
        sin_rate = dg.mul_(scale * dT).add_(rate).mul_(sin)
        return cos, sin, sin_rate * sin, sin_rate.mul_(cos).neg_()

    def _polynomials(self, T: Float[Tensor, " rows"]) -> Float[Tensor, "two degrees rows"]:
        """Coefficients of g in x / REACH, lowest first, and of ∂g/∂T; in float64: the powers cancel."""
        tau = (2 * T.double() - 1).expand(len(self.coefficients) - 1, -1)
        powers = torch.cat([torch.ones_like(tau[:1]), tau.cumprod(0)])
        return (self.coefficients.T @ powers).to(T.dtype).unflatten(0, (2, -1))


def first_coordinate(x: Float[Tensor, "*draws"], dim: int) -> Float[Tensor, "*draws"]:
    """The first coordinate of a uniform direction on S^(n−2) at normal scores x; x is consumed."""
    if dim == 2:
        return x.sign()
    if dim <= _TABLE_FROM:
        level = torch.special.ndtr(-x.double())
        if dim == 3:
            return (math.pi * level).cos().to(x.dtype)
        return VON_MISES_FISHER.angle(level.to(x.dtype), x.new_zeros(()), dim - 1)[0]
    side = _tabulate_side(dim)
    x = x.clamp_(-REACH, REACH)
    square = x * x
    y = square * side[-1]
    for a in side[-2:0:-1]:
        y = y.add_(a).mul_(square)
    return y.add_(side[0]).mul_(x)


def _in_three_dimensions(x: Float[Tensor, "batch draws"], kappa: Float[Tensor, " batch"]) -> Polar:
    """The vMF's closed form with its derivative by hand: a training step at n = 3 is 2 to 5 % shorter."""
    k = kappa.double().clamp_min(1e-6)[:, None]
    level = torch.special.ndtr(-x.double().clamp(-REACH, REACH))
    whole = torch.expm1(-2 * k)
    rest = -torch.log1p(level * whole) / k  # 1 − cos θ
    cos, sin = 1 - rest, (rest * (2 - rest)).sqrt()
    rate = (rest - 2 * level * (1 + whole) / (1 + level * whole)) / k
    polar = cos, sin, rate, -cos * rate / sin.clamp_min(1e-12)
    return tuple(a.to(x.dtype) for a in polar)  # type: ignore[return-value]


class _Polar(torch.autograd.Function):
    """(cos θ, sin θ) with the derivatives in κ that came with them."""

    @staticmethod
    def forward(
        ctx: Any,
        kappa: Tensor,  # noqa: ARG004 (what the derivatives are in)
        cos: Tensor,
        sin: Tensor,
        d_cos: Tensor,
        d_sin: Tensor,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(d_cos, d_sin)
        return cos.clone(), sin.clone()

    @staticmethod
    @first_order
    def backward(ctx: Any, g_cos: Tensor, g_sin: Tensor) -> tuple[Tensor | None, ...]:
        d_cos, d_sin = ctx.saved_tensors
        return (g_cos * d_cos + g_sin * d_sin).sum(1), None, None, None, None


def _even_and_odd(
    a: Float[Tensor, "two degrees rows"], x: Float[Tensor, "pairs rows"]
) -> Float[Tensor, "two draws rows"]:
    """Both polynomials at x and at −x, in the time of one."""
    square = x * x
    halves = []
    for part in (a[:, 0::2], a[:, 1::2]):
        *low, top = part.unbind(1)
        y = top[:, None].expand(-1, len(x), -1)
        for c in reversed(low):
            y = torch.addcmul(c[:, None], y, square)
        halves.append(y)
    rest = halves[1] * x
    return torch.cat([halves[0] + rest, halves[0] - rest], 1)


def beyond_the_mode(
    law: AngularLaw, dim: int, level: Float[Tensor, " levels"], T: Float[Tensor, " nodes"]
) -> Float[Tensor, "nodes levels"]:
    """The offset y − y* at quantile levels, for the concentrations with these T."""
    level = level[:, None].expand(-1, len(T)).contiguous()
    cos, sin = law.angle(level, law.concentration(T, dim), dim, refine=4)
    # The finer table costs milliseconds, once, and halves the degree of the polynomials made of it.
    # artanh cos θ, from the end of the two that keeps its digits
    y = torch.where(cos > 0, torch.log((1 + cos) / sin), torch.log(sin / (1 - cos)))
    return (y - torch.atanh(T)).T


def chebyshev_nodes(size: int) -> np.ndarray:
    """The Chebyshev nodes between −1 and 1."""
    return np.cos(np.pi * (np.arange(size) + 0.5) / size)


@cache
@making_constants()
def _tabulate(law: AngularLaw, dim: int) -> Float[Tensor, "powers two_degrees"]:
    """Rows: powers of 2T − 1; columns: powers of x / REACH, for g and then for ∂g/∂T."""
    x = chebyshev_nodes(_NODES)
    level = torch.special.ndtr(torch.from_numpy(-REACH * x))
    g = beyond_the_mode(law, dim, level, torch.from_numpy((x + 1) / 2)).numpy() * math.sqrt(dim - 1)
    a = chebyshev.chebfit(x, chebyshev.chebfit(x, g.T, _NODES - 1).T, _NODES - 1)  # (T, x)
    keep = [int((np.cumsum(np.abs(a).sum(1 - k)[::-1])[::-1] > _TOLERANCE).sum()) for k in (0, 1)]
    a = a[: keep[0], : keep[1]]
    slope = 2 * chebyshev.chebder(a, axis=0)
    slope = np.concatenate([slope, np.zeros_like(a[:1])])
    parts = [_monomials(_monomials(part).T).T for part in (a, slope)]
    return torch.from_numpy(np.concatenate(parts, 1))


@cache
@making_constants()
def _tabulate_side(dim: int) -> tuple[float, ...]:
    """Coefficients of x, x³, x⁵ .. of the first coordinate of a uniform direction in dim − 1 dimensions."""
    x = chebyshev_nodes(_NODES)
    level = torch.special.ndtr(torch.from_numpy(-REACH * x))
    cos, _ = VON_MISES_FISHER.angle(level, level.new_zeros(()), dim - 1)
    a = chebyshev.chebfit(x, cos.numpy(), _NODES - 1)
    a[::2] = 0  # odd
    keep = int((np.cumsum(np.abs(a)[::-1])[::-1] > _TOLERANCE / math.sqrt(dim)).sum())
    powers = chebyshev.cheb2poly(a[:keep]) / REACH ** np.arange(keep)
    return tuple(float(c) for c in powers[1::2])


def _monomials(a: np.ndarray) -> np.ndarray:
    """Chebyshev coefficients along the first axis, as coefficients of powers."""
    change = np.zeros((len(a), len(a)))
    for k in range(len(a)):
        change[: k + 1, k] = chebyshev.cheb2poly([0.0] * k + [1.0])
    return change @ a
