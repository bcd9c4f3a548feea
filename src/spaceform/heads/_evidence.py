"""The terms log C(‖w̃_j‖) − log C(k) and A(k)/k of eq. 8: exact, by the paper's bounds, or from above.

The exact ones are those of `special.exact`. In single precision on the CPU, outside the compiler, what
belongs to the classes is computed once, the polynomials are cut to the lowest degree and evaluated in place.
Measured for n = 2 .. 2048 against float64: values within 5e-7 × (1 + |value|), A(k)/k within 2e-6, relative.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor

from spaceform.special import bounds, exact
from spaceform.special.table import table

Evidence = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
"""From k² − ‖w̃_j‖² to log C(‖w̃_j‖) − log C(k), A(k)/k, and A(‖w̃_j‖)/‖w̃_j‖ (broadcast)."""


class Law(ABC):
    """How C and A of vMF class weights are evaluated; order is n/2 − 1."""

    @abstractmethod
    def evidence(self, square: Float[Tensor, " classes"], order: float) -> Evidence:
        """The evidence of classes with these ‖w̃_j‖², the last axis of its argument, which is consumed."""

    @abstractmethod
    def target(
        self, norm: Float[Tensor, " batch"], dot: Float[Tensor, " batch"], order: float
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, " batch"]]:
        """A(κ)/κ and A′(κ) of E[w_y], at κ = norm and for this w̃_y·μ."""


@final
class SpecialLaw(Law):
    """By a module of `special`."""

    def __init__(self, module: ModuleType) -> None:
        self.module = module

    def evidence(self, square: Float[Tensor, " classes"], order: float) -> Evidence:
        in_place = square.dtype == torch.float32 and square.device.type == "cpu"
        if self.module is exact and in_place and not torch.compiler.is_compiling():
            return _InPlace(square, order)
        ratio = self.module.weight(square, order)
        return lambda shift: (*self.module.difference_and_weight(square, shift, order), ratio)

    def target(self, norm: Tensor, dot: Tensor, order: float) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        return self.module.weight(norm.square(), order), self.module.slope(norm, order)


@final
class UpperLaw(Law):
    """Elementary bounds, each on the side that keeps the objective an upper bound.

    Let g = κ/(e + √((e+1)² + κ²)) ≤ A(κ) ≤ h = κ/(e + √(e² + κ²)), e = (n−1)/2 (eq. 9). The growth of −log C
    from ‖w̃‖ to k is at most ∫h if k > ‖w̃‖, and at most ∫g, a negative number, if k < ‖w̃‖; and −A(κ) ŵ·μ is
    at most −g ŵ·μ if ŵ·μ > 0, −h ŵ·μ if not.
    """

    def evidence(self, square: Float[Tensor, " classes"], order: float) -> Evidence:
        e = order + 0.5

        def evaluate(shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            scale = torch.where(shift >= 0, e**2, (e + 1) ** 2).to(shift.dtype)
            s1 = (square + scale).sqrt()
            s2 = (square + scale + shift).clamp_min(e**2).sqrt()
            step = shift / (s1 + s2)
            log = (step / (s1 + e)).clamp_min(torch.finfo(step.dtype).eps - 1).log1p()
            return step - e * log, 1 / (s2 + e), 1 / (s1 + e)

        return evaluate

    def target(self, norm: Tensor, dot: Tensor, order: float) -> tuple[Tensor, Tensor]:
        e = order + 0.5
        scale = torch.where(dot > 0, (e + 1) ** 2, e**2).to(norm.dtype)
        s = (norm.square() + scale).sqrt()
        return 1 / (s + e), (e * s + scale) / (s * (s + e).square())


LAWS: dict[str, Law] = {"exact": SpecialLaw(exact), "bounds": SpecialLaw(bounds), "upper": UpperLaw()}


class _InPlace:
    def __init__(self, square: Tensor, order: float) -> None:
        fit = _fit(order)
        self.a, self.center, self.power = fit.a, fit.center, order + 0.5
        self.g, self.r = (torch.tensor(c, dtype=square.dtype).unbind() for c in (fit.g, fit.r))
        self.first = square + fit.a**2
        self.s1 = self.first.sqrt()
        self.log_scale = (self.s1 + fit.a).reciprocal_()
        p = fit.a / self.s1 - fit.center
        self.g1, self.ratio = _horner(self.g, p), _horner(self.r, p).mul_(self.log_scale)

    def __call__(self, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        s2 = (shift + self.first).clamp_min_(self.a**2).sqrt_()
        step = shift.div_(s2 + self.s1)  # s₂ − s₁ without cancellation
        p = s2.reciprocal().mul_(self.a)
        if self.center:
            p.sub_(self.center)
        value = _horner(self.g, p).sub_(self.g1).add_(step)
        log = step.mul_(self.log_scale).clamp_min_(torch.finfo(step.dtype).eps - 1).log1p_()
        value.sub_(log, alpha=self.power)
        return value, _horner(self.r, p).div_(s2.add_(self.a)), self.ratio


def _horner(coefficients: tuple[Tensor, ...], p: Tensor) -> Tensor:
    y = torch.addcmul(coefficients[1], coefficients[0], p)
    for c in coefficients[2:]:
        torch.addcmul(c, y, p, out=y)
    return y


class _Fit(NamedTuple):
    """log F = (s − a) − (v + ½) log((s + a)/2a) + g and A/κ = r/(s + a), s = √(a² + κ²).

    The polynomials are in a/s − center, highest power first.
    """

    a: float
    center: float
    g: tuple[float, ...]
    r: tuple[float, ...]


@cache
def _fit(order: float) -> _Fit:
    tb = table(order, torch.float64)
    # Powers of p are well conditioned while the degree is small; else they are taken about the middle.
    center = 0.0 if order >= 7 else 0.5
    p = (1 + np.cos(np.pi * (np.arange(64) + 0.5) / 64)) / 2
    g = Polynomial(tb.h)(2 * p - 1) * (1 - p)
    return _Fit(tb.a, center, _economised(p, g, center), _economised(p, Polynomial(tb.r)(2 * p - 1), center))


def _economised(p: np.ndarray, f: np.ndarray, center: float) -> tuple[float, ...]:
    """Coefficients in p − center of a polynomial that is f at p to the precision of float32."""
    series = Chebyshev.fit(p, f, 40, domain=[0, 1])
    dropped = np.cumsum(np.abs(series.coef[::-1]))[::-1]
    series = series.truncate(max(2, int((dropped > 1.2e-7).sum())))
    powers = series.convert(kind=Polynomial, domain=[-1, 1], window=[-1, 1])
    return tuple(float(c) for c in powers(Polynomial([center, 1.0])).coef[::-1])
