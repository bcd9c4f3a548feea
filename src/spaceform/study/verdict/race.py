"""Which heads need more seeds: three for all, then more for those in question, until the choice is safe.

More seeds reduce the doubt that comes from the seeds, and no other doubt: the test items stay the same. So a
race asks what is true of this test split. It stops where the expected regret of every goal's choice, over
seeds alone, is below half the goal's region of equivalence. (With the whole region as limit, races on digits
chose a head within the region of the choice of twenty seeds in 92 % of 125 cases.) It also stops where much
of the doubt comes from few test items: where the regret over seeds is less than 0.7 of the regret over seeds
and new items.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import final

from spaceform.study.verdict.decide import GoalVerdict, decide
from spaceform.study.verdict.evidence import Evidence
from spaceform.study.verdict.goals import Goal, with_regions

FIRST_SEEDS = 3
MOST_SEEDS = 10
_IN_QUESTION = 0.05
SAFE = 0.5  # regions: an expected regret below this is small enough
_SMALL_PART = 0.7  # of the regret over seeds and new items


class Reason(Enum):
    """Why a race goes on or stops."""

    FIRST_SEEDS = "first seeds"
    """Some head has fewer seeds than every head gets."""
    REGRET = "regret"
    """The expected regret of a choice is not yet below what is allowed."""
    SETTLED = "settled"
    """More seeds would hardly help: the regret is small, or there are too few test items."""
    MOST_SEEDS = "most seeds"
    """All heads in question have as many seeds as any head gets."""
    NOTHING_TOLD = "nothing told"
    """These test items cannot tell any goal, with however many seeds."""
    ONE_HEAD = "one head"
    """There is one head, so there is no choice."""


@final
@dataclass(frozen=True)
class Question:
    """One goal in the race."""

    column: str
    choice: str
    regret: float
    """Expected regret of the choice over seeds, in the goal's unit."""
    region: float
    settled: bool
    """Whether the race for this goal is over: the regret is below half the region, or `few_items` is true."""
    few_items: bool
    """Whether the expected regret over seeds is less than 0.7 of the regret over seeds and new items."""
    heads: tuple[str, ...]
    """The choice and the heads that may still be better; the choice alone where the goal is settled."""
    best: Mapping[str, float]
    """The probability of each head to be the best, over seeds."""


@final
@dataclass(frozen=True)
class Decision:
    """What to run next."""

    go_on: bool
    reason: Reason
    seeds: Mapping[str, int]
    """How many seeds each head should have after the next round; as many as it has if the race stops."""
    questions: tuple[Question, ...]

    @property
    def runs(self) -> tuple[str, ...]:
        """Heads that get another seed."""
        return tuple(label for question in self.questions for label in question.heads if not question.settled)


def race(
    evidence: Evidence,
    *,
    columns: Sequence[str] | None = None,
    regions: Mapping[str, float] | None = None,
    first: int = FIRST_SEEDS,
    most: int = MOST_SEEDS,
    step: int = 1,
    seed: int = 0,
) -> Decision:
    """The next round, for the goals of these columns (default: those with a weight)."""
    if not 1 <= first <= most:
        raise ValueError(f"first must lie between 1 and most = {most}, got {first}")
    if step < 1:
        raise ValueError(f"step must be at least 1, got {step}")
    now = {label: len(evidence.seeds(label)) for label in evidence.labels}
    if min(now.values(), default=0) < first:
        wanted = {label: max(count, first) for label, count in now.items()}
        return Decision(True, Reason.FIRST_SEEDS, wanted, ())
    if len(now) < 2:
        return Decision(False, Reason.ONE_HEAD, now, ())
    goals = _raced(with_regions(evidence.goals, regions or {}), columns)
    verdict = decide(evidence, goals, seed=seed, new_items=False)
    beyond = decide(evidence, goals, seed=seed)
    questions = tuple(
        _question(one, beyond.of(one.goal.column)) for one in verdict.goals if one.choice is not None
    )
    asked = {label for one in questions if not one.settled for label in one.heads}
    if not questions and any(one.untold is not None for one in beyond.goals):
        return Decision(False, Reason.NOTHING_TOLD, now, ())
    if not asked:
        return Decision(False, Reason.SETTLED, now, questions)
    wanted = {label: min(most, n + step) if label in asked and n < most else n for label, n in now.items()}
    if wanted == now:
        return Decision(False, Reason.MOST_SEEDS, now, questions)
    return Decision(True, Reason.REGRET, wanted, questions)


def _raced(goals: Sequence[Goal], columns: Sequence[str] | None) -> tuple[Goal, ...]:
    if columns is None:
        return tuple(goal for goal in goals if goal.weight > 0)
    by_column = {goal.column: goal for goal in goals}
    unknown = [column for column in columns if column not in by_column]
    if unknown:
        raise ValueError(f"there is no goal {unknown[0]!r} to race for; choose from {', '.join(by_column)}")
    return tuple(by_column[column] for column in columns)


def _question(one: GoalVerdict, beyond: GoalVerdict) -> Question:
    """The state of one goal, from the verdict on this split and the verdict on new items."""
    assert one.chosen is not None
    safe = one.chosen.regret < SAFE * one.goal.region
    few_items = not safe and one.chosen.regret < _SMALL_PART * beyond.of(one.chosen.label).regret
    settled = safe or few_items
    heads = tuple(
        s.label for s in one.standings if s.label == one.choice or (s.best >= _IN_QUESTION and not settled)
    )
    return Question(
        one.goal.column,
        one.chosen.label,
        one.chosen.regret,
        one.goal.region,
        settled,
        few_items,
        heads,
        {s.label: s.best for s in one.standings},
    )
