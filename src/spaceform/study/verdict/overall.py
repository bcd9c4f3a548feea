"""Choose one head over all goals, and break ties by cost.

The overall value of a head is the weighted mean over the goals of its values, each divided by the goal's
region of equivalence: 1 is the smallest difference that matters. (A goal of little weight counts for ten of
these at most: `GoalVerdict.counted`.) It is judged like any other goal, from the same seeds and items. The
head of least expected regret follows from the regrets in the goals alone: it has the least Σ weight · regret
/ region. So a page can recommend a head for other weights without new draws.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import final

import numpy as np

from spaceform.study.verdict.decide import GoalVerdict, Relation, Verdict, decide
from spaceform.study.verdict.evidence import Evidence, Series
from spaceform.study.verdict.goals import REGIONS, Goal

OVERALL = "overall"
_SAME_COST = 1.25  # costs up to this ratio are the same
_LITTLE = 0.2  # regions: an expected regret that is larger by no more than this counts less than the cost


@final
@dataclass(frozen=True)
class Cost:
    """What a head costs."""

    fit_seconds: float
    predict_seconds: float = 0.0
    """The time to predict the test split."""
    complexity: int = 0
    """Of two heads at the same cost, the one with the lower number is simpler."""

    @property
    def seconds(self) -> float:
        """The time of fit and prediction."""
        return self.fit_seconds + self.predict_seconds


class Why(Enum):
    """Why a head is chosen."""

    ONLY = "only"
    """It is the only head with a value."""
    CLEAR = "clear"
    """All other heads are worse."""
    LEAST_REGRET = "least regret"
    """Other heads may be better, but on average this one loses least."""
    FIRST = "first"
    """Other heads are equivalent, and none of them is cheaper or simpler."""
    CHEAPER = "cheaper"
    """It is practically as good as the best head, and cheaper."""
    SIMPLER = "simpler"
    """It is practically as good as the best head, costs the same, and is simpler."""
    LITTLE_LOST = "little lost"
    """Other heads may be better. On average this one loses hardly more than the one that loses least, and it
    is cheaper or simpler.
    """


@final
@dataclass(frozen=True)
class GoalChoice:
    """The head to take for one goal, with ties broken by cost."""

    label: str
    why: Why
    first: str
    """The head of least expected regret."""
    time: float | None
    """Its cost divided by the cost of `first`; None where costs are not known."""


@final
@dataclass(frozen=True)
class Recommendation:
    """One head over all goals."""

    choice: GoalChoice
    verdict: GoalVerdict
    """The verdict on the overall goal, in regions of equivalence."""
    weights: Mapping[str, float]
    """The weights of the goals that count, by column; their sum is 1."""
    left_out: tuple[str, ...]
    """Columns that have a weight and do not count: some head has no value, or all values may be chance."""
    goals: Mapping[str, GoalChoice]
    """The choice for each goal, by column."""


def recommend(
    evidence: Evidence,
    verdict: Verdict,
    weights: Mapping[str, float] | None = None,
    costs: Mapping[str, Cost] | None = None,
    *,
    seed: int = 0,
) -> Recommendation | None:
    """The overall choice and the choice for each goal; `weights` by column replace the goals' own weights.

    Regions are those of the verdict. The result is None where no goal counts, for want of weights or values.
    """
    goals = {one.goal.column: one.goal for one in verdict.goals}
    given = {column: goal.weight for column, goal in goals.items()} if weights is None else dict(weights)
    _check(given, goals)
    asked = [column for column, weight in given.items() if weight > 0 and column in goals]
    counted: list[str] = []
    by_chance = {one.goal.column for one in verdict.goals if one.untold is not None}
    for column in asked:  # goals that leave some head without a run do not count either
        if column not in by_chance and all(_seeds(evidence, *counted, column).values()):
            counted.append(column)
    if not counted or not evidence.labels:
        return None
    total = sum(given[column] for column in counted)
    shares = {column: given[column] / total for column in counted}
    least = _least_regret(evidence.labels, verdict, shares)
    overall = decide(combined(evidence, verdict, shares), seed=seed, choice=least).goals[0]
    choice = break_tie(overall, costs)
    by_goal = {one.goal.column: break_tie(one, costs) for one in verdict.goals}
    assert choice is not None
    return Recommendation(
        choice,
        overall,
        shares,
        tuple(column for column in asked if column not in counted),
        {column: found for column, found in by_goal.items() if found is not None},
    )


def _least_regret(labels: tuple[str, ...], verdict: Verdict, shares: Mapping[str, float]) -> str:
    """The head of least Σ weight · regret / region, the first of equals: what the page shows, too."""

    def regret(label: str) -> float:
        goals = [(verdict.of(column), share) for column, share in shares.items()]
        return sum(share * one.of(label).regret / one.counted(share) for one, share in goals)

    return min(labels, key=regret)


def break_tie(verdict: GoalVerdict, costs: Mapping[str, Cost] | None = None) -> GoalChoice | None:
    """The choice for a goal: of heads that are as good the cheapest, and at the same cost the simplest.

    As good as the head of least expected regret are those equivalent to it, and those still open whose
    expected regret is hardly larger.
    """
    if verdict.choice is None:
        return None
    first = verdict.choice
    open_ones = [one for one in verdict.standings if one.relation is Relation.OPEN]
    most = verdict.of(first).regret + _LITTLE * verdict.goal.region
    near = [one.label for one in open_ones if one.regret <= most]
    ties = [first, *verdict.equivalent, *near]
    plain = (
        Why.ONLY
        if len(verdict.standings) == 1
        else Why.LEAST_REGRET
        if open_ones
        else Why.FIRST
        if verdict.equivalent
        else Why.CLEAR
    )
    if costs is None or any(label not in costs for label in ties):
        return GoalChoice(first, plain, first, None)
    cheapest = min(costs[label].seconds for label in ties)
    cheap = [label for label in ties if costs[label].seconds <= _SAME_COST * cheapest]
    simplest = min(costs[label].complexity for label in cheap)
    label = next(label for label in cheap if costs[label].complexity == simplest)
    time = costs[label].seconds / costs[first].seconds if costs[first].seconds > 0 else None
    if label == first:
        return GoalChoice(first, plain, first, time)
    as_good = Why.SIMPLER if first in cheap else Why.CHEAPER
    return GoalChoice(label, Why.LITTLE_LOST if label in near else as_good, first, time)


def combined(evidence: Evidence, verdict: Verdict, shares: Mapping[str, float]) -> Evidence:
    """Evidence on the overall goal: each item's weighted contributions to all goals, as they count."""
    goals = {column: verdict.of(column).goal for column in shares}
    factor = {
        column: shares[column] * goals[column].sign / verdict.of(column).counted(shares[column])
        for column in shares
    }
    known = all(
        one.values.shape[1] > 1
        for column in shares
        for label, one in evidence.series[column].items()
        if label in evidence.labels
    )
    series = {label: _sum(label, evidence, factor, known) for label in evidence.labels}
    typical = np.sqrt(sum((factor[c] * goals[c].typical_seed_deviation) ** 2 for c in shares))
    goal = Goal(
        OVERALL, "overall", "all goals together", REGIONS, True, 1.0, float(typical), np.inf, least=-np.inf
    )
    return Evidence(evidence.labels, (), (goal,), {OVERALL: series})


