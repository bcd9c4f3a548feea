"""Which head to choose for each goal, and how sure that is."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from spaceform.study.verdict.evidence import Evidence, Missing, Series
from spaceform.study.verdict.goals import Goal, with_regions
from spaceform.study.verdict.guessing import Guessing
from spaceform.study.verdict.posterior import Posterior, PosteriorDraws, VarianceSource, posterior
from spaceform.study.verdict.settle import Settlement, settlement

LEVEL = 0.95
_DRAWS = 8192

MOST_COUNTED, _SMALL_SHARE = 10, 0.1
"""How many differences that matter a goal counts for at most, if its share of the weights is smaller."""


FEWEST_ITEMS = 6
"""Fewer items tell nothing: if two heads are equally good, in one case of sixteen one of them is better on
all of five items, and one in sixteen is more than 5 %.
"""


class Untold(Enum):
    """Why there is no choice though there are values."""

    CHANCE = "chance"
    """Chance alone gives values like these."""
    FEW_ITEMS = "few items"
    """The test part has fewer than six items."""
    NOTHING_LEARNT = "nothing learnt"
    """No head is better than guessing."""


class Relation(Enum):
    """How a head stands to the one chosen."""

    CHOSEN = "chosen"
    EQUIVALENT = "equivalent"
    """With a probability of 95 % it differs by no more than the region."""
    WORSE = "worse"
    """It is worse with a probability of 97.5 % (two-sided 95 %), and not equivalent."""
    OPEN = "open"
    """The evidence does not say."""


@final
@dataclass(frozen=True)
class Difference:
    """How much better one label is than another, in the goal's unit. Positive is better."""

    mean: float
    low: float
    high: float
    better: float
    """Probability that the first label is better."""
    within: float
    """Probability that the difference is no more than the region."""
    seen: float
    """The difference of the means as measured. `mean` is less, without what is likely to be luck."""

    @property
    def sure(self) -> bool:
        """Whether better or worse is known, two-sided 95 %."""
        return max(self.better, 1 - self.better) >= (1 + LEVEL) / 2


_NO_DIFFERENCE = Difference(0.0, 0.0, 0.0, 0.5, 1.0, 0.0)


@final
@dataclass(frozen=True)
class Standing:
    """One head in one goal. Values are in the goal's unit."""

    label: str
    mean: float
    low: float
    high: float
    """`low` to `high` is the 95 % interval of the true value, from this head alone."""
    seeds: int
    seed_error: float
    item_error: float
    """The standard errors of the mean that come from the seeds and from the items."""
    source: VarianceSource
    best: float
    """Probability of being the best of the heads."""
    regret: float
    """Expected regret: how much worse than the best head it is, on average over what may be true."""
    within: float
    """With a probability of 95 % it is no further than this behind the best head."""
    relation: Relation
    behind: Difference
    """The difference between the chosen head and this one."""


@final
@dataclass(frozen=True)
class ReferenceStanding:
    """A reference row in one goal, and the chosen head against it."""

    label: str
    mean: float
    low: float
    high: float
    item_error: float
    lead: Difference
    any_better: bool
    """Whether some head is better than this reference, two-sided 95 %."""


@final
@dataclass(frozen=True)
class Gap:
    """Runs of a label that have no value for a goal."""

    label: str
    reason: Missing
    runs: int
    of: int
    """All runs of this label."""


