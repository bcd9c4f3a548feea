"""Write the tables of README.md and docs/findings.md from the kept results: python results/tables.py

A table stands between `<!-- table: NAME -->` and `<!-- end -->`, NAME being one of TABLES. A cell is the mean
± standard error over the finished seeds of a study of classification.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from spaceform import Study
from spaceform.heads import HEADS
from spaceform.study.published import PUBLISHED
from spaceform.study.verdict import standard_error

RESULTS = Path(__file__).parent
PAGES = (RESULTS.parent / "README.md", RESULTS.parent / "docs" / "findings.md")
BLOCK = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
GEOMETRY = {"standard": "Euclidean", "hyperbolic": "Poincaré ball"}
L2 = "calibration_error_l2"
PLAIN, AWARE = "calibrated.temperature", "calibrated.norm_aware_temperature"
CHOSEN = f"calibrated.chosen.{L2}"


class Column(NamedTuple):
    """What is shown of a study; percent where the title says so."""

    study: str
    metric: str
    title: str
    digits: int
    paper: bool = False
    """Whether the paper's figure stands to the left."""


def _main(study: str, paper: bool) -> tuple[Column, ...]:
    return (
        Column(study, "seed", "seeds", 0),
        Column(study, "accuracy", "accuracy, %", 2, paper),
        Column(study, L2, "l2 calibration error, %", 1, paper),
        Column(study, "calibration_error_l1", "l1, %", 2),
        Column(study, f"{PLAIN}.{L2}", "l2 after temperature scaling, %", 1, paper),
        Column(study, CHOSEN, "with the chosen calibrator, %", 1),
        Column(study, "auroc_confidence", "AUROC of the norm", 3, paper),
        Column(study, "epochs", "epochs", 0),
    )


def _temperatures(study: str) -> tuple[Column, ...]:
    return (
        Column(study, f"{PLAIN}.nll", "NLL, plain", 3),
        Column(study, f"{AWARE}.nll", "NLL, norm-aware", 3),
        Column(study, f"{PLAIN}.{L2}", "l2, plain, %", 2),
        Column(study, f"{AWARE}.{L2}", "l2, norm-aware, %", 2),
    )


TABLES: Mapping[str, tuple[Column, ...]] = {
    "accuracy": (
        Column("mnist", "accuracy", "MNIST, %", 2, paper=True),
        Column("fashion-mnist", "accuracy", "FashionMNIST, %", 2, paper=True),
        Column("cifar10-residual", "accuracy", "part of CIFAR-10, small net, %", 2),
    ),
    "calibration": (
        Column("mnist", L2, "MNIST, %", 1, paper=True),
        Column("mnist", CHOSEN, "calibrated", 1),
        Column("fashion-mnist", L2, "FashionMNIST, %", 1, paper=True),
        Column("fashion-mnist", CHOSEN, "calibrated", 1),
    ),
    "mnist": _main("mnist", paper=True),
    "fashion-mnist": _main("fashion-mnist", paper=True),
    "cifar10-residual": _main("cifar10-residual", paper=False),
    "mnist temperatures": _temperatures("mnist"),
    "fashion-mnist temperatures": _temperatures("fashion-mnist"),
}


@cache
def _results(study: str) -> pd.DataFrame:
    return Study.open(RESULTS / study).table.dropna(subset=["accuracy"])


def table(name: str) -> str:
    """One table in Markdown."""
    columns = TABLES[name]
    across = len({column.study for column in columns}) > 1
    header = ["head", "geometry"] if across else ["head"]
    for column in columns:
        header += [f"{column.title}: paper", "ours"] if column.paper else [column.title]
    lines = [header, ["---", *(["---"] if across else []), *["---:"] * (len(header) - 1 - across)]]
    for head in HEADS:
        line = [f"`{head}`"] + ([GEOMETRY.get(head, "sphere")] if across else [])
        for column in columns:
            line += ([_theirs(column, head)] if column.paper else []) + [_ours(column, head)]
        lines.append(line)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _theirs(column: Column, head: str) -> str:
    for f in PUBLISHED:
        if (f.data, f.head, f.column) == (column.study, head, column.metric):
            return _cell(column, f.mean, f.sem, 2 if f.sem is None else column.digits)
    return ""


def _ours(column: Column, head: str) -> str:
    found = _results(column.study)
    values = found.loc[found["label"] == head, column.metric].to_numpy(dtype=float)
    if column.metric == "seed":
        return str(len(values))
    error = standard_error(values) if column.digits else None
    return _cell(column, values.mean(), error, column.digits) if len(values) else ""


def _cell(column: Column, mean: float, error: float | None, digits: int) -> str:
    scale = 1 if column.metric in ("auroc_confidence", "epochs") or column.metric.endswith("nll") else 100
    spread = "" if error is None else f" ± {error * scale:.{digits}f}"
    return f"{mean * scale:.{digits}f}{spread}"


def rewritten(text: str) -> str:
    """A page with its tables made anew."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{table(block[2])}\n\n{block[3]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{page.name}: {len(BLOCK.findall(page.read_text(encoding='utf-8')))} tables")
