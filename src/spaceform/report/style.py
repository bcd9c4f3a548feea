"""Colours and type: one look for the files, the page, and the page's light and dark theme.

Figures are drawn in light colours. On the page every colour becomes a CSS variable, so that one drawing
serves both themes.
"""

from typing import Any, Final

from matplotlib.font_manager import get_font_names

INK: Final = "#1c1c22"
MUTED: Final = "#686873"
LINE: Final = "#e2e2e8"
SURFACE: Final = "#ffffff"

GEOMETRY_COLORS: Final = {
    "euclidean": (
        ("#f72585", "#ff62a8"),
        ("#a3195b", "#d9488c"),
        ("#fb7bb5", "#ffa9d0"),
        ("#6b0f3c", "#ffc9e1"),
    ),
    "hyperbolic": (
        ("#3a0ca3", "#a78bfa"),
        ("#7648dc", "#7c63e0"),
        ("#230764", "#d0c2ff"),
        ("#9a86e6", "#5d43c4"),
    ),
    "spherical": (
        ("#3da1c0", "#52bcdc"),
        ("#23758f", "#2f9cbf"),
        ("#0d4a61", "#a3e0f2"),
        ("#57b894", "#6fd3ad"),
        ("#2c8266", "#3fa983"),
        ("#8bc3d6", "#7ba9ba"),
        ("#3f6f9e", "#7aa5d2"),
    ),
}
"""The paper's hue for each geometry, in shades for its heads: light theme, dark theme."""

OTHER_COLORS: Final = (("#8a6a12", "#d8b24e"), ("#b8922f", "#f0d48a"), ("#5c4508", "#a88734"))
"""Shades for heads whose geometry cannot be known."""

CLASS_COLORS: Final = (
    ("#3f90da", "#6aaef0"),
    ("#ffa90e", "#ffbb44"),
    ("#bd1f01", "#f0624a"),
    ("#94a4a2", "#b3c2c0"),
    ("#832db6", "#b978e6"),
    ("#a96b59", "#cf9583"),
    ("#e76300", "#ff9147"),
    ("#b9ac70", "#d3c78d"),
    ("#717581", "#9498a6"),
    ("#52c1c6", "#7fdde2"),
)
"""Colours of classes, which people with the common colour-vision deficiencies can tell apart. The eleventh
class has the first colour again, with another marker.
"""

SHADES: Final = (
    ("#a5d6e4", "#2a7f99"),
    ("#7cc4d8", "#3793ae"),
    ("#54b0c9", "#4aa8c3"),
    ("#3597b5", "#62bbd4"),
    ("#247d99", "#7ecbe1"),
    ("#18627a", "#9ad9ea"),
    ("#0f485b", "#b7e6f2"),
    ("#08303e", "#d6f3fa"),
)
"""Colours of an ordered quantity: light to dark in the light theme, dark to light in the dark theme."""


def _numbered(name: str, colors: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, str]]:
    return {f"{name}-{i}": pair for i, pair in enumerate(colors)}


_TONES: Final[dict[str, tuple[str, str]]] = {
    "surface": (SURFACE, "#1a1a20"),
    "page": ("#fafafb", "#131317"),
    "ink": (INK, "#ececf1"),
    "soft": ("#3d3d47", "#c9c9d3"),
    "muted": (MUTED, "#9c9ca8"),
    "line": (LINE, "#33333d"),
    "wash": ("#f2f2f6", "#23232b"),
    "accent": ("#2a5db8", "#8db4ff"),
    "bad": ("#c2341d", "#ff8068"),
    "shadow": (
        "0 1px 2px rgb(20 20 40 / 6%), 0 6px 24px rgb(20 20 40 / 6%)",
        "0 1px 2px rgb(0 0 0 / 40%), 0 6px 24px rgb(0 0 0 / 30%)",
    ),
    **{
        name: pair
        for kind, colors in GEOMETRY_COLORS.items()
        for name, pair in _numbered(kind, colors).items()
    },
    **_numbered("other", OTHER_COLORS),
    **_numbered("class", CLASS_COLORS),
    **_numbered("shade", SHADES),
}
"""CSS variables: light theme, dark theme."""

_PRINTED: Final = {
    "page": "#fff",
    "ink": "#000",
    "soft": "#222",
    "muted": "#555",
    "line": "#ccc",
    "wash": "#f4f4f4",
    "accent": "#000",
    "shadow": "none",
}
"""The variables that differ from the light theme on paper."""

VARIABLES: Final = {light: f"var(--{name})" for name, (light, _) in _TONES.items()}
"""The CSS variable of every colour that figures are drawn in."""


def themes() -> str:
    """The CSS variables of the light theme, the dark one (by preference or by button) and of print."""
    light = {name: tone for name, (tone, _) in _TONES.items()}
    dark = _declared("dark", {name: tone for name, (_, tone) in _TONES.items()})
    return "\n".join(
        (
            f":root {{ {_declared('light', light)} }}",
            f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ {dark} }} }}',
            f':root[data-theme="dark"] {{ {dark} }}',
            f"@media print {{ :root:root:root {{ {_declared('light', light | _PRINTED)} }} }}\n",
        )
    )


def _declared(scheme: str, tones: dict[str, str]) -> str:
    return f"color-scheme: {scheme}; " + " ".join(f"--{name}: {tone};" for name, tone in tones.items())


_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "Microsoft YaHei",
    "PingFang SC",
    "Hiragino Sans",
    "Malgun Gothic",
    "Noto Sans Devanagari",
    "Noto Sans Thai",
)
"""Fonts for letters that DejaVu Sans does not have; those that are installed are used."""

RC: Final[dict[Any, Any]] = {
    "font.family": ["DejaVu Sans", *(font for font in _FONTS if font in get_font_names())],
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
    "figure.facecolor": SURFACE,
    "savefig.facecolor": SURFACE,
    "svg.hashsalt": "spaceform",
    "pdf.fonttype": 42,
}
"""Settings of matplotlib."""
