"""Numbers of each head after training: what it learned, and the options that the search found for it."""

from statistics import mean, stdev

from spaceform.report.looks import display
from spaceform.report.readable import number
from spaceform.report.records import Group
from spaceform.report.tables.results import MISSING, Cell, Column, Line, Table

_TITLES = {
    "beta": "inverse temperature β",
    "centres": "centres of a class",
    "curvature": "curvature c",
    "clip": "longest norm",
}


def numbers_table(group: Group) -> Table | None:
    """A row for each head that has such numbers, means over its runs; None where no run has left any."""
    values = {
        label: [record.metrics["numbers"] for record in group.of(label) if record.metrics.get("numbers")]
        for label in group.labels
    }
    names = list(dict.fromkeys(name for runs in values.values() for run in runs for name in run))
    heads = {record.label: record.head for record in group.records}
    lines = [
        Line(
            display(label),
            heads[label],
            tuple(_cell([float(run[n]) for run in runs if n in run]) for n in names),
        )
        for label, runs in values.items()
        if runs
    ]
    if not lines:
        return None
    return Table(
        f"{group.key}-found",
        f"Numbers of the heads after training on {group.title}",
        "Means over the runs of each head. β is learned. A curvature is learned if the recipe says so. A "
        "margin, the number of centres and the norm that embeddings are clipped to stay as the search or the "
        "recipe set them.",
        tuple(Column(_TITLES.get(name, name)) for name in names),
        tuple(lines),
    )


def _cell(found: list[float]) -> Cell:
    if not found:
        return MISSING
    middle = mean(found)
    if len(found) < 2 or min(found) == max(found):
        return Cell(_text(middle), middle, seeds=len(found))
    sem = stdev(found) / len(found) ** 0.5
    return Cell(f"{_text(middle)} ± {_text(sem)}", middle, sem, len(found))


def _text(value: float) -> str:
    """A number as text. Curvatures may be very small; then an exponent is easier to read than many zeros."""
    if value == round(value) < 1000:
        return str(round(value))
    return f"{value:.2g}" if 0 < abs(value) < 1e-3 else number(value)
