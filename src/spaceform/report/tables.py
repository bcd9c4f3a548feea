"""Tables as values: rows of heads, columns of measures, cells with text for people and numbers to sort."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import pandas as pd

from spaceform.report.records import Collection, Group, in_order
from spaceform.report.style import display
from spaceform.study.published import PUBLISHED, beside
from spaceform.study.verdict import CLASSIFICATION, RETRIEVAL, Measure, measures, summarize

_MEASURES = {measure.column: measure for measure in (*CLASSIFICATION, *RETRIEVAL)}
_SCALED = "calibrated.temperature.calibration_error_l2"


@final
@dataclass(frozen=True)
class Column:
    """A column; neighbours with the same `over` stand under one heading."""

    title: str
    over: str = ""
    better: str = ""
    """`higher`, `lower`, or nothing."""


@final
@dataclass(frozen=True)
class Cell:
    """`97.31 ± 0.12`: text for people, numbers for sorting and CSV."""

    text: str
    mean: float | int | None = None
    sem: float | None = None
    seeds: int | None = None
    bold: bool = False


MISSING: Final = Cell("—")


@final
@dataclass(frozen=True)
class Line:
    """A row: its label for people, the head behind it, its cells."""

    label: str
    head: str
    cells: tuple[Cell, ...]


@final
@dataclass(frozen=True)
class Table:
    """Rows of heads."""

    key: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    number: str = ""
    """The paper's: "Table 2"."""
    first: str = "head"


def frame(group: Group) -> pd.DataFrame:
    """One row a run, metrics with dotted names, rows in the order of the labels."""
    order = {label: i for i, label in enumerate(group.labels)}
    rows = []
    for record in sorted(group.records, key=lambda r: (order[r.label], r.recipe.seed)):
        row = {"run": record.name, "label": record.label, "state": record.status.state, "task": group.task}
        rows.append({**record.figures, **row})
    return pd.DataFrame(rows)


def summary(group: Group) -> Table:
    """Every measure of one data set, a row a head."""
    table = frame(group)
    shown = measures(table)
    cells = {m.column: _ours(table, m) for m in shown}
    return Table(
        f"{group.key}-summary",
        f"Results on {group.title}",
        "Mean ± standard error over seeds. "
        "Bold: the best, and those next to it down to the first that is significantly worse.",
        tuple(Column(m.title, better="higher" if m.higher else "lower") for m in shown),
        _lines(group, [[cells[m.column].get(label, MISSING) for m in shown] for label in group.labels]),
    )


_TERMS = {
    "calibration error": "the gap between the probability that is stated and how often it is right, over 15 "
    "bins of equal mass: root mean square of the gaps (l2, the paper's ECE) or their mean (l1); 0 is best.",
    "temperature scaling": "logits divided by one number that is fitted on the validation split.",
    "chosen calibrator": "a temperature, or one that depends on the norm where cross-validation on the "
    "validation split says so; `predict` uses it.",
    "NLL": "the mean negative log-probability of the true class; lower is better.",
    "mAP@R": "mean average precision among the R nearest items, R being how many others share the query's "
    "class.",
    "Recall@1": "how often the nearest item is of the query's class.",
    "AUROC": "how well a score tells right predictions from wrong: 0.5 is chance, 1 is perfect.",
    "of the norm": "the score is the length ‖z‖ of the embedding, or a stochastic head's concentration κ.",
}


def terms(table: pd.DataFrame) -> list[tuple[str, str]]:
    """The words in the titles of the columns, each with its meaning."""
    titles = " ".join(measure.title for measure in measures(table))
    return [(term.removeprefix("of "), said) for term, said in _TERMS.items() if term in titles]


def paper_tables(collection: Collection) -> list[Table]:
    """Tables 1 to 4 over all data sets of the report; those without a single figure are left out."""
    fixed = [group for group in collection.groups if group.task == "classification"]
    found = [group for group in collection.groups if group.task == "retrieval"]
    made = [
        _across(
            "table1-auroc",
            "Table 1",
            "AUROC of the norm",
            "How well ‖z‖, or the concentration of the stochastic heads, tells right from wrong predictions: "
            "0.5 is chance, 1 is perfect.",
            [(group, "auroc_confidence", group.title) for group in fixed],
        ),
        _across(
            "table2-accuracy",
            "Table 2",
            "Accuracy",
            "Classification accuracy on the test split, in percent.",
            [(group, "accuracy", group.title) for group in fixed],
        ),
        _across(
            "table3-calibration",
            "Table 3",
            "Calibration error before and after temperature scaling",
            "Top-label calibration error in percent: 15 bins of equal mass, l2 norm, the paper's ECE.",
            [
                (g, c, f"{g.title}, {w}")
                for c, w in (("calibration_error_l2", "as trained"), (_SCALED, "scaled"))
                for g in fixed
            ],
        ),
        _across(
            "table4-retrieval",
            "Table 4",
            "mAP@R with and without cosine at test",
            "Mean average precision at R in percent, by the geometry's own metric and by the cosine.",
            [
                (g, c, f"{g.title}, {w}")
                for g in found
                for c, w in (("map_at_r", "own metric"), ("cosine.map_at_r", "cosine"))
            ],
        ),
    ]
    return [table for table in made if table is not None]


