"""Successive halving over candidates by held-out loss. A search can go on from the records of its trials.

Every candidate is trained for three tenths of its epochs, the best quarter of the candidates (at least two)
for all of their epochs, the best sixteenth (at least one) for twice as many at half the rate. Training begins
anew each time and goes through a whole schedule, so that a short run is a finished one. The best of all these
runs is chosen: a shorter schedule may be better. Where a net has several members, these runs train one
member; the best run is then repeated with all members. What a caller holds is not changed: with
`hold=["epochs"]` every candidate is trained once, for all of its epochs; with `hold=["lr"]` the longest run
keeps its rate; with `hold=["members"]` every run has all members.

The loss is measured after temperature scaling: a wrong scale costs nothing to mend.
"""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, final

from spaceform.engine.candidate import Candidate
from spaceform.engine.fit import Rehearsal, rehearse, weighted_nll
from spaceform.engine.rows import TrainingSplit
from spaceform.engine.training import CandidateDiverged
from spaceform.heads import Head

_RUNGS = (0.3, 1.0, 2.0)
_SHARES_KEPT, _FEWEST_KEPT = (1.0, 1 / 4, 1 / 16), (1, 2, 1)
"""Each rung: the share of the epochs, the share of the candidates that are trained for them, and the fewest
candidates: what needs long training, such as much dropout, looks worse than it is after a short one.
"""
_LONGEST, _LONGEST_RATE = _RUNGS.index(2.0), 0.5
"""The longest run has this share of the rate: on most of seven tables its test loss is lower than that of the
run at the whole rate, whether half as long or as long.
"""
_ALL_EPOCHS = _RUNGS.index(1.0)
_ALL_MEMBERS = len(_RUNGS)
"""The last rung: the best run again, with all members of its net."""


Held: TypeAlias = Literal["epochs", "lr", "members"]
"""What a search changes, unless it is held."""


class NothingTrained(ArithmeticError):
    """Every candidate diverged, or there was no time for a single one."""


@final
@dataclass(frozen=True)
class Trial:
    """One candidate on one rung. Plain: a line of JSON."""

    head: str
    candidate: int
    """The candidate's place in the list."""
    rung: int
    epochs: int
    """The epochs of its schedule."""
    lr: float
    best_epoch: int
    nll: float
    calibrated_nll: float
    """The NLL after temperature scaling, fitted on the same rows."""
    temperature: float
    accuracy: float
    seconds: float
    error: str | None = None
    """Why the trial diverged; then its numbers are NaN."""

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
    """The best candidate, with the schedule, the rate and the members of its best trial."""
    fitted: Rehearsal | None
    """The models of its best trial, if that ran in this call."""
    complete: bool
    """False if the time was over before the last rung was done."""


_Tried = tuple[Trial, Candidate, Rehearsal | None]
"""A trial, what was trained, and the models if it ran in this call."""


def search(
    head: str,
    candidates: Sequence[Candidate],
    parts: Sequence[TrainingSplit],
    *,
    classes: int,
    seed: int,
    seconds: float | None = None,
    hold: Collection[Held] = (),
    finished: Iterable[Trial] = (),
    on_trial: Callable[[Trial], None] | None = None,
    make: type[Head] | None = None,
) -> Outcome:
    """Find the best of `candidates`. Trials do not change what is in `hold`.

    `finished` has trials of an earlier call with the same arguments: they are not run again, and the result
    is the same. `on_trial` is called after every new trial. `seconds` bounds the time of all trials; the
    first candidate is always tried. `make` is the head's class where its name is not in `HEADS`.
    """
    hold = {*hold, "members"} if len(candidates) == 1 else hold  # it is trained once
    known = {(t.candidate, t.rung): t for t in finished}
    trials: list[Trial] = []
    one_member = "members" not in hold

    def foreseen(candidate: Candidate) -> float:
        """Seconds that a trial will take, by the mean of the trials so far, most of which have one member."""
        nets = candidate.members if one_member else 1
        return nets * candidate.epochs * sum(t.seconds for t in trials) / sum(t.epochs for t in trials)

    def attempt(i: int, rung: int, candidate: Candidate) -> _Tried | None:
        """Run one trial, or take it from `finished`; None where there is no time for it."""
        trial, fitted = known.get((i, rung)), None
        if trial is None:
            spent = sum(t.seconds for t in trials)
            if seconds is not None and trials and spent + foreseen(candidate) > seconds:
                return None
            trial, fitted = _run(head, make, i, rung, candidate, parts, classes=classes, seed=seed)
            if on_trial is not None:
                on_trial(trial)
        trials.append(trial)
        return trial, candidate, fitted

    best: _Tried | None = None
    alive, complete = list(range(len(candidates))), True
    for rung, kept in _rungs(len(candidates), halving="epochs" not in hold):
        alive = alive[:kept]
        scores: dict[int, float] = {}
        for i in alive:
            tried = attempt(i, rung, _on_rung(candidates[i], rung, hold))
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
    place = best[0].candidate
    whole = replace(best[1], members=candidates[place].members)
    if complete and whole != best[1]:
        tried = attempt(place, _ALL_MEMBERS, whole)
        complete = tried is not None
        best = _better(best, tried)
    assert best is not None
    found, chosen, fitted = best
    return Outcome(tuple(trials), found, chosen, fitted, complete)


def _rungs(candidates: int, *, halving: bool) -> list[tuple[int, int]]:
    """Which rungs are run, and how many candidates each gets.

    A single candidate is trained once, for all of its epochs.
    """
    if not halving or candidates == 1:
        return [(_ALL_EPOCHS, candidates)]
    kept = zip(_SHARES_KEPT, _FEWEST_KEPT, strict=True)
    return [(rung, max(fewest, round(share * candidates))) for rung, (share, fewest) in enumerate(kept)]


def _on_rung(candidate: Candidate, rung: int, hold: Collection[Held]) -> Candidate:
    """The candidate with the rung's share of its epochs (at least two), its rate, and one member or all."""
    return replace(
        candidate,
        epochs=max(min(2, candidate.epochs), round(candidate.epochs * _RUNGS[rung])),
        lr=candidate.lr * (_LONGEST_RATE if rung == _LONGEST and "lr" not in hold else 1.0),
        members=candidate.members if "members" in hold else 1,
    )


def _better(best: _Tried | None, tried: _Tried | None) -> _Tried | None:
    """The trial with the lower loss; `best` if both are equal or `tried` diverged."""
    if tried is None or tried[0].error is not None:
        return best
    return tried if best is None or tried[0].score < best[0].score else best


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
        schedule = (candidate.epochs, candidate.lr, fitted.best_epoch)
        return Trial(head, index, rung, *schedule, *numbers, seconds), fitted
    except CandidateDiverged as error:
        seconds = time.perf_counter() - started
        schedule, numbers = (candidate.epochs, candidate.lr, 0), (math.nan,) * 4
        return Trial(head, index, rung, *schedule, *numbers, seconds, str(error)), None
