"""The exact functions of κ for an order v = n/2 − 1, on raw tensors: no checks, no autograd unless said.

Formulas and symbols are those of `table`; the measured errors stand at the public functions.
"""

import torch
from torch import Tensor

from spaceform.special.polynomial import horner, polynomial
from spaceform.special.table import table


def log_normalizer(x: Tensor, order: float) -> Tensor:
    """The normaliser log C_n(κ) = log C_n(0) − log F_v(κ)."""
    main, log, _ = _parts_of_log_f(x, order)
    return log.mul_(order + 0.5).sub_(main).add_(table(order, x.dtype).log_c0)


def log_iv(x: Tensor, order: float) -> Tensor:
    """The Bessel function log I_v(κ), without the cancellation between v log κ and log Γ(v+1)."""
    tb = table(order, x.dtype)
    main, log, s = _parts_of_log_f(x, order)
    power = torch.xlogy(order, s.add_(tb.a).reciprocal_().mul_(x))
    return main.sub_(log, alpha=0.5).add_(power).add_(tb.log_i0)


def _parts_of_log_f(x: Tensor, order: float) -> tuple[Tensor, Tensor, Tensor]:
    """The parts d (1 + H(p)/s) and log(1 + d/2a), and s; in place, as a new tensor costs more than a pass."""
    tb = table(order, x.dtype)
    square = x * x
    s = (square + tb.a**2).sqrt_()
    t = s + tb.a
    d = square.div_(t)
    t.neg_().add_(3 * tb.a).div_(s)  # 2p − 1 = (2a − s)/s
    main = horner(tb.h, t).div_(s).add_(1).mul_(d)
    return main, d.mul_(0.5 / tb.a).log1p_(), s


def mean(x: Tensor, order: float) -> Tensor:
    """A(κ) = I_{v+1}(κ)/I_v(κ)."""
    tb = table(order, x.dtype)
    s = (x * x).add_(tb.a**2).sqrt_()
    ratio = horner(tb.r, s.reciprocal().mul_(2 * tb.a).sub_(1))
    return ratio.mul_(x).div_(s.add_(tb.a))


def shortfall(x: Tensor, order: float) -> Tensor:
    """1 − A(κ) without cancellation, for κ up to infinity."""
    tb = table(order, x.dtype)
    s = (x * x + tb.a**2).sqrt_()
    part = horner(tb.t, s.reciprocal().mul_(2 * tb.a).sub_(1)).mul_(x).div_(s)
    return part.add_(1).add_(tb.a / (s + x)).mul_(tb.a / s.add_(tb.a))


def slope(x: Tensor, order: float) -> Tensor:
    """A'(κ), differentiable; never 1 − A² − (n−1)A/κ, whose cancellation is total."""
    tb = table(order, x.dtype)
    s = (x * x).add_(tb.a**2).sqrt_()
    if torch.is_grad_enabled():
        p = tb.a / s
        return polynomial(tb.q, 2 * p - 1) * p / (s + tb.a)
    p = s.reciprocal().mul_(tb.a)
    return horner(tb.q, (2 * p).sub_(1)).mul_(p).div_(s.add_(tb.a))


def weight(squared: Tensor, order: float) -> Tensor:
    """A(κ)/κ as a function of κ², differentiable, finite at 0."""
    tb = table(order, squared.dtype)
    s = (squared + tb.a**2).sqrt()
    if torch.is_grad_enabled():
        return polynomial(tb.r, 2 * tb.a / s - 1) / (s + tb.a)
    return horner(tb.r, s.reciprocal().mul_(2 * tb.a).sub_(1)).div_(s.add_(tb.a))


def divergence(x: Tensor, order: float) -> Tensor:
    """KL to the uniform law, log C_n(κ) − log C_n(0) + κ A(κ) = (v + ½) log(1 + d/2a) − (H(p) + a T(p)) d/s.

    As κ A = R d and 1 − R = p T, the terms that grow as κ are gone.
    """
    tb = table(order, x.dtype)
    square = x * x
    s = (square + tb.a**2).sqrt_()
    d = square.div_(s + tb.a)
    t = (2 * tb.a / s).sub_(1)
    rest = horner(tb.h, t).add_(horner(tb.t, t), alpha=tb.a).mul_(d).div_(s)
    return d.mul_(0.5 / tb.a).log1p_().mul_(order + 0.5).sub_(rest)


def difference(x: Tensor, other: Tensor, order: float) -> Tensor:
    """The difference log C_n(x) − log C_n(other), from the product of other − x and other + x."""
    tb = table(order, x.dtype)
    s1 = (x * x).add_(tb.a**2).sqrt_()
    s2 = (other * other).add_(tb.a**2).sqrt_()
    return _difference((other - x) * (other + x), s1, s2, order)[0]


def bregman(x: Tensor, other: Tensor, order: float) -> Tensor:
    """Log C_n(x) − log C_n(y) + (x − y) A(x): KL of two laws with one mean direction, without cancellation.

    `difference` begins with s₂ − s₁, and s₂ − s₁ − (y − x) A(x) = (y − x)((x + y)/(s₁ + s₂) − A(x)). For a
    large x both terms are near 1, and are taken from there: s − κ = a²/(s + κ).
    """
    tb = table(order, x.dtype)
    a, step = tb.a, other - x
    s1, s2 = ((k * k).add_(a**2).sqrt_() for k in (x, other))
    near = (x + other) / (s1 + s2) - mean(x, order)
    far = shortfall(x, order) - a**2 * (1 / (s1 + x) + 1 / (s2 + other)) / (s1 + s2)
    growth = step * (x + other) / (s1 + s2)
    growth = (growth.abs() / (torch.minimum(s1, s2) + a)).log1p_().copysign_(growth)
    rest = horner(tb.g, (2 * a / s2).sub_(1)).sub_(horner(tb.g, (2 * a / s1).sub_(1)))
    return step.mul_(torch.where(x < a, near, far)).sub_(growth, alpha=order + 0.5).add_(rest)


def difference_and_weight(squared: Tensor, delta: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """With k₁² = squared and k₂² = k₁² + δ: log C_n(k₁) − log C_n(k₂), and A(k₂)/k₂; shapes broadcast.

    The gradient of the first in δ is half the second; in a vector of length k₂ it is the second times the
    vector.
    """
    tb = table(order, delta.dtype)
    a = tb.a
    first = squared + a**2
    s1 = first.sqrt()
    s2 = (first + delta).clamp_min_(a**2).sqrt_()
    value, t2 = _difference(delta, s1, s2, order)
    return value, horner(tb.r, t2).div_(s2.add_(a))


def _difference(delta: Tensor, s1: Tensor, s2: Tensor, order: float) -> tuple[Tensor, Tensor]:
    tb = table(order, delta.dtype)
    a = tb.a
    t1, t2 = (2 * a / s1).sub_(1), (2 * a / s2).sub_(1)
    step = delta / (s1 + s2)  # s₂ − s₁
    # It would reach −1 only if the logarithm were far smaller than the rounding of the step.
    log = (step / (s1 + a)).clamp_min_(torch.finfo(delta.dtype).eps - 1).log1p_()
    return step.sub_(log, alpha=order + 0.5).add_(horner(tb.g, t2).sub_(horner(tb.g, t1))), t2
