"""Train one candidate, on one split or on folds: a cosine schedule, and the epoch of least held-out loss.

The loss is taken after one temperature, as the search and the verdict take it. Without the temperature,
training would stop when probabilities become too sure, though accuracy still grows (Berta et al. 2025: first
refine, then calibrate).

`fit` trains on given rows and watches held-out ones; `rehearse` does so on several parts at once, which take
turns in being held out, and finds one number of epochs for all; `finish` then makes a model of all rows;
`refit` trains a new one for a given number of epochs.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.calibrators import TemperatureScaling
from spaceform.engine.candidate import Candidate
from spaceform.engine.rows import Rows, TrainingSplit, inputs_of
from spaceform.engine.training import CandidateDiverged, FeaturesModel, Training
from spaceform.heads import Head
from spaceform.heads.base import log_mean_softmax

_LOOKS = 5
"""How often the held-out loss is measured in a full schedule."""

_PATIENCE = 0.4
"""Training stops when the held-out loss has not fallen for this share of the schedule."""

_SLACK = 0.01
"""A later epoch is kept if its held-out loss is at most this share above the lowest: losses of neighbouring
epochs differ by chance, and lower rates make the better model.
"""

_MORE_EPOCHS, _MORE_RATE = 0.35, 0.3
"""`finish` trains a model further with the held-out rows: for this share of the epochs that the model had,
with this share of their highest rate.

On sentence embeddings this costs a third of the time of a new model of all rows, and the test loss is the
same (cosine head: 0.2556 and 0.2552).
"""

_LOG_TEMPERATURE_SPREAD = 0.5
"""Standard deviation of the prior of log T. Without it, held-out rows without a mistake send T to 0."""


class EpochRecord(NamedTuple):
    """What was measured after an epoch. `epoch` counts from 1; `accuracy` is that of the held-out rows."""

    epoch: int
    objective: float
    held_out_nll: float
    calibrated_nll: float
    """The same loss after one temperature, fitted to the same rows: by it the best epoch is chosen."""
    accuracy: float


@final
@dataclass(frozen=True)
class Rehearsal:
    """Models that were trained with parts held out, each as it was after the best epoch."""

    models: tuple[FeaturesModel, ...]
    history: tuple[EpochRecord, ...]
    best_epoch: int
    """Counted from 1."""
    logits: Float[Tensor, "draws n classes"]
    """Logits of all held-out rows, part after part; a stochastic head has 16 fixed draws."""
    held_out: tuple[Integer[Tensor, " n"], Float[Tensor, " n"]]
    """Labels and weights of the same rows."""
    seconds: float

    @property
    def nll(self) -> float:
        """The held-out loss."""
        return weighted_nll(self.logits, *self.held_out)

    @property
    def accuracy(self) -> float:
        """The held-out share that is right."""
        return _accuracy(self.logits, *self.held_out)

    def calibrator(self) -> TemperatureScaling:
        """The most probable temperature for the held-out rows; log T has the prior N(0, 0.5²)."""
        return temperature_of(self.logits, *self.held_out)


def fit(
    head: str | type[Head], candidate: Candidate, train: Rows, held_out: Rows, *, seed: int, classes: int
) -> Rehearsal:
    """Train on `train`, watch `held_out`, keep the best epoch: `models` has one model."""
    return rehearse(head, candidate, [TrainingSplit.of(train, held_out)], seed=seed, classes=classes)


def rehearse(
    head: str | type[Head], candidate: Candidate, parts: Sequence[TrainingSplit], *, seed: int, classes: int
) -> Rehearsal:
    """Train a model on every part, all in step; the best epoch has the least loss over all held-out rows."""
    started = time.perf_counter()
    runs = [Training(head, candidate, part.train, seed=seed, classes=classes) for part in parts]
    y = torch.cat([part.held_out.y for part in parts])
    w = torch.cat([part.held_out.weight for part in parts])
    history: list[EpochRecord] = []
    every = max(1, candidate.epochs // _LOOKS)
    best, states, logits = 0, [run.state() for run in runs], torch.empty(0)
    for epoch in range(1, candidate.epochs + 1):
        objectives = [_epoch(run, part.train, candidate) for run, part in zip(runs, parts, strict=True)]
        if epoch % every and epoch != candidate.epochs:
            continue
        found = [run.logits(p.held_out.features) for run, p in zip(runs, parts, strict=True)]
        seen = torch.cat(found, dim=1)
        nll = weighted_nll(seen, y, w)
        if not math.isfinite(nll):
            raise CandidateDiverged(f"the held-out loss is {nll} after epoch {epoch}; try a lower lr")
        calibrated = weighted_nll(temperature_of(seen, y, w)(seen)[None], y, w)
        lowest = min((look.calibrated_nll for look in history), default=calibrated)
        objective, right = sum(objectives) / len(runs), _accuracy(seen, y, w)
        history.append(EpochRecord(epoch, objective, nll, calibrated, right))
        if calibrated <= lowest * (1 + _SLACK):
            best, states, logits = epoch, [run.state() for run in runs], seen
        elif epoch - best > _PATIENCE * candidate.epochs:
            break
    models = tuple(
        run.model(part.inputs, state) for run, state, part in zip(runs, states, parts, strict=True)
    )
    return Rehearsal(models, tuple(history), best, logits, (y, w), time.perf_counter() - started)


def finish(
    head: str | type[Head],
    candidate: Candidate,
    rehearsal: Rehearsal,
    rows: Rows,
    *,
    seed: int,
    classes: int,
) -> FeaturesModel:
    """A model of all rows, the held-out ones included.

    If the rehearsal has one model, this model goes on for a third as long, at a falling rate. If it has
    three, from folds, each model lacks a third of the rows; then a new model is trained on all rows for as
    long.
    """
    if len(rehearsal.models) > 1:
        epochs = rehearsal.best_epoch
        return refit(head, candidate, rows, epochs=epochs, seed=seed, classes=classes)
    (start,) = rehearsal.models
    rows = rows.seen_by(start.net.inputs)
    seen = rehearsal.best_epoch
    run = Training(head, candidate, rows, seed=seed, classes=classes, start=start, seen=seen)
    epochs = max(1, round(_MORE_EPOCHS * rehearsal.best_epoch))
    for _ in range(epochs):
        run.epoch(rows, falling(candidate.lr * _MORE_RATE, run.epochs, epochs, run.batches(rows)))
    return run.model(start.net.inputs)


def refit(
    head: str | type[Head], candidate: Candidate, rows: Rows, *, epochs: int, seed: int, classes: int
) -> FeaturesModel:
    """Train on all rows for the first `epochs` of the candidate's schedule; nothing is held out."""
    inputs = inputs_of(rows)
    rows = rows.seen_by(inputs)
    run = Training(head, candidate, rows, seed=seed, classes=classes)
    for _ in range(epochs):
        _epoch(run, rows, candidate)
    return run.model(inputs)


