"""The advice of a study as the page shows it: a headline, and one card for each goal."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from spaceform.report.contents import Part
from spaceform.report.looks import display, look
from spaceform.report.words import capital, listed
from spaceform.study.summary import Advice, Row


def headline(parts: Sequence[Part]) -> str:
    """The clear winners in one sentence for each data set, or why there is none."""
    said = [(f"On {part.group.title}, " if len(parts) > 1 else "") + _verdict(part.advice) for part in parts]
    return " ".join(map(capital, said))


def _verdict(advice: Sequence[Advice]) -> str:
    if not advice:
        return "no run has finished yet."
    if not any(map(_tested, advice)):
        seeds = {row.seeds for one in advice for row in one.rows}
        why = "every head has one seed" if seeds == {1} else "not every head has two runs yet"
        return f"{why}: the numbers below are a first look, not a verdict."
    goals: dict[str, list[str]] = {}
    for one in advice:
        if _tested(one) and len(one.winners) == 1:
            goals.setdefault(display(one.winners[0]), []).append(one.goal)
    undecided = [one.goal for one in advice if len(one.winners) > 1]
    if goals:
        rest = [f"no clear winner for {listed(undecided)}"] if undecided else []
        return "; ".join([*(f"{winner} for {listed(won)}" for winner, won in goals.items()), *rest]) + "."
    return f"no head wins clearly at any goal; {_behind(advice) or 'so few seeds cannot tell them apart'}."


def _behind(advice: Sequence[Advice]) -> str:
    """Which heads are significantly worse, and for which goals."""
    goals: dict[tuple[str, ...], list[str]] = {}
    for one in advice:
        if behind := tuple(display(row.label) for row in one.rows if not row.tied):
            goals.setdefault(behind, []).append(one.goal)
    return "; ".join(
        f"{listed(labels)} {'is' if len(labels) == 1 else 'are'} behind for {listed(lost)}"
        for labels, lost in goals.items()
    )


def card(part: Part, place: int) -> dict[str, Any]:
    """One goal: who wins, in a sentence, with the numbers of every head."""
    one = part.advice[place]
    heads = {record.label: record.head for record in part.group.records}
    values = {row.label: _values(part, one, row.label) for row in one.rows}
    all_level = 1 < len(one.winners) == len(one.rows)
    return {
        "key": f"{part.group.key}-advice-{place}",
        "goal": capital(one.goal),
        "winners": [] if all_level else [(heads[label], display(label)) for label in one.winners],
        "sentence": _sentence(one),
        "more_seeds": len(one.rows) > 1 and {row.seeds for row in one.rows} == {1},
        "measure": one.measure.title,
        "test": "Bold: the best, and the next ones down to the first that is significantly worse. p: Welch's "
        "t-test against the best, with Holm's correction over the column."
        if _tested(one)
        else "A test needs two seeds of every head.",
        "rows": [_row(one, row, heads[row.label], values) for row in _ranked(one)],
    }


def _values(part: Part, one: Advice, label: str) -> list[float]:
    found = (record.number(one.measure.column) for record in part.group.of(label))
    return [value for value in found if value is not None]


def _row(one: Advice, row: Row, head: str, values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return {
        "head": head,
        "label": display(row.label),
        "text": one.measure.text(row.mean, row.sem),
        "seeds": row.seeds,
        "tied": row.tied,
        "p": "—" if row.p is None else f"{row.p:.3f}" if row.p >= 0.001 else "< 0.001",
        "strip": _strip(values[row.label], [x for seeds in values.values() for x in seeds], head),
    }


def _tested(one: Advice) -> bool:
    return any(row.p is not None for row in one.rows)


def _ranked(one: Advice) -> list[Row]:
    """From the best to the worst."""
    return sorted(one.rows, key=lambda row: row.mean, reverse=one.measure.higher)


def _sentence(one: Advice) -> str:
    ranked = _ranked(one)
    top = [row for row in ranked if row.tied]
    behind = [row for row in ranked if not row.tied]
    if len(ranked) == 1:
        return f"Only {_named(one, ranked[0])} has this number; there is nothing to compare it with."
    if not _tested(one):
        first = f"{listed(_titles(top))} {'is' if len(top) == 1 else 'are'} first ({_value(one, top[0])})"
        single = [row for row in ranked if row.seeds == 1]
        if len(single) == len(ranked):
            return f"{first}, but one seed cannot tell skill from luck."
        return f"{first}, but {listed(_titles(single))} has one run with this number: too few for a test."
    if len(top) == 1:
        return f"{_named(one, top[0])}; next is {_named(one, behind[0])}."
    span = f"{_value(one, top[0])} to {_value(one, top[-1])}"
    if not behind:
        seeds = min(row.seeds for row in ranked)
        return f"{seeds} seeds cannot tell the {len(ranked)} heads apart ({span})."
    verb = "is" if len(behind) == 1 else "are"
    return f"No clear winner among {listed(_titles(top))} ({span}); {listed(_titles(behind))} {verb} behind."


def _titles(rows: Sequence[Row]) -> list[str]:
    return [display(row.label) for row in rows]


def _named(one: Advice, row: Row) -> str:
    return f"{display(row.label)} ({_value(one, row)})"


def _value(one: Advice, row: Row) -> str:
    """`97.31 ± 0.12 %`, which no line break parts."""
    text = one.measure.text(row.mean, row.sem) + (" %" if one.measure.percent else "")
    return text.replace(" ", "\u00a0")


def _strip(values: Sequence[float], everything: Sequence[float], head: str) -> Markup:
    """All seeds of a row as dots on the common scale of the column, with a tick at the mean."""
    low, high = min(everything), max(everything)

    def at(value: float) -> float:
        return 6 + 148 * ((value - low) / (high - low) if high > low else 0.5)

    hue, mean = look(head).hue, sum(values) / len(values)
    dots = "".join(
        f'<circle cx="{at(value):.1f}" cy="9" r="4" fill="{hue}" fill-opacity="0.55"/>' for value in values
    )
    return Markup(
        f'<svg width="160" height="18" viewBox="0 0 160 18" aria-hidden="true">'
        f'<path d="M4 9H156" stroke="var(--line)"/>{dots}'
        f'<path d="M{at(mean):.1f} 2V16" stroke="{hue}" stroke-width="2"/></svg>'
    )
