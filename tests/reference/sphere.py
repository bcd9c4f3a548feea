"""Laws of the angle to the mean direction, slowly and plainly: quadrature, and Wood's rejection sampler."""

from collections.abc import Callable

import numpy as np
from scipy import special

NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)


class AngleLaw:
    """A density on the angles (0, π) from its logarithm, by composite Gauss–Legendre in float64."""

    def __init__(self, log_density: Callable[[np.ndarray], np.ndarray], mode: float, spread: float) -> None:
        around = mode + spread * np.linspace(-16, 16, 257)
        edges = np.concatenate([np.linspace(0, np.pi, 65), around])
        self.edges = np.unique(edges.clip(0, np.pi))
        middle = (self.edges[:-1] + self.edges[1:]) / 2
        self.peak = log_density(middle).max()
        self.log_density = log_density
        self.mass = self.integral(np.ones_like)

    def _density(self, theta: np.ndarray) -> np.ndarray:
        return np.exp(self.log_density(theta) - self.peak)

    def _panels(self, low: np.ndarray, high: np.ndarray, g: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        half = (high - low)[:, None] / 2
        theta = low[:, None] + half * (1 + NODES)
        return (half * WEIGHTS * self._density(theta) * g(theta)).sum(1)

    def integral(self, g: Callable[[np.ndarray], np.ndarray]) -> float:
        return float(self._panels(self.edges[:-1], self.edges[1:], g).sum())

    def mean(self, g: Callable[[np.ndarray], np.ndarray]) -> float:
        """E[g(θ)]."""
        return self.integral(g) / self.mass

    def below(self, theta: np.ndarray, g: Callable[[np.ndarray], np.ndarray] = np.ones_like) -> np.ndarray:
        """E[g(θ); θ ≤ theta]; the distribution function for g = 1."""
        whole = np.concatenate([[0.0], np.cumsum(self._panels(self.edges[:-1], self.edges[1:], g))])
        i = np.clip(np.searchsorted(self.edges, theta, side="right") - 1, 0, len(self.edges) - 2)
        return (whole[i] + self._panels(self.edges[i], theta, g)) / self.mass

    def rate(self, theta: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """dθ/dκ at a fixed quantile: −(∂F/∂κ)/f, where log f depends on κ as κ statistic(θ)."""
        mean = self.mean(statistic)
        return -self.below(theta, lambda t: statistic(t) - mean) / (self._density(theta) / self.mass)


def von_mises_fisher_law(dim: int, k: float) -> AngleLaw:
    """θ with density ∝ sinⁿ⁻²θ exp(κ cos θ)."""
    q = ((dim - 2) + np.hypot(dim - 2, 2 * k)) / 2
    mode = np.arctan2(np.sqrt(dim - 2), k / np.sqrt(q)) if dim > 2 else 0.0
    spread = 1 / np.sqrt(max(q, 1.0))

    def log_density(theta: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            area = (dim - 2) * np.log(np.sin(theta)) if dim > 2 else 0.0
        return area - 2 * k * np.sin(theta / 2) ** 2

    return AngleLaw(log_density, mode, spread)


def power_spherical_below(dim: int, k: float, theta: np.ndarray) -> np.ndarray:
    """The distribution function of θ with density ∝ sinⁿ⁻²θ (1 + cos θ)^κ: sin²(θ/2) has a Beta law."""
    near, far = np.sin(theta / 2) ** 2, np.cos(theta / 2) ** 2
    half, below = (dim - 1) / 2, np.empty_like(theta)
    ahead = near < far
    below[ahead] = special.betainc(half, half + k, near[ahead])
    below[~ahead] = special.betaincc(half + k, half, far[~ahead])
    return below


def wood_cosines(dim: int, k: float, size: int, rng: np.random.Generator) -> np.ndarray:
    """μ·z by Wood's rejection (1994), with b = (n−1)/(2κ + √(4κ² + (n−1)²)), right for every κ and n."""
    m = dim - 1
    b = m / (2 * k + np.hypot(2 * k, m))
    x0 = (1 - b) / (1 + b)
    c = k * x0 + m * np.log1p(-x0 * x0)
    kept: list[np.ndarray] = []
    while sum(map(len, kept)) < size:
        y = rng.beta(m / 2, m / 2, size)
        w = (1 - (1 + b) * y) / (1 - (1 - b) * y)
        accept = k * w + m * np.log1p(-x0 * w) - c >= np.log(rng.random(size))
        kept.append(w[accept])
    return np.concatenate(kept)[:size]
