"""Write the tables of README.md and docs/ from the kept results: python results/tables.py

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, NAME being one of TABLES. A cell is the mean
± standard error over the finished seeds of a study. `trace.py` shows the runs behind a cell.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import pandas as pd
from archive import RESULTS, load

from spaceform.heads import HEADS
from spaceform.study.published import PUBLISHED
from spaceform.study.summary import standard_error
from spaceform.study.verdict import GOALS, ItemOutputs, decide, evidence_from

sys.path.append(str(RESULTS.parent / "benchmarks"))  # these tables stand beside the scripts of their records
import board_tables
import compared

DOCS = RESULTS.parent / "docs"
PAGES = (RESULTS.parent / "README.md", *(DOCS / f"{name}.md" for name in ("board", "findings", "which-loss")))
BLOCK = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
L2, NLL, AUROC = "calibration_error_l2", "nll", "auroc_confidence"
PLAIN, AWARE = "calibrated.temperature", "calibrated.norm_aware_temperature"
CHOSEN = f"calibrated.chosen.{L2}"
RAW = "cub200-raw-features"


class Column(NamedTuple):
    """What is shown of a study; percent where the title says so."""

    study: str
    metric: str
    title: str
    digits: int
    paper: bool = False
    """Whether the paper's number stands to the left."""
    bold: bool = False
    """Whether the verdict's choice, and what is practically as good, is bold."""
    prefix: str = ""
    """Before the label of the row, where one row shows several labels."""


class Row(NamedTuple):
    """The runs of one label."""

    cells: tuple[str, ...]
    """What stands in front of the numbers."""
    label: str
    study: str = ""
    """Where the runs are not in the study of the column."""


class Table(NamedTuple):
    """Rows of labels, columns of metrics."""

    leading: tuple[str, ...]
    """Titles of the cells in front."""
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]


def labels(study: str) -> list[str]:
    """The rows of a study: heads in their own order, whatever else in that of the plan."""
    order = list(HEADS)
    found = dict.fromkeys(run.label for run in load(study).runs)
    return sorted(found, key=lambda label: order.index(label) if label in order else len(order))


def _heads(columns: tuple[Column, ...]) -> Table:
    heads = labels(columns[0].study)
    return Table(("head",), tuple(Row((f"`{head}`",), head) for head in heads), columns)


def _heads_with_geometry(columns: tuple[Column, ...]) -> Table:
    heads = labels(columns[0].study)
    rows = tuple(Row((f"`{head}`", HEADS[head](2, 2).geometry.title), head) for head in heads)
    return Table(("head", "geometry"), rows, columns)


def _main(study: str, paper: bool) -> Table:
    return _heads(
        (
            Column(study, "seed", "seeds", 0),
            Column(study, "accuracy", "accuracy, %", 2, paper),
            Column(study, L2, "l2 calibration error, %", 1, paper),
            Column(study, "calibration_error_l1", "l1, %", 2),
            Column(study, f"{PLAIN}.{L2}", "l2 after temperature scaling, %", 1, paper),
            Column(study, CHOSEN, "with the chosen calibrator, %", 1),
            Column(study, AUROC, "AUROC of the norm", 3, paper),
            Column(study, "epochs", "epochs", 0),
        )
    )


def _temperatures(study: str) -> Table:
    return _heads(
        (
            Column(study, f"{PLAIN}.nll", "NLL, plain", 3),
            Column(study, f"{AWARE}.nll", "NLL, norm-aware", 3),
            Column(study, f"{PLAIN}.{L2}", "l2, plain, %", 2),
            Column(study, f"{AWARE}.{L2}", "l2, norm-aware, %", 2),
        )
    )


def _hard(study: str) -> Table:
    """Six heads on training data made worse."""
    return _heads(
        (
            Column(study, "accuracy", "accuracy, %", 2),
            Column(study, NLL, "NLL", 3),
            Column(study, L2, "l2, %", 1),
            Column(study, f"{PLAIN}.{L2}", "after scaling, %", 1),
            Column(study, AUROC, "AUROC of the norm", 3),
        )
    )


def _three(study: str, digits: int, prefix: str = "", before: str = "") -> tuple[Column, ...]:
    return (
        Column(study, "accuracy", f"{before}accuracy, %", 2, prefix=prefix),
        Column(study, NLL, "NLL", 3, prefix=prefix),
        Column(study, L2, "l2, %", digits, prefix=prefix),
    )


def _retrieval(columns: tuple[Column, ...], leading: tuple[str, ...]) -> Table:
    """The searched heads of CUB, below them the stochastic ones without search, above them the features."""
    own = Row(("features as they are", "")[: len(leading)], "features", RAW)
    heads = (_heads if len(leading) == 1 else _heads_with_geometry)(columns).rows
    plain = tuple(
        row._replace(cells=(f"{row.cells[0]}, not searched", *row.cells[1:]), study="cub200-default")
        for row in heads
        if row.label in labels("cub200-default")
    )
    return Table(leading, (own, *heads, *plain), columns)


