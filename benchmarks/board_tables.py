"""The tables of docs/board.md and of docs/which-loss.md that come from the board; `tables.py` writes them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

import board_over
from board_values import ACCURACY, NATS, NLL, NOT, POINTS, Lines, board, code, rule

_SHORT = {"calibrated.chosen.nll": "NLL", "accuracy": "accuracy"}

# The data -------------------------------------------------------------------------------------------------


def sets() -> Lines:
    """Every set of the board: what it is, where it comes from, and the digest of its features."""
    found = board()
    lines = [
        ["set", "kind", "rows", "columns", "classes", "items a class", "part", "source, licence", "SHA-256"],
        rule(2, 4) + ["---"] * 3,
    ]
    for name, one in found.sets.items():
        tags = f" ({', '.join(one['tags'])})" if one["tags"] else ""
        counts, digest = _counted(one) if "sha256" in one else ([NOT] * 4, "not made yet")
        about = [one["part"], f"{one['source']}; {one['licence']}", digest]
        lines.append([f"{name}{tags}", one["kind"], *counts, *about])
    return lines


def _counted(one: Mapping[str, Any]) -> tuple[list[str], str]:
    """Rows, columns, classes and their sizes, and the beginning of the digest."""
    sizes = f"{one['smallest_class']:,} to {one['largest_class']:,}"
    counts = [f"{one['rows']:,}", f"{one['columns']:,}", str(one["classes"]), sizes]
    return counts, code(one["sha256"][:12])


# Set by set -----------------------------------------------------------------------------------------------


def _by_set(metric: str, scale: float, digits: int) -> Lines:
    """Means over seeds; bold is the choice of the verdict and what is practically as good."""
    found = board()
    task = found.classification
    means, beside = scale * task.means(metric), scale * task.references(metric)
    lines = [["set", *map(code, task.heads), "best reference"], [*rule(1, len(task.heads)), "---"]]
    for name in task.names:
        bold = task.leaders(name, metric)
        cells = [f"{means.loc[name, head]:.{digits}f}" for head in task.heads]
        marked = [f"**{c}**" if head in bold else c for head, c in zip(task.heads, cells, strict=True)]
        lines.append([name, *marked, _reference(beside.loc[name], metric, digits)])
    return lines


def _reference(row: "pd.Series[float]", metric: str, digits: int) -> str:
    row = row.dropna()
    if not len(row):
        return NOT
    best = row.idxmax() if metric == ACCURACY else row.idxmin()
    return f"{row[best]:.{digits}f} ({best})"


def verdicts() -> Lines:
    """What the verdict on all heads says of each set."""
    task = board().classification
    titles = ["set", "over all goals", "accuracy", "NLL after calibration", "seeds", "commit"]
    lines = [titles, ["---"] * len(titles)]
    for name in task.names:
        said = task.verdicts[name]
        chosen = said["exhaustive"].get("choice", NOT)
        goals = [choice(said["exhaustive"]["standings"][metric]) for metric in (ACCURACY, NLL)]
        lines.append([name, code(chosen), *goals, task.seeds(name), str(said["commit"])])
    return lines


def choice(standings: Mapping[str, list[object]]) -> str:
    """The choice for one goal, and how the other heads stand to it."""
    relations = {head: found[2] for head, found in standings.items()}
    chosen = next(head for head, relation in relations.items() if relation == "chosen")
    counts = {kind: sum(relation == kind for relation in relations.values()) for kind in _RELATIONS}
    others = ", ".join(f"{count} {_RELATIONS[kind]}" for kind, count in counts.items() if count)
    return f"{code(chosen)}; {others}"


_RELATIONS = {"equivalent": "as good", "open": "open", "worse": "worse"}


# The quick answer -----------------------------------------------------------------------------------------


def quick() -> Lines:
    """The answer of a comparison with defaults, and what it gives up against the best of all heads."""
    lines = [
        [
            "set",
            "quick answer",
            "runs",
            "most accurate",
            "gives up, points",
            "least NLL",
            "gives up, NLL",
            "told",
        ],
        ["---", "---", "---:", "---", "---:", "---", "---:", "---"],
    ]
    for one in board().given_up:
        points, nats = f"{one.points:.2f}", f"{one.nats:.4f}"
        told = f"worse in {' and '.join(_SHORT[goal] for goal in one.worse)}" if one.worse else "not worse"
        lines.append(
            [
                one.name,
                code(one.choice),
                str(one.seeds),
                code(one.most_accurate),
                points if one.points <= POINTS else f"**{points}**",
                code(one.least_loss),
                nats if one.nats <= NATS else f"**{nats}**",
                told,
            ]
        )
    return lines


# Retrieval ------------------------------------------------------------------------------------------------


def retrieval() -> Lines:
    """Classes that were never trained on."""
    task = board().retrieval
    shown = [("map_at_r", 100, 1), ("cosine.map_at_r", 100, 1), ("recall_at_1", 100, 1)]
    titles = [
        "mAP@R, %",
        "by the cosine, %",
        "Recall@1, %",
        "R-AUROC",
        "pairs, equal error rate, %",
        "5-shot, %",
    ]
    shown += [("r_auroc", 1, 3), ("verification.eer", 100, 1), ("few_shot.accuracy_5", 100, 1)]
    lines = [["set", "head", *titles], rule(2, len(titles))]
    means = {metric: task.means(metric) for metric, *_ in shown}
    for name in task.names:
        first, bold = name, task.leaders(name, "map_at_r")
        for head in task.heads:
            cells = [
                NOT if np.isnan(value := means[m].loc[name, head]) else f"{scale * value:.{digits}f}"
                for m, scale, digits in shown
            ]
            cells[0] = f"**{cells[0]}**" if head in bold else cells[0]
            lines.append([first, code(head), *cells])
            first = ""
    return lines


TABLES: Mapping[str, Callable[[], Lines]] = {
    "board answers": board_over.answers,
    "board advice": board_over.advice,
    "board heads": board_over.heads,
    "board measures": board_over.measures,
    "board geometries": board_over.geometries,
    "board foretold": board_over.foretold,
    "board quick": quick,
    "board verdicts": verdicts,
    "board accuracy": lambda: _by_set(ACCURACY, 100, 2),
    "board nll": lambda: _by_set(NLL, 1, 3),
    "board retrieval": retrieval,
    "board sets": sets,
}
"""By the name in the page."""
