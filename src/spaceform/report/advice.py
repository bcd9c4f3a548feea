"""The advice of a study as the page shows it: the answer first, then one card for each goal."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from spaceform.report.contents import Part
from spaceform.report.looks import display, look
from spaceform.report.words import capital
from spaceform.study.verdict.decide import GoalVerdict, Reference, Relation, Standing
from spaceform.study.verdict.goals import Goal
from spaceform.study.verdict.words import amount, probability, value

_WIDTH = 180


def headline(parts: Sequence[Part]) -> str:
    """The head to choose over all goals, one sentence for each data set."""
    said = [(f"On {part.group.title}: " if len(parts) > 1 else "") + answer(part)[0] for part in parts]
    return " ".join(map(capital, said))


def answer(part: Part) -> list[str]:
    """The recommendation over all goals, the first sentence being the choice."""
    if part.advice is None:
        return ["no run has finished yet."]
    return part.advice.overall(display) or [
        "no goal has a figure of every head: there is no choice over all."
    ]


def cards(part: Part) -> list[dict[str, Any]]:
    """One for each goal that counts."""
    if part.advice is None:
        return []
    said = part.advice.by_goal(display)
    counted = [one for one in part.advice.verdict.goals if one.goal.column in said]
    return [_card(part, one, said[one.goal.column], place) for place, one in enumerate(counted)]


def _card(part: Part, one: GoalVerdict, said: Sequence[str], place: int) -> dict[str, Any]:
    assert part.advice is not None
    heads = {record.label: record.head for record in part.group.records}
    leading = part.advice.leading(one.goal.column)
    best = max((s.mean * one.goal.sign for s in one.standings), default=0.0)
    ranked = sorted(one.standings, key=lambda s: -one.goal.sign * s.mean)
    return {
        "key": f"{part.group.key}-advice-{place}",
        "goal": capital(one.goal.purpose),
        "winners": [(heads[s.label], display(s.label)) for s in ranked if s.label in leading],
        "sentence": said[0],
        "more": list(said[1:]),
        "measure": f"{one.goal.title}, 95 % interval",
        "rows": [_row(one, s, heads[s.label], best) for s in ranked],
        "references": [_reference(one, r) for r in one.references],
        "region": f"Shaded: no more than {amount(one.goal, one.goal.region)} from the best, which makes no "
        "difference in practice.",
    }


def _row(one: GoalVerdict, s: Standing, head: str, best: float) -> dict[str, Any]:
    return {
        "head": head,
        "label": display(s.label),
        "text": value(one.goal, s.mean),
        "span": _span(one.goal, s.low, s.high),
        "seeds": s.seeds,
        "best": probability(s.best),
        "regret": amount(one.goal, s.regret),
        "leads": s.relation in (Relation.CHOSEN, Relation.EQUIVALENT),
        "picture": _picture(one, s.low, s.mean, s.high, look(head).hue, best),
    }


def _reference(one: GoalVerdict, r: Reference) -> dict[str, Any]:
    best = max(s.mean * one.goal.sign for s in one.standings)
    return {
        "label": r.label,
        "text": value(one.goal, r.mean),
        "span": _span(one.goal, r.low, r.high),
        "picture": _picture(one, r.low, r.mean, r.high, "var(--muted)", best),
    }


def _span(goal: Goal, low: float, high: float) -> str:
    digits = goal.unit.digits
    return f"{low:.{digits}f} to {high:.{digits}f}".replace("-", "−")


def _picture(one: GoalVerdict, low: float, mean: float, high: float, hue: str, best: float) -> Markup:
    """An interval with its mean on the common scale of the goal; what is as good as the best is shaded."""
    lows = [s.low for s in one.standings] + [r.low for r in one.references]
    highs = [s.high for s in one.standings] + [r.high for r in one.references]
    least, most = min(lows), max(highs)

    def at(x: float) -> float:
        return 4 + (_WIDTH - 8) * (min(max((x - least) / (most - least), 0.0), 1.0) if most > least else 0.5)

    top = one.goal.sign * best
    left, right = sorted((at(top - one.goal.region), at(top + one.goal.region)))
    return Markup(
        f'<svg width="{_WIDTH}" height="18" viewBox="0 0 {_WIDTH} 18" aria-hidden="true">'
        f'<rect x="{left:.1f}" y="0" width="{right - left:.1f}" height="18" fill="var(--wash)"/>'
        f'<path d="M{at(low):.1f} 9H{at(high):.1f}" stroke="{hue}" stroke-width="3" stroke-opacity="0.55"/>'
        f'<circle cx="{at(mean):.1f}" cy="9" r="4" fill="{hue}"/></svg>'
    )
