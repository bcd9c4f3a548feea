"""The paper's Tables 1 to 4 as data, and ours beside them."""

import csv
import math
from dataclasses import dataclass
from importlib.resources import files
from typing import final

import pandas as pd

from spaceform.study.summary import CLASSIFICATION_MEASURES, RETRIEVAL_MEASURES, Measure, standard_error

SEEDS = 5
"""Replications behind every value of the paper."""
DDOF = 0
"""The `ddof` of the standard deviations in the paper's error bars, and in ours beside them."""
EPOCHS = 1000
"""The most epochs of a run in the paper."""


@final
@dataclass(frozen=True)
class Printed:
    """One cell of the paper's tables, as a share (not in percent), like our metrics."""

    table: int
    column: str
    data: str
    head: str
    mean: float
    sem: float | None
    """The standard error; None in Table 1, where the paper calls it negligible."""
    rounding: float
    """Half a unit of the last digit that is printed."""

    @property
    def uncertainty(self) -> float:
        """The standard error; where none is printed, that of rounding: half a unit of the last digit / √3."""
        return self.rounding / math.sqrt(3) if self.sem is None else self.sem


def _read() -> tuple[Printed, ...]:
    text = files("spaceform").joinpath("recipes", "published.csv").read_text("utf-8")
    cells = []
    for row in csv.DictReader(text.splitlines()):
        scale = 1.0 if row["table"] == "1" else 100.0
        digits = len(row["mean"].partition(".")[2])
        sem = float(row["sem"]) / scale if row["sem"] else None
        cells.append(
            Printed(
                int(row["table"]),
                row["column"],
                row["data"],
                row["head"],
                float(row["mean"]) / scale,
                sem,
                0.5 * 10.0**-digits / scale,
            )
        )
    return tuple(cells)


PUBLISHED: tuple[Printed, ...] = _read()
PAPER_HEADS: tuple[str, ...] = tuple(dict.fromkeys(printed.head for printed in PUBLISHED))
"""The heads that the paper has."""
DATA: tuple[str, ...] = tuple(dict.fromkeys(printed.data for printed in PUBLISHED))
"""The paper's data sets."""
MEASURES: tuple[Measure, ...] = tuple(
    measure
    for measure in (*CLASSIFICATION_MEASURES, *RETRIEVAL_MEASURES)
    if any(printed.column == measure.column for printed in PUBLISHED)
)


@final
@dataclass(frozen=True)
class Pair:
    """A cell of the paper beside ours."""

    printed: Printed
    measure: Measure
    label: str
    mean: float
    sem: float | None
    """Our standard error; None with one seed."""
    seeds: int

    @property
    def difference(self) -> float:
        """Ours less the paper's."""
        return self.mean - self.printed.mean

    @property
    def errors(self) -> float:
        """The difference in units of its standard error, which is √(the paper's sem² + our sem²)."""
        return self.difference / math.hypot(self.printed.uncertainty, self.sem or 0.0)


def beside(table: pd.DataFrame, data: str) -> list[Pair]:
    """Every cell of the paper on this data set whose head has a finished run in `table`."""
    pairs = []
    for printed in PUBLISHED:
        if printed.data != data or printed.column not in table:
            continue
        ours = table.loc[table["label"] == printed.head, printed.column].dropna().to_numpy(dtype=float)
        if len(ours):
            measure = next(m for m in MEASURES if m.column == printed.column)
            mean, sem = float(ours.mean()), standard_error(ours, DDOF)
            pairs.append(Pair(printed, measure, printed.head, mean, sem, len(ours)))
    return pairs


def shortened(seeds: int, epochs: int) -> str:
    """How these seeds and epochs fall short of the paper's, in a sentence; empty where they do not."""
    said = []
    if seeds < SEEDS:
        said.append(f"{seeds} instead of {SEEDS} replications")
    if epochs < EPOCHS:
        said.append(f"at most {epochs} epochs instead of {EPOCHS}")
    return f"Shortened: {' and '.join(said)}." if said else ""
