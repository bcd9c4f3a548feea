"""What each head costs: time to fit it, and time to predict with it."""

from dataclasses import replace

from spaceform.report.looks import display
from spaceform.report.readable import number
from spaceform.report.records import Group
from spaceform.report.tables.results import MISSING, Cell, Column, Line, Table
from spaceform.study.judge import Advice


def costs(group: Group, advice: Advice | None) -> Table | None:
    """The time of a fit and of a prediction: a row for each head, then for each reference.

    None where no run has finished.
    """
    if advice is None:
        return None
    heads = {record.label: record.head for record in group.records}
    labels = [label for label in group.labels if label in advice.costs]
    items = max((record.metrics.get("items", 0) for record in group.records), default=0)
    lines = []
    for label in labels:
        cost = advice.costs[label]
        cells = (_seconds(cost.fit_seconds), _predicting(cost.predict_seconds, items))
        lines.append(Line(display(label), heads[label], cells))
    lines += [
        Line(one.title, "", (_seconds(one.seconds), MISSING), reference=True) for one in advice.references
    ]
    columns = (
        Column("one fit, s", better="lower"),
        Column("prediction of one item, µs", better="lower"),
    )
    shown = 2 if any(cost.predict_seconds for cost in advice.costs.values()) else 1
    return Table(
        f"{group.key}-costs",
        f"What the heads cost on {group.title}",
        "Mean over the runs of each head, on the machine that ran them, with other runs at work beside them. "
        "A fit is one run, without the search. A prediction is measured on many items at once."
        + (" The time of a grey row includes the choice of its settings." if advice.references else ""),
        columns[:shown],
        tuple(replace(line, cells=line.cells[:shown]) for line in lines),
    )


def _seconds(value: float) -> Cell:
    return Cell(number(value), value)


def _predicting(seconds: float, items: int) -> Cell:
    return Cell(number(1e6 * seconds / items), seconds / items) if seconds and items else MISSING
