"""Successive halving over candidates by held-out loss, on records that can be kept and taken up again.

Every candidate is trained for three tenths of its epochs, the best quarter of them for all, the best
sixteenth for twice as many; each time from the start, with the whole schedule in the epochs it has, so that a
short run is a finished one. Where a net has several members, the short runs do with one. The choice is made
among all of these runs: a shorter schedule may be the better one.

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
    best: tuple[Trial, Rehearsal | None] | None = None
    alive, complete = list(range(len(candidates))), True
    for rung, kept in _rungs(len(candidates)):
        alive = alive[:kept]
        scores: dict[int, float] = {}
        for i in alive:
            spent = sum(t.seconds for t in trials)
            candidate = with_share(candidates[i], _RUNGS[rung])
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
    candidate = with_share(candidates[found.candidate], _RUNGS[found.rung])
    return Outcome(tuple(trials), found, candidate, fitted, complete)


def _rungs(candidates: int) -> list[tuple[int, int]]:
    """Which rungs are worth their time, and how many candidates each gets.

    One candidate is only trained for all of its epochs; more than eight are needed for twice as many.
    """
    counts = [candidates, max(1, round(_KEPT[1] * candidates)), round(_KEPT[2] * candidates)]
    return [(rung, n) for rung, n in enumerate(counts) if n > 0 and (rung > 0 or n > 1)]


def with_share(candidate: Candidate, share: float) -> Candidate:
    """With that share of its epochs, at least two; in less than all of them with one member."""
    epochs = max(min(2, candidate.epochs), round(candidate.epochs * share))
    return replace(candidate, epochs=epochs, members=candidate.members if share >= 1 else 1)


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
