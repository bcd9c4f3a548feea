"""What all axes share: how a row is drawn, and how ticks are written."""

from typing import Any, Final

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from spaceform.report.looks import look
from spaceform.report.records import Group

_DASHES: Final[tuple[Any, ...]] = ("-", (0, (5, 1.6)), (0, (1.4, 1.4)), (0, (7, 1.4, 1.2, 1.4)))
_FILLS: Final = ("full", "none", "left", "top")
"""Fillings of markers, which tell apart the variants of one head and heads that look alike."""


def line_style(group: Group, label: str) -> dict[str, Any]:
    """Colour, dash and marker of a row, by its head; rows of the same head differ in dash and filling."""
    looks = {record.label: look(record.head) for record in group.records}
    own = looks[label]
    alike = [x for x in group.labels if (looks[x].color, looks[x].mark) == (own.color, own.mark)]
    place = alike.index(label)
    return {
        "color": own.color,
        "linestyle": own.dash if len(alike) == 1 else _DASHES[place % len(_DASHES)],
        "marker": own.mark.name,
        "fillstyle": _FILLS[place % len(_FILLS)],
    }


def share(axis: Axis) -> None:
    """Ticks for shares between 0 and 1: a few round percentages, all with the same number of decimals."""
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))

    def text(value: float, _: int | None) -> str:
        ticks = 100 * np.asarray(axis.get_majorticklocs())
        digits = next((d for d in range(4) if np.abs(ticks - ticks.round(d)).max(initial=0) < 1e-6), 4)
        return f"{100 * value:.{digits}f}%"

    axis.set_major_formatter(FuncFormatter(text))


def within(low: float, high: float) -> tuple[float, float]:
    """Limits of an axis of shares: never below 0 or above 1."""
    return max(low, 0.0), min(high, 1.0)


def logarithmic(axis: Axis) -> None:
    """Ticks as plain numbers; between powers of ten only where the axis spans little more than one."""
    plain = FuncFormatter(lambda value, _: f"{value:,.10f}".rstrip("0").rstrip("."))
    axis.set_major_formatter(plain)
    low, high = axis.get_view_interval()
    axis.set_minor_formatter(plain if 0 < low < high < 12 * low else NullFormatter())


def fewer_points(x: np.ndarray, y: np.ndarray, most: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """At most `most` points of a curve, both ends included."""
    if len(x) <= most:
        return x, y
    pick = np.unique(np.linspace(0, len(x) - 1, most).round().astype(int))
    return x[pick], y[pick]
