"""One candidate on one split, or on folds in step: AdamW, a cosine schedule, held-out loss, the best epoch.

`fit` trains on given rows and watches held-out ones; `rehearse` does so on several parts at once, which take
turns in being held out, and finds one number of epochs for all; `refit` trains for that many epochs on
everything. The same arguments give the same bits on the same machine with the same number of threads: every
random number comes from generators that are seeded here.
"""

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Integer
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from spaceform.engine.candidate import Candidate
from spaceform.heads import HEADS, Head, StochasticHead
from spaceform.heads.base import log_mean_softmax
from spaceform.nets.features import FeatureBody, FeaturesNet, Standardised

DRAWS = 64
"""Fixed draws of a stochastic head, at prediction."""

_WATCHING_DRAWS = 16
"""The same while training, where only a loss is asked for."""

_SEEN = 20_000
"""Net and head look at no more rows than this before training."""

_LOOKS = 10
"""Held-out losses taken in a full schedule."""

_PATIENCE = 0.4
"""Training stops when the held-out loss has not fallen for this share of the schedule."""

_STEADY = ("temperature", "hyperplanes")
"""Groups of parameters that weight decay leaves alone."""

_LOG_TEMPERATURE_SPREAD = 0.5
"""Of the prior of log T: a held-out part without mistakes would send T to 0."""

_building = threading.Lock()
"""Parameters are drawn from torch's global generator, which threads share."""


class Diverged(ArithmeticError):
    """A candidate whose loss, parameters or predictions are no longer finite."""


@final
@dataclass(frozen=True)
class Rows:
    """Features, labels from 0, and weights."""

    x: Float[Tensor, "n features"]
    y: Integer[Tensor, " n"]
    weight: Float[Tensor, " n"]

    @staticmethod
    def of(x: Any, y: Any, weight: Any = None) -> "Rows":
        """From arrays or tensors; features in float64 stay so, all others are float32."""
        x = torch.as_tensor(x)
        x = x if x.dtype == torch.float64 else x.float()
        ones = torch.ones(len(x), dtype=x.dtype, device=x.device)
        return Rows(x, torch.as_tensor(y).long(), ones if weight is None else torch.as_tensor(weight).to(x))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor) -> "Rows":
        return Rows(self.x[index], self.y[index], self.weight[index])


class Part(NamedTuple):
    """Rows to train on and rows held out, both as `inputs` leaves them."""

    train: Rows
    held_out: Rows
    inputs: Standardised

    @staticmethod
    def of(train: Rows, held_out: Rows) -> "Part":
        """Standardise both as the first of them asks for."""
        inputs = Standardised(train.x.shape[1]).to(train.x.device).fit(train.x, train.weight)
        return Part(_with(train, inputs), _with(held_out, inputs), inputs)


def _with(rows: Rows, inputs: Standardised) -> Rows:
    return Rows(inputs(rows.x), rows.y, rows.weight)


class Look(NamedTuple):
    """What was seen after an epoch: its number from 1, the training objective, loss and accuracy held out."""

    epoch: int
    objective: float
    held_out_nll: float
    accuracy: float


@final
class Model(nn.Module):
    """Features as they came in, logit samples out: a net and a head."""

    def __init__(self, net: FeaturesNet, head: Head) -> None:
        super().__init__()
        self.net, self.head = net, head

    @torch.no_grad()
    def embed(self, x: Float[Tensor, "n features"]) -> Float[Tensor, "n dim"]:
        """Embeddings, un-normalised."""
        self.eval()
        return torch.cat([self.net(rows) for rows in x.split(1024)])

    @torch.no_grad()
    def logits(self, x: Float[Tensor, "n features"]) -> Float[Tensor, "draws n classes"]:
        """Logit samples from fixed draws: a function of each row alone."""
        return torch.cat([self.head.logit_samples(z) for z in self.embed(x).split(1024)], dim=1)


@final
@dataclass(frozen=True)
class Rehearsal:
    """Models trained with parts held out, at the best epoch."""

    models: tuple[Model, ...]
    history: tuple[Look, ...]
    best_epoch: int
    """From 1."""
    logits: Float[Tensor, "draws n classes"]
    """Of all held-out rows, part after part."""
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

    def temperature(self) -> float:
        """The temperature that fits the held-out rows."""
        return fit_temperature(self.logits, *self.held_out)


