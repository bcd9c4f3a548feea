"""The board as one interactive page: python benchmarks/board_page.py [--out FILE.html] [--board FILE.parquet]

Sets by heads, sortable, by kind of data; what the model over sets says; the quick answer; the data. The page
is one file that fetches nothing.
"""

import argparse
import base64
import hashlib
import json
import math
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

import board_over
import board_tables
import board_values
from board_values import ACCURACY, BASE, FILE, NLL, Board, Lines, Task
from spaceform.report.looks import look
from spaceform.report.page.page import _asset
from spaceform.report.style import themes
from spaceform.study.verdict import GOALS

ASSETS = Path(__file__).parent / "board_page"
_L1, _L2 = "calibration_error_l1", "calibration_error_l2"
_WIDTH, _ROW, _LEFT = 560, 22, 130


class Measure(NamedTuple):
    """A choice of the page's menu; `region` is a difference that just matters, in the unit shown."""

    task: str
    metric: str
    title: str
    scale: float
    digits: int
    higher: bool
    region: float


MEASURES = (
    Measure("classification", ACCURACY, "accuracy, %", 100, 2, True, 0.5),
    Measure("classification", NLL, "NLL, calibrated", 1, 3, False, 0.01),
    Measure("classification", "nll", "NLL as trained", 1, 3, False, 0.01),
    Measure("classification", _L2, "calibration error as trained (l2), %", 100, 2, False, 0.5),
    Measure(
        "classification",
        f"calibrated.chosen.{_L2}",
        "calibration error, calibrated (l2), %",
        100,
        2,
        False,
        0.5,
    ),
    Measure("classification", _L1, "calibration error as trained (l1), %", 100, 2, False, 0.5),
    Measure(
        "classification",
        f"calibrated.chosen.{_L1}",
        "calibration error, calibrated (l1), %",
        100,
        2,
        False,
        0.5,
    ),
    Measure("classification", "aurc_probability", "AURC of the top probability, %", 100, 2, False, 0.2),
    Measure("classification", "auroc_confidence", "AUROC of the norm", 1, 3, True, 0.01),
    Measure("classification", "unknown_energy", "items of no known class, AUROC", 1, 3, True, 0.01),
    Measure("classification", "retrieval.map_at_r", "mAP@R, known classes, %", 100, 1, True, 0.5),
    Measure("classification", "seconds", "seconds to fit", 1, 1, False, 5.0),
    Measure("retrieval", "map_at_r", "new classes: mAP@R, %", 100, 1, True, 0.5),
    Measure("retrieval", "cosine.map_at_r", "new classes: mAP@R by the cosine, %", 100, 1, True, 0.5),
    Measure("retrieval", "r_auroc", "new classes: R-AUROC", 1, 3, True, 0.01),
    Measure("retrieval", "verification.eer", "new classes: equal error rate of pairs, %", 100, 1, False, 0.5),
    Measure("retrieval", "few_shot.accuracy_5", "new classes: 5-shot accuracy, %", 100, 1, True, 0.5),
)


def render(found: Board) -> str:
    """The whole page."""
    style = themes() + _asset("style.css") + (ASSETS / "page.css").read_text("utf-8")
    script = (ASSETS / "page.js").read_text("utf-8")
    template = Environment(autoescape=True).from_string((ASSETS / "page.html.j2").read_text("utf-8"))
    task = found.classification
    shown = [one for one in MEASURES if _values(found, one)]
    return template.render(
        sets=len(task.names),
        heads=task.heads,
        kinds=list(dict.fromkeys(found.kinds())),
        measures=shown,
        verdict=_sentence(found),
        facts=_facts(found),
        answers=_table(board_over.answers()),
        quick=_table(board_tables.quick()),
        data=_table(board_tables.sets()),
        forests=[(title, Markup(forest(found, metric, d))) for metric, title, d in _GOALS if found.enough],
        diagrams=[
            (f"Mean ranks, {title}", Markup(diagram(found, metric)))
            for metric, title, _ in _GOALS
            if found.enough
        ],
        values=Markup(json.dumps(_matrix(found, shown)).replace("</", "<\\/")),
        look=look,
        style=Markup(style),
        script=Markup(script),
        style_hash=Markup(_hash(style)),
        script_hash=Markup(_hash(script)),
    )


