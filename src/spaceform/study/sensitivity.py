"""What a search tried for each head, and how much the head depends on its rates and options.

A head that is good with one of sixteen candidates needs luck; a head that is good with most of them does not.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, final

import pandas as pd

from spaceform.foundation.messages import counted, listed
from spaceform.study import feature_search


@final
@dataclass(frozen=True)
class Tried:
    """The candidates of one head, and their scores on the validation split."""

    head: str
    scores: tuple[float, ...]
    """The scores of all candidates that trained, on the same short schedule; the best first."""
    diverged: int
    chosen: float
    """The score of the chosen candidate, with the schedule that was best for it."""
    measure: str
    """The quantity that the scores are: `NLL` or `accuracy`."""
    planned: int
    """How many candidates were to be tried; the time may have ended earlier."""

    @property
    def count(self) -> int:
        """How many candidates were tried."""
        return len(self.scores) + self.diverged

    @property
    def typical(self) -> float:
        """The median score; candidates that diverged count as worse than all others."""
        worst = math.inf if self.measure == "NLL" else -math.inf
        return median([*self.scores, *([worst] * self.diverged)])

    @property
    def loss(self) -> float:
        """How far the middle candidate is behind the best: what the head loses without luck."""
        return abs(self.typical - self.scores[0])


def tried(study: Path) -> list[Tried]:
    """What was searched for each head of a study, by name; empty where nothing was searched.

    A head of which no candidate trained is left out.
    """
    folder = study / "search"
    if (folder / "search.db").exists():
        from spaceform.study import optuna_search

        return _by_optuna(optuna_search.trials_of(folder))
    return _by_engine(feature_search.trials_of(folder)) if folder.is_dir() else []


def told(found: Sequence[Tried], note: str) -> str:
    """A sentence on how many candidates were tried; `note` where none were."""
    if not found:
        return note
    planned = max(one.planned for one in found)
    counts = sorted({one.count for one in found})
    number = (
        counted(counts[0], "candidate") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} candidates"
    )
    number += " was" if counts == [1] else " were"
    if _cut_short(found):
        return (
            f"Rates and options: {number} tried for each head on the validation split; "
            f"{planned} were planned, but the time was over."
        )
    return f"Rates and options: {number} tried for each head on the validation split."


def unequal(found: Sequence[Tried], name: Callable[[str], str] = str) -> str:
    """A sentence if heads were not searched equally, with the candidates of each; otherwise empty."""
    heads = {one.head: one.count for one in sorted(found, key=lambda one: one.count)}
    by_count: dict[int, list[str]] = {}
    for head, count in sorted(heads.items(), key=lambda one: -one[1]):
        by_count.setdefault(count, []).append(name(head))
    if len(by_count) < 2:
        return ""
    counts = [f"{listed(names)} {counted(count, 'candidate')}" for count, names in by_count.items()]
    remedy = " The same command with more --minutes goes on." if _cut_short(found) else ""
    return (
        f"The search was not equal: {'; '.join(counts)}. A head with fewer may be better than it looks "
        f"here.{remedy}"
    )


def _cut_short(found: Sequence[Tried]) -> bool:
    return any(one.count < one.planned for one in found)


def heads_left_out(heads: Collection[str], notes: Mapping[str, Any]) -> dict[str, str]:
    """Heads that were searched but are not in the study, because no candidate trained; with the reason."""
    searched = notes.get("searched")
    found = searched.items() if isinstance(searched, Mapping) else ()
    return {str(head): str(why).removeprefix(f"{head}: ") for head, why in found if head not in heads}


def _by_engine(trials: pd.DataFrame) -> list[Tried]:
    return [one for head, own in _heads(trials, "search") if (one := _engine_head(head, own)) is not None]


def _engine_head(head: str, own: pd.DataFrame) -> Tried | None:
    well = own[own["error"].isna()]
    short = well[well["rung"] == well["rung"].min()]
    if not len(short):
        return None
    scores = tuple(sorted(map(float, short["calibrated_nll"])))
    diverged = own["candidate"].nunique() - short["candidate"].nunique()
    planned = int(own["planned"].iloc[0])
    return Tried(head, scores, diverged, float(well["calibrated_nll"].min()), "NLL", planned)


def _by_optuna(trials: pd.DataFrame) -> list[Tried]:
    found = []
    for head, own in _heads(trials, "head"):
        scores = sorted(map(float, own.loc[~own["diverged"], "score"].dropna()), reverse=True)
        if scores:
            diverged = int(own["diverged"].sum())
            found.append(Tried(head, tuple(scores), diverged, scores[0], "accuracy", len(own)))
    return found


def _heads(trials: pd.DataFrame, column: str) -> Iterable[tuple[str, pd.DataFrame]]:
    if not len(trials):
        return []
    return [(str(head), own) for head, own in trials.groupby(column, sort=True)]
