"""The terms log C(‖w̃_j‖) − log C(k) and A(k)/k of eq. 8: exact, by the paper's bounds, or from above.

The exact ones are those of `special.exact`. In single precision on the CPU, outside the compiler, what
belongs to the classes is computed once, the polynomials are cut to the lowest degree and evaluated in place.
Measured for n = 2 .. 2048 against float64: values within 5e-7 × (1 + |value|), A(k)/k within 2e-6, relative.
"""

from abc import ABC, abstractmethod
from functools import cache
from types import ModuleType
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.polynomial import Chebyshev, Polynomial
from torch import Tensor

from spaceform.special import exact
from spaceform.special.functions import METHODS
from spaceform.special.table import table


class Evidence(ABC):
    """The terms of given classes as functions of k² − ‖w̃_j‖², classes last; the argument is consumed."""

    @abstractmethod
    def __call__(self, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The terms log C(‖w̃_j‖) − log C(k), A(k)/k, and A(‖w̃_j‖)/‖w̃_j‖ (broadcast)."""

    def log(self, shift: Tensor) -> Tensor:
        """The first alone."""
        return self(shift)[0]


class Normalizer(ABC):
    """How C and A of vMF class weights are evaluated; order is n/2 − 1."""

    @abstractmethod
    def evidence(self, square: Float[Tensor, "*draws classes"], order: float) -> Evidence:
        """The evidence of classes with these ‖w̃_j‖²."""

    @abstractmethod
    def target_ratio(
        self, norm: Float[Tensor, " batch"], dot: Float[Tensor, " batch"], order: float
    ) -> Float[Tensor, " batch"]:
        """A(κ)/κ of E[w_y], at κ = norm and for this w̃_y·μ."""

    @abstractmethod
    def target_slope(
        self, norm: Float[Tensor, " batch"], dot: Float[Tensor, " batch"], order: float
    ) -> Float[Tensor, " batch"]:
        """A′(κ) of the same."""


@final
class SpecialNormalizer(Normalizer):
    """By the module of `special` for a method, "exact" or "bounds"."""

    def __init__(self, method: str) -> None:
        self.method = method  # a module could not be copied with the head

    @property
    def module(self) -> ModuleType:
        return METHODS[self.method]

    def _in_place(self, x: Tensor) -> bool:
        plain = type(x) is Tensor and x.dtype == torch.float32 and x.device.type == "cpu"
        return self.module is exact and plain and not torch.compiler.is_compiling()

    def evidence(self, square: Float[Tensor, "*draws classes"], order: float) -> Evidence:
        return _InPlace(square, order) if self._in_place(square) else _Special(self.module, square, order)

    def target_ratio(self, norm: Tensor, dot: Tensor, order: float) -> Tensor:  # noqa: ARG002
        if self._in_place(norm):
            fit = _fit(order)
            s = (norm * norm).add_(fit.a**2).sqrt_()
            return _horner(fit.r, fit.argument(s)).div_(s.add_(fit.a))
        ratio: Tensor = self.module.weight(norm.square(), order)
        return ratio

    def target_slope(self, norm: Tensor, dot: Tensor, order: float) -> Tensor:  # noqa: ARG002
        if self._in_place(norm):
            fit = _fit(order)
            s = (norm * norm).add_(fit.a**2).sqrt_()
            p = fit.argument(s)
            return _horner(fit.q, p).mul_(p.add_(fit.center)).div_(s.add_(fit.a))
        slope: Tensor = self.module.slope(norm, order)
        return slope


@final
class UpperNormalizer(Normalizer):
    """Elementary bounds, each on the side that keeps the objective an upper bound.

    Let g = κ/(e + √((e+1)² + κ²)) ≤ A(κ) ≤ h = κ/(e + √(e² + κ²)), e = (n−1)/2 (eq. 9). The growth of −log C
    from ‖w̃‖ to k is at most ∫h if k > ‖w̃‖, and at most ∫g, a negative number, if k < ‖w̃‖; and −A(κ) ŵ·μ is
    at most −g ŵ·μ if ŵ·μ > 0, −h ŵ·μ if not.
    """

    def evidence(self, square: Float[Tensor, "*draws classes"], order: float) -> Evidence:
        return _Upper(square, order + 0.5)

    def target_ratio(self, norm: Tensor, dot: Tensor, order: float) -> Tensor:
        e = order + 0.5
        return 1 / (_upper_scale(norm, dot, e)[1] + e)

    def target_slope(self, norm: Tensor, dot: Tensor, order: float) -> Tensor:
        e = order + 0.5
        scale, s = _upper_scale(norm, dot, e)
        return (e * s + scale) / (s * (s + e).square())


def _upper_scale(norm: Tensor, dot: Tensor, e: float) -> tuple[Tensor, Tensor]:
    scale = torch.where(dot > 0, (e + 1) ** 2, e**2).to(norm.dtype)
    return scale, (norm.square() + scale).sqrt()


NORMALIZERS: dict[str, Normalizer] = {
    "exact": SpecialNormalizer("exact"),
    "bounds": SpecialNormalizer("bounds"),
    "upper": UpperNormalizer(),
}


@final
class _Special(Evidence):
    def __init__(self, module: ModuleType, square: Tensor, order: float) -> None:
        self.module, self.square, self.order = module, square, order
        self.ratio = module.weight(square, order)

    def __call__(self, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return (*self.module.difference_and_weight(self.square, shift, self.order), self.ratio)


@final
class _Upper(Evidence):
    def __init__(self, square: Tensor, e: float) -> None:
        self.square, self.e = square, e

    def __call__(self, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        e = self.e
        scale = torch.where(shift >= 0, e**2, (e + 1) ** 2).to(shift.dtype)
        s1 = (self.square + scale).sqrt()
        s2 = (self.square + scale + shift).clamp_min(e**2).sqrt()
        step = shift / (s1 + s2)
        log = (step / (s1 + e)).clamp_min(torch.finfo(step.dtype).eps - 1).log1p()
        return step - e * log, 1 / (s2 + e), 1 / (s1 + e)


@final
class _InPlace(Evidence):
    """With x = (s₂ − s₁)/(s₁ + a): the value is g₂ − g₁ + x (s₁ + a) − (v + ½) log(1 + x)."""

    def __init__(self, square: Tensor, order: float) -> None:
        self.fit, self.power = _fit(order), order + 0.5
        a = self.fit.a
        self.first = square + a**2
        s1 = self.first.sqrt()
        self.scale = s1 + a
        self.product = s1 * self.scale
        p = self.fit.argument(s1)
        self.g1, self.ratio = _horner(self.fit.g, p), _horner(self.fit.r, p).div_(self.scale)

    def __call__(self, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        value, s2, p = self._value(shift)
        return value, _horner(self.fit.r, p).div_(s2.add_(self.fit.a)), self.ratio

    def log(self, shift: Tensor) -> Tensor:
        return self._value(shift)[0]

    def _value(self, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        s2 = (shift + self.first).clamp_min_(self.fit.a**2).sqrt_()
        x = shift.div_(torch.addcmul(self.product, s2, self.scale))  # no cancellation: s₂² − s₁² is given
        p = self.fit.argument(s2)
        value = _horner(self.fit.g, p).sub_(self.g1).addcmul_(x, self.scale)
        log = x.clamp_min_(torch.finfo(x.dtype).eps - 1).log1p_()
        return value.sub_(log, alpha=self.power), s2, p


class _Powers(NamedTuple):
    """Coefficients of a polynomial, highest power first: a number, then tensors of no dimension."""

    top: float
    others: tuple[Tensor, ...]


def _horner(a: _Powers, p: Tensor) -> Tensor:
    # Where two of three operands are single numbers, addcmul is not vectorised: the first step is another's.
    y = torch.add(a.others[0], p, alpha=a.top)
    for c in a.others[1:]:
        torch.addcmul(c, y, p, out=y)
    return y


class _Fit(NamedTuple):
    """log F = (s − a) − (v + ½) log((s + a)/2a) + g, A/κ = r/(s + a) and A′ = q p/(s + a), s = √(a² + κ²).

    The polynomials are in p − center, p = a/s.
    """

    a: float
    numerator: Tensor
    center: float
    g: _Powers
    r: _Powers
    q: _Powers

    def argument(self, s: Tensor) -> Tensor:
        """The polynomials' argument p − center, new."""
        p = torch.div(self.numerator, s)
        return p.sub_(self.center) if self.center else p


@cache
def _fit(order: float) -> _Fit:
    tb = table(order, torch.float64)
    # Powers of p are well conditioned while the degree is small; else they are taken about the middle.
    center = 0.0 if order >= 7 else 0.5
    p = (1 + np.cos(np.pi * (np.arange(64) + 0.5) / 64)) / 2
    h, *others = (Polynomial(c)(2 * p - 1) for c in (tb.h, tb.r, tb.q))
    # What is kept between calls must not belong to a mode that is on during this one.
    with torch.inference_mode(False):
        numerator = torch.tensor(tb.a, dtype=torch.float32, device="cpu")
        g, r, q = (
            _Powers(top, torch.tensor(rest, dtype=torch.float32, device="cpu").unbind())
            for top, *rest in (_economised(p, f, center) for f in (h * (1 - p), *others))
        )
    return _Fit(tb.a, numerator, center, g, r, q)


def _economised(p: np.ndarray, f: np.ndarray, center: float) -> tuple[float, ...]:
    """Coefficients in p − center of a polynomial that is f at p to the precision of float32."""
    series = Chebyshev.fit(p, f, 40, domain=[0, 1])
    dropped = np.cumsum(np.abs(series.coef[::-1]))[::-1]
    series = series.truncate(max(2, int((dropped > 1.2e-7).sum())))
    powers = series.convert(kind=Polynomial, domain=[-1, 1], window=[-1, 1])
    return tuple(float(c) for c in powers(Polynomial([center, 1.0])).coef[::-1])
