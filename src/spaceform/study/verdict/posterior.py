"""How far the means of a study may lie from the truth: items and seeds as crossed random effects.

The contribution of an item to a run is y[h, s, i] = θ_h + a_hs + b_hi + e_hsi: a part of the head, of the
seed, of the item, and of this item in this run alone. The mean over S seeds and N items errs by

    b/N, which heads share, since they have the same items: its covariance over heads is the covariance of the
             items' means over the seeds, less the part e/S that is in it (analysis of variance);
        (a + e/N)/S, which is independent for each head: its variance is the variance of the S values.

(The same seed gives the nets of all heads the same start. But the values of different heads over the same
seeds are hardly correlated: −0.1 to 0.4, mostly near 0, in the published studies. To take them as independent
errs on the safe side.)

Two to ten values do not tell their own variance well. It is at least e/N, which thousands of items tell; and
in units of e/N the heads of one study vary by similar amounts. So the variance of each head is a mixture of
its own and of the heads' common variance (an inverse χ² prior whose scale is fitted by maximum likelihood),
and the distribution of the true value given the data is Student's t and not normal. With one seed the
variance is that of the other heads, or the one typical of the goal.

The best of several noisy means is best partly by luck. So the true values of the heads have a common prior:
Student's t with 4 degrees of freedom around their mean. The values tell its width: where they differ no more
than noise does, differences shrink; a head that is far off stays there (`shrinkage`). References have no such
prior.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from spaceform.study.verdict.evidence import Series
from spaceform.study.verdict.goals import Goal
from spaceform.study.verdict.shrinkage import conditional_draws

_FREEDOM = 5.0  # the weight of the heads' common variance, in degrees of freedom

_TYPICAL_FREEDOM = 2.0  # few: what is typical of a goal may be far from what holds here
_PRIOR_WIDTH = 5.0  # regions: the scale of the half-Cauchy prior of how far heads lie apart
_NEGLIGIBLE = 1e-3  # regions
_DRAWS_PER_CHAIN = 8
_INTERVAL_DRAWS = 4096

Vector = Float[NDArray[np.float64], " labels"]
PosteriorDraws = Float[NDArray[np.float64], "draws labels"]


class VarianceSource(Enum):
    """What the variance over seeds is estimated from."""

    SEEDS = "seeds"
    """The label's own seeds, mixed with those of the other heads."""
    OTHERS = "others"
    """There is one seed: the variance of the other heads is taken."""
    TYPICAL = "typical"
    """There is one seed of every head: the variance typical of the goal is taken."""
    FIXED = "fixed"
    """A reference, which does not depend on a seed."""


