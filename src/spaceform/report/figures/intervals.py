"""The figure of the answer: for each goal the interval of every head; what makes no difference is shaded."""

from matplotlib.axes import Axes

from spaceform.report.figures.figure import Draw, Figure, Panel
from spaceform.report.looks import display, look
from spaceform.report.records import Group
from spaceform.report.style import INK, LINE, MUTED, SURFACE
from spaceform.study.judge import Advice
from spaceform.study.verdict.amounts import amount, value
from spaceform.study.verdict.decide import GoalVerdict, ReferenceStanding, Standing

_FARTHEST_SHOWN = 25.0
"""The axis shows this many regions from the best; a head that is farther away is an arrow at the edge."""
_ROW, _AROUND = 0.27, 0.75
"""The height of a row, and of title and axis together, in inches."""


def intervals(group: Group, advice: Advice | None) -> Figure:
    """One panel for each goal that counts and has a value; the page shows one panel at a time."""
    verdicts = weighty_goals(advice)
    heads = {record.label: record.head for record in group.records}
    most = max((len(one.standings) + len(one.references) for one in verdicts), default=1)
    return Figure(
        f"{group.key}-answer",
        "How the heads compare",
        "A point is what a head reached, with the 95 % interval of its true value: for other seeds and "
        "other test items. The choice for this goal is in bold. Shaded: so close to the best that it makes "
        "no difference in practice. Heads are compared on the same items, so a difference between two "
        "of them is known better than their intervals suggest. An arrow: far behind."
        + (" Grey: no heads, but what people would use instead." if advice and advice.references else ""),
        tuple(
            Panel(one.goal.title, _drawn(one, heads, _chosen(one, advice)), _said(one)) for one in verdicts
        ),
        4.4,
        _AROUND + _ROW * most,
        2,
        missing="" if verdicts else "No goal has a value yet.",
    )


def weighty_goals(advice: Advice | None) -> list[GoalVerdict]:
    """The goals that count and have a choice, the weightiest first."""
    if advice is None:
        return []
    counted = [one for one in advice.verdict.goals if one.goal.weight > 0 and one.choice is not None]
    return sorted(counted, key=lambda one: -one.goal.weight)


def _chosen(one: GoalVerdict, advice: Advice | None) -> str | None:
    """The head that the advice names for a goal, ties broken."""
    found = advice.recommendation.goals if advice and advice.recommendation else {}
    choice = found.get(one.goal.column)
    return one.choice if choice is None else choice.label


def _drawn(one: GoalVerdict, heads: dict[str, str], chosen: str | None) -> Draw:
    goal = one.goal
    ranked = sorted(one.standings, key=lambda s: -goal.sign * s.mean)
    beside = sorted(one.references, key=lambda r: -goal.sign * r.mean)
    rows: list[Standing | ReferenceStanding] = [*ranked, *beside]
    best = max(goal.sign * s.mean for s in ranked) * goal.sign
    low, high = _range(one, best)

    def draw(axes: Axes) -> None:
        axes.axvspan(best - goal.region, best + goal.region, color=LINE, zorder=0, linewidth=0)
        names = []
        for place, row in enumerate(rows):
            head = isinstance(row, Standing)
            own = look(heads[row.label]) if head else None
            color, mark = (own.color, own.mark.name) if own else (MUTED, "o")
            _interval(axes, row, len(rows) - place, color, mark, (low, high))
            names.append(display(row.label) if head else row.label)
        axes.set_yticks(range(len(names), 0, -1), names)
        for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
            tick.set_color(INK if isinstance(row, Standing) else MUTED)
            tick.set_fontweight("bold" if row.label == chosen else "normal")
        if beside:
            axes.axhline(len(beside) + 0.5, color=MUTED, linewidth=0.6)
        for place, row in enumerate(rows):
            axes.annotate(
                value(goal, row.mean),
                (1.02, len(names) - place),
                xycoords=("axes fraction", "data"),
                va="center",
                fontsize=8,
                color=INK if isinstance(row, Standing) else MUTED,
                annotation_clip=False,
            )
        axes.set(xlim=(low, high), ylim=(0.4, len(names) + 0.6))
        unit = f", {goal.unit.sign}" if goal.unit.sign else ""
        axes.set_xlabel(f"{goal.title}{unit} ({'more' if goal.higher else 'less'} is better)")
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")

    return draw


def _range(one: GoalVerdict, best: float) -> tuple[float, float]:
    """Limits of the axis: all intervals, except those of heads that are very far behind."""
    rows: list[Standing | ReferenceStanding] = [*one.standings, *one.references]
    low, high = min(r.low for r in rows), max(r.high for r in rows)
    far = _FARTHEST_SHOWN * one.goal.region
    low, high = (max(low, best - far), high) if one.goal.higher else (low, min(high, best + far))
    room = 0.04 * (high - low) or one.goal.region
    return max(low - room, one.goal.least), min(high + room, one.goal.most)


def _interval(
    axes: Axes,
    row: Standing | ReferenceStanding,
    y: int,
    color: str,
    mark: str,
    limits: tuple[float, float],
) -> None:
    low, high = limits
    if not low <= row.mean <= high:
        inside = 0.02 * (high - low)
        edge, arrow = (low + inside, "<") if row.mean < low else (high - inside, ">")
        axes.plot([edge], [y], marker=arrow, color=color, markersize=6, clip_on=False, linestyle="none")
        return
    axes.plot([max(row.low, low), min(row.high, high)], [y, y], color=color, linewidth=2.4, alpha=0.55)
    axes.plot(
        [row.mean],
        [y],
        color=color,
        marker=mark,
        markersize=6.5,
        markeredgecolor=SURFACE,
        linestyle="none",
        clip_on=False,
        zorder=3,
    )


def _said(one: GoalVerdict) -> str:
    """The panel in words."""
    rows = [f"{display(s.label)} {value(one.goal, s.mean)}" for s in one.standings]
    rows += [f"{r.label} {value(one.goal, r.mean)}" for r in one.references]
    region = amount(one.goal, one.goal.region)
    return f"{one.goal.title} with intervals: {', '.join(rows)}. Differences up to {region} do not matter."
