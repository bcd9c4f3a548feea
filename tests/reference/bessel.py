"""Slow, obvious oracles for the special functions, in mpmath.

Low orders ask mpmath's own `besseli`. For high orders its series grow long or cancel, and there Poisson's
integral is taken. With t = tanh u, ∫ e^{xt} (1 − t²)^{v−½} dt over [−1, 1] is the integral over the line of
e^{x tanh u} / cosh(u)^{2v+1}, analytic in a strip and falling off at both ends, so that the trapezoid rule
converges exponentially for every order and every x. The tests compare the two where both work.
"""

from functools import cache
from typing import NamedTuple

import mpmath as mp
import torch
from torch import Tensor

DIGITS = 40
NEGLIGIBLE = 60  # e^-60 = 9e-27


class Values(NamedTuple):
    log_f: mp.mpf
    """log(Γ(v+1) (2/x)^v I_v(x)), which is 0 at 0."""
    mean: mp.mpf
    """A = I_{v+1}(x)/I_v(x)."""
    slope: mp.mpf
    """A'."""


@cache
def values(order: float, x: float) -> Values:
    if x == 0:
        return Values(mp.mpf(0), mp.mpf(0), 1 / mp.mpf(2 * order + 2))
    return by_besseli(order, x) if order <= 100 else by_integral(order, x)


def by_besseli(order: float, x: float) -> Values:
    # Var[t] near t = 1 is of the order of 1/x²: the digits that its subtraction loses come on top.
    with mp.workdps(DIGITS + 20):
        v, x = mp.mpf(order), mp.mpf(x)
        below = mp.besseli(v, x)
        mean = mp.besseli(v + 1, x) / below
        return Values(
            mp.log(below) - v * mp.log(x / 2) + mp.loggamma(v + 1), mean, 1 - mean**2 - (2 * v + 1) * mean / x
        )


def by_integral(order: float, x: float) -> Values:
    with mp.workdps(DIGITS):
        v, x = mp.mpf(order), mp.mpf(x)
        c = 2 * v + 1
        # The mode solves x (1 − t²) = (2v + 1) t; the curvature there is at least 2v + 1.
        mode = mp.atanh(2 * x / (c + mp.sqrt(c * c + 4 * x * x)))
        step = mp.mpf(min(0.07, 0.25 / float(mp.sqrt(c))))

        def log_density(e: mp.mpf) -> tuple[mp.mpf, mp.mpf]:
            t = 1 - 2 / (e + 1)
            return t, x * t - c / 2 * mp.log((e + 1) ** 2 / (4 * e))

        start, growth = mp.exp(2 * mode), mp.exp(2 * step)
        _, top = log_density(start)
        nodes = []
        for factor, e in ((growth, start), (1 / growth, start / growth)):
            t, height = log_density(e)
            while height > top - NEGLIGIBLE:
                nodes.append((t, mp.exp(height - top)))
                e *= factor
                t, height = log_density(e)
        total = mp.fsum(f for _, f in nodes)
        mean = mp.fsum(t * f for t, f in nodes) / total
        slope = mp.fsum((t - mean) ** 2 * f for t, f in nodes) / total
        scale = mp.loggamma(v + 1) - mp.loggamma(v + 0.5) - mp.log(mp.pi) / 2
        return Values(scale + top + mp.log(total * step), mean, slope)


def log_iv(order: float, x: float) -> mp.mpf:
    with mp.workdps(DIGITS):
        v = mp.mpf(order)
        return values(order, x).log_f + v * mp.log(mp.mpf(x) / 2) - mp.loggamma(v + 1)


def log_normalizer(x: float, dim: int) -> mp.mpf:
    """Uniform density on the sphere over F."""
    with mp.workdps(DIGITS):
        half = mp.mpf(dim) / 2
        return mp.loggamma(half) - mp.log(2) - half * mp.log(mp.pi) - values(dim / 2 - 1, x).log_f


def concentrations(dim: int) -> Tensor:
    """0, fifteen decades up to 1e8, and the neighbourhood of dim; all of them float32 numbers."""
    decades = 10.0 ** torch.arange(-6.5, 8.5, 0.5, dtype=torch.float64)
    near = dim * torch.tensor([0.05, 0.2, 0.45, 0.9, 1.1, 2.3, 7.0], dtype=torch.float64)
    return torch.cat([torch.zeros(1, dtype=torch.float64), decades, near]).float().double()


def errors(computed: Tensor, true: list[mp.mpf]) -> Tensor:
    """Absolute errors, the subtraction done in mpmath."""
    with mp.workdps(DIGITS):
        pairs = zip(computed.tolist(), true, strict=True)
        return torch.tensor([float(abs(mp.mpf(c) - t)) for c, t in pairs], dtype=torch.float64)


def floats(values: list[mp.mpf]) -> Tensor:
    return torch.tensor([float(v) for v in values], dtype=torch.float64)
