"""Draw true values given noisy ones, with a common prior of the heads, by Gibbs sampling in short chains.

    y | θ ~ N(θ, V),   θ_h | μ, τ, λ ~ N(μ, τ² λ_h),   λ_h ~ 4/χ²(4),   τ ~ half-Cauchy(width),   μ flat

So θ_h is Student's t with 4 degrees of freedom around μ: heads that agree shrink together, and a head far off
does not. τ is drawn by its scale mixture of inverse gammas (Makalic and Schmidt 2016).
"""

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

_PRIOR_FREEDOM = 4.0
_STEPS = 10
_LEAST = 1e-3  # of the width: if τ is smaller than this, heads are the same
_GRID = 60

Matrices = Float[NDArray[np.float64], "chains labels labels"]


def conditional_draws(
    y: Float[NDArray[np.float64], " labels"],
    V: Matrices,
    shrunk: Bool[NDArray[np.bool_], " labels"],
    width: float,
    per_chain: int,
    rng: np.random.Generator,
) -> Float[NDArray[np.float64], "draws labels"]:
    """Draws of θ, `per_chain` for each matrix V; labels in `shrunk` share the prior, the others have none."""
    chains, labels = len(V), len(y)
    precision: Matrices = np.asarray(np.linalg.inv(V), dtype=np.float64)
    pull = precision @ y
    k = int(shrunk.sum())
    if k < 2:
        return _draw(precision, pull, per_chain, rng).reshape(-1, labels)
    τ2 = _start(y[shrunk], V[:, shrunk][:, :, shrunk].mean(0), width, chains, rng)
    λ = np.ones((chains, labels))
    aux = (1 / width**2 + 1 / τ2) / rng.standard_gamma(1.0, chains)
    for _ in range(_STEPS):
        weight = np.where(shrunk, 1 / (τ2[:, None] * λ), 0.0)
        total = weight.sum(1)
        θ = _draw(precision + _prior_precision(weight), pull, 1, rng)[:, 0]
        μ = (weight * θ).sum(1) / total + rng.standard_normal(chains) / np.sqrt(total)
        away = (θ - μ[:, None]) ** 2
        λ = (_PRIOR_FREEDOM + away / τ2[:, None]) / rng.chisquare(_PRIOR_FREEDOM + 1, (chains, labels))
        squares = np.where(shrunk, away / λ, 0.0).sum(1)
        τ2 = (1 / aux + squares / 2) / rng.standard_gamma((k + 1) / 2, chains)
        τ2 = np.maximum(τ2, (_LEAST * width) ** 2)
        aux = (1 / width**2 + 1 / τ2) / rng.standard_gamma(1.0, chains)
    weight = np.where(shrunk, 1 / (τ2[:, None] * λ), 0.0)
    return _draw(precision + _prior_precision(weight), pull, per_chain, rng).reshape(-1, labels)


def _start(
    y: Float[NDArray[np.float64], " heads"],
    V: Float[NDArray[np.float64], "heads heads"],
    width: float,
    chains: int,
    rng: np.random.Generator,
) -> Float[NDArray[np.float64], " chains"]:
    """Draw τ² on a grid from its distribution given y, with all λ = 1, and θ and μ integrated out.

    Chains that start at a small τ would stay near it for long.
    """
    largest = max(width, float(np.ptp(y)), float(np.sqrt(V.max())))
    grid = np.geomspace(_LEAST * width, 30 * largest, _GRID)
    M = V + grid[:, None, None] ** 2 * np.eye(len(y))
    inverse = np.linalg.inv(M)
    ones = inverse.sum((1, 2))
    centre = (inverse @ y).sum(1) / ones
    away = y - centre[:, None]
    fit = np.einsum("gi,gij,gj->g", away, inverse, away)
    log = -0.5 * (np.linalg.slogdet(M)[1] + np.log(ones) + fit)
    log += np.log(grid) - np.log1p((grid / width) ** 2)  # the prior, and the grid's even steps in log τ
    share = np.exp(log - log.max())
    return rng.choice(grid, chains, p=share / share.sum()) ** 2


def _prior_precision(weight: Float[NDArray[np.float64], "chains labels"]) -> Matrices:
    """The precision of θ in the prior, with μ integrated out: W − w wᵀ/Σw."""
    Q = -weight[:, :, None] * weight[:, None, :] / weight.sum(1)[:, None, None]
    diagonal = np.arange(weight.shape[1])
    Q[:, diagonal, diagonal] += weight
    return Q


def _draw(
    precision: Matrices, pull: Float[NDArray[np.float64], "chains labels"], n: int, rng: np.random.Generator
) -> Float[NDArray[np.float64], "chains n labels"]:
    """Draws of each chain from the normal distribution with this precision and the mean precision⁻¹ pull."""
    root = np.linalg.cholesky(precision)
    z = rng.standard_normal((*pull.shape, n))
    white = np.linalg.solve(root, pull[:, :, None]) + z
    return np.swapaxes(np.linalg.solve(np.swapaxes(root, 1, 2), white), 1, 2)