def fit(
    head: str | type[Head], candidate: Candidate, train: Rows, held_out: Rows, *, seed: int, classes: int
) -> Rehearsal:
    """Train on `train`, watch `held_out`, keep the best epoch: `models` has one model."""
    return rehearse(head, candidate, [Part.of(train, held_out)], seed=seed, classes=classes)


def rehearse(
    head: str | type[Head], candidate: Candidate, parts: Sequence[Part], *, seed: int, classes: int
) -> Rehearsal:
    """Train on every part, all in step; the best epoch is that of the loss of all held-out rows."""
    started = time.perf_counter()
    runs = [_Training(head, candidate, part.train, seed=seed, classes=classes) for part in parts]
    y = torch.cat([part.held_out.y for part in parts])
    w = torch.cat([part.held_out.weight for part in parts])
    history: list[Look] = []
    every = max(1, candidate.epochs // _LOOKS)
    best, states = 0, [run.state() for run in runs]
    for epoch in range(1, candidate.epochs + 1):
        objective = sum(run.epoch() for run in runs) / len(runs)
        if epoch % every and epoch != candidate.epochs:
            continue
        found = [run.logits(p.held_out.x) for run, p in zip(runs, parts, strict=True)]
        seen = torch.cat(found, dim=1)
        nll = weighted_nll(seen, y, w)
        if not math.isfinite(nll):
            raise Diverged(f"the held-out loss is {nll} after epoch {epoch}; try a lower lr")
        lowest = min((look.held_out_nll for look in history), default=math.inf)
        history.append(Look(epoch, objective, nll, _accuracy(seen, y, w)))
        if nll < lowest:
            best, states = epoch, [run.state() for run in runs]
        elif epoch - best > _PATIENCE * candidate.epochs:
            break
    models = tuple(
        run.model(state, part.inputs) for run, state, part in zip(runs, states, parts, strict=True)
    )
    logits = [run.logits(p.held_out.x) for run, p in zip(runs, parts, strict=True)]
    seconds = time.perf_counter() - started
    return Rehearsal(models, tuple(history), best, torch.cat(logits, dim=1), (y, w), seconds)


def refit(
    head: str | type[Head],
    candidate: Candidate,
    rows: Rows,
    *,
    epochs: int,
    seed: int,
    classes: int,
) -> Model:
    """Train on all rows for the first `epochs` of the candidate's schedule; nothing is held out."""
    inputs = Standardised(rows.x.shape[1]).to(rows.x.device).fit(rows.x, rows.weight)
    run = _Training(head, candidate, _with(rows, inputs), seed=seed, classes=classes)
    for _ in range(epochs):
        run.epoch()
    return run.model(run.state(), inputs)


def weighted_nll(
    logits: Float[Tensor, "draws n classes"],
    y: Integer[Tensor, " n"],
    w: Float[Tensor, " n"],
    inverse_temperature: float = 1.0,
) -> float:
    """The mean of −log p of the labels."""
    nll = -log_mean_softmax(logits * inverse_temperature).gather(1, y[:, None])[:, 0]
    return float((nll * w).sum() / w.sum())


def _accuracy(
    logits: Float[Tensor, "draws n classes"], y: Integer[Tensor, " n"], w: Float[Tensor, " n"]
) -> float:
    right = log_mean_softmax(logits).argmax(1) == y
    return float((right * w).sum() / w.sum())


def fit_temperature(
    logits: Float[Tensor, "draws n classes"], y: Integer[Tensor, " n"], w: Float[Tensor, " n"]
) -> float:
    """The most probable T: likelihood of the rows, prior log T ~ N(0, 0.5²)."""
    n = float(w.sum() / w.mean())

    def loss(t: float) -> float:
        return n * weighted_nll(logits, y, w, math.exp(-t)) + (t / _LOG_TEMPERATURE_SPREAD) ** 2 / 2

    return math.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded", options={"xatol": 1e-3}).x)


@final
class _Training:
    """A net, a head, their optimiser, and where in its schedule it is."""

    def __init__(
        self, head: str | type[Head], candidate: Candidate, rows: Rows, *, seed: int, classes: int
    ) -> None:
        self.candidate, self.rows = candidate, rows
        self.generator = torch.Generator(rows.x.device).manual_seed(seed)
        make = HEADS[head] if isinstance(head, str) else head
        with _building, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            dim, projected = candidate.embedding(rows.x.shape[1], classes)
            self.net = FeatureBody(
                rows.x.shape[1],
                dim,
                candidate.hidden,
                pieces=candidate.pieces,
                dropout=candidate.dropout,
                projected=projected,
            ).to(rows.x)
            self.head = make(self.net.dim, classes, **candidate.options).to(rows.x)
            step = -(-len(rows) // _SEEN)
            self.head.prepare(self.net.prepare(rows.x[::step], rows.weight[::step]))
        _set_draws(self.head, _WATCHING_DRAWS)
        self.net.lend(self.generator)
        groups: list[dict[str, Any]] = [{"params": [*self.net.parameters()], "relative": 1.0}]
        for group in self.head.parameter_groups():
            relative = _relative_size(group["params"], self.net.dim, classes)
            steady = {"weight_decay": 0.0} if group["name"] in _STEADY else {}
            groups.append({"params": group["params"], "relative": relative, **steady})
        self.optimizer = torch.optim.AdamW(
            groups, lr=candidate.lr, weight_decay=candidate.weight_decay, fused=True
        )
        self.batches = max(1, len(rows) // candidate.batch_size)
        self.epochs = 0

    def epoch(self) -> float:
        """One pass of mini-batches in random order; the weighted mean objective."""
        self.head.start_epoch(self.epochs)
        self.net.train()
        order = torch.randperm(len(self.rows), generator=self.generator, device=self.rows.x.device)
        rows = self.rows[order]
        mean_weight, total = rows.weight.mean(), 0.0
        split = (t.tensor_split(self.batches) for t in (rows.x, rows.y, rows.weight))
        for i, (x, y, w) in enumerate(zip(*split, strict=True)):
            self._set_rate((self.epochs + i / self.batches) / self.candidate.epochs)
            total += self._step(x, y, w, mean_weight) * len(x)
        self.epochs += 1
        return total / len(rows)

    def _step(self, x: Tensor, y: Tensor, w: Tensor, mean_weight: Tensor) -> float:
        try:
            objective = self.head(self.net(x), y, generator=self.generator)
        except ValueError as error:
            if all(bool(p.isfinite().all()) for p in self.net.parameters()):
                raise
            raise Diverged(f"parameters are no longer finite in epoch {self.epochs + 1}") from error
        loss = torch.dot(objective, w) / (mean_weight * len(x))
        value = loss.item()
        if not math.isfinite(value):
            raise Diverged(f"the objective is {value} in epoch {self.epochs + 1}; try a lower lr")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return value

    def _set_rate(self, done: float) -> None:
        rate = self.candidate.lr * (1 + math.cos(math.pi * done)) / 2
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group["relative"]

    @torch.no_grad()
    def logits(self, x: Float[Tensor, "n features"]) -> Float[Tensor, "draws n classes"]:
        self.net.eval()
        if not all(bool(p.isfinite().all()) for p in self.net.parameters()):
            raise Diverged(f"parameters are no longer finite after epoch {self.epochs}")
        return torch.cat([self.head.logit_samples(self.net(rows)) for rows in x.split(1024)], dim=1)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A copy of all parameters and buffers."""
        return _copied(self.net), _copied(self.head)

    def model(self, state: tuple[dict[str, Tensor], dict[str, Tensor]], inputs: Standardised) -> Model:
        """The net and the head in that state; training is over."""
        self.net.load_state_dict(state[0])
        self.head.load_state_dict(state[1])
        self.net.lend(None)
        self.net.eval()
        _set_draws(self.head, DRAWS)
        return Model(FeaturesNet(inputs, self.net), self.head)


def _set_draws(head: Head, number: int) -> None:
    """How many fixed draws a prediction takes, where there are any."""
    if isinstance(head, StochasticHead):
        head.draws = number


def _copied(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _relative_size(parameters: Sequence[nn.Parameter], dim: int, classes: int) -> float:
    """How much larger than Xavier's the class weights start, at least 1.

    Adam's steps have the size of its rate: a concentration of a hundred should not take a hundred thousand.
    """
    sizes = [float(p.detach().square().mean().sqrt()) for p in parameters if p.ndim == 2]
    return max([1.0, *(size * math.sqrt((dim + classes) / 2) for size in sizes)])
