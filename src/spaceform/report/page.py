"""report.html: one self-contained page; nothing in it is fetched, and only its own script may run."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from spaceform._version import __version__
from spaceform.report.contents import Contents, Part
from spaceform.report.figures import Figure, inline, legend
from spaceform.report.images import Encoded
from spaceform.report.style import COLORS, display, number
from spaceform.report.tables import frame, terms
from spaceform.report.viewer import caption, packed
from spaceform.run.environment import environment
from spaceform.study.verdict import Advice, footnote

_MARKS = {
    "": "M0-1A1 1 0 1 0 0 1A1 1 0 1 0 0-1Z",
    "standard": "M0-1A1 1 0 1 0 0 1A1 1 0 1 0 0-1Z",
    "hyperbolic": "M0-1.1L1.1 0L0 1.1L-1.1 0Z",
    "cosine": "M-.9-.9H.9V.9H-.9Z",
    "arcface": "M0-1L1 .85H-1Z",
    "vmf": "M0 1L1-.85H-1Z",
    "power_spherical": "M-.38-1H.38V-.38H1V.38H.38V1H-.38V.38H-1V-.38H-.38Z",
}


def render(contents: Contents) -> str:
    """The whole page."""
    style = _asset("style.css")
    script = _asset("viewer.js") + _asset("page.js")
    template = Environment(autoescape=True, trim_blocks=False, keep_trailing_newline=True)
    template.filters["groupby_run"] = _runs
    parts = [_part(part) for part in contents.parts]
    return template.from_string(_asset("template.html.j2")).render(
        title=_title(contents),
        headline=_headline(contents.parts),
        facts=_facts(contents),
        notes=_notes(contents),
        groups=parts,
        tables=contents.tables,
        compared=any(column.title == "paper" for table in contents.tables for column in table.columns),
        starts=_chart(contents.starts),
        environments=_environments(contents),
        marks=_MARKS,
        hue=_hue,
        version=__version__,
        style=Markup(style),
        script=Markup(script),
        style_hash=Markup(_hash(style)),
        script_hash=Markup(_hash(script)),
    )


def _asset(name: str) -> str:
    return files("spaceform.report").joinpath("page", name).read_text("utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _hue(head: str) -> str:
    return f"var(--{head.replace('_', '-')})" if head in COLORS else "var(--muted)"


def _runs(items: Sequence[Any], name: str) -> Iterator[tuple[Any, int]]:
    for value, inside in groupby(items, key=lambda item: getattr(item, name)):
        yield value, len(list(inside))


def _title(contents: Contents) -> str:
    titles = [part.group.title for part in contents.parts]
    return f"Which geometry for {titles[0]}?" if len(titles) == 1 else "Which geometry? " + ", ".join(titles)


def _headline(parts: Sequence[Part]) -> str:
    """The clear winners in one breath, or that there is none."""
    said = []
    for part in parts:
        where = f"On {part.group.title}, " if len(parts) > 1 else ""
        by_winner: dict[str, list[str]] = {}
        for one in part.advice:
            if len(one.winners) == 1 and len(one.rows) > 1 and any(row.p is not None for row in one.rows):
                by_winner.setdefault(display(one.winners[0]), []).append(one.goal)
        open_goals = [one.goal for one in part.advice if len(one.winners) > 1]
        if by_winner:
            sentence = "; ".join(f"{winner} for {_and(goals)}" for winner, goals in by_winner.items())
            rest = f"; no clear winner for {_and(open_goals)}" if open_goals else ""
            said.append(f"{where}{sentence}{rest}.")
        elif not part.advice:
            said.append(f"{where}no run has finished yet.")
        elif all(row.p is None for one in part.advice for row in one.rows):
            seeds = {row.seeds for one in part.advice for row in one.rows}
            why = "one seed each" if seeds == {1} else "not every head has two runs yet"
            said.append(f"{where}{why}: the figures below are a first look, not a verdict.")
        else:
            behind = _behind(part.advice)
            said.append(
                f"{where}no head wins clearly at any goal; {behind}."
                if behind
                else f"{where}no clear winner: so few seeds cannot tell the heads apart."
            )
    return _capital(" ".join(said))


def _behind(advices: Sequence[Advice]) -> str:
    """Who is significantly worse, and in what."""
    by_labels: dict[tuple[str, ...], list[str]] = {}
    for one in advices:
        if behind := tuple(display(row.label) for row in one.rows if not row.tied):
            by_labels.setdefault(behind, []).append(one.goal)
    return "; ".join(
        f"{_and(labels)} {'is' if len(labels) == 1 else 'are'} behind in {_and(goals)}"
        for labels, goals in by_labels.items()
    )


def _unbroken(text: str) -> str:
    """No line ends within `97.31 ± 0.12 %`."""
    return text.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def _capital(text: str) -> str:
    """A sentence begins large, but vMF stays vMF."""
    return text if text[1:2].isupper() else text[:1].upper() + text[1:]


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _facts(contents: Contents) -> list[tuple[str, str]]:
    records = contents.collection.records
    finished = sum(record.finished for record in records)
    heads = len({record.head for record in records})
    seeds = len({record.recipe.seed for record in records})
    items = [str(f"{r.metrics['items']:,}") for r in records if r.metrics.get("items")]
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
    """What a reader must know first: what cannot be read, what was shortened, what the data lacks."""
    plans = [plan.get("notes", {}) for plan in contents.collection.plans]
    told = [str(notes[name]) for notes in plans for name in ("shortened", "data_note") if notes.get(name)]
    return [*contents.collection.notes, *told]


def _environments(contents: Contents) -> list[dict[str, Any]]:
    found = [
        {
            "title": f"Study {study.folder.resolve().name}",
            "facts": _listed(plan.get("made_with", {})) + _listed(plan.get("notes", {})),
        }
        for study, plan in zip(contents.collection.studies, contents.collection.plans, strict=True)
    ]
    return [*found, {"title": "This report", "facts": _listed(environment())}]


def _listed(values: Any) -> list[tuple[str, str]]:
    if not isinstance(values, dict):
        return []
    return [
        (str(name), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in values.items()
        if value is not None and value != ""
    ]


def _part(part: Part) -> dict[str, Any]:
    group = part.group
    table = frame(group)
    return {
        "key": group.key,
        "title": group.title,
        "task": group.task,
        "notes": group.notes,
        "advice": [_advice(part, i, one) for i, one in enumerate(part.advice)],
        "summary": part.summary,
        "footnote": " ".join(footnote(table)),
        "terms": terms(table),
        "paper": part.paper,
        "tradeoff": _chart(part.tradeoff),
        "temperature": _chart(part.temperature) if part.temperature else None,
        "reliability": _chart(part.reliability),
        "risk": _chart(part.risk),
        "training": _chart(part.training),
        "viewer": (viewer := packed(part)),
        "points_caption": caption(viewer),
        "extremes": part.extremes_figure,
        "extremes_shown": [_extremes(one) for one in part.extremes],
        "neighbours": part.neighbours_figure,
        "neighbours_shown": [_neighbours(one) for one in part.neighbours],
        "smooth": part.photos,
        "runs": part.runs,
        "recipes": [
            {
                "id": f"{group.key}-recipe-{i}",
                "name": record.name,
                "json": record.recipe.to_json().strip(),
            }
            for i, record in enumerate(group.records)
        ],
    }


def _advice(part: Part, place: int, one: Advice) -> dict[str, Any]:
    heads = {record.label: record.head for record in part.group.records}
    tested = any(row.p is not None for row in one.rows)
    points = {
        label: [v for r in part.group.of(label) if (v := r.number(one.measure.column)) is not None]
        for label in (row.label for row in one.rows)
    }
    everything = [value for values in points.values() for value in values]
    goal, _, rest = one.sentence.partition(": ")
    sign = -1 if one.measure.higher else 1
    said = re.sub(
        "|".join(rf"(?<![\w-]){re.escape(label)}(?![\w-])" for label in sorted(heads, key=len, reverse=True)),
        lambda found: display(found[0]),
        rest,
    )
    return {
        "key": f"{part.group.key}-advice-{place}",
        "goal": goal,
        "winners": [(heads[label], display(label)) for label in one.winners],
        "of": len(one.rows),
        "single": len(one.winners) == 1,
        "sentence": _unbroken(_capital(said.removeprefix("no clear winner: ") if said else one.sentence)),
        "measure": one.measure.title,
        "test": "Bold: the best, and those next to it down to the first that is significantly worse. "
        "p: Welch's t-test against the best, Holm-corrected over the column."
        if tested
        else "A head with one figure only allows no test.",
        "rows": [
            {
                "head": heads[row.label],
                "label": display(row.label),
                "text": one.measure.text(row.mean, row.sem),
                "seeds": row.seeds,
                "tied": row.tied,
                "p": "—" if row.p is None else f"{row.p:.3f}" if row.p >= 0.001 else "< 0.001",
                "strip": _strip(points[row.label], everything, heads[row.label]),
            }
            for row in sorted(one.rows, key=lambda row: sign * row.mean)
        ],
    }


def _strip(values: Sequence[float], everything: Sequence[float], head: str) -> Markup:
    """All seeds of a row on the common scale of the column, with a tick at the mean."""
    low, high = min(everything), max(everything)

    def at(value: float) -> float:
        return 6 + 148 * ((value - low) / (high - low) if high > low else 0.5)

    hue = _hue(head)
    dots = "".join(
        f'<circle cx="{at(value):.1f}" cy="9" r="4" fill="{hue}" fill-opacity="0.55"/>' for value in values
    )
    mean = at(sum(values) / len(values)) if values else 0
    tick = f'<path d="M{mean:.1f} 2V16" stroke="{hue}" stroke-width="2"/>' if values else ""
    return Markup(
        f'<svg width="160" height="18" viewBox="0 0 160 18" aria-hidden="true">'
        f'<path d="M4 9H156" stroke="var(--line)"/>{dots}{tick}</svg>'
    )


def _chart(figure: Figure) -> dict[str, Any]:
    return {
        "figure": figure,
        "panels": [(panel.title, Markup(inline(figure, i))) for i, panel in enumerate(figure.panels)],
        "legend": [(label, Markup(sample)) for label, sample in legend(figure)],
    }


def _extremes(one: Any) -> dict[str, Any]:
    low: Encoded = one.encoded(one.low)
    high: Encoded = one.encoded(one.high)
    return {
        "head": one.record.head,
        "label": display(one.record.label),
        "word": one.word,
        "low": low.uri,
        "high": high.uri,
        "width": low.width,
        "height": low.height,
        "low_range": " to ".join(map(number, one.low_range)),
        "high_range": " to ".join(map(number, one.high_range)),
        "low_right": None if one.low_right is None else f"{one.low_right:.0%}",
        "high_right": None if one.high_right is None else f"{one.high_right:.0%}",
    }


def _neighbours(one: Any) -> dict[str, Any]:
    image: Encoded = one.encoded
    return {
        "head": one.record.head,
        "label": display(one.record.label),
        "said": f"{one.right} of {one.shown} neighbours are of the query's class",
        "uri": image.uri,
        "width": image.width,
        "height": image.height,
    }
