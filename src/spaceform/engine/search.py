"""Successive halving over candidates by held-out loss, on records that can be kept and taken up again.

Every candidate is trained for a fifth of its epochs, the best quarter of them for half, the best eighth for
all of them; each time from the start, with the whole schedule in the epochs it has, so that a short run is a
finished one. The choice is made among all of these runs: a shorter schedule may be the better one.

The loss is that after one temperature: a wrong scale costs nothing to mend.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

import torch

from spaceform.engine.candidate import Candidate
from spaceform.engine.fit import Diverged, Part, Rehearsal, Rows, rehearse, weighted_nll
from spaceform.heads import Head

_SMALLEST_HELD_OUT = 200
"""Fewer held-out rows say too little; then three parts take turns in being held out."""

_FOLDS = 3

_RUNGS = (0.2, 0.5, 1.0)
_KEPT = (1.0, 1 / 4, 1 / 8)
"""Shares of the epochs, and of the candidates that get them."""


class NothingTrained(ArithmeticError):
    """Every candidate diverged, or there was no time for a single one."""


@final
@dataclass(frozen=True)
class Trial:
    """One candidate on one rung. Plain: a line of JSON."""

    head: str
    candidate: int
    """Its place in the list."""
    rung: int
    epochs: int
    """The schedule it had."""
    best_epoch: int
    nll: float
    calibrated_nll: float
    """After one temperature, fitted on the same rows."""
    temperature: float
    accuracy: float
    seconds: float
    error: str | None = None
    """Why it diverged; then the numbers are NaN."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(record: dict[str, Any]) -> "Trial":
        """The inverse of `to_dict`."""
        return Trial(**record)

    @property
    def score(self) -> float:
        """What the search minimises."""
        return math.inf if self.error is not None else self.calibrated_nll


@final
@dataclass(frozen=True)
class Outcome:
    """All trials in the order in which they ran, and what to use."""

    trials: tuple[Trial, ...]
    best: Trial
    candidate: Candidate
    """The best, with the schedule it had in that trial."""
    fitted: Rehearsal | None
    """The models of that trial, if it ran in this call."""
    complete: bool
    """False if the time was up before the last rung was done."""


def parts_of(train: Rows, held_out: Rows | None, *, seed: int) -> list[Part]:
    """One part; or three folds of all rows, where `held_out` is missing or has fewer than 200."""
    if held_out is not None and len(held_out) >= _SMALLEST_HELD_OUT:
        return [Part.of(train, held_out)]
    rows = train if held_out is None else joined(train, held_out)
    fold = folds(rows, seed=seed)
    return [Part.of(rows[fold != i], rows[fold == i]) for i in range(_FOLDS)]


def joined(first: Rows, second: Rows) -> Rows:
    """The rows of both."""
    return Rows(
        torch.cat([first.x, second.x]),
        torch.cat([first.y, second.y]),
        torch.cat([first.weight, second.weight]),
    )


def folds(rows: Rows, *, seed: int) -> torch.Tensor:
    """The fold of each row, every class dealt out in turn; so a class of three rows is in every fold."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    order = order[rows.y.cpu()[order].argsort(stable=True)]
    fold = torch.empty(len(rows), dtype=torch.long)
    fold[order] = torch.arange(len(rows)) % _FOLDS
    return fold.to(rows.x.device)


def search(
    head: str,
    candidates: Sequence[Candidate],
    parts: Sequence[Part],
    *,
    classes: int,
    seed: int,
    seconds: float | None = None,
    finished: Iterable[Trial] = (),
    on_trial: Callable[[Trial], None] | None = None,
    make: type[Head] | None = None,
) -> Outcome:
    """Find the best of `candidates`.

    `finished` has trials of an earlier call with the same arguments: they are not run again, and the result
    is the same. `on_trial` is called after every new one. `seconds` bounds the time of all trials; the first
    candidate is always tried. `make` is the head's class where its name is not in `HEADS`.
    """
    known = {(t.candidate, t.rung): t for t in finished}
    trials: list[Trial] = []
    best: tuple[Trial, Rehearsal | None] | None = None
    alive, complete = list(range(len(candidates))), True
    for rung, (share, kept) in enumerate(zip(_RUNGS, _KEPT, strict=True)):
        alive = alive[: max(1, round(kept * len(candidates)))]
        scores: dict[int, float] = {}
        for i in alive:
            spent = sum(t.seconds for t in trials)
            candidate = shortened(candidates[i], share)
            trial, fitted = known.get((i, rung)), None
            if trial is None:
                if seconds is not None and trials and spent + _foreseen(trials, candidate) > seconds:
                    complete = False
                    break
                trial, fitted = _run(head, make, i, rung, candidate, parts, classes=classes, seed=seed)
                if on_trial is not None:
                    on_trial(trial)
            trials.append(trial)
            scores[i] = trial.score
            if trial.error is None and (best is None or trial.score < best[0].score):
                best = trial, fitted
        if not complete:
            break
        alive = sorted((i for i in alive if math.isfinite(scores[i])), key=lambda i: scores[i])
        if not alive:
            break
    if best is None:
        errors = "; ".join(sorted({t.error for t in trials if t.error is not None})[:3])
        raise NothingTrained(
            f"{head}: all {len(trials)} candidates diverged ({errors}); lower the rates or leave the head out"
        )
    found, fitted = best
    candidate = shortened(candidates[found.candidate], _RUNGS[found.rung])
    return Outcome(tuple(trials), found, candidate, fitted, complete)


def shortened(candidate: Candidate, share: float) -> Candidate:
    """With that share of its epochs, at least two."""
    return replace(candidate, epochs=max(min(2, candidate.epochs), round(candidate.epochs * share)))


def _foreseen(trials: Sequence[Trial], candidate: Candidate) -> float:
    """Seconds that a trial of so many epochs will take, judged by the mean of those before."""
    epochs = sum(t.epochs for t in trials)
    return candidate.epochs * sum(t.seconds for t in trials) / epochs


def _run(
    head: str,
    make: type[Head] | None,
    index: int,
    rung: int,
    candidate: Candidate,
    parts: Sequence[Part],
    *,
    classes: int,
    seed: int,
) -> tuple[Trial, Rehearsal | None]:
    started = time.perf_counter()
    try:
        fitted = rehearse(make or head, candidate, parts, seed=seed, classes=classes)
        T = fitted.temperature()
        numbers = (fitted.nll, weighted_nll(fitted.logits, *fitted.held_out, 1 / T), T, fitted.accuracy)
        seconds = time.perf_counter() - started
        return Trial(head, index, rung, candidate.epochs, fitted.best_epoch, *numbers, seconds), fitted
    except Diverged as error:
        seconds = time.perf_counter() - started
        nan = math.nan
        return Trial(head, index, rung, candidate.epochs, 0, nan, nan, nan, nan, seconds, str(error)), None
