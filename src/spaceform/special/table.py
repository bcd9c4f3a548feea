"""Coefficients of the exact special functions: polynomials for each order, computed at the first use.

With s = √(a² + κ²), d = s − a and p = a/s, everything that is needed of I_v is elementary, except one smooth
function of p on [0, 1], where κ = 0 is p = 1 and κ = ∞ is p = 0:

    log F_v = log(Γ(v+1) (2/κ)^v I_v(κ)) = d (1 + H(p)/s) − (v + ½) log(1 + d/2a), and G = H d/s
    A = I_{v+1}/I_v = R(p) κ/(a + s)
    A' = Q(p) p/(a + s)
    1 − A = (1 + a/(s + κ) + T(p) κ/s) a/(a + s)

H, G, R, Q and T are interpolated at Chebyshev points and cut where the working precision ends. Values come
from the uniform (Debye) expansion at an order of at least 40 and the recurrence downwards, with 50 digits.
"""

import math
from collections.abc import Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np
import torch

_DIGITS = 50
_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
_DEBYE_ORDER = 40
_DEBYE_TERMS = 24

Polynomial = tuple[float, ...]


class OrderConstants(NamedTuple):
    """Constants of one order v; the polynomials are in t = 2p − 1, lowest power first."""

    order: float
    a: float
    log_c0: float
    """log C_n(0) for n = 2v + 2: minus the logarithm of the area of the sphere."""
    log_i0: float
    """log I_v(κ) − (log F_v(κ) + v log(κ/(a + s)) + v log1p(d/2a)), free of κ."""
    h: Polynomial
    g: Polynomial
    r: Polynomial
    q: Polynomial
    t: Polynomial


def table(order: float, dtype: torch.dtype) -> OrderConstants:
    """The table for an order, cut to the precision of a dtype; computed once and kept."""
    return _cut(order, 4e-16 if dtype == torch.float64 else 3e-8)


# What torch.compiler.assume_constant_result sets; to call that imports the whole compiler: seconds.
table._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _cut(order: float, tolerance: float) -> OrderConstants:
    a, log_c0, log_i0, (h, g, *others) = _expand(order)
    polynomials = [_economise(column, tolerance * np.abs(column).max()) for column in (h, *others)]
    # G is a term of a logarithm: what is small against 1 is small enough.
    polynomials.insert(1, _economise(g, tolerance * max(1.0, np.abs(g).max())))
    return OrderConstants(order, a, log_c0, log_i0, *polynomials)


def _economise(chebyshev: np.ndarray, negligible: float) -> Polynomial:
    kept = max(np.flatnonzero(np.abs(chebyshev) > negligible), default=0) + 1
    return tuple(float(c) for c in np.polynomial.chebyshev.cheb2poly(chebyshev[:kept]))


@cache
def _expand(order: float) -> tuple[float, float, float, tuple[np.ndarray, ...]]:
    # A scale that keeps the zeros of I_v off [0, 1] in the plane of p; 11 and 100 give low degrees.
    a = math.sqrt((order + 0.5) ** 2 + min(11 * (order + 1), 100))
    size = 56 if order < 8 else 32
    with localcontext() as context:
        context.prec = _DIGITS
        v, cosine = Decimal(order), _cosines(4 * size)
        log_gamma = _log_gamma(v)
        nodes = [(1 + cosine[2 * j + 1]) / 2 for j in range(size)]
        columns = zip(*(_smooth_parts(v, Decimal(a), log_gamma, p) for p in nodes), strict=True)
        # Also in decimals: the noise of a float transform would hide where the coefficients end.
        expansions = tuple(
            [sum(f * cosine[k * (2 * j + 1) % (4 * size)] for j, f in enumerate(column)) for k in range(size)]
            for column in columns
        )
        log_c0 = log_gamma - Decimal(2).ln() - (v + 1) * _PI.ln()
        log_i0 = v * Decimal(a).ln() - log_gamma
    weights = np.array([1 / size] + [2 / size] * (size - 1))
    return a, float(log_c0), float(log_i0), tuple(weights * np.array(row, dtype=float) for row in expansions)


