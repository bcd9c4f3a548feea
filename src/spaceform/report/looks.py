"""What a head is called and how it is drawn. Both follow from its class: there is no list of heads here.

The colour is a shade of its geometry's hue, the marker follows from its position in `HEADS`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, final

import torch

from spaceform.geometry import Geometry
from spaceform.heads import HEADS, Head
from spaceform.report.style import GEOMETRY_COLORS, MUTED, OTHER_COLORS, VARIABLES


@final
@dataclass(frozen=True)
class Mark:
    """One marker: for matplotlib, and as an SVG path about the origin."""

    name: str
    path: str


_MARKS: Final = (
    Mark("o", "M0-1A1 1 0 1 0 0 1A1 1 0 1 0 0-1Z"),
    Mark("D", "M0-1.1L1.1 0L0 1.1L-1.1 0Z"),
    Mark("s", "M-.9-.9H.9V.9H-.9Z"),
    Mark("^", "M0-1L1 .85H-1Z"),
    Mark("v", "M0 1L1-.85H-1Z"),
    Mark("P", "M-.38-1H.38V-.38H1V.38H.38V1H-.38V.38H-1V-.38H-.38Z"),
    Mark("<", "M-1 0L.85-1V1Z"),
    Mark(">", "M1 0L-.85-1V1Z"),
    Mark("p", "M0-1L.95-.31L.59.81H-.59L-.95-.31Z"),
    Mark("h", "M0-1L.87-.5V.5L0 1L-.87.5V-.5Z"),
    Mark("X", "M-1-.55L-.55-1L0-.45L.55-1L1-.55L.45 0L1 .55L.55 1L0 .45L-.55 1L-1 .55L-.45 0Z"),
    Mark("*", "M0-1.1L.26-.36L1.05-.34L.42 .14L.65 .89L0 .44L-.65 .89L-.42 .14L-1.05-.34L-.26-.36Z"),
)

_DASHES: Final[tuple[Any, ...]] = ("-", (0, (5, 1.6)), (0, (7, 1.4, 1.2, 1.4)), (0, (1.4, 1.4)))


@final
@dataclass(frozen=True)
class Look:
    """How people see a head: its name, colour and marker."""

    title: str
    symbol: str = "‖z‖"
    """The symbol of the head's confidence."""
    color: str = MUTED
    mark: Mark = _MARKS[0]
    dash: Any = "-"

    @property
    def hue(self) -> str:
        """The colour on the page, in either theme."""
        return VARIABLES[self.color]


def look(head: str) -> Look:
    """The look of a head by its name; a head that is not registered here keeps its bare name and is grey."""
    if head not in HEADS:
        return Look(head)
    kinds = {name: _kind(made) for name, made in HEADS.items()}
    place = [name for name in HEADS if kinds[name] == kinds[head]].index(head)
    colors = GEOMETRY_COLORS.get(kinds[head], OTHER_COLORS)
    return Look(
        HEADS[head].title,
        HEADS[head].confidence_symbol,
        colors[place % len(colors)][0],
        _MARKS[list(HEADS).index(head) % len(_MARKS)],
        _DASHES[place % len(_DASHES)],
    )


def display(label: str) -> str:
    """A row's label with its head's title: `vmf β=16` → `vMF β=16`."""
    head, space, rest = label.partition(" ")
    return look(head).title + space + rest


def in_order(heads: Mapping[str, str]) -> tuple[str, ...]:
    """Labels in the order of their heads in `HEADS`, unknown heads last; variants keep their order."""
    places = {name: place for place, name in enumerate(HEADS)}
    return tuple(sorted(heads, key=lambda label: places.get(heads[label], len(places))))


def geometry_of(head: str, options: Mapping[str, Any]) -> Geometry | None:
    """The geometry of a head made with these options; None where the head is not registered."""
    return _geometry(HEADS[head], options) if head in HEADS else None


def _geometry(head: type[Head], options: Mapping[str, Any]) -> Geometry:
    declared: object = head.geometry  # a property, if it depends on the options
    if isinstance(declared, Geometry):
        return declared
    with torch.random.fork_rng(
        devices=[]
    ):  # a head draws its weights; the draws of the caller must not change
        return head(2, 2, **options).geometry


@cache
def _kind(head: type[Head]) -> str:
    """The kind of a head's geometry; empty where the head cannot be made without options."""
    try:
        return _geometry(head, {}).kind
    except Exception:  # somebody else's constructor may raise anything; the report goes on
        return ""