@final
@dataclass(frozen=True)
class GoalVerdict:
    """What the evidence says of one goal."""

    goal: Goal
    choice: str | None
    """The head of least expected regret; None where no head has a value, or `untold`."""
    standings: tuple[Standing, ...]
    """Those of all heads that have a value, in the order of the study."""
    references: tuple[ReferenceStanding, ...]
    settlement: Settlement | None
    gaps: tuple[Gap, ...]
    """Runs without a value, and why."""
    items: int
    """0 where the items are not known: then the verdict holds for this test split alone."""
    pairs: Mapping[tuple[str, str], Difference] = field(default_factory=dict)
    """Every label against every other."""
    chance: float | None = None
    """The value that chance alone reaches on these items (with perfect probabilities, or with a score that
    knows nothing), if no head is beyond it. Then there is no choice. None where some head is beyond it.
    """
    untold: Untold | None = None
    """Why there is no choice though there are values."""

    def of(self, label: str) -> Standing:
        """The standing of a head."""
        return next(one for one in self.standings if one.label == label)

    def counted(self, share: float) -> float:
        """The difference that counts as 1 where goals are added up, in the goal's unit.

        It is the region. If the goal's share of the weights is small, it is a tenth of the difference between
        the best and the worst head, if that is more: in retrieval heads may differ by a hundred regions,
        which would decide alone, however small the share.
        """
        means = [one.mean for one in self.standings]
        if share >= _SMALL_SHARE or not means:
            return self.goal.region
        return max(self.goal.region, (max(means) - min(means)) / MOST_COUNTED)

    @property
    def chosen(self) -> Standing | None:
        """The standing of the choice."""
        return None if self.choice is None else self.of(self.choice)

    @property
    def equivalent(self) -> tuple[str, ...]:
        """Heads that are practically as good as the choice, without it."""
        return tuple(one.label for one in self.standings if one.relation is Relation.EQUIVALENT)

    @property
    def reference(self) -> ReferenceStanding | None:
        """The best of the references."""
        return max(self.references, key=lambda one: self.goal.sign * one.mean, default=None)


@final
@dataclass(frozen=True)
class Verdict:
    """All goals of a study."""

    goals: tuple[GoalVerdict, ...]
    labels: tuple[str, ...]
    references: tuple[str, ...]
    seeds: Mapping[str, int]
    """How many runs each head has, with or without a value."""
    level: float = LEVEL
    items: int = 0
    """How many test items there are; 0 where that is not known."""
    guessing: Guessing | None = None
    """Which labels are better than guessing; None where that is not known."""

    def of(self, column: str) -> GoalVerdict:
        """The verdict on a goal."""
        found = {one.goal.column: one for one in self.goals}
        if column not in found:
            raise ValueError(f"there is no verdict on {column!r}; choose from {', '.join(found)}")
        return found[column]


def decide(
    evidence: Evidence,
    goals: Sequence[Goal] | None = None,
    *,
    regions: Mapping[str, float] | None = None,
    seed: int = 0,
    new_items: bool = True,
    choice: str | None = None,
) -> Verdict:
    """A verdict on every goal; `regions` sets regions of equivalence by column, in the goal's unit.

    The verdict holds for new items and new seeds; without `new_items`, for new seeds on this test split. The
    same evidence and `seed` give the same verdict. `choice` names the head to choose, if that is known
    already; without it, the head of least expected regret is chosen.
    """
    wanted = tuple(evidence.goals if goals is None else goals)
    wanted = with_regions(wanted, regions or {})
    there = tuple(goal for goal in wanted if goal.column in evidence.series)
    return Verdict(
        tuple(_decide(evidence, goal, seed, new_items, choice) for goal in there),
        evidence.labels,
        evidence.references,
        {label: len(evidence.seeds(label)) for label in evidence.labels},
        items=evidence.items,
        guessing=evidence.guessing,
    )