_GOALS = ((ACCURACY, "accuracy, points", 2), (NLL, "NLL after calibration", 3))


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _sentence(found: Board) -> str:
    """The headline: how large the differences are."""
    gap = np.median(np.ptp(found.worth[ACCURACY], axis=1))
    ahead = np.median(found.worth[ACCURACY].max(1) - np.median(found.worth[ACCURACY], axis=1))
    return (
        f"In the median set {gap:.1f} points of accuracy lie between the best head and the worst, "
        f"and {ahead:.1f} between the best and the middle one."
    )


def _facts(found: Board) -> list[tuple[str, str]]:
    task = found.classification
    runs = found.classification.rows["kind"].eq("head").sum() + found.retrieval.rows["kind"].eq("head").sum()
    return [
        (str(len(task.names)), "sets"),
        (str(len(task.heads)), "heads"),
        (str(int(task.rows["seed"].nunique())), "seeds"),
        (f"{runs:,}", "runs"),
    ]


def _table(lines: Lines) -> Markup:
    """A table of Markdown cells."""
    head, rule, *rest = lines
    right = [mark.endswith(":") for mark in rule]
    rows = ["".join(f"<th>{_cell(text)}</th>" for text in head)]
    rows += [
        "".join(
            f'<td class="number">{_cell(text)}</td>' if r else f"<td>{_cell(text)}</td>"
            for text, r in zip(line, right, strict=True)
        )
        for line in rest
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows[1:])
    table = f'<table class="plain"><thead><tr>{rows[0]}</tr></thead><tbody>{body}</tbody></table>'
    return Markup(f'<div class="scroll">{table}</div>')


def _cell(text: str) -> str:
    for mark, tag in (("**", "b"), ("`", "code")):
        pieces = escape(text).split(mark) if mark == "**" else text.split(mark)
        text = "".join(f"<{tag}>{p}</{tag}>" if i % 2 else p for i, p in enumerate(pieces))
    return text


# Values of the matrix -------------------------------------------------------------------------------------


def _task(found: Board, one: Measure) -> Task:
    return found.classification if one.task == "classification" else found.retrieval


def _values(found: Board, one: Measure) -> dict[str, list[float | None]]:
    """By set, for every head; sets without the measure are left out."""
    task = _task(found, one)
    means = one.scale * task.means(one.metric).reindex(columns=list(found.classification.heads))
    return {
        str(name): [_number(value) for value in row]
        for name, row in zip(means.index, means.to_numpy(), strict=True)
        if np.isfinite(row).any()
    }


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _matrix(found: Board, shown: Sequence[Measure]) -> dict[str, Any]:
    heads = found.classification.heads
    return {
        "heads": heads,
        "kinds": list(dict.fromkeys(found.kinds())),
        "sets": [
            {
                "name": name,
                "kind": one["kind"],
                "classes": one["classes"],
                "order": i,
                "about": _about(found, name),
            }
            for i, (name, one) in enumerate(found.sets.items())
            if name in found.classification.names
        ],
        "measures": [_measure(found, one) for one in shown],
    }


def _measure(found: Board, one: Measure) -> dict[str, Any]:
    task, heads = _task(found, one), found.classification.heads
    judged = any(goal.column == one.metric for goal in GOALS[one.task])
    leaders = {n: [heads.index(h) for h in task.leaders(n, one.metric)] for n in task.names} if judged else {}
    beside = _references(task, one) if one.metric in task.rows and one.metric != "seconds" else {}
    return {
        "higher": one.higher,
        "digits": one.digits,
        "region": one.region,
        "values": _values(found, one),
        "leaders": leaders,
        "references": beside,
    }


def _references(task: Task, one: Measure) -> dict[str, tuple[str, float]]:
    found = {}
    for name, row in (one.scale * task.references(one.metric)).iterrows():
        own: pd.Series[float] = row.dropna()
        if len(own):
            best = own.idxmax() if one.higher else own.idxmin()
            found[str(name)] = (str(best), float(f"{own[best]:.5g}"))
    return found