def _across(
    key: str, number: str, title: str, caption: str, wanted: Sequence[tuple[Group, str, str]]
) -> Table | None:
    """Columns from several data sets; the paper's own figures beside ours where it has some."""
    columns: list[Column] = []
    cells: list[dict[str, Cell]] = []
    for group, column, over in wanted:
        measure, table = _MEASURES[column], frame(group)
        if column not in table or not table[column].notna().any():
            continue
        better = "higher" if measure.higher else "lower"
        printed = _printed(group, measure)
        if printed:
            columns.append(Column("paper", over, better))
            cells.append(printed)
        columns.append(Column("ours" if printed else over, over if printed else "", better))
        cells.append(_ours(table, measure))
    if not columns:
        return None
    heads = {r.label: r.head for group, _, _ in wanted for r in group.records}
    lines = [
        Line(display(label), heads[label], tuple(column.get(label, MISSING) for column in cells))
        for label in in_order(heads)
    ]
    kept = tuple(line for line in lines if any(cell is not MISSING for cell in line.cells))
    return Table(key, title, caption, tuple(columns), kept, number)


def comparison(group: Group) -> Table | None:
    """The paper beside ours, with the difference in standard errors; None where the paper has none."""
    pairs = beside(frame(group), group.published)
    if not pairs:
        return None
    used = list(dict.fromkeys(pair.measure for pair in pairs))
    found = {(pair.label, pair.measure): pair for pair in pairs}
    columns: list[Column] = []
    for measure in used:
        better = "higher" if measure.higher else "lower"
        columns += [
            Column("paper", measure.title, better),
            Column("ours", measure.title, better),
            Column("Δ / s.e.", measure.title),
        ]
    lines = []
    heads = {r.label: r.head for r in group.records}
    for label in group.labels:
        cells: list[Cell] = []
        for measure in used:
            pair = found.get((label, measure))
            if pair is None:
                cells += [MISSING] * 3
                continue
            figure = pair.printed
            cells += [
                Cell(_text(measure, figure.mean, figure.sem, figure.rounding), figure.mean, figure.sem),
                Cell(measure.text(pair.mean, pair.sem), pair.mean, pair.sem, pair.seeds),
                Cell(f"{pair.errors:+.1f}".replace("-", "−"), pair.errors),
            ]
        if any(cell is not MISSING for cell in cells):
            lines.append(Line(display(label), heads[label], tuple(cells)))
    return Table(
        f"{group.key}-paper",
        f"The paper and ours on {group.title}",
        "The difference is ours less the paper's, in standard errors of both together.",
        tuple(columns),
        tuple(lines),
    )


def runs(group: Group) -> Table:
    """Every run: how it ended, and its main figures."""
    shown = measures(frame(group))
    lines = []
    for record in group.records:
        cells = [
            Cell(str(record.recipe.seed), record.recipe.seed),
            Cell(record.status.state),
            Cell(str(record.status.epoch), record.status.epoch),
            Cell(f"{record.status.seconds:,.0f}", record.status.seconds),
        ]
        for measure in shown:
            found = record.number(measure.column)
            cells.append(MISSING if found is None else Cell(measure.text(found), found))
        lines.append(Line(record.name, record.head, tuple(cells)))
    columns = [Column("seed"), Column("state"), Column("epochs"), Column("seconds")]
    return Table(
        f"{group.key}-runs",
        f"Runs on {group.title}",
        "Every run by itself.",
        (*columns, *(Column(m.title, better="higher" if m.higher else "lower") for m in shown)),
        tuple(lines),
        first="run",
    )


def _ours(table: pd.DataFrame, measure: Measure) -> dict[str, Cell]:
    return {
        row.label: Cell(
            measure.text(row.mean, row.sem),
            row.mean,
            row.sem,
            row.seeds,
            row.tied,
        )
        for row in summarize(table, measure)
    }


def _printed(group: Group, measure: Measure) -> dict[str, Cell]:
    return {
        figure.head: Cell(_text(measure, figure.mean, figure.sem, figure.rounding), figure.mean, figure.sem)
        for figure in PUBLISHED
        if figure.data == group.published and figure.column == measure.column
    }


def _text(measure: Measure, mean: float, sem: float | None, rounding: float) -> str:
    """As the paper prints it: its own number of digits."""
    scale = 100.0 if measure.percent else 1.0
    digits = next(d for d in range(6) if 0.5 * 10.0**-d <= rounding * scale * 1.001)
    value = f"{scale * mean:.{digits}f}"
    return value if sem is None else f"{value} ± {scale * sem:.{digits}f}"


def _lines(group: Group, rows: Sequence[Sequence[Cell]]) -> tuple[Line, ...]:
    heads = {record.label: record.head for record in group.records}
    return tuple(
        Line(display(label), heads[label], tuple(cells))
        for label, cells in zip(group.labels, rows, strict=True)
    )
