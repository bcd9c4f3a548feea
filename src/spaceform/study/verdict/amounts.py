"""Numbers of a verdict as people write them."""

from collections.abc import Callable

from spaceform.study.verdict.goals import POINTS, Goal

Name = Callable[[str], str]


def value(goal: Goal, x: float) -> str:
    """`97.3 %`, or `0.312`."""
    return f"{x:.{goal.unit.digits}f} {goal.unit.sign}".rstrip()


def amount(goal: Goal, x: float) -> str:
    """A difference: `0.2 points`, `0.012 NLL`; one that rounds to zero is `less than 0.1 points`."""
    digits = goal.unit.digits
    smallest = 10.0**-digits
    size = f"less than {smallest:.{digits}f}" if 0 <= x < smallest / 2 else f"{x:.{digits}f}"
    return f"{size} {goal.unit.name}".rstrip()


def at_most(goal: Goal, x: float) -> str:
    """The most that a difference may be: `at most 0.2 points`, or `less than 0.1 points`."""
    said = amount(goal, x)
    return said if 0 <= x < 10.0**-goal.unit.digits / 2 else f"at most {said}"


def region(goal: Goal) -> str:
    """The smallest difference that matters: `0.5 points`, `0.01`."""
    return f"{goal.region:g} points" if goal.unit is POINTS else f"{goal.region:g}"


def probability(p: float) -> str:
    """`87 %`, never 0 or 100."""
    return "over 99 %" if p > 0.995 else "under 1 %" if p < 0.005 else f"{100 * p:.0f} %"


def span(goal: Goal, low: float, high: float) -> str:
    digits = goal.unit.digits
    return f"{low:.{digits}f} to {high:.{digits}f}".replace("-", "−")


def faster(ratio: float, than: str) -> str:
    """`it trains and predicts in half the time that vmf needs`."""
    share = f"{100 * ratio:.0f} % of"
    for known, words in ((0.5, "half"), (1 / 3, "a third of"), (0.25, "a quarter of")):
        if abs(ratio / known - 1) <= 0.12:
            share = words
    return f"it trains and predicts in {share} the time that {than} needs"