CUB = (
    Column("cub200-features", "map_at_r", "mAP@R, %", 2, bold=True),
    Column("cub200-features", "cosine.map_at_r", "by cosine at test, %", 2, bold=True),
    Column("cub200-features", "recall_at_1", "Recall@1, %", 2, bold=True),
)

TABLES: Mapping[str, Table] = {
    "accuracy": _heads_with_geometry(
        (
            Column("mnist", "accuracy", "MNIST, %", 2, paper=True),
            Column("fashion-mnist", "accuracy", "FashionMNIST, %", 2, paper=True),
            Column("cifar10-residual", "accuracy", "part of CIFAR-10, small net, %", 2),
        )
    ),
    "calibration": _heads_with_geometry(
        (
            Column("mnist", L2, "MNIST, %", 1, paper=True),
            Column("mnist", CHOSEN, "calibrated", 1),
            Column("fashion-mnist", L2, "FashionMNIST, %", 1, paper=True),
            Column("fashion-mnist", CHOSEN, "calibrated", 1),
        )
    ),
    "retrieval": _retrieval(CUB, ("head", "geometry")),
    "mnist": _main("mnist", paper=True),
    "fashion-mnist": _main("fashion-mnist", paper=True),
    "cifar10-residual": _main("cifar10-residual", paper=False),
    "cub200-features": _retrieval(CUB, ("head",)),
    "mnist temperatures": _temperatures("mnist"),
    "fashion-mnist temperatures": _temperatures("fashion-mnist"),
    "digits temperatures": _temperatures("digits-temperature"),
    "digits normalizer": Table(
        ("normaliser", "n"),
        tuple(
            Row((name, str(dim)), f"vmf {name}, n={dim}") for dim in (3, 8) for name in ("exact", "bounds")
        ),
        _three("digits-normalizer", 1),
    ),
    "digits sampler": Table(
        ("sampler",),
        (Row(("right",), "vmf right sampler, n=128"), Row(("as published",), "vmf published sampler, n=128")),
        tuple(
            column._replace(bold=True)
            for column in (
                *_three("digits-sampler", 1),
                Column("digits-sampler", f"{PLAIN}.{L2}", "after temperature scaling, %", 1),
                Column("digits-sampler", AUROC, "AUROC of κ", 3),
            )
        ),
    ),
    "digits laws": _heads(
        (*_three("digits-laws", 2), Column("digits-laws", f"{PLAIN}.{L2}", "after scaling, %", 2))
    ),
    "digits samples": Table(
        ("samples",),
        tuple(Row((str(count),), f"vmf samples={count}") for count in (1, 3, 10, 30)),
        _three("digits-samples", 2),
    ),
    "digits noise": _hard("digits-noise"),
    "digits imbalance": _hard("digits-imbalance"),
    "digits bottleneck": Table(
        ("γ",),
        tuple(Row((f"{gamma:g}",), f"gamma={gamma:g}") for gamma in (0, 0.001, 0.01, 0.1)),
        (
            *_three("digits-bottleneck", 1, "vmf ", "`vmf`: "),
            *_three("digits-bottleneck", 1, "power_spherical ", "`power_spherical`: "),
        ),
    ),
}


def table(name: str) -> str:
    """One table in Markdown."""
    lines = _OTHERS[name]() if name in _OTHERS else _lines(TABLES[name])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _lines(shown: Table) -> list[list[str]]:
    header = [*shown.leading]
    for column in shown.columns:
        header += [f"{column.title}: paper", "ours"] if column.paper else [column.title]
    numbers = len(header) - len(shown.leading)
    lines = [header, ["---"] * len(shown.leading) + ["---:"] * numbers]
    for row in shown.rows:
        line = [*row.cells]
        for column in shown.columns:
            line += ([_theirs(column, row.label)] if column.paper else []) + [_ours(column, row)]
        lines.append(line)
    return lines


@cache
def results(study: str) -> pd.DataFrame:
    """A row for every finished run of a study; of the raw features, their one measurement."""
    return _raw_features() if study == RAW else load(study).results()


def values(study: str, label: str, metric: str) -> pd.Series:
    """One metric of the runs of one label, by run."""
    found = results(study)
    return found.loc[found["label"] == label].set_index("run")[metric].astype(float)


def _raw_features() -> pd.DataFrame:
    found = record(RAW)
    own = {"run": "features", "label": "features", "seed": 0, **found["euclidean"]}
    return pd.DataFrame([{**own, "cosine.map_at_r": found["cosine"]["map_at_r"]}])


def record(name: str) -> Any:
    """A JSON file of results/, by its path without the ending."""
    return json.loads((RESULTS / f"{name}.json").read_text("utf-8"))


