"""The figure and the table of what a search tried: how much a head depends on its rates and options."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from spaceform.foundation.messages import counted
from spaceform.report.figures.axes import share
from spaceform.report.figures.figure import Draw, Figure, Panel
from spaceform.report.looks import display, in_order, look
from spaceform.report.records import Group
from spaceform.report.style import SURFACE
from spaceform.report.tables.results import MISSING, Cell, Column, Line, Table
from spaceform.study.sensitivity import Tried

_ROW, _AROUND = 0.3, 0.75


def search_figure(group: Group, found: Sequence[Tried]) -> Figure:
    """Every candidate as a point, a row for each head."""
    found = ordered(found)
    what = found[0].measure if found else ""
    return Figure(
        f"{group.key}-search",
        "What the search tried",
        "Every point is one candidate: a net, rates and options of the head, trained on the same short "
        "schedule. Large: the best. The line is the middle candidate. A head whose points lie close together "
        "is easy to train well; a head with few points near its best needs luck.",
        (Panel(f"Validation {what} of the candidates", _strips(found), _said(found)),) if found else (),
        4.4,
        _AROUND + _ROW * max(1, len(found)),
        missing="" if found else "No search was made in this study.",
    )


def search_table(group: Group, found: Sequence[Tried]) -> Table | None:
    """A row for each head that was searched; None where none was."""
    found = ordered(found)
    if not found:
        return None
    what = found[0].measure
    better = "lower" if what == "NLL" else "higher"
    lines = []
    for one in found:
        loss = _number(one, one.loss)
        cells = (
            Cell(str(one.count), one.count),
            Cell(str(one.diverged), one.diverged),
            Cell(_text(one, one.chosen), one.chosen),
            MISSING if loss is None else Cell(_text(one, one.typical), one.typical),
            MISSING if loss is None else Cell(_text(one, loss), loss),
        )
        lines.append(Line(display(one.head), one.head, cells))
    return Table(
        f"{group.key}-searched",
        f"What the search tried on {group.title}",
        f"Validation {what}. The middle candidate and the best one are compared on the same short schedule; "
        "the chosen candidate has the schedule that was best for it.",
        (
            Column("candidates tried"),
            Column("diverged", better="lower"),
            Column(f"{what} of the chosen", better=better),
            Column(f"{what} of the middle candidate", better=better),
            Column("middle worse than best by", better="lower"),
        ),
        tuple(lines),
    )


def sensitive_heads(found: Sequence[Tried]) -> str:
    """A sentence on the least and the most sensitive head; empty with fewer than two heads.

    A head that had less than half the candidates of another head, because the time was over, is not compared.
    """
    most_tried = max((one.count for one in found), default=0)
    known = [one for one in found if 2 * one.count >= most_tried and _number(one, one.loss) is not None]
    if len(known) < 2:
        return ""
    least, most = min(known, key=lambda one: one.loss), max(known, key=lambda one: one.loss)
    unit = "NLL" if least.measure == "NLL" else "points"
    return (
        f"Least sensitive to its rates: {display(least.head)}, whose middle candidate is "
        f"{_text(least, least.loss)} {unit} behind its best. Most sensitive: {display(most.head)} "
        f"({_text(most, most.loss)} {unit})."
    )


def ordered(found: Sequence[Tried]) -> list[Tried]:
    """The searches in the order of the tables."""
    by_head = {one.head: one for one in found}
    return [by_head[head] for head in in_order({head: head for head in by_head})]


def _number(one: Tried, value: float) -> float | None:
    return value if np.isfinite(value) and len(one.scores) > 1 else None


def _text(one: Tried, value: float) -> str:
    return f"{value:.3f}" if one.measure == "NLL" else f"{100 * value:.2f}"


def _said(found: Sequence[Tried]) -> str:
    rows = [
        f"{display(one.head)} {counted(one.count, 'candidate')}, best {_text(one, one.scores[0])}"
        for one in found
    ]
    return f"Candidates of the search: {'; '.join(rows)}."


def _strips(found: Sequence[Tried]) -> Draw:
    def draw(axes: Axes) -> None:
        for place, one in enumerate(found):
            y, color = len(found) - place, look(one.head).color
            axes.plot(one.scores, [y] * len(one.scores), "o", color=color, markersize=4, alpha=0.5)
            axes.plot(
                one.scores[:1], [y], "o", color=color, markersize=7.5, markeredgecolor=SURFACE, zorder=3
            )
            if np.isfinite(one.typical):
                axes.plot([one.typical] * 2, [y - 0.3, y + 0.3], color=color, linewidth=2)
        names = [display(one.head) + (f" ({one.diverged} diverged)" if one.diverged else "") for one in found]
        axes.set_yticks(range(len(found), 0, -1), names)
        every = np.concatenate([one.scores for one in found])
        if found[0].measure == "NLL":
            low, high = float(every.min()), float(np.quantile(every, 0.97))
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low) or low + 0.01)
        else:
            share(axes.xaxis)
        better = "less" if found[0].measure == "NLL" else "more"
        axes.set(ylim=(0.4, len(found) + 0.6), xlabel=f"validation {found[0].measure} ({better} is better)")
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")

    return draw
