"""What many sets together say: ranks, a model over sets, and whether the winner can be foretold.

Pure functions of arrays with a row for each set and a column for each head; more is better throughout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import stats

Worth = Float[NDArray[np.float64], "sets heads"]
_STEPS = 200  # of bisection


@final
@dataclass(frozen=True, eq=False)
class Ranks:
    """Mean ranks of the heads, 1 being the best."""

    mean: Float[NDArray[np.float64], " heads"]
    p: float
    """Of Friedman's test that all heads are alike."""
    critical: float
    """Two mean ranks that differ by more are told apart: Nemenyi's test, 5 % over all pairs."""


def ranks(worth: Worth) -> Ranks:
    """Friedman's test and the critical difference (Demšar 2006)."""
    N, k = worth.shape
    found = stats.rankdata(-worth, axis=1)
    q = float(stats.studentized_range.ppf(0.95, k, np.inf)) / np.sqrt(2)
    same = np.ptp(worth, axis=1).max() == 0
    p = 1.0 if same or k < 3 else float(stats.friedmanchisquare(*worth.T).pvalue)
    return Ranks(found.mean(0), p, float(q * np.sqrt(k * (k + 1) / (6 * N))))


@final
@dataclass(frozen=True)
class Effect:
    """A difference over sets: dₛ = μ + uₛ + eₛ, with uₛ ~ N(0, τ²) and eₛ ~ N(0, errorₛ²)."""

    mean: float
    low: float
    high: float
    """95 % interval of μ."""
    between: float
    """τ: how much the true difference varies from set to set."""
    new_low: float
    new_high: float
    """95 % interval of the true difference on a new set."""
    sets: int


def effect(d: Float[NDArray[np.float64], " sets"], error: Float[NDArray[np.float64], " sets"]) -> Effect:
    """μ and τ by Paule and Mandel, intervals by Hartung and Knapp, with Student's t for so few sets."""
    N = len(d)
    if N < 3:
        raise ValueError(f"a model over sets needs three of them, got {N}")
    error = np.maximum(error, 1e-12)
    τ2 = _between(d, error)
    weights = 1 / (τ2 + error**2)
    μ = float((weights * d).sum() / weights.sum())
    scatter = float((weights * (d - μ) ** 2).sum()) / (N - 1)
    se = float(np.sqrt(max(scatter, 1.0) / weights.sum()))
    t, t_new = float(stats.t.ppf(0.975, N - 1)), float(stats.t.ppf(0.975, N - 2))
    new = t_new * float(np.sqrt(τ2 + se**2))
    return Effect(μ, μ - t * se, μ + t * se, float(np.sqrt(τ2)), μ - new, μ + new, N)


def _between(d: NDArray[np.float64], error: NDArray[np.float64]) -> float:
    """τ² for which Σ weight · (d − μ)² is N − 1, as it should be; 0 where it is less already."""

    def excess(τ2: float) -> float:
        weights = 1 / (τ2 + error**2)
        μ = (weights * d).sum() / weights.sum()
        return float((weights * (d - μ) ** 2).sum()) - (len(d) - 1)

    low, high = 0.0, float(np.ptp(d) ** 2 + 1e-12)
    if excess(0.0) <= 0:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high


@final
@dataclass(frozen=True, eq=False)
class Foretold:
    """The regret of ways to choose a head without training one, each set left out in turn."""

    regrets: Mapping[str, Float[NDArray[np.float64], " sets"]]
    """By the way of choosing."""
    choices: Mapping[str, tuple[int, ...]]
    """The column that each way takes on each set."""

    def gain(self, way: str, over: str, draws: int = 10_000) -> tuple[float, float, float]:
        """How much less regret a way has than another: the mean over sets and its bootstrap 95 % interval."""
        less = self.regrets[over] - self.regrets[way]
        rng = np.random.default_rng(0)
        means = less[rng.integers(len(less), size=(draws, len(less)))].mean(1)
        low, high = np.quantile(means, [0.025, 0.975])
        return float(less.mean()), float(low), float(high)


AVERAGE = "always the best on average"
_PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


def foretell(
    worth: Worth, measures: Float[NDArray[np.float64], "sets measures"], kinds: Sequence[str]
) -> Foretold:
    """Choose for each set from what the other sets show.

    The ways: the head that is the best on average; the best on average within the same kind of data; that of
    the three sets with the most similar measures; and ridge regression of the worth on the measures, with the
    penalty that does best among the other sets.
    """
    worth = worth - worth.mean(1, keepdims=True)
    ways = {
        AVERAGE: lambda own: _average(worth, own),
        "the best on average for this kind of data": lambda own: _of_kind(worth, own, kinds),
        "that of the three most similar sets": lambda own: _similar(worth, own, measures),
        "regression on what is measured": lambda own: _regression(worth, own, measures),
    }
    choices = {way: tuple(choose(i) for i in range(len(worth))) for way, choose in ways.items()}
    best = worth.max(1)
    regrets = {way: best - worth[np.arange(len(worth)), list(taken)] for way, taken in choices.items()}
    return Foretold(regrets, choices)


def _others(count: int, own: int) -> NDArray[np.int64]:
    return np.delete(np.arange(count), own)


def _average(worth: Worth, own: int) -> int:
    return int(worth[_others(len(worth), own)].mean(0).argmax())


def _of_kind(worth: Worth, own: int, kinds: Sequence[str]) -> int:
    """Shrunk to the mean of all by one set's worth of evidence, as there are few of a kind."""
    others = _others(len(worth), own)
    alike = [i for i in others if kinds[i] == kinds[own]]
    return int((worth[alike].sum(0) + worth[others].mean(0)).argmax())


def _standard(measures: NDArray[np.float64], others: NDArray[np.int64]) -> NDArray[np.float64]:
    spread = measures[others].std(0)
    return np.asarray((measures - measures[others].mean(0)) / np.where(spread > 0, spread, 1.0))


def _similar(worth: Worth, own: int, measures: NDArray[np.float64]) -> int:
    others = _others(len(worth), own)
    x = _standard(measures, others)
    near = others[np.argsort(((x[others] - x[own]) ** 2).sum(1), kind="stable")[:3]]
    return int(worth[near].mean(0).argmax())


def _regression(worth: Worth, own: int, measures: NDArray[np.float64]) -> int:
    others = _others(len(worth), own)
    x = _standard(measures, others)

    def predicted(train: NDArray[np.int64], i: int, penalty: float) -> NDArray[np.float64]:
        centre = worth[train].mean(0)
        gram = x[train] @ x[train].T + penalty * np.eye(len(train))
        return np.asarray(centre + (x[i] @ x[train].T) @ np.linalg.solve(gram, worth[train] - centre))

    def regret(penalty: float) -> float:
        lost = 0.0
        for i in others:
            taken = predicted(others[others != i], i, penalty).argmax()
            lost += worth[i].max() - worth[i, taken]
        return lost

    penalty = min(reversed(_PENALTIES), key=regret)
    return int(predicted(others, own, penalty).argmax())
