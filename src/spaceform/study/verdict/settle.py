"""What would settle a goal: how many seeds, or how many test items."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from spaceform.study.verdict.goals import Goal
from spaceform.study.verdict.posterior import Posterior

MOST_SEEDS_NAMED = 100
_DRAWS = 1024
_MOST_ITEMS = 1_000.0  # times the items that there are


@final
@dataclass(frozen=True)
class Settlement:
    """Whether the choice can be relied on; if not, what that would take if the means stay the same."""

    settled: bool
    """The expected regret of the choice is below the region of equivalence."""
    seeds: int | None
    """Seeds of each head that would settle it; None where no number up to 100 does."""
    items: int | None
    """Test items that would settle it where seeds alone do not; None where items are not known, or would not
    settle it either.
    """
    rival: str | None
    """The head that is most likely to be better than the choice."""
    seeds_to_tell: int | None
    """Seeds of each head that would tell the choice from its rival, or show both equivalent, with 95 %."""


def settlement(known: Posterior, goal: Goal, heads: Sequence[str], choice: str, seed: int) -> Settlement:
    """What would settle the choice among these heads."""
    columns = [known.labels.index(label) for label in heads]
    at = heads.index(choice)

    def regret(seeds: int | None, more_items: float = 1.0) -> float:
        counts = None if seeds is None else np.maximum(known.seeds, seeds).astype(float)
        worth = goal.sign * known.draw(_DRAWS, seed, seeds=counts, more_items=more_items)[:, columns]
        return float((worth.max(1) - worth[:, at]).mean())

    def told(seeds: int | None, rival: int) -> bool:
        return _told(known, goal, columns[at], rival, seeds)

    now = int(known.seeds[columns].max())
    settled = regret(None) < goal.region
    seeds = now if settled else _least(lambda n: regret(n) < goal.region, now + 1, MOST_SEEDS_NAMED)
    items = None
    if seeds is None and known.items:
        factor = _least_factor(lambda f: regret(MOST_SEEDS_NAMED, f) < goal.region)
        items = None if factor is None else int(np.ceil(factor * known.items))
    rival = _rival(known, goal, columns, at)
    tell = None
    if rival is not None:
        tell = now if told(None, rival) else _least(lambda n: told(n, rival), now + 1, MOST_SEEDS_NAMED)
    return Settlement(settled, seeds, items, None if rival is None else known.labels[rival], tell)


def _rival(known: Posterior, goal: Goal, columns: Sequence[int], at: int) -> int | None:
    """The head that is nearest to the choice, in standard errors of the difference."""
    others = [c for k, c in enumerate(columns) if k != at]
    if not others:
        return None

    def lead(c: int) -> float:
        gap = goal.sign * float(known.mean[columns[at]] - known.mean[c])
        return gap / max(_error(known, columns[at], c, None), 1e-300)

    return min(others, key=lead)


def _error(known: Posterior, one: int, other: int, seeds: int | None) -> float:
    """The standard error of the difference of two labels."""
    B = known.item_covariance
    n = known.seeds if seeds is None else np.maximum(known.seeds, seeds)
    variance = known.seed_variance[[one, other]] / n[[one, other]]
    return float(np.sqrt(B[one, one] + B[other, other] - 2 * B[one, other] + variance.sum()))


def _told(known: Posterior, goal: Goal, one: int, other: int, seeds: int | None) -> bool:
    """Whether this many seeds tell two labels apart, or show them equivalent."""
    gap = abs(float(known.mean[one] - known.mean[other]))
    error = _error(known, one, other, seeds)
    return gap >= 1.96 * error or gap + 1.645 * error <= goal.region


def _least(holds: Callable[[int], bool], low: int, high: int) -> int | None:
    """The least number that holds; None if `high` does not. If a number holds, all larger ones must hold."""
    if low > high or not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _least_factor(holds: Callable[[float], bool]) -> float | None:
    low, high = 1.0, _MOST_ITEMS
    if not holds(high):
        return None
    while high / low > 1.02:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
