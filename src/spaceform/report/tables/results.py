"""Tables as values: a row for each head, a column for each measure; cells hold text and the number."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, final

import pandas as pd

from spaceform.report.looks import display, in_order
from spaceform.report.records import Group
from spaceform.study.published import PUBLISHED, beside
from spaceform.study.summary import (
    CLASSIFICATION_MEASURES,
    RETRIEVAL_MEASURES,
    Measure,
    Results,
    Row,
    measures,
    summarize,
)

_MEASURES = {measure.column: measure for measure in (*CLASSIFICATION_MEASURES, *RETRIEVAL_MEASURES)}
_SCALED = "calibrated.temperature.calibration_error_l2"


@final
@dataclass(frozen=True)
class Column:
    """A column; neighbouring columns with the same `over` share one heading."""

    title: str
    over: str = ""
    better: str = ""
    """`higher` or `lower`, whichever is better; empty if neither is."""


@final
@dataclass(frozen=True)
class Cell:
    """`97.31 ± 0.12`: text for people, numbers for sorting and for CSV."""

    text: str
    mean: float | int | None = None
    sem: float | None = None
    seeds: int | None = None
    bold: bool = False


MISSING: Final = Cell("—")


@final
@dataclass(frozen=True)
class Line:
    """A row: its label for people, the name of its head, its cells."""

    label: str
    head: str
    cells: tuple[Cell, ...]
    reference: bool = False
    """Whether it is not a head but what people would use instead; then it is grey and never marked."""


@final
@dataclass(frozen=True)
class Table:
    """Lines under columns."""

    key: str
    title: str
    caption: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    number: str = ""
    """The number in the paper, such as "Table 2"."""
    first: str = "head"
    """The heading of the first column, which has the labels."""


def frame(group: Group) -> pd.DataFrame:
    """One row for each run, in the order of the labels; a column for each measure, by dotted name."""
    order = {label: i for i, label in enumerate(group.labels)}
    rows = []
    for record in sorted(group.records, key=lambda r: (order[r.label], r.recipe.seed)):
        row = {"run": record.name, "label": record.label, "state": record.status.state, "task": group.task}
        rows.append({**record.measured, **row})
    return pd.DataFrame(rows)


def summary(group: Group, results: Results) -> Table:
    """Every measure on one data set: a row for each head, then one for each reference."""
    heads = {record.label: record.head for record in group.records}
    rows = [(label, heads[label], False) for label in group.labels]
    rows += [(label, "", True) for label in results.references]
    lines = [
        Line(
            label if reference else display(label),
            head,
            tuple(_cell(m, results.row(label, m)) for m in results.measures),
            reference,
        )
        for label, head, reference in rows
    ]
    return Table(
        f"{group.key}-summary",
        f"Results on {group.title}",
        " ".join(results.footnote),
        tuple(map(_column, results.measures)),
        tuple(lines),
    )


_TERMS = {
    "NLL": "the mean of −log p, where p is the probability that the model gives to the true class. A "
    "model that is sure and wrong pays much. Lower is better.",
    "calibration error": "how far the stated probability is from how often it is right: the root mean square "
    "of the gaps over 15 bins with equally many items (the paper's ECE). 0 is best.",
    "after calibration": "with the calibrator that `predict` uses: scales of the classes and a temperature "
    "that depends on the norm, as far as the validation split shows that they help.",
    "temperature scaling": "the logits are divided by one number, which is fitted on the validation split.",
    "mAP@R": "mean average precision among the R nearest items, where R is the number of other items of the "
    "query's class.",
    "Recall@1": "how often the nearest item has the query's class.",
    "AUROC": "how well a score separates right predictions from wrong ones: 0.5 is chance, 1 is perfect.",
    "of the norm": "the score is the norm ‖z‖ of the embedding, or the concentration κ of a stochastic head.",
}


def terms(shown: Sequence[Measure]) -> list[tuple[str, str]]:
    """The terms in the titles of the columns, with their meaning."""
    titles = " ".join(measure.title for measure in shown)
    return [(term.removeprefix("of "), said) for term, said in _TERMS.items() if term in titles]


Marks: TypeAlias = Callable[[Group], Mapping[str, Collection[str]]]
"""A function that gives the labels that a group's verdict marks, by column."""


