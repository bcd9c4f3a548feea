"""What the recommended run gets wrong: which classes it confuses, and how good it is at each."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Int64
from matplotlib.axes import Axes

from spaceform.report.figures.axes import share
from spaceform.report.figures.figure import Draw, Figure, Panel
from spaceform.report.looks import display, look
from spaceform.report.records import Group, Record
from spaceform.report.style import INK, MUTED, SHADES, SURFACE
from spaceform.report.tables.results import Cell, Column, Line, Table

_MATRIX_CLASSES = 12
"""How many classes a matrix has room for."""
_WORST = 15
"""How many classes and pairs are shown if there are more."""
_LETTERS = 16
"""How many letters of a class name the figure shows."""


@final
@dataclass(frozen=True, eq=False)
class Confusion:
    """How often an item of one class (a row) was taken for another (a column)."""

    record: Record
    classes: tuple[str, ...]
    counts: Int64[np.ndarray, "classes classes"]

    @property
    def accuracy(self) -> np.ndarray:
        """The accuracy of each class; NaN where the test split has none of it."""
        total = self.counts.sum(1)
        return np.where(total > 0, self.counts.diagonal() / np.maximum(total, 1), np.nan)

    @property
    def pairs(self) -> list[tuple[int, int, int]]:
        """All kinds of mistakes: true class, predicted class and how often; the most frequent first."""
        wrong = self.counts - np.diag(self.counts.diagonal())
        found = [(int(i), int(j), int(wrong[i, j])) for i, j in zip(*np.nonzero(wrong), strict=True)]
        return sorted(found, key=lambda pair: -pair[2])


def confusion(record: Record | None) -> Confusion | None:
    """The confusion of a run on the test split; None where the run left no probabilities."""
    outputs = None if record is None else record.outputs
    if record is None or outputs is None or outputs.predicted is None:
        return None
    n = len(outputs.classes)
    counts = np.zeros((n, n), np.int64)
    np.add.at(counts, (outputs.labels, outputs.predicted), 1)
    return Confusion(record, outputs.classes, counts)


def confusion_figure(group: Group, found: Confusion | None) -> Figure:
    """The matrix and the accuracy of each class; where there are many classes, the accuracy of the worst."""
    key, title = f"{group.key}-classes", "Class by class"
    if found is None:
        return Figure(key, title, "", (), missing="The recommended run has left no predictions to show.")
    few = len(found.classes) <= _MATRIX_CLASSES
    shown = _worst(found)
    panels = [
        Panel("Accuracy by class" if few else "The classes with the lowest accuracy", _bars(found, shown))
    ]
    if few:
        panels.insert(0, Panel("Confusion matrix", _matrix(found)))
    name = f"{display(found.record.label)}, the run {found.record.name}"
    more = "" if few else " The pairs of classes that are confused most often are in the table."
    return Figure(
        key,
        title,
        f"On the test split, by the recommended head: {name}.{more}",
        tuple(panels),
        4.4,
        max(2.4, 0.7 + 0.24 * len(shown)),
        2,
    )


def confused_table(group: Group, found: Confusion | None) -> Table | None:
    """The pairs that are confused most often; None where there is no mistake."""
    pairs = [] if found is None else found.pairs[:_WORST]
    if found is None or not pairs:
        return None
    total = found.counts.sum(1)
    lines = tuple(
        Line(
            found.classes[i],
            "",
            (
                Cell(found.classes[j]),
                Cell(f"{n:,}", n),
                Cell(f"{100 * n / total[i]:.1f}", n / float(total[i])),
            ),
        )
        for i, j, n in pairs
    )
    return Table(
        f"{group.key}-confused",
        f"The most confused classes of {group.title}",
        f"Mistakes of the run {found.record.name} on the test split, the most frequent first.",
        (Column("taken for"), Column("times"), Column("% of its class")),
        lines,
        first="true class",
    )


def _worst(found: Confusion) -> list[int]:
    """The classes to show: if they are few all in their order, otherwise the worst, the worst first."""
    there = [i for i in range(len(found.classes)) if not np.isnan(found.accuracy[i])]
    if len(found.classes) <= _MATRIX_CLASSES:
        return there
    return sorted(there, key=lambda i: float(found.accuracy[i]))[:_WORST]


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else name[: _LETTERS - 1] + "…"


def _matrix(found: Confusion) -> Draw:
    n, total = len(found.classes), np.maximum(found.counts.sum(1, keepdims=True), 1)
    shares = found.counts / total

    def draw(axes: Axes) -> None:
        for i in range(n):
            for j in range(n):
                if not found.counts[i, j]:
                    continue
                level = min(int(shares[i, j] * len(SHADES)), len(SHADES) - 1)
                axes.fill_between([j - 0.5, j + 0.5], i - 0.5, i + 0.5, color=SHADES[level][0], linewidth=0)
                ink = SURFACE if level >= len(SHADES) // 2 else INK
                axes.text(j, i, f"{found.counts[i, j]:,}", ha="center", va="center", fontsize=7, color=ink)
        names = list(map(_short, found.classes))
        axes.set_xticks(range(n), names, rotation=90 if max(map(len, names)) > 3 else 0)
        axes.set_yticks(range(n), names)
        axes.set(xlim=(-0.5, n - 0.5), ylim=(n - 0.5, -0.5), xlabel="predicted", ylabel="true")
        axes.grid(False)

    return draw


def _bars(found: Confusion, shown: list[int]) -> Draw:
    color = look(found.record.head).color

    def draw(axes: Axes) -> None:
        values = [float(found.accuracy[i]) for i in shown]
        places = range(len(shown), 0, -1)
        for y, x in zip(places, values, strict=True):
            axes.plot([0, x], [y, y], color=color, linewidth=6, alpha=0.75, solid_capstyle="butt")
            axes.annotate(
                f"{100 * x:.0f}%",
                (x, y),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color=MUTED,
            )
        axes.set_yticks(places, [_short(found.classes[i]) for i in shown])
        axes.set(xlim=(0, 1.1), ylim=(0.4, len(shown) + 0.6), xlabel="accuracy")
        share(axes.xaxis)
        axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")

    return draw
