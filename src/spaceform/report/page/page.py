"""report.html: one self-contained page; nothing in it is fetched, and only its own script may run."""

import base64
import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from spaceform import __version__
from spaceform.foundation.messages import capital
from spaceform.report.contents import Contents, DataSetPart
from spaceform.report.figures import searched
from spaceform.report.figures.extremes import Extremes, Grid
from spaceform.report.figures.figure import Figure, inline, legend
from spaceform.report.figures.neighbours import Neighbours
from spaceform.report.looks import display, look
from spaceform.report.page.advice import answer, cards, deployment, headline
from spaceform.report.page.goal_weights import weights
from spaceform.report.page.viewer import packed
from spaceform.report.readable import number, readable
from spaceform.report.style import themes
from spaceform.report.tables.results import terms
from spaceform.run.environment import environment


def render(contents: Contents) -> str:
    """The whole page."""
    style = themes() + _asset("style.css")
    script = "".join(map(_asset, ("cloud.js", "viewer.js", "answer.js", "page.js")))
    compared = any(column.title == "paper" for table in contents.tables for column in table.columns)
    template = Environment(autoescape=True, trim_blocks=False, keep_trailing_newline=True)
    template.filters["groupby_run"] = _runs
    template.filters["capitalized"] = capital
    return template.from_string(_asset("template.html.j2")).render(
        title=_title(contents),
        headline=headline(contents.parts),
        facts=_facts(contents),
        notes=_notes(contents),
        groups=[_part(part) for part in contents.parts],
        tables=contents.tables
        if compared or len(contents.parts) > 1
        else [],  # otherwise they repeat the results
        compared=compared,
        starts=_chart(contents.starts) if contents.starts else None,
        environments=_environments(contents),
        look=look,
        version=__version__,
        style=Markup(style),
        script=Markup(script),
        style_hash=Markup(_hash(style)),
        script_hash=Markup(_hash(script)),
    )


def _asset(name: str) -> str:
    return files("spaceform.report.page").joinpath("assets", name).read_text("utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _runs(items: Sequence[Any], name: str) -> Iterator[tuple[Any, int]]:
    for value, inside in groupby(items, key=lambda item: getattr(item, name)):
        yield value, len(list(inside))


def _title(contents: Contents) -> str:
    titles = [part.group.title for part in contents.parts]
    return f"Which geometry for {titles[0]}?" if len(titles) == 1 else "Which geometry? " + ", ".join(titles)


def _facts(contents: Contents) -> list[tuple[str, str]]:
    """The numbers below the headline, each with what it counts."""
    records = contents.collection.records
    finished = sum(record.finished for record in records)
    heads = len({record.head for record in records})
    seeds = len({record.recipe.seed for record in records})
    items = [f"{record.metrics['items']:,}" for record in records if record.metrics.get("items")]
    made = contents.collection.plans[0].get("made_with", {}) if contents.collection.plans else {}
    facts = [
        ("head" if heads == 1 else "heads", str(heads)),
        ("seed" if seeds == 1 else "seeds", str(seeds)),
        ("runs finished", f"{finished} of {len(records)}" if finished < len(records) else str(finished)),
    ]
    if items and len(contents.parts) == 1:
        facts.append(("test items", items[0]))
    if made.get("date"):
        facts.append(("", str(made["date"])))
    return facts


def _notes(contents: Contents) -> list[str]:
    """What a reader must know first: what cannot be read, what was shortened, what is missing in the data."""
    plans = [plan.get("notes", {}) for plan in contents.collection.plans]
    told = [str(notes[name]) for notes in plans for name in ("shortened", "data_note") if notes.get(name)]
    return [*contents.collection.notes, *told]


def _environments(contents: Contents) -> list[dict[str, Any]]:
    found = [
        {
            "title": readable(f"Study {study.folder.resolve().name}"),
            "facts": _facts_of(plan.get("made_with", {})) + _facts_of(_plain(plan.get("notes", {}))),
        }
        for study, plan in zip(contents.collection.studies, contents.collection.plans, strict=True)
    ]
    return [*found, {"title": "This report", "facts": _facts_of(readable(environment()))}]


def _plain(notes: Any) -> Any:
    """The notes without those that the page says in other places."""
    told = ("race", "searched")
    return (
        {key: value for key, value in notes.items() if key not in told} if isinstance(notes, dict) else notes
    )


def _facts_of(values: Any) -> list[tuple[str, str]]:
    if not isinstance(values, dict):
        return []
    return [
        (str(name), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in values.items()
        if value is not None and value != ""
    ]


def _part(part: DataSetPart) -> dict[str, Any]:
    group = part.group
    heads = {record.label: record.head for record in group.records}
    return {
        "key": group.key,
        "title": group.title,
        "task": group.task,
        "notes": [*(f"{display(h)} is left out: {why}." for h, why in part.left_out.items()), *group.notes],
        "answer": answer(part)[1:],
        "picture": _chart(part.answer),
        "deploy": deployment(part),
        "weights": weights(group.key, part.advice, heads),
        "advice": cards(part),
        "summary": part.summary,
        "terms": terms(part.results.measures),
        "search": _chart(part.search) if part.searched else None,
        "search_table": part.search_table,
        "search_said": searched.sensitive_heads(part.searched),
        "found": part.found,
        "costs": part.costs,
        "classes": _chart(part.classes),
        "confused": part.confused,
        "sets": part.sets,
        "pairs": part.pairs,
        "made": part.made,
        "paper": part.paper,
        "tradeoff": _chart(part.tradeoff),
        "temperature": _chart(part.temperature) if part.temperature else None,
        "reliability": _chart(part.reliability),
        "risk": _chart(part.risk),
        "training": _chart(part.training),
        "viewer": packed(part),
        "extremes": part.extremes_figure,
        "extremes_shown": list(map(_extremes, part.extremes)),
        "neighbours": part.neighbours_figure,
        "neighbours_shown": list(map(_neighbours, part.neighbours)),
        "smooth": part.photos,
        "runs": part.runs,
        "recipes": [
            {
                "id": f"{group.key}-recipe-{place}",
                "name": record.name,
                "json": record.recipe.to_json().strip(),
            }
            for place, record in enumerate(group.records)
        ],
    }


def _chart(figure: Figure) -> dict[str, Any]:
    return {
        "figure": figure,
        "panels": [(panel.title, Markup(inline(figure, i))) for i, panel in enumerate(figure.panels)],
        "legend": [(label, Markup(sample)) for label, sample in legend(figure)],
    }


def _extremes(one: Extremes) -> dict[str, Any]:
    return {
        "head": one.shown.record.head,
        "label": one.shown.title,
        "symbol": one.symbol,
        "ends": [("Smallest", _grid(one.smallest)), ("Largest", _grid(one.largest))],
    }


def _grid(grid: Grid) -> dict[str, Any]:
    return {
        "image": grid.encoded,
        "range": f"{number(grid.low)} to {number(grid.high)}",
        "right": "" if grid.right is None else f"{grid.right:.0%} right",
    }


def _neighbours(one: Neighbours) -> dict[str, Any]:
    return {
        "head": one.shown.record.head,
        "label": one.shown.title,
        "said": f"{one.right} of {one.count} neighbours have the query's class",
        "image": one.encoded,
    }