def _epoch(run: Training, rows: Rows, candidate: Candidate) -> float:
    return run.epoch(rows, falling(candidate.lr, run.epochs, candidate.epochs, run.batches(rows)))


def falling(highest: float, epoch: int, epochs: int, batches: int) -> list[float]:
    """The rate of each batch of epoch `epoch` (from 0): half a cosine from `highest` to 0 in `epochs`."""
    done = [(epoch + i / batches) / epochs for i in range(batches)]
    return [highest * (1 + math.cos(math.pi * share)) / 2 for share in done]


def weighted_nll(
    logits: Float[Tensor, "draws n classes"], y: Integer[Tensor, " n"], w: Float[Tensor, " n"]
) -> float:
    """The mean of −log p of the labels."""
    nll = -log_mean_softmax(logits).gather(1, y[:, None])[:, 0]
    return float((nll * w).sum() / w.sum())


def temperature_of(
    logits: Float[Tensor, "draws n classes"], y: Integer[Tensor, " n"], w: Float[Tensor, " n"]
) -> TemperatureScaling:
    """The most probable T for these rows, with the prior log T ~ N(0, 0.5²)."""
    fitted: TemperatureScaling = TemperatureScaling(prior_spread=_LOG_TEMPERATURE_SPREAD)
    return fitted.fit(logits, y, weight=w / w.mean())


def _accuracy(
    logits: Float[Tensor, "draws n classes"], y: Integer[Tensor, " n"], w: Float[Tensor, " n"]
) -> float:
    right = log_mean_softmax(logits).argmax(1) == y
    return float((right * w).sum() / w.sum())
