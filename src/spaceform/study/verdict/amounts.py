"""Numbers of a verdict as people write them."""

from collections.abc import Callable

from spaceform.study.verdict.goals import Goal

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


def probability(p: float) -> str:
    """`87 %`, never 0 or 100."""
    return "over 99 %" if p > 0.995 else "under 1 %" if p < 0.005 else f"{100 * p:.0f} %"


def span(goal: Goal, low: float, high: float) -> str:
    digits = goal.unit.digits
    return f"{low:.{digits}f} to {high:.{digits}f}".replace("-", "−")


def of_the_time(ratio: float | None) -> str:
    assert ratio is not None
    for share, words in (
        (0.5, "half the time"),
        (1 / 3, "a third of the time"),
        (0.25, "a quarter of the time"),
    ):
        if abs(ratio / share - 1) <= 0.12:
            return words
    return f"{100 * ratio:.0f} % of the time"
