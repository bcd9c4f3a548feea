"""The report of studies and runs: tables, figures, and one page that holds them all."""

import spaceform._lab  # noqa: F401 (names the extra where it is missing)

from collections.abc import Iterable
from pathlib import Path

from spaceform.report import figures, typeset
from spaceform.report.contents import compute
from spaceform.report.page import render
from spaceform.report.records import collect

__all__ = ["write"]


def write(folders: Iterable[str | Path], out: str | Path | None = None) -> Path:
    """Report on studies and single runs from their saved results alone; returns the path of `report.html`.

    Beside the page stand `figures/` (SVG, PDF, PNG) and `tables/` (Markdown, LaTeX, CSV). Without `out` they
    go to `report/` in the folder itself, or in the current one where several are given. What is missing (a
    crashed run, images, seeds) leaves a note in its place.
    """
    paths = [Path(folder) for folder in folders]
    contents = compute(collect(paths))
    if out is None:
        out = paths[0] / "report" if len(paths) == 1 else Path("report")
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    for figure in contents.figures:
        figures.save(figure, out / "figures")
    for table in contents.all_tables:
        typeset.save(table, out / "tables")
    path = out / "report.html"
    path.write_text(render(contents), "utf-8")
    return path
