"""The table of a study's results: pure functions on one row for each run.

A value is the mean ± standard error over the seeds (standard deviation with ddof 1; a single seed has no
error). What is bold comes from the verdict: in each column the head to choose, and the heads that are
practically as good. References (what people would use instead of a head) stand below the heads and are never
bold.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import numpy as np
import pandas as pd


@final
@dataclass(frozen=True)
class Measure:
    """A column of the results and how to read it."""

    column: str
    title: str
    higher: bool = True
    percent: bool = True

    def text(self, mean: float, sem: float | None = None) -> str:
        """A value as text: `97.31 ± 0.12` in percent, or with three decimals."""
        scale, digits = (100.0, 2) if self.percent else (1.0, 3)
        value = f"{scale * mean:.{digits}f}"
        return value if sem is None else f"{value} ± {scale * sem:.{digits}f}"


CLASSIFICATION_MEASURES = (
    Measure("accuracy", "accuracy %"),
    Measure("nll", "NLL", higher=False, percent=False),
    Measure("calibrated.chosen.nll", "NLL after calibration", higher=False, percent=False),
    Measure("calibration_error_l2", "calibration error %", higher=False),
    Measure(
        "calibrated.temperature.calibration_error_l2",
        "calibration error after temperature scaling %",
        higher=False,
    ),
    Measure("calibrated.chosen.calibration_error_l2", "calibration error after calibration %", higher=False),
    Measure("retrieval.map_at_r", "mAP@R %"),
    Measure("auroc_confidence", "AUROC of the norm", percent=False),
    Measure("auroc_probability", "AUROC of the top probability", percent=False),
)
RETRIEVAL_MEASURES = (
    Measure("map_at_r", "mAP@R %"),
    Measure("cosine.map_at_r", "mAP@R % by cosine"),
    Measure("recall_at_1", "Recall@1 %"),
)
_SCALED, _CALIBRATED = (f"calibrated.{name}.calibration_error_l2" for name in ("temperature", "chosen"))


def measures(table: pd.DataFrame) -> tuple[Measure, ...]:
    """The columns to show for the task of these results, without those that have no value.

    The calibration error after plain temperature scaling is shown only where no calibrator was chosen.
    """
    task = table["task"].dropna() if "task" in table else pd.Series(dtype=object)
    known = RETRIEVAL_MEASURES if len(task) and task.iloc[0] == "retrieval" else CLASSIFICATION_MEASURES
    shown = [m for m in known if m.column in table and table[m.column].notna().any()]
    if any(m.column == _CALIBRATED for m in shown):
        shown = [m for m in shown if m.column != _SCALED]
    return tuple(shown)


@final
@dataclass(frozen=True)
class Row:
    """One label's value in one measure."""

    label: str
    mean: float
    sem: float | None
    """The standard error; None for a single seed."""
    seeds: int
    marked: bool = False
    """Whether the verdict chooses this label in this column, or calls it practically as good."""


def summarize(table: pd.DataFrame, measure: Measure, leading: Collection[str] = ()) -> list[Row]:
    """A row for each label, in the order of the table; labels without a finished run are left out.

    `leading` are the labels that the verdict on this measure marks.
    """
    return [
        Row(str(label), float(v.mean()), standard_error(v), len(v), label in leading)
        for label, values in table.dropna(subset=[measure.column]).groupby("label", sort=False)[
            measure.column
        ]
        if len(v := values.to_numpy(dtype=float))
    ]


@final
@dataclass(frozen=True)
class Results:
    """The table that the terminal, a notebook and the report show: heads first, then references."""

    measures: tuple[Measure, ...]
    heads: tuple[str, ...]
    references: tuple[str, ...]
    rows: Mapping[tuple[str, str], Row]
    """Values by label and column; a value that is missing has no row."""
    footnote: tuple[str, ...]
    """What a reader must know, in sentences."""

    def row(self, label: str, measure: Measure) -> Row | None:
        """A value; None where it is missing."""
        return self.rows.get((label, measure.column))


@final
@dataclass(frozen=True)
class Findings:
    """What a table takes from the verdict and from the study."""

    leading: Mapping[str, Collection[str]] = field(default_factory=dict)
    """The labels to mark, by column."""
    references: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """Values of each reference, by column."""
    notes: Sequence[str] = ()
    """Sentences on the study, such as how rates were searched."""

    def told(self, *sentences: str) -> "Findings":
        """The same findings with these sentences as notes; empty sentences are left out."""
        return replace(self, notes=tuple(filter(None, sentences)))


NOTHING = Findings()


def results(table: pd.DataFrame, found: Findings = NOTHING) -> Results:
    """The table of the runs in `table`, with what the verdict says of them."""
    shown = measures(table)
    rows: dict[tuple[str, str], Row] = {}
    for measure in shown:
        for row in summarize(table, measure, found.leading.get(measure.column, ())):
            rows[row.label, measure.column] = row
        for label, values in found.references.items():
            if (value := values.get(measure.column)) is not None and math.isfinite(value):
                rows[label, measure.column] = Row(label, value, None, 1)
    columns = {measure.column for measure in shown}
    references = tuple(label for label in found.references if any((label, c) in rows for c in columns))
    heads = tuple(dict.fromkeys(str(label) for label in table["label"])) if len(table) else ()
    return Results(shown, heads, references, rows, tuple(_footnote(table, shown, rows, references, found)))


def standard_error(
    values: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]], ddof: int = 1
) -> float | None:
    """The standard error of the mean, from the standard deviation; None for a single value."""
    return float(np.std(values, ddof=ddof)) / math.sqrt(len(values)) if len(values) > 1 else None


def _footnote(
    table: pd.DataFrame,
    shown: Sequence[Measure],
    rows: Mapping[tuple[str, str], Row],
    references: Sequence[str],
    found: Findings,
) -> list[str]:
    finished = table[table["state"] == "finished"] if "state" in table else table
    counts = finished.groupby("label", sort=False).size() if len(finished) else pd.Series(dtype=int)
    said = []
    if len(counts) and counts.max() > 1:
        seeds = str(counts.iloc[0]) if counts.nunique() == 1 else f"{counts.min()} to {counts.max()}"
        said.append(f"Mean ± standard error over {seeds} seeds.")
    elif len(counts):
        said.append("One seed of each head, so there is no error bar.")
    marked = {column for (_, column), row in rows.items() if row.marked}
    if marked and len(counts) > 1:
        said.append(
            "Bold: the head to choose by this column, and every head that is practically as good. "
            "Other heads are worse, or it is not known yet: the advice says which."
        )
        if plain := [m.title for m in shown if m.column not in marked]:
            said.append(f"No bold where there is no verdict: {', '.join(plain)}.")
    if references:
        last = (
            "The last row is no head. It is"
            if len(references) == 1
            else "The last rows are no heads. They are"
        )
        said.append(f"{last} what people would use instead, on the same split, and never bold.")
    said += found.notes
    if {"retrieval.items", "retrieval.map_at_r"} <= {*finished} and finished[
        "retrieval.map_at_r"
    ].notna().any():
        said.append(f"mAP@R among {int(finished['retrieval.items'].max()):,} test items.")
    missing = len(table) - len(finished)
    if missing:
        said.append(f"{missing} of {len(table)} runs are not finished or failed, and not in the table.")
    return said
