"""A figure is a title and panels; it is saved as SVG, PDF and PNG, and goes into the page panel by panel."""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, TypeAlias, final

import matplotlib as mpl
import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from spaceform.report.style import RC, VARIABLES

Draw: TypeAlias = Callable[[Axes], None]


@final
@dataclass(frozen=True, eq=False)
class Panel:
    """One set of axes; `alt` says in words what they show."""

    title: str
    draw: Draw
    alt: str = ""


@final
@dataclass(frozen=True, eq=False)
class Figure:
    """Panels side by side, each `width` × `height` inches."""

    key: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    width: float = 3.3
    height: float = 2.7
    columns: int = 3
    number: str = ""
    """The number in the paper, such as "Figure 4"; empty for a figure of our own."""
    missing: str = ""
    """Why there are no panels, if there are none."""


def picture(pixels: UInt8[np.ndarray, "height width 4"]) -> Draw:
    """An image as it is, without axes."""

    def draw(axes: Axes) -> None:
        axes.imshow(pixels, interpolation="nearest")
        axes.set_axis_off()

    return draw


def save_figure(figure: Figure, folder: Path) -> list[Path]:
    """Write `KEY.svg`, `KEY.pdf` and `KEY.png`; a figure without panels writes nothing."""
    if not figure.panels:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    columns = min(figure.columns, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    with _drawing({"svg.hashsalt": figure.key}), _glyphs_alone():
        canvas = Canvas(figsize=(columns * figure.width, rows * figure.height), layout="constrained")
        for place, panel in enumerate(figure.panels, 1):
            axes = canvas.add_subplot(rows, columns, place)
            panel.draw(axes)
            axes.set_title(panel.title)
        _legend(canvas)
        canvas.draw_without_rendering()
        canvas.set_layout_engine(
            "none"
        )  # the layout is computed already; do not compute it again for every format
        paths = [folder / f"{figure.key}.{kind}" for kind in ("svg", "pdf", "png")]
        for path, dated in zip(paths, ("Date", "CreationDate", None), strict=True):
            metadata = {} if dated is None else {dated: None}
            canvas.savefig(path, dpi=200, metadata=metadata)
    return paths


def _legend(canvas: Canvas) -> None:
    """One legend for all axes, below them; the canvas grows, so that the axes keep their height."""
    named = _named(canvas)
    if not named:
        return
    width, height = canvas.get_size_inches()
    columns = max(1, min(len(named), int(width / (0.5 + 0.068 * max(map(len, named))))))
    rows = math.ceil(len(named) / columns)
    canvas.set_size_inches(width, height + 0.17 * rows + 0.1)
    columns = math.ceil(len(named) / rows)
    canvas.legend(named.values(), named.keys(), loc="outside lower center", ncols=columns)


def _named(canvas: Canvas) -> dict[str, Any]:
    """Every named line or marker once, except in axes with a legend of their own."""
    found: dict[str, Any] = {}
    for axes in canvas.axes:
        if axes.get_legend() is None:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                found.setdefault(label, handle)
    return found


def legend(figure: Figure) -> list[tuple[str, str]]:
    """Names with a sample of their line as SVG: one legend for all panels, for the page."""
    with _drawing({}):
        drawn = Canvas()
        for panel in figure.panels:
            panel.draw(drawn.add_subplot())
    samples = []
    for place, (label, handle) in enumerate(_named(drawn).items()):
        with _for_page(key := f"{figure.key}-legend-{place}"):
            canvas = Canvas(figsize=(0.32, 0.15))
            canvas.legend([handle], [""], loc="center", borderpad=0, handletextpad=0, borderaxespad=0)
            samples.append((label, _svg(canvas, key, "")))
    return samples


def inline(figure: Figure, place: int) -> str:
    """A panel as SVG for the page: colours are CSS variables, text is text, no style attributes."""
    panel = figure.panels[place]
    with _for_page(key := f"{figure.key}-{place}"):
        canvas = Canvas(figsize=(figure.width, figure.height), layout="constrained")
        panel.draw(canvas.add_subplot())
        return _svg(canvas, key, panel.alt or f"{figure.title}: {panel.title}")


@contextmanager
def _drawing(settings: dict[Any, Any]) -> Iterator[None]:
    """Our settings of matplotlib; a letter that no font has is drawn as a box, without a warning."""
    with mpl.rc_context({**RC, **settings}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font", UserWarning)
        yield


@contextmanager
def _glyphs_alone() -> Iterator[None]:
    """Fonts go into a PDF without their rules for laying out text: to shorten these takes half of the time of
    a PDF, and its text is laid out already. Where fontTools has no such list, it takes the time.
    """
    from fontTools.subset import Options

    before = getattr(Options, "_drop_tables_default", None)
    if before is None:
        yield
        return
    Options._drop_tables_default = [*before, "GDEF", "GPOS", "GSUB", "kern"]
    try:
        yield
    finally:
        Options._drop_tables_default = before


def _for_page(key: str) -> AbstractContextManager[None]:
    return _drawing({"svg.fonttype": "none", "svg.hashsalt": key, "savefig.transparent": True})


def _svg(canvas: Canvas, key: str, alt: str) -> str:
    stream = io.StringIO()
    canvas.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return _themed(stream.getvalue(), key, alt)


_STYLE = re.compile(r' style="([^"]*)"')
_COLOR = re.compile(r"#[0-9a-f]{6}", re.IGNORECASE)
_ID = re.compile(r'(\bid="|url\(#|href="#)')


def _themed(svg: str, key: str, alt: str) -> str:
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    body = _STYLE.sub(lambda found: _attributes(found[1]), body)
    body = _COLOR.sub(lambda found: VARIABLES.get(found[0].lower(), found[0]), body)
    body = _ID.sub(lambda found: f"{found[1]}{key}-", body)
    head = re.match(r"<svg[^>]*>", body)
    assert head is not None
    box = re.search(r'viewBox="([^"]*)"', head[0])
    assert box is not None
    width, height = box[1].split()[2:]
    said = f'role="img" aria-label="{escape(alt)}"' if alt else 'aria-hidden="true"'
    opening = (
        f'<svg viewBox="{box[1]}" width="{width}" height="{height}" {said} '
        f'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    )
    return opening + re.sub(r"\s*\n\s*", "\n", body[head.end() :])


def _attributes(style: str) -> str:
    """CSS declarations as SVG attributes, which the page's content policy allows; the page sets the font."""
    out = []
    for declaration in style.split(";"):
        name, colon, value = declaration.strip().partition(":")
        name, value = name.strip(), value.strip()
        if not colon:
            continue
        if name == "font":
            size = re.search(r"[\d.]+px", value)
            weight = re.match(r"(\d{3}|bold)", value)
            if size:
                out.append(f'font-size="{size[0]}"')
            if weight:
                out.append(f'font-weight="{weight[0]}"')
        elif name != "font-family":
            out.append(f'{name}="{escape(value)}"')
    return (" " + " ".join(out)) if out else ""