def paper_tables(groups: Sequence[Group], marks: Marks) -> list[Table]:
    """Tables 1 to 4 of the paper, over all data sets of the report; a table without any number is left out.

    Bold are the labels that the verdict on each data set marks, as in all tables.
    """
    fixed = [group for group in groups if group.task == "classification"]
    found = [group for group in groups if group.task == "retrieval"]
    made = [
        _across(
            "table1-auroc",
            "Table 1",
            "AUROC of the norm",
            "How well the norm ‖z‖, or the concentration κ of a stochastic head, separates right predictions "
            "from wrong ones: 0.5 is chance, 1 is perfect.",
            [(group, "auroc_confidence", group.title) for group in fixed],
            marks,
        ),
        _across(
            "table2-accuracy",
            "Table 2",
            "Accuracy",
            "Classification accuracy on the test split, in percent.",
            [(group, "accuracy", group.title) for group in fixed],
            marks,
        ),
        _across(
            "table3-calibration",
            "Table 3",
            "Calibration error before and after temperature scaling",
            "Calibration error of the top label in percent: 15 bins with equally many items, l2 norm (the "
            "paper's ECE).",
            [
                (g, c, f"{g.title}, {w}")
                for c, w in (("calibration_error_l2", "as trained"), (_SCALED, "scaled"))
                for g in fixed
            ],
            marks,
        ),
        _across(
            "table4-retrieval",
            "Table 4",
            "mAP@R with and without cosine at test",
            "Mean average precision at R in percent, with neighbours by the head's own geometry and by the "
            "cosine.",
            [
                (g, c, f"{g.title}, {w}")
                for g in found
                for c, w in (("map_at_r", "own metric"), ("cosine.map_at_r", "cosine"))
            ],
            marks,
        ),
    ]
    return [table for table in made if table is not None]


def _across(
    key: str,
    number: str,
    title: str,
    caption: str,
    wanted: Sequence[tuple[Group, str, str]],
    marks: Marks,
) -> Table | None:
    """Columns from several data sets; where the paper has numbers, they stand beside ours."""
    columns: list[Column] = []
    cells: list[dict[str, Cell]] = []
    for group, column, over in wanted:
        measure, table = _MEASURES[column], frame(group)
        if column not in table or not table[column].notna().any():
            continue
        better = _better(measure)
        printed = _printed(group, measure)
        if printed:
            columns.append(Column("paper", over, better))
            cells.append(printed)
        columns.append(Column("ours" if printed else over, over if printed else "", better))
        cells.append(_ours(table, measure, marks(group).get(column, ())))
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
    """The paper's numbers beside ours, and the difference; None where the paper has none."""
    pairs = beside(frame(group), group.published)
    if not pairs:
        return None
    used = list(dict.fromkeys(pair.measure for pair in pairs))
    found = {(pair.label, pair.measure): pair for pair in pairs}
    columns: list[Column] = []
    for measure in used:
        better = _better(measure)
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
            printed = pair.printed
            cells += [
                Cell(_text(measure, printed.mean, printed.sem, printed.rounding), printed.mean, printed.sem),
                Cell(measure.text(pair.mean, pair.sem), pair.mean, pair.sem, pair.seeds),
                Cell(f"{round(pair.errors, 1) + 0.0:+.1f}".replace("-", "−"), pair.errors),
            ]
        if any(cell is not MISSING for cell in cells):
            lines.append(Line(display(label), heads[label], tuple(cells)))
    return Table(
        f"{group.key}-paper",
        f"The paper and ours on {group.title}",
        "Δ / s.e.: ours minus the paper's, in standard errors of this difference.",
        tuple(columns),
        tuple(lines),
    )


def runs(group: Group) -> Table:
    """Every run, with how it ended and what was measured."""
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
        "One row for each run.",
        (*columns, *map(_column, shown)),
        tuple(lines),
        first="run",
    )


def _column(measure: Measure) -> Column:
    return Column(measure.title, better=_better(measure))


def _better(measure: Measure) -> str:
    return "higher" if measure.higher else "lower"


def _ours(table: pd.DataFrame, measure: Measure, leading: Collection[str]) -> dict[str, Cell]:
    return {row.label: _cell(measure, row) for row in summarize(table, measure, leading)}


def _cell(measure: Measure, row: Row | None) -> Cell:
    if row is None:
        return MISSING
    return Cell(measure.text(row.mean, row.sem), row.mean, row.sem, row.seeds, row.marked)


def _printed(group: Group, measure: Measure) -> dict[str, Cell]:
    return {
        printed.head: Cell(
            _text(measure, printed.mean, printed.sem, printed.rounding), printed.mean, printed.sem
        )
        for printed in PUBLISHED
        if printed.data == group.published and printed.column == measure.column
    }


def _text(measure: Measure, mean: float, sem: float | None, rounding: float) -> str:
    """A value as the paper prints it, with the same number of digits."""
    scale = 100.0 if measure.percent else 1.0
    digits = next(d for d in range(6) if 0.5 * 10.0**-d <= rounding * scale * 1.001)
    value = f"{scale * mean:.{digits}f}"
    return value if sem is None else f"{value} ± {scale * sem:.{digits}f}"
