"""Figures that show test items, of as few items as there can be."""

import pytest
from matplotlib.figure import Figure

from spaceform.report.contents import compute
from spaceform.report.page.page import render
from spaceform.report.records import collect

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("items", [1, 2])
def test_the_fewest_test_items_make_a_whole_page(tmp_path, make_study, items) -> None:
    make_study(tmp_path / "s", heads=("cosine",), seeds=1, items=items, dim=5)
    contents = compute(collect([tmp_path / "s"]))
    (part,) = contents.parts
    assert [(len(one.smallest.thumbnails), len(one.largest.thumbnails)) for one in part.extremes] == [
        (1, 1)
    ] * (items - 1)
    assert part.extremes_figure.missing == ("" if items == 2 else "There are too few test items.")
    assert render(contents).count("There are too few test items.") == 3 - items  # the other: neighbours
    for panel in [panel for figure in part.figures for panel in figure.panels]:
        panel.draw(Figure().add_subplot())