def _about(found: Board, name: str) -> list[tuple[str, str]]:
    one, said = found.sets[name], found.classification.verdicts[name]
    quick = next((given for given in found.given_up if given.name == name), None)
    facts = [
        ("verdict over all goals", said["exhaustive"].get("choice", "none")),
        *(
            (title, board_tables.choice(said["exhaustive"]["standings"][metric]).replace("`", ""))
            for metric, title, _ in _GOALS
        ),
        (
            "data",
            f"{one['rows']:,} rows, {one['columns']:,} columns, {one['classes']} classes; {one['part']}",
        ),
        ("source", f"{one['source']}; {one['licence']}"),
        ("marks", ", ".join(one["tags"]) or "none"),
        ("measured before", ", ".join(f"{k.replace('_', ' ')} {v:.3g}" for k, v in one["measures"].items())),
        ("SHA-256", one["sha256"]),
        ("made at", str(said["commit"])),
    ]
    if quick is not None:
        gives_up = f"{quick.choice}: gives up {quick.points:.2f} points and {quick.nats:.4f} NLL"
        facts.insert(1, ("quick answer", gives_up))
    return facts


# Pictures -------------------------------------------------------------------------------------------------


def forest(found: Board, metric: str, digits: int) -> str:
    """The gain over plain softmax of every head: mean, interval, and where a new set may lie."""
    heads = [head for head in found.classification.heads if head != BASE]
    effects = {head: found.effect(metric, head) for head in heads}
    low = min(min(one.new_low for one in effects.values()), 0.0)
    high = max(max(one.new_high for one in effects.values()), 0.0)
    x = _scale(low, high)
    height = _ROW * len(heads) + 30
    drawn = [_line(x(0), 4, x(0), height - 24, "var(--muted)", 1)]
    for i, (head, one) in enumerate(effects.items()):
        y, hue = 16 + _ROW * i, look(head).hue
        drawn += [
            _text(_LEFT - 10, y + 4, head, "end"),
            _line(x(one.new_low), y, x(one.new_high), y, hue, 1),
            _line(x(one.low), y, x(one.high), y, hue, 4),
            f'<circle cx="{x(one.mean):.1f}" cy="{y}" r="4.5" fill="{hue}"/>',
        ]
    drawn += [_text(x(v), height - 6, f"{v:+.{digits}f}", "middle", True) for v in sorted({low, 0.0, high})]
    return _svg(drawn, height, f"Gain over standard, {metric}")


def diagram(found: Board, metric: str) -> str:
    """Mean ranks on a line, and a bar as long as the critical difference (Demšar 2006)."""
    tested, heads = found.ranks(metric), found.classification.heads
    order = np.argsort(tested.mean, kind="stable")
    x = _scale(1, len(heads))
    height = _ROW * len(heads) + 56
    end = x(min(1 + tested.critical, len(heads)))
    drawn = [
        _line(x(1), 34, x(len(heads)), 34, "var(--ink)", 1),
        *(_text(x(rank), 28, str(rank), "middle", True) for rank in range(1, len(heads) + 1)),
        _line(x(1), 14, end, 14, "var(--accent)", 3),
        _text(x(1), 9, f"not told apart: {tested.critical:.1f}", "start", True),
    ]
    for place, i in enumerate(order):
        y, hue, at = 54 + _ROW * place, look(heads[i]).hue, x(tested.mean[i])
        drawn += [
            _line(at, 34, at, y, hue, 1),
            f'<circle cx="{at:.1f}" cy="{y}" r="4.5" fill="{hue}"/>',
            _text(_LEFT - 10, y + 4, heads[i], "end"),
            _text(at + 9, y + 4, f"{tested.mean[i]:.1f}", "start", True),
        ]
    return _svg(drawn, height, f"Mean ranks, {metric}")


def _scale(low: float, high: float) -> Callable[[float], float]:
    """From a value to its place on the drawing."""
    span = (high - low) or 1.0
    return lambda value: _LEFT + 14 + (value - low) / span * (_WIDTH - _LEFT - 60)


def _line(x1: float, y1: float, x2: float, y2: float, hue: str, width: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1}" x2="{x2:.1f}" y2="{y2}" stroke="{hue}" stroke-width="{width}"/>'


def _text(x: float, y: float, said: str, anchor: str, quiet: bool = False) -> str:
    kind = ' class="quiet-text"' if quiet else ""
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}"{kind}>{escape(said)}</text>'


def _svg(drawn: Sequence[str], height: float, alt: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(alt)}">{"".join(drawn)}</svg>'
    )


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("board.html"))
    parser.add_argument("--board", type=Path, default=FILE)
    asked = parser.parse_args()
    found = board_values.board(asked.board)
    asked.out.write_text(render(found), "utf-8")
    print(f"{asked.out}: {asked.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
