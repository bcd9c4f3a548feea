"""The paper's averaged bounds of A (eq. 9-10) and their integral log C_n (eq. 12), on raw tensors: no checks.

With a = (n − 1)/2 and b = (n + 1)/2 the bounds are κ/(a + √(b² + κ²)) ≤ A(κ) ≤ κ/(a + √(a² + κ²)).
"""

import torch
from torch import Tensor


def log_normalizer(x: Tensor, order: float) -> Tensor:
    """The normaliser log C_n(κ) up to the constant η, which is left out as in the paper."""
    a = order + 0.5
    total = torch.zeros_like(x)
    for s in _scales(x * x, order):
        total.sub_(s).add_(s.add_(a).log_(), alpha=a)
    return total.mul_(0.5)


def mean(x: Tensor, order: float) -> Tensor:
    """½ (g_n(κ) + h_n(κ))."""
    upper, lower = (x / s.add_(order + 0.5) for s in _scales(x * x, order))
    return upper.add_(lower).mul_(0.5)


def shortfall(x: Tensor, order: float) -> Tensor:
    """1 − ½ (g_n(κ) + h_n(κ)) without cancellation: s − κ = b²/(s + κ)."""
    a = order + 0.5
    s_a, s_b = _scales(x * x, order)
    return 0.5 * ((a + a**2 / (s_a + x)) / (a + s_a) + (a + (a + 1) ** 2 / (s_b + x)) / (a + s_b))


def slope(x: Tensor, order: float) -> Tensor:
    """The derivative of ½ (g_n + h_n), differentiable."""
    a = order + 0.5
    s_a, s_b = _scales(x * x, order)
    return 0.5 * (a / (s_a * (a + s_a)) + (a * s_b + (a + 1) ** 2) / (s_b * (a + s_b) ** 2))


def weight(squared: Tensor, order: float) -> Tensor:
    """½ (g_n + h_n)/κ as a function of κ², differentiable, finite at 0."""
    a = order + 0.5
    s_a, s_b = _scales(squared, order)
    return 0.5 * (1 / (a + s_a) + 1 / (a + s_b))


def divergence(x: Tensor, order: float) -> Tensor:
    """The mean over e = a, b of a log(1 + d/(a + e)) + d (e − a)/(a + s).

    Here s = √(e² + κ²) and d = s − e, so that κ²/(a + s) − d = d (e − a)/(a + s).
    """
    a, square = order + 0.5, x * x
    total = torch.zeros_like(x)
    for e, s in zip((a, a + 1), _scales(square, order), strict=True):
        d = square / (s + e)
        total.add_(torch.log1p(d / (a + e)), alpha=a).addcdiv_(d, s.add_(a), value=e - a)
    return total.mul_(0.5)


def difference(x: Tensor, other: Tensor, order: float) -> Tensor:
    """The difference log C_n(x) − log C_n(other), from the product of other − x and other + x."""
    first, second = _scales(x * x, order), _scales(other * other, order)
    return _difference((other - x) * (other + x), first, second, order)


def difference_and_weight(squared: Tensor, delta: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """As in `exact`: with k₁² = squared and k₂² = k₁² + δ, log C_n(k₁) − log C_n(k₂) and A(k₂)/k₂."""
    a = order + 0.5
    second = _scales((squared + delta).clamp_min_(0), order)
    value = _difference(delta, _scales(squared, order), second, order)
    upper, lower = (s.add_(a).reciprocal_() for s in second)
    return value, upper.add_(lower).mul_(0.5)


def _difference(
    delta: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], order: float
) -> Tensor:
    a = order + 0.5
    total = torch.zeros((), dtype=delta.dtype, device=delta.device)
    for s1, s2 in zip(first, second, strict=True):
        step = delta / (s1 + s2)
        log = (step / (s1 + a)).clamp_min_(torch.finfo(delta.dtype).eps - 1).log1p_()
        total = total + step.sub_(log, alpha=a)
    return total.mul_(0.5)


def _scales(squared: Tensor, order: float) -> tuple[Tensor, Tensor]:
    """√(a² + κ²) and √(b² + κ²)."""
    a = order + 0.5
    return (squared + a**2).sqrt_(), (squared + (a + 1) ** 2).sqrt_()
