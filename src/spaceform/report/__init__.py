"""The report of studies and runs: tables, figures, and one page that holds them all."""

import spaceform.foundation.lab
import spaceform.foundation.matplotlib  # noqa: F401 (before matplotlib is imported)

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from spaceform.report.contents import compute
from spaceform.report.figures import figure
from spaceform.report.page.page import render
from spaceform.report.records import collect
from spaceform.report.replacing import FIGURES_FOLDER, PAGE, TABLES_FOLDER, replaced_whole
from spaceform.report.tables import typeset

__all__ = ["Written", "write", "write_report"]


class Written(NamedTuple):
    """A report, and what could not be read for it."""

    page: Path
    unread: tuple[str, ...]
    """A sentence for each file that is damaged; the page has it as a note."""


def write(folders: Iterable[str | Path], out: str | Path | None = None) -> Path:
    """The path of the `report.html` that `write_report` writes."""
    return write_report(folders, out).page


def write_report(folders: Iterable[str | Path], out: str | Path | None = None) -> Written:
    """Report on studies and single runs from their saved results alone.

    Beside the page are `figures/` (SVG, PDF, PNG) and `tables/` (Markdown, LaTeX, CSV). Without `out` they
    go to `report/` in the folder itself, or in the current one where several are given. What is missing (a
    crashed run, images, seeds) leaves a note in its place. The report is written whole or not at all.
    """
    paths = [Path(folder) for folder in folders]
    collection = collect(paths)
    contents = compute(collection)
    if out is None:
        out = paths[0] / "report" if len(paths) == 1 else "report"
    out, page = Path(out), render(contents)
    with replaced_whole(out) as part:
        for drawn in contents.figures:
            figure.save_figure(drawn, part / FIGURES_FOLDER)
        for table in contents.all_tables:
            typeset.save_table(table, part / TABLES_FOLDER)
        (part / PAGE).write_text(page, "utf-8")
    return Written(out / PAGE, collection.notes)
