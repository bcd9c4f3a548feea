"""The paper's tables against an independent transcription, and the arithmetic of the comparison."""

import re
from pathlib import Path

import pandas as pd
import pytest

from spaceform.run.recipe import PAPER
from spaceform.study import published

COLUMNS = {
    "AUROC of the norm": "auroc_confidence",
    "accuracy": "accuracy",
    "ECE": "calibration_error_l2",
    "ECE with temperature scaling": "calibrated.temperature.calibration_error_l2",
    "mAP@R": "map_at_r",
    "mAP@R with cosine at test": "cosine.map_at_r",
}


def transcription() -> dict[tuple[int, str, str, str], tuple[float, float | None]]:
    """(table, column, data, head) -> mean and standard error, in the units of the page."""
    text = (Path(__file__).parents[1] / "reference" / "published_tables.txt").read_text("utf-8")
    cells: dict[tuple[int, str, str, str], tuple[float, float | None]] = {}
    for block in text.split("\n\n")[1:]:
        title, *rows = block.strip().splitlines()
        number, name, sets = re.fullmatch(r"Table (\d): (.*) \| (.*)", title).groups()
        for row in rows:
            head, *values = row.split()
            for data, value in zip(sets.split(), values, strict=True):
                mean, digits, error = re.fullmatch(r"(\d*\.(\d+))(?:\((\d+)\))?", value).groups()
                sem = None if error is None else int(error) * 10.0 ** -len(digits)
                cells[int(number), COLUMNS[name], data, head] = float(mean), sem
    return cells


def test_every_cell_is_as_printed():
    ours = {(f.table, f.column, f.data, f.head): f for f in published.PUBLISHED}
    theirs = transcription()
    assert len(ours) == len(published.PUBLISHED) == 101
    assert ours.keys() == theirs.keys()
    for key, (mean, sem) in theirs.items():
        scale = 1 if key[0] == 1 else 100
        assert ours[key].mean * scale == pytest.approx(mean, abs=1e-9)
        assert (ours[key].sem is None) == (sem is None)
        if sem is not None:
            assert ours[key].sem * scale == pytest.approx(sem, abs=1e-9)


def test_every_data_set_and_head_of_the_tables_has_a_recipe():
    assert set(published.DATA) == {name.partition("/")[0] for name in PAPER}
    assert {f"{f.data}/{f.head}" for f in published.PUBLISHED} <= set(PAPER)


def test_differences_are_in_standard_errors_of_both_together():
    table = pd.DataFrame(
        {
            "label": ["vmf"] * 2 + ["cosine", "power_spherical"],
            "accuracy": [0.99, 0.992, 0.9899, 1.0],
            "auroc_confidence": [0.96, 0.98, None, 0.5],
        }
    )
    pairs = {(p.measure.column, p.label): p for p in published.beside(table, "mnist")}
    assert set(pairs) == {("accuracy", "vmf"), ("accuracy", "cosine"), ("auroc_confidence", "vmf")}
    vmf = pairs["accuracy", "vmf"]
    # mean 0.991, standard deviation (ddof 0, as the paper's) 0.001, over √2; the paper's: 0.9902 ± 0.0004
    assert vmf.mean == pytest.approx(0.991)
    assert vmf.sem == pytest.approx(0.001 / 2**0.5)
    assert vmf.errors == pytest.approx(0.0008 / (0.0004**2 + 0.001**2 / 2) ** 0.5)
    one = pairs["accuracy", "cosine"]
    assert (one.sem, one.seeds) == (None, 1)
    assert one.errors == pytest.approx(0.0, abs=1e-6)
    rounded = pairs["auroc_confidence", "vmf"]
    assert rounded.printed.uncertainty == pytest.approx(0.005 / 3**0.5)


def test_short_runs_say_so():
    assert published.shortened(5, 1000) == ""
    assert published.shortened(2, 1000) == "Shortened: 2 instead of 5 replications."
    said = published.shortened(1, 20)
    assert "1 instead of 5 replications and at most 20 epochs instead of 1000" in said