@final
@dataclass(frozen=True, eq=False)
class Posterior:
    """The true values of all labels in one goal, given the evidence. Everything in the goal's unit."""

    labels: tuple[str, ...]
    mean: Vector
    seeds: Int[NDArray[np.int64], " labels"]
    items: int
    """How many items there are; 0 if they are not known: then all holds for this test split alone."""
    item_covariance: Float[NDArray[np.float64], "labels labels"]
    """The covariance of the means that comes from the items."""
    seed_variance: Vector
    """The variance of one run's value over seeds."""
    freedom: Vector
    """Degrees of freedom of `seed_variance`."""
    least: Vector
    """The least variance over seeds: e/N."""
    source: tuple[VarianceSource, ...]
    candidate: NDArray[np.bool_]
    """Whether a label is a head and not a reference."""
    region: float

    def item_error(self) -> Vector:
        """The standard errors of the means that come from the items."""
        return np.sqrt(np.diagonal(self.item_covariance))

    def seed_error(self) -> Vector:
        """The standard errors of the means that come from the seeds."""
        return np.sqrt(self.seed_variance / self.seeds)

    def draw(
        self, draws: int, seed: int, *, seeds: Vector | None = None, more_items: float = 1.0
    ) -> PosteriorDraws:
        """Draws of the true values; the same seed gives the same draws.

        With `seeds` and `more_items`: as if there were that many seeds and `more_items` times the items, with
        the same means.
        """
        rng = np.random.default_rng(seed)
        chains = max(1, draws // _DRAWS_PER_CHAIN)
        counts = self.seeds.astype(np.float64) if seeds is None else seeds
        own = self._seed_variances(rng, chains) / counts
        small = (_NEGLIGIBLE * self.region) ** 2  # keeps the matrix regular where nothing varies
        error = self.item_covariance / more_items + (own + small)[:, :, None] * np.eye(len(self.labels))
        return conditional_draws(
            self.mean, error, self.candidate, _PRIOR_WIDTH * self.region, _DRAWS_PER_CHAIN, rng
        )

    def interval(self, level: float) -> tuple[Vector, Vector]:
        """The interval of each true value, from this head alone."""
        rng = np.random.default_rng(0)
        own = np.sqrt(self._seed_variances(rng, _INTERVAL_DRAWS) / self.seeds)
        shape = (_INTERVAL_DRAWS, len(self.labels))
        error = np.abs(np.hypot(own, self.item_error()) * rng.standard_normal(shape))
        half = np.quantile(error, level, axis=0)
        return self.mean - half, self.mean + half

    def _seed_variances(self, rng: np.random.Generator, draws: int) -> PosteriorDraws:
        drawn = self.freedom * self.seed_variance / rng.chisquare(self.freedom, (draws, len(self.labels)))
        return np.where(self.seed_variance > 0, np.maximum(drawn, self.least), 0.0)


def posterior(
    series: Mapping[str, Series], references: Sequence[str], goal: Goal, *, new_items: bool = True
) -> Posterior:
    """The posterior of the labels that have a value. Without `new_items` it holds for this test split."""
    labels = tuple(label for label, one in series.items() if one.seeds)
    rows = [series[label] for label in labels]
    fixed = np.array([label in references for label in labels])
    S = np.array([len(one.seeds) for one in rows])
    known = all(one.values.shape[1] > 1 for one in rows)
    N = rows[0].values.shape[1]
    e = np.array([_interaction(one.values) for one in rows]) if known else np.full(len(rows), np.nan)
    if known and new_items:
        items = _nearest_covariance(_item_covariance(rows, np.nan_to_num(e)) / N)
        items *= (N - 1) / max(1, N - 3)  # with few items their spread is not well known either: Student's t
        items += np.diag([one.doubt for one in rows])
    else:
        items = np.zeros((len(rows), len(rows)))
    seen, floors, freedom, source = _seed_variances(rows, fixed, e / N, known, goal.typical_seed_deviation)
    return Posterior(
        labels,
        np.array([one.means.mean() for one in rows]),
        S,
        N if known and new_items else 0,
        items,
        seen,
        freedom,
        floors,
        source,
        ~fixed,
        goal.region,
    )


def _interaction(values: Float[NDArray[np.float64], "seeds items"]) -> float:
    """The variance of the part e, of one item in one run alone; NaN with one seed."""
    S, N = values.shape
    if S < 2 or N < 2:
        return float("nan")
    rest = values - values.mean(0) - values.mean(1, keepdims=True) + values.mean()
    return float((rest**2).sum()) / ((S - 1) * (N - 1))


def _item_covariance(rows: Sequence[Series], e: Vector) -> Float[NDArray[np.float64], "labels labels"]:
    """Covariance over items of the means over seeds, without the part e/S that the seeds account for."""
    means = np.stack([one.values.mean(0) for one in rows])
    means -= means.mean(1, keepdims=True)
    S = np.array([len(one.seeds) for one in rows])
    return means @ means.T / (means.shape[1] - 1) - np.diag(e / S)


def _seed_variances(
    rows: Sequence[Series], fixed: NDArray[np.bool_], floor: Vector, known: bool, typical: float
) -> tuple[Vector, Vector, Vector, tuple[VarianceSource, ...]]:
    """Variances of a run's value over seeds, the least that these can be, and their degrees of freedom."""
    own = np.array([one.means.var(ddof=1) if len(one.seeds) > 1 else np.nan for one in rows])
    d = np.array([len(one.seeds) - 1.0 for one in rows])
    several = (d > 0) & ~fixed
    unit = np.ones(len(rows))
    if known and (floor[several] > 0).any():
        unit = np.where(several & (floor > 0), floor, np.mean(floor[several & (floor > 0)]))
    if several.any():
        common = unit * _common_scale(own[several] / unit[several], d[several])
    else:
        common = np.full(len(rows), typical**2)
    variance = np.where(several, (_FREEDOM * common + d * np.nan_to_num(own)) / (_FREEDOM + d), common)
    variance = np.where(fixed, 0.0, variance)
    least = np.where(several & known, np.nan_to_num(floor), 0.0)
    other = VarianceSource.OTHERS if several.any() else VarianceSource.TYPICAL
    # The common variance is known no better than from all seeds of all heads together.
    freedom = (
        np.minimum(_FREEDOM + d, d[several].sum()) if several.any() else np.full(len(d), _TYPICAL_FREEDOM)
    )
    source = tuple(
        VarianceSource.FIXED if still else VarianceSource.SEEDS if many else other
        for still, many in zip(fixed, several, strict=True)
    )
    return np.maximum(variance, least), least, freedom, source


def _common_scale(ratios: Vector, d: Vector) -> float:
    """The scale s of variances whose ratios to s are F-distributed with d and d0 degrees of freedom.

    Maximum likelihood: Σ (d + d0) d r/(d r + d0 s) = Σ d, whose left side falls with s.
    """
    d0 = _FREEDOM
    if not (ratios > 0).any():
        return 0.0

    def excess(s: float) -> float:
        return float(((d + d0) * d * ratios / np.maximum(d * ratios + d0 * s, 1e-300) - d).sum())

    low, high = 0.0, float(ratios.max()) + 1e-300
    if excess(low) <= 0:
        return 0.0
    while excess(high) > 0:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return (low + high) / 2


def _nearest_covariance(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest matrix without negative eigenvalues."""
    root = _root(matrix)
    return root @ root.T


def _root(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """R with R Rᵀ = covariance; negative eigenvalues count as 0."""
    values, vectors = np.linalg.eigh(covariance)
    return vectors * np.sqrt(np.maximum(values, 0.0))
