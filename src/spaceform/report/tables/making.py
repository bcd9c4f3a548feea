"""How a study was made: its search, its seeds, and why it went on or stopped."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from spaceform.foundation.messages import listed
from spaceform.report.looks import display
from spaceform.report.records import Group

_STOPPED = {
    "settled": "more seeds would hardly change the choice of any goal.",
    "most seeds": "the heads in question have as many seeds as any head gets.",
    "nothing told": "these test items cannot tell which head to choose, with however many seeds.",
    "one head": "there is one head only.",
    "minutes": "the minutes were over.",
}


@final
@dataclass(frozen=True)
class Made:
    """How a study was made, in sentences."""

    said: list[str]
    """Sentences on the search, the seeds of each head, and how the race for more seeds ended."""
    rounds: list[str]
    """The rounds of the race before the last."""


def made(group: Group, notes: Mapping[str, Any], search: str) -> Made:
    """How a study was made, from its notes; `search` says what was searched."""
    found = notes.get("race")
    every = found if isinstance(found, list) else []
    rounds = [_round(place, one) for place, one in enumerate(every, 1) if isinstance(one, dict)]
    said = [search, _seeds(group), *rounds[-1:]]
    return Made([sentence for sentence in said if sentence], rounds[:-1])


def _seeds(group: Group) -> str:
    by_count: dict[int, list[str]] = {}
    for label in group.labels:
        by_count.setdefault(len(group.of(label)), []).append(display(label))
    if len(by_count) == 1:
        (count,) = by_count
        return f"Seeds: {count} of each head." if count else ""
    parts = [
        f"{count} of {listed(names)}" for count, names in sorted(by_count.items(), reverse=True) if count
    ]
    return f"Seeds: {'; '.join(parts)}." if parts else ""


def _round(place: int, one: Mapping[str, Any]) -> str:
    questions = [q for q in one.get("questions", ()) if isinstance(q, dict)]
    pending = [_question(q) for q in questions if not q.get("settled")]
    still = f" Open: {'; '.join(pending)}." if pending else ""
    few = [str(q["goal"]) for q in questions if q.get("few_items")]
    still += f" Here more test items would help, not more seeds: {listed(few)}." if few else ""
    reason = str(one.get("reason", ""))
    if reason in _STOPPED:
        return f"After round {place} the race for seeds stopped: {_STOPPED[reason]}{still}"
    asked = dict.fromkeys(h for q in questions if not q.get("settled") for h in q.get("heads", ()))
    more = f"more seeds for {listed(list(map(display, asked)))}" if asked else "the first seeds of every head"
    return f"After round {place}: {more}.{still}"


def _question(q: Mapping[str, Any]) -> str:
    """`accuracy (Cosine so far; expected loss 0.65 of what matters)`."""
    loss = float(q["regret"]) / float(q["region"])
    return f"{q['goal']} ({display(str(q['choice']))} so far; expected loss {loss:.2f} of what matters)"