@cache
def _cosines(size: int) -> list[Decimal]:
    """cos(2πj/size) for j = 0 .. size − 1, by the series for j = 1 and the three-term recurrence."""
    angle = 2 * _PI / size
    term, first = Decimal(1), Decimal(0)
    for k in range(1, 60, 2):
        first += term
        term *= -angle * angle / (k * (k + 1))
    values = [Decimal(1), first]
    while len(values) < size:
        values.append(2 * first * values[-1] - values[-2])
    return values


def _smooth_parts(v: Decimal, a: Decimal, log_gamma: Decimal, p: Decimal) -> tuple[Decimal, ...]:
    """H, G, R, Q and T at one p."""
    s = a / p
    x = (s * s - a * a).sqrt()
    d = s - a
    log_i, A = _log_iv_and_ratio(v, x)
    log_f = log_gamma + v * (2 / x).ln() + log_i
    slope = 1 - A * A - (2 * v + 1) * A / x
    r = A * (a + s) / x
    h = s * ((log_f + (v + Decimal("0.5")) * (1 + d / (2 * a)).ln()) / d - 1)
    return h, h * (1 - p), r, slope * (a + s) / p, (1 - r) / p


def _log_iv_and_ratio(v: Decimal, x: Decimal) -> tuple[Decimal, Decimal]:
    """Values of log I_v(x) and I_{v+1}(x)/I_v(x): uniform expansion, then down by recurrence."""
    steps = _steps(v)
    top = v + steps
    log_i, ratio = _debye(top, x), (_debye(top + 1, x) - _debye(top, x)).exp()
    product = Decimal(1)
    for j in range(steps, 0, -1):
        ratio = 1 / (2 * (v + j) / x + ratio)
        product *= ratio
    return log_i - product.ln(), ratio


def _log_gamma(v: Decimal) -> Decimal:
    """Value of log Γ(v + 1): the uniform expansion at x = 0 is Stirling's."""
    steps = _steps(v)
    top = v + steps
    below = math.prod((v + j for j in range(1, steps + 1)), start=Decimal(1))
    value = top * top.ln() - top + (2 * _PI * top).ln() / 2 - _debye_sum(top, Decimal(1)).ln() - below.ln()
    return round(value, 28)  # so that Γ(1) and Γ(2) are 1


def _steps(v: Decimal) -> int:
    return max(0, math.ceil(_DEBYE_ORDER - v))


def _debye(order: Decimal, x: Decimal) -> Decimal:
    s = (order * order + x * x).sqrt()
    return s + order * (x / (order + s)).ln() - (2 * _PI * s).ln() / 2 + _debye_sum(order, order / s).ln()


def _debye_sum(order: Decimal, p: Decimal) -> Decimal:
    """Σ_k U_k(p)/v^k, where U_k is p^k times a polynomial of degree k in p²."""
    square, unit, power, total = p * p, p / order, Decimal(1), Decimal(0)
    for coefficients in _debye_coefficients():
        term = Decimal(0)
        for c in reversed(coefficients):
            term = term * square + c
        total += term * power
        power *= unit
    return total


@cache
def _debye_coefficients() -> tuple[tuple[Decimal, ...], ...]:
    """U_{k+1}(p) = ½ p² (1 − p²) U_k'(p) + ⅛ ∫₀ᵖ (1 − 5t²) U_k(t) dt."""
    rows, row = [], [Fraction(1)]
    for k in range(_DEBYE_TERMS):
        rows.append(row)
        following = [Fraction(0)] * (k + 2)
        for j, c in enumerate(row):
            degree = k + 2 * j
            following[j] += c * (Fraction(degree, 2) + Fraction(1, 8 * (degree + 1)))
            following[j + 1] -= c * (Fraction(degree, 2) + Fraction(5, 8 * (degree + 3)))
        row = following
    return tuple(tuple(_decimals(row)) for row in rows)


def _decimals(row: Sequence[Fraction]) -> list[Decimal]:
    return [Decimal(c.numerator) / Decimal(c.denominator) for c in row]
