"""Successive halving over candidates by held-out loss, on records that can be kept and taken up again.

Every candidate is trained for three tenths of its epochs, the best quarter of them for all, the best
sixteenth for twice as many; each time from the start, with the whole schedule in the epochs it has, so that a
short run is a finished one. The choice is made among all of these runs: a shorter schedule may be the better
one. Where a net has several members, these runs do with one; the best of them is then tried with all, for as
many epochs.

The loss is that after one temperature: a wrong scale costs nothing to mend.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, final

from spaceform.engine.candidate import Candidate
from spaceform.engine.fit import Rehearsal, rehearse, weighted_nll
from spaceform.engine.rows import TrainingSplit
from spaceform.engine.training import CandidateDiverged
from spaceform.heads import Head

_RUNGS = (0.3, 1.0, 2.0)
_KEPT = (1.0, 1 / 4, 1 / 16)
"""Shares of the epochs, and of the candidates that get them."""
_ALL_MEMBERS = len(_RUNGS)
"""The last rung: the best run again, with all members of its net."""


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


_Tried = tuple[Trial, Rehearsal | None]
"""A trial, and its models if it ran in this call."""


def search(
    head: str,
    candidates: Sequence[Candidate],
    parts: Sequence[TrainingSplit],
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

    def attempt(i: int, rung: int, candidate: Candidate) -> _Tried | None:
        """One trial, or the one that is known; None where there is no time for it."""
        trial, fitted = known.get((i, rung)), None
        if trial is None:
            spent = sum(t.seconds for t in trials)
            if seconds is not None and trials and spent + _foreseen(trials, candidate) > seconds:
                return None
            trial, fitted = _run(head, make, i, rung, candidate, parts, classes=classes, seed=seed)
            if on_trial is not None:
                on_trial(trial)
        trials.append(trial)
        return trial, fitted

    best: _Tried | None = None
    alive, complete = list(range(len(candidates))), True
    for rung, kept in _rungs(len(candidates)):
        alive = alive[:kept]
        scores: dict[int, float] = {}
        for i in alive:
            tried = attempt(i, rung, _with_share(candidates[i], _RUNGS[rung]))
            if tried is None:
                complete = False
                break
            scores[i] = tried[0].score
            best = _better(best, tried)
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
    whole = _as_tried(candidates, replace(best[0], rung=_ALL_MEMBERS))
    if complete and whole.members > 1:
        tried = attempt(best[0].candidate, _ALL_MEMBERS, whole)
        complete = tried is not None
        best = _better(best, tried)
    assert best is not None
    found, fitted = best
    return Outcome(tuple(trials), found, _as_tried(candidates, found), fitted, complete)


def _rungs(candidates: int) -> list[tuple[int, int]]:
    """Which rungs are worth their time, and how many candidates each gets.

    One candidate is only trained for all of its epochs; more than eight are needed for twice as many.
    """
    counts = [candidates, max(1, round(_KEPT[1] * candidates)), round(_KEPT[2] * candidates)]
    return [(rung, n) for rung, n in enumerate(counts) if n > 0 and (rung > 0 or n > 1)]


def _with_share(candidate: Candidate, share: float) -> Candidate:
    """With one member, for that share of its epochs, at least two."""
    epochs = max(min(2, candidate.epochs), round(candidate.epochs * share))
    return replace(candidate, epochs=epochs, members=1)


def _as_tried(candidates: Sequence[Candidate], trial: Trial) -> Candidate:
    """The candidate of a trial, with the epochs and members it had there."""
    own = candidates[trial.candidate]
    members = own.members if trial.rung == _ALL_MEMBERS else 1
    return replace(own, epochs=trial.epochs, members=members)


def _better(best: _Tried | None, tried: _Tried | None) -> _Tried | None:
    """The one with the lower loss, the first of equals; None is worse than any that did not diverge."""
    if tried is None or tried[0].error is not None:
        return best
    return tried if best is None or tried[0].score < best[0].score else best


def _foreseen(trials: Sequence[Trial], candidate: Candidate) -> float:
    """Seconds that a trial of so many epochs and members will take, judged by the mean of those before."""
    epochs = sum(t.epochs for t in trials)
    return candidate.members * candidate.epochs * sum(t.seconds for t in trials) / epochs


def _run(
    head: str,
    make: type[Head] | None,
    index: int,
    rung: int,
    candidate: Candidate,
    parts: Sequence[TrainingSplit],
    *,
    classes: int,
    seed: int,
) -> tuple[Trial, Rehearsal | None]:
    started = time.perf_counter()
    try:
        fitted = rehearse(make or head, candidate, parts, seed=seed, classes=classes)
        calibrator = fitted.calibrator()
        calibrated = weighted_nll(calibrator(fitted.logits)[None], *fitted.held_out)
        numbers = (fitted.nll, calibrated, calibrator.temperature, fitted.accuracy)
        seconds = time.perf_counter() - started
        return Trial(head, index, rung, candidate.epochs, fitted.best_epoch, *numbers, seconds), fitted
    except CandidateDiverged as error:
        seconds = time.perf_counter() - started
        nan = math.nan
        return Trial(head, index, rung, candidate.epochs, 0, nan, nan, nan, nan, seconds, str(error)), None
