"""Figures 1 and 3: the test items of smallest and of largest norm or concentration."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import UInt8

from spaceform.report.figures.figure import Figure, Panel, picture
from spaceform.report.figures.images import (
    Encoded,
    Pictures,
    Thumbnails,
    encode_color,
    encode_exact,
    enlarged,
    tiled,
)
from spaceform.report.looks import look
from spaceform.report.records import Group, Shown

_EDGE = 8
"""How many thumbnails an edge of the grid has."""


@final
@dataclass(frozen=True, eq=False)
class Grid:
    """The items with the smallest or with the largest confidence."""

    thumbnails: Thumbnails
    low: float
    high: float
    """`low` and `high` are the smallest and the largest confidence among these items."""
    right: float | None
    """The share of these items that is classified rightly; None where there are no predictions."""

    @property
    def pixels(self) -> UInt8[np.ndarray, "height width 4"]:
        """Thumbnails with transparent gaps between them."""
        return tiled(enlarged(self.thumbnails, 24), _EDGE, gap=2)

    @property
    def encoded(self) -> Encoded:
        """Grey images without loss, photos as WebP."""
        return encode_exact(self.pixels) if self.thumbnails.shape[3] == 1 else encode_color(self.pixels, 75)


@final
@dataclass(frozen=True, eq=False)
class Extremes:
    """Both ends for one head."""

    shown: Shown
    smallest: Grid
    largest: Grid

    @property
    def symbol(self) -> str:
        """The symbol of the confidence that orders the items."""
        return look(self.shown.record.head).symbol


def extremes(group: Group, pictures: Pictures) -> list[Extremes]:
    """For each head the items at both ends. No item is at both ends, so a single item gives none."""
    found = []
    for one in group.shown.values():
        order = np.argsort(one.outputs.confidence, kind="stable")
        if count := min(_EDGE * _EDGE, len(order) // 2):
            ends = order[:count], order[::-1][:count]
            found.append(Extremes(one, *(_grid(one, end, pictures) for end in ends)))
    return found


def _grid(one: Shown, items: np.ndarray, pictures: Pictures) -> Grid:
    outputs = one.outputs
    confidence = outputs.confidence[items]
    return Grid(
        pictures.thumbnails(outputs.index[items]),
        float(confidence.min()),
        float(confidence.max()),
        None if outputs.right is None else float(outputs.right[items].mean()),
    )


def extremes_figure(group: Group, found: list[Extremes], missing: str) -> Figure:
    """Two grids for each head."""
    panels = []
    for one in found:
        title = one.shown.title
        panels.append(Panel(f"{title}: smallest {one.symbol}", picture(one.smallest.pixels)))
        panels.append(Panel(f"{title}: largest {one.symbol}", picture(one.largest.pixels)))
    count = max((len(one.smallest.thumbnails) for one in found), default=0)
    return Figure(
        f"{group.key}-extremes",
        "Smallest and largest norm",
        f"The {count} test images with the smallest and the {count} with the largest confidence: the norm "
        "‖z‖ of the embedding, or the concentration κ of a stochastic head. First seed of each head."
        if count
        else "",
        tuple(panels),
        2.6,
        2.8,
        4,
        number="Figures 1 and 3",
        missing="" if panels else missing or "There are too few test items.",
    )
