"""What every set of axes shares: the look of a row and ticks that read as people write."""

from typing import Any

import numpy as np
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from spaceform.report.records import Group
from spaceform.report.style import COLORS, DASHES, FILLS, MARKERS, MUTED, VARIANTS


def look(group: Group, label: str) -> dict[str, Any]:
    """Colour, dash and marker of a row: the head's own; variants of a head differ in dash and filling."""
    head = next(record.head for record in group.records if record.label == label)
    same = [
        x for x in group.labels if next(record.head for record in group.records if record.label == x) == head
    ]
    place = same.index(label)
    return {
        "color": COLORS.get(head, MUTED),
        "linestyle": DASHES.get(head, "-") if len(same) == 1 else VARIANTS[place % len(VARIANTS)],
        "marker": MARKERS.get(head, "o"),
        "fillstyle": FILLS[place % len(FILLS)],
    }


def share(axis: Axis) -> None:
    """Ticks of a share between 0 and 1: a few round percentages, all with as many decimals as one needs."""
    axis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))

    def text(value: float, _: int | None) -> str:
        ticks = 100 * np.asarray(axis.get_majorticklocs())
        digits = next((d for d in range(4) if np.allclose(ticks, ticks.round(d), atol=1e-6)), 4)
        return f"{100 * value:.{digits}f}%"

    axis.set_major_formatter(FuncFormatter(text))


def within(low: float, high: float) -> tuple[float, float]:
    """Limits of an axis of shares: nothing lies below 0 or above 1."""
    return max(low, 0.0), min(high, 1.0)


def logarithmic(axis: Axis) -> None:
    """Ticks as plain numbers; the steps between decades only where there is less than one."""
    plain = FuncFormatter(lambda value, _: f"{value:,.10f}".rstrip("0").rstrip("."))
    axis.set_major_formatter(plain)
    low, high = axis.get_view_interval()
    axis.set_minor_formatter(plain if 0 < low < high < 12 * low else NullFormatter())


def thinned(x: np.ndarray, y: np.ndarray, most: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """At most so many points of a curve, its ends among them."""
    if len(x) <= most:
        return x, y
    pick = np.unique(np.linspace(0, len(x) - 1, most).round().astype(int))
    return x[pick], y[pick]