def _theirs(column: Column, head: str) -> str:
    for f in PUBLISHED:
        if (f.data, f.head, f.column) == (column.study, head, column.metric):
            return _cell(column, f.mean, f.sem, 2 if f.sem is None else column.digits)
    return ""


def _ours(column: Column, row: Row) -> str:
    found = values(row.study or column.study, column.prefix + row.label, column.metric).to_numpy()
    if column.metric == "seed":
        return str(len(found))
    cell = _cell(column, found.mean(), standard_error(found) if column.digits else None, column.digits)
    marked = column.bold and not row.study and column.prefix + row.label in _best(column.study, column.metric)
    return f"**{cell}**" if marked else cell


@cache
def _best(study: str, metric: str) -> set[str]:
    """The label that the verdict on the kept numbers chooses, and those that are practically as good."""
    found = results(study).dropna(subset=[metric])
    runs = {
        label: {
            int(seed): ItemOutputs(measured={metric: float(v)})
            for seed, v in zip(own["seed"], own[metric], strict=True)
        }
        for label, own in found.groupby("label", sort=False)
    }
    goals = [goal for known in GOALS.values() for goal in known if goal.column == metric]
    (one,) = decide(evidence_from(runs, goals=goals)).goals
    return {str(one.choice), *one.equivalent}


def _cell(column: Column, mean: float, error: float | None, digits: int) -> str:
    scale = 1 if column.metric in (AUROC, "epochs") or column.metric.endswith(NLL) else 100
    spread = "" if error is None else f" ± {error * scale:.{digits}f}"
    return f"{mean * scale:.{digits}f}{spread}"


def _runtime() -> list[list[str]]:
    """Ratios to the cosine head."""
    found = record("benchmarks/training")["measured"]
    lines = [["head", "an epoch", "a training step", "prediction", "epochs, MNIST", "FashionMNIST"]]
    lines.append(["---"] + ["---:"] * 5)
    for head in labels("mnist"):
        timed = [
            f"{found[f'{head} / cosine, {what}']['median']:.2f}"
            for what in ("an epoch of train", "steps", "prediction")
        ]
        epochs = [
            f"{values(study, head, 'epochs').mean() / values(study, 'cosine', 'epochs').mean():.1f}"
            for study in ("mnist", "fashion-mnist")
        ]
        lines.append([f"`{head}`", *timed, *epochs])
    return lines


def _estimator() -> list[list[str]]:
    """`SpaceformClassifier` beside what people would use instead."""
    lines = [["data", "model", "accuracy %", "NLL", "calibration error % (l2)", "fit, s", "predict, s"]]
    lines.append(["---"] * 2 + ["---:"] * 5)
    for name, found in record("benchmarks/estimator")["sets"].items():
        shape = f"{found['rows']:,} x {found['features']}, {found['classes']} classes"
        first = f"{name}{' (fresh)' if found['fresh'] else ''}, {shape}"
        for model, row in found["models"].items():
            cells = [f"{100 * row['accuracy']:.2f}", f"{row[NLL]:.3f}", f"{100 * row[L2]:.1f}"]
            seconds = [f"{row['fit_seconds']:.2f}", f"{row['predict_seconds']:.2f}"]
            lines.append([first, f"`{model}`", *cells, *seconds])
            first = ""
    return lines


def _hierarchy() -> list[list[str]]:
    """How far mistakes lie from the right class, for each set and head."""
    columns = {
        "accuracy": ("accuracy, %", 1),
        "same_group": ("mistakes within the group, %", 1),
        "mistake_distance": ("distance of a mistake", 2),
        "expected_distance": ("expected distance", 3),
        "radius": ("R", 2),
    }
    lines = [["set", "dimensions", "row", *(title for title, _ in columns.values())]]
    lines.append(["---"] * 3 + ["---:"] * len(columns))
    for name, found in record("benchmarks/hierarchy")["sets"].items():
        for row in found["rows"]:
            cells = [
                f"{row[column]['mean']:.{digits}f} ± {row[column]['error']:.{digits}f}"
                for column, (_, digits) in columns.items()
                if column != "radius"
            ]
            dim = str(row["dim"] or "searched")
            lines.append([name, dim, row["row"], *cells, f"{row['radius']['mean']:.2f}"])
    return lines


_OTHERS: Mapping[str, Callable[[], list[list[str]]]] = {
    "runtime": _runtime,
    "estimator": _estimator,
    "hierarchy": _hierarchy,
    "compare": lambda: compared.lines(record("benchmarks/compare")),
    **board_tables.TABLES,
}
"""Tables of other shapes."""


def rewritten(text: str) -> str:
    """A page with its tables made anew."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{table(block[2])}\n\n{block[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{page.name}: {len(BLOCK.findall(page.read_text(encoding='utf-8')))} tables")
