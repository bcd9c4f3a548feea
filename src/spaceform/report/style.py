"""Names, hues and markers: one look for the files, the page and both of its modes.

Figures are drawn in the light colours below. On the page each of them becomes a CSS variable, so that one
drawing serves light and dark.
"""

import math
from typing import Any, Final

INK: Final = "#1c1c22"
MUTED: Final = "#686873"
LINE: Final = "#e2e2e8"
PAPER: Final = "#ffffff"
GOOD: Final = "#1a7f4e"
BAD: Final = "#c2341d"

NAMES: Final = {
    "standard": "Standard",
    "hyperbolic": "Hyperbolic",
    "cosine": "Cosine",
    "arcface": "ArcFace",
    "vmf": "vMF",
    "power_spherical": "Power Spherical",
}

GEOMETRIES: Final = {"standard": "euclidean", "hyperbolic": "hyperbolic"}
"""Of the heads that are not spherical."""

COLORS: Final = {
    "standard": "#f72585",
    "hyperbolic": "#3a0ca3",
    "cosine": "#3da1c0",
    "arcface": "#23758f",
    "vmf": "#0d4a61",
    "power_spherical": "#57b894",
}
"""The paper's hue for each geometry; the spherical heads are its shades, Power Spherical towards green."""

MARKERS: Final = {
    "standard": "o",
    "hyperbolic": "D",
    "cosine": "s",
    "arcface": "^",
    "vmf": "v",
    "power_spherical": "P",
}
DASHES: Final[dict[str, Any]] = {
    "standard": "-",
    "hyperbolic": "-",
    "cosine": "-",
    "arcface": (0, (5, 1.6)),
    "vmf": (0, (7, 1.4, 1.2, 1.4)),
    "power_spherical": (0, (1.4, 1.4)),
}
VARIANTS: Final[tuple[Any, ...]] = ("-", (0, (5, 1.6)), (0, (1.4, 1.4)), (0, (7, 1.4, 1.2, 1.4)))

FILLS: Final = ("full", "none", "left", "top")
"""Of the markers of a head's variants, as their dashes."""

CLASS_COLORS: Final = (
    "#3f90da",
    "#ffa90e",
    "#bd1f01",
    "#94a4a2",
    "#832db6",
    "#a96b59",
    "#e76300",
    "#b9ac70",
    "#717581",
    "#52c1c6",
)
"""Told apart under the common colour-vision deficiencies; the eleventh class repeats, with another mark."""

SHADES: Final = ("#a5d6e4", "#7cc4d8", "#54b0c9", "#3597b5", "#247d99", "#18627a", "#0f485b", "#08303e")
"""Of an ordered quantity, light to dark; dark to light on a dark page."""

VARIABLES: Final = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    PAPER: "var(--paper)",
    GOOD: "var(--good)",
    BAD: "var(--bad)",
    **{color: f"var(--shade-{i})" for i, color in enumerate(SHADES)},
    **{color: f"var(--{head.replace('_', '-')})" for head, color in COLORS.items()},
}

RC: Final[dict[Any, Any]] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.5,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "svg.hashsalt": "spaceform",
    "pdf.fonttype": 42,
}


def number(value: float) -> str:
    """Three significant digits and no exponent: 0.0135, 1.35, 1,350."""
    if not math.isfinite(value):
        return "—"
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def geometry(head: str) -> str:
    """`euclidean`, `hyperbolic` or `spherical`."""
    return GEOMETRIES.get(head, "spherical")


def display(label: str) -> str:
    """A label for people: `vmf β=16` → `vMF β=16`."""
    head, space, rest = label.partition(" ")
    return NAMES.get(head, head) + space + rest
