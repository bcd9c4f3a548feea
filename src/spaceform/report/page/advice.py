"""The advice of a study as the page shows it: the answer first, then one card for each goal."""

from collections.abc import Sequence
from typing import Any

from spaceform.foundation.messages import capital
from spaceform.report.contents import DataSetPart
from spaceform.report.looks import display
from spaceform.report.readable import readable
from spaceform.study.judge import export_command, next_step
from spaceform.study.verdict.amounts import amount, probability, value
from spaceform.study.verdict.decide import GoalVerdict, ReferenceStanding, Standing
from spaceform.study.verdict.goals import Goal


def headline(parts: Sequence[DataSetPart]) -> str:
    """The head to choose over all goals, one sentence for each data set."""
    said = [(f"On {part.group.title}: " if len(parts) > 1 else "") + answer(part)[0] for part in parts]
    return " ".join(map(capital, said))


def answer(part: DataSetPart) -> list[str]:
    """The recommendation over all goals, the first sentence being the choice."""
    if part.advice is None:
        return ["no run has finished yet."]
    return part.advice.overall(display) or [
        "no goal has a value of every head, so there is no choice over all goals."
    ]


def cards(part: DataSetPart) -> list[dict[str, Any]]:
    """One card for each goal that counts."""
    if part.advice is None:
        return []
    said = part.advice.by_goal(display)
    counted = [one for one in part.advice.verdict.goals if one.goal.column in said]
    return [_card(part, one, said[one.goal.column], place) for place, one in enumerate(counted)]


def deployment(part: DataSetPart) -> dict[str, str] | None:
    """The run to deploy and the command that does it; None where there is no recommendation."""
    run = None if part.advice is None else part.advice.to_deploy
    if part.advice is None or run is None:
        return None
    return {"sentence": readable(next_step(part.advice)[0]), "command": readable(export_command(run))}


def _card(part: DataSetPart, one: GoalVerdict, said: Sequence[str], place: int) -> dict[str, Any]:
    assert part.advice is not None
    heads = {record.label: record.head for record in part.group.records}
    leading = part.advice.leading(one.goal.column)
    ranked = sorted(one.standings, key=lambda s: -one.goal.sign * s.mean)
    chosen = part.advice.recommendation and part.advice.recommendation.goals.get(one.goal.column)
    winners = [s.label for s in ranked if s.label in leading]
    winners.sort(key=lambda label: chosen is None or label != chosen.label)  # the choice first
    return {
        "key": f"{part.group.key}-advice-{place}",
        "goal": capital(one.goal.purpose),
        "winners": [(heads[label], display(label)) for label in winners],
        "sentence": said[0],
        "more": list(said[1:]),
        "measure": f"{one.goal.title}, 95 % interval",
        "rows": [_row(one, s, heads[s.label], leads=s.label in leading) for s in ranked],
        "references": [_reference(one, r) for r in one.references],
        "region": f"No more than {amount(one.goal, one.goal.region)} makes no difference in practice.",
    }


def _row(one: GoalVerdict, s: Standing, head: str, *, leads: bool) -> dict[str, Any]:
    return {
        "head": head,
        "label": display(s.label),
        "text": value(one.goal, s.mean),
        "span": _span(one.goal, s.low, s.high),
        "seeds": s.seeds,
        "best": probability(s.best),
        "regret": amount(one.goal, s.regret),
        "leads": leads,
    }


def _reference(one: GoalVerdict, r: ReferenceStanding) -> dict[str, Any]:
    return {"label": r.label, "text": value(one.goal, r.mean), "span": _span(one.goal, r.low, r.high)}


def _span(goal: Goal, low: float, high: float) -> str:
    digits = goal.unit.digits
    return f"{low:.{digits}f} to {high:.{digits}f}".replace("-", "−")