def _sum(label: str, evidence: Evidence, factor: Mapping[str, float], known: bool) -> Series:
    """The sum of a label's goals. Goals on the same items are added item by item; other items are appended.

    If a goal has n of all N items, they count N/n times, so that the mean over all items is the sum of the
    means.
    """
    seeds = _seeds(evidence, *factor)[label]
    parts: dict[int, np.ndarray[tuple[int, int], np.dtype[np.float64]]] = {}
    doubt = 0.0
    for column, times in factor.items():
        one = evidence.series[column][label]
        rows = times * one.values[[one.seeds.index(seed) for seed in seeds]]
        rows = rows if known else rows.mean(1, keepdims=True)
        parts[rows.shape[1]] = parts[rows.shape[1]] + rows if rows.shape[1] in parts else rows
        doubt += times**2 * one.doubt
    total = sum(rows.mean(1, keepdims=True) for rows in parts.values())
    N = sum(parts)
    spread = [N / n * (rows - rows.mean(1, keepdims=True)) for n, rows in parts.items()]
    return Series(seeds, total + np.concatenate(spread, axis=1), {}, doubt)


def _seeds(evidence: Evidence, *columns: str) -> dict[str, tuple[int, ...]]:
    """The seeds of each head that have a value in all of these goals."""
    return {
        label: tuple(
            seed
            for seed in evidence.series[columns[0]][label].seeds
            if all(seed in evidence.series[column][label].seeds for column in columns)
        )
        for label in evidence.labels
    }


def _check(weights: Mapping[str, float], goals: Mapping[str, Goal]) -> None:
    for column, weight in weights.items():
        if column not in goals:
            raise ValueError(f"there is no goal {column!r} to weigh; choose from {', '.join(goals)}")
        if not (np.isfinite(weight) and weight >= 0):
            raise ValueError(f"the weight of {column} must be 0 or more, got {weight!r}")