def _decide(evidence: Evidence, goal: Goal, seed: int, new_items: bool, choice: str | None) -> GoalVerdict:
    series = evidence.series[goal.column]
    gaps = _gaps(series)
    heads = [label for label in evidence.labels if label in series and series[label].seeds]
    if not heads:
        return GoalVerdict(goal, None, (), (), None, gaps, 0)
    known = posterior(series, evidence.references, goal, new_items=new_items)
    truth = known.draw(_DRAWS, seed)
    place = {label: i for i, label in enumerate(known.labels)}
    columns = [place[label] for label in heads]
    regret = regrets(goal.sign * truth[:, columns])
    choice = heads[int(regret.mean(0).argmin())] if choice is None else choice
    pairs = {
        (a, b): _difference(goal, known, truth, place[a], place[b])
        for a in known.labels
        for b in known.labels
        if a != b
    }
    first = np.bincount((goal.sign * truth[:, columns]).argmax(1), minlength=len(heads)) / len(truth)
    low, high = (ends.clip(goal.least, goal.most).tolist() for ends in known.interval(LEVEL))
    by_chance = all(known.mean[place[label]] <= series[label].chance for label in heads)
    why = _untold(evidence) or (Untold.CHANCE if by_chance else None)
    if why is not None:
        standings = tuple(
            replace(
                _standing(known, c, (low[c], high[c]), float(first[k]), regret[:, k], "", {}),
                relation=Relation.OPEN,
            )
            for k, c in enumerate(columns)
        )
        level = min(goal.most, max(series[label].chance for label in heads))
        level_told = level if why is Untold.CHANCE else None
        return GoalVerdict(goal, None, standings, (), None, gaps, known.items, pairs, level_told, why)
    standings = tuple(
        _standing(known, c, (low[c], high[c]), float(first[k]), regret[:, k], choice, pairs)
        for k, c in enumerate(columns)
    )
    references = tuple(
        _reference(known, c, (low[c], high[c]), choice, heads, pairs)
        for label in evidence.references
        if (c := place.get(label)) is not None
    )
    return GoalVerdict(
        goal,
        choice,
        standings,
        references,
        settlement(known, goal, heads, choice, seed),
        gaps,
        known.items,
        pairs,
    )


def _untold(evidence: Evidence) -> Untold | None:
    """The reason, if any, why no goal of this evidence has a choice."""
    if 0 < evidence.items < FEWEST_ITEMS:
        return Untold.FEW_ITEMS
    if evidence.guessing is not None and not set(evidence.guessing.learnt) & set(evidence.labels):
        return Untold.NOTHING_LEARNT
    return None


def _gaps(series: Mapping[str, Series]) -> tuple[Gap, ...]:
    return tuple(
        Gap(label, reason, count, len(one.seeds) + len(one.missing))
        for label, one in series.items()
        for reason, count in Counter(one.missing.values()).items()
    )


def regrets(worth: PosteriorDraws) -> PosteriorDraws:
    """How far each head lies behind the best, draw by draw; more is better in `worth`."""
    return worth.max(1, keepdims=True) - worth


def _difference(goal: Goal, known: Posterior, truth: PosteriorDraws, one: int, other: int) -> Difference:
    ahead = goal.sign * (truth[:, one] - truth[:, other])
    low, high = np.quantile(ahead, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Difference(
        float(ahead.mean()),
        float(low),
        float(high),
        float(((ahead > 0) + 0.5 * (ahead == 0)).mean()),
        float((np.abs(ahead) <= goal.region).mean()),
        goal.sign * float(known.mean[one] - known.mean[other]),
    )


def _standing(
    known: Posterior,
    place: int,
    interval: tuple[float, float],
    best: float,
    regret: Float[NDArray[np.float64], " draws"],
    choice: str,
    pairs: Mapping[tuple[str, str], Difference],
) -> Standing:
    label = known.labels[place]
    behind = pairs.get((choice, label), _NO_DIFFERENCE)
    return Standing(
        label,
        float(known.mean[place]),
        *interval,
        int(known.seeds[place]),
        float(known.seed_error()[place]),
        float(known.item_error()[place]),
        known.source[place],
        best,
        float(regret.mean()),
        float(np.quantile(regret, LEVEL)),
        _relation(label == choice, behind),
        behind,
    )


def _relation(chosen: bool, behind: Difference) -> Relation:
    if chosen:
        return Relation.CHOSEN
    if behind.within >= LEVEL:
        return Relation.EQUIVALENT
    return Relation.WORSE if behind.better >= (1 + LEVEL) / 2 else Relation.OPEN


def _reference(
    known: Posterior,
    place: int,
    interval: tuple[float, float],
    choice: str,
    heads: Sequence[str],
    pairs: Mapping[tuple[str, str], Difference],
) -> ReferenceStanding:
    label = known.labels[place]
    return ReferenceStanding(
        label,
        float(known.mean[place]),
        *interval,
        float(known.item_error()[place]),
        pairs[choice, label],
        any(pairs[head, label].better >= (1 + LEVEL) / 2 for head in heads),
    )
