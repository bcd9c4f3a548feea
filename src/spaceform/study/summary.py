"""What the results of a study say, and what they do not: pure functions on its table, one row for each run.

A row of a summary is mean ± standard error of the mean over the seeds (standard deviation with ddof 1; of
a single seed there is none). The best mean and those that cannot be told from it are marked: from the best
downwards, up to the first that is significantly worse by Welch's t-test against the best, two-sided,
Holm-corrected within the column at 5%. (Below that one nothing is marked: much noise of its own excuses no
lower mean.) The seeds vary the training, not the split: a verdict holds for this test split.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import pandas as pd

LEVEL = 0.05


@final
@dataclass(frozen=True)
class Measure:
    """A column of the results and how to read it."""

    column: str
    title: str
    higher: bool = True
    percent: bool = True

    def text(self, mean: float, sem: float | None = None) -> str:
        """`97.31 ± 0.12`, in percent, or as it is with three decimals."""
        scale, digits = (100.0, 2) if self.percent else (1.0, 3)
        value = f"{scale * mean:.{digits}f}"
        return value if sem is None else f"{value} ± {scale * sem:.{digits}f}"


CLASSIFICATION = (
    Measure("accuracy", "accuracy %"),
    Measure("calibration_error_l2", "calibration error % (l2)", higher=False),
    Measure("calibration_error_l1", "calibration error % (l1)", higher=False),
    Measure(
        "calibrated.temperature.calibration_error_l2",
        "after temperature scaling % (l2)",
        higher=False,
    ),
    Measure(
        "calibrated.chosen.calibration_error_l2",
        "with the chosen calibrator % (l2)",
        higher=False,
    ),
    Measure("nll", "NLL", higher=False, percent=False),
    Measure("retrieval.map_at_r", "mAP@R %"),
    Measure("auroc_confidence", "AUROC of the norm", percent=False),
    Measure("auroc_probability", "AUROC of the top probability", percent=False),
)
RETRIEVAL = (
    Measure("map_at_r", "mAP@R %"),
    Measure("cosine.map_at_r", "mAP@R % by cosine"),
    Measure("recall_at_1", "Recall@1 %"),
)


def measures(table: pd.DataFrame) -> tuple[Measure, ...]:
    """The columns to show for the task of these results, as far as they are there."""
    task = table["task"].dropna() if "task" in table else pd.Series(dtype=object)
    known = RETRIEVAL if len(task) and task.iloc[0] == "retrieval" else CLASSIFICATION
    shown = [m for m in known if m.column in table and table[m.column].notna().any()]
    plain, chosen = (f"calibrated.{name}.calibration_error_l2" for name in ("temperature", "chosen"))
    if {plain, chosen} <= {*table} and table[plain].equals(table[chosen]):
        return tuple(m for m in shown if m.column != chosen)  # plain temperature was chosen everywhere
    return tuple(shown)


@final
@dataclass(frozen=True)
class Row:
    """One label's figures in one measure."""

    label: str
    mean: float
    sem: float | None
    """None for a single seed."""
    seeds: int
    best: bool
    """The best mean."""
    tied: bool
    """Neither this nor any better mean is significantly worse than the best; true of the best itself."""
    p: float | None
    """Holm-adjusted p-value against the best; None for the best and where there is no test."""


def summarize(table: pd.DataFrame, measure: Measure) -> list[Row]:
    """A row for each label, in the order of the table; labels without a finished run are left out."""
    values = {
        str(label): group.to_numpy(dtype=float)
        for label, group in table.dropna(subset=[measure.column]).groupby("label", sort=False)[measure.column]
    }
    if not values:
        return []
    means = {label: float(v.mean()) for label, v in values.items()}
    sign = 1.0 if measure.higher else -1.0
    best = max(means, key=lambda label: sign * means[label])
    testable = len(values) > 1 and min(map(len, values.values())) > 1
    others = [label for label in values if label != best]
    p = (
        dict(zip(others, holm([welch(values[best], values[o]) for o in others]), strict=True))
        if testable
        else {}
    )
    worse = [sign * means[label] for label in p if p[label] <= LEVEL]
    bound = max(worse, default=-math.inf) if testable else math.nextafter(sign * means[best], -math.inf)
    return [
        Row(
            label,
            means[label],
            standard_error(v),
            len(v),
            label == best,
            label == best or sign * means[label] > bound,
            p.get(label),
        )
        for label, v in values.items()
    ]


def standard_error(
    values: Sequence[float] | np.ndarray[tuple[int], np.dtype[np.float64]], ddof: int = 1
) -> float | None:
    """Of the mean, by the standard deviation; None for a single value."""
    return float(np.std(values, ddof=ddof)) / math.sqrt(len(values)) if len(values) > 1 else None


def welch(
    a: np.ndarray[tuple[int], np.dtype[np.float64]], b: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> float:
    """Two-sided p-value of Welch's t-test; where neither varies, 1 if the means are equal and else 0."""
    from scipy import stats

    if np.ptp(a) == 0 and np.ptp(b) == 0:
        return float(a[0] == b[0])
    moments = ((float(x.mean()), float(x.std(ddof=1)), len(x)) for x in (a, b))
    return float(stats.ttest_ind_from_stats(*next(moments), *next(moments), equal_var=False).pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjustment: the k-th smallest of m is multiplied by m − k + 1, kept monotone, and cut at 1."""
    order = sorted(range(len(p)), key=p.__getitem__)
    adjusted = [0.0] * len(p)
    running = 0.0
    for place, i in enumerate(order):
        running = max(running, min(1.0, (len(p) - place) * p[i]))
        adjusted[i] = running
    return adjusted


def footnote(table: pd.DataFrame) -> list[str]:
    """What a reader of the tables must know, a sentence each."""
    finished = table[table["state"] == "finished"] if "state" in table else table
    counts = finished.groupby("label", sort=False).size() if len(finished) else pd.Series(dtype=int)
    said = []
    if len(counts) and counts.min() > 1:
        seeds = str(counts.iloc[0]) if counts.nunique() == 1 else f"{counts.min()} to {counts.max()}"
        said.append(f"Mean ± standard error over {seeds} seeds (standard deviation with ddof 1).")
        if len(counts) > 1:
            said[-1] += (
                " Bold: the best, and those next to it down to the first that is significantly worse "
                "(Welch's t-test against the best, Holm-corrected, 5%)."
            )
        if len(counts) > 1 and counts.min() < 5:
            said.append("With fewer than five seeds the test sees large differences only.")
    elif len(counts) > 1:
        said.append("Bold: the best. Some rows have one seed only, so there is no error bar and no test.")
    if {"retrieval.items", "retrieval.map_at_r"} <= {*finished} and finished[
        "retrieval.map_at_r"
    ].notna().any():
        said.append(f"mAP@R among {int(finished['retrieval.items'].max()):,} test items.")
    missing = len(table) - len(finished)
    if missing:
        said.append(f"{missing} of {len(table)} runs are not finished or failed, and not in the table.")
    return said
