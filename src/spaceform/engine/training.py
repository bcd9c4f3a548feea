"""A net and a head in training: mini-batches in random order, AdamW, a rate for every batch.

Every random number comes from generators that are seeded here: the same arguments give the same bits on the
same machine with the same number of threads.
"""

import copy
import math
import threading
from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spaceform.engine.adamw import FusedAdamW, RatedParameters
from spaceform.engine.candidate import Candidate
from spaceform.engine.rows import Rows
from spaceform.heads import HEADS, Head, StochasticHead
from spaceform.nets.features import FeatureBody, FeaturesNet, Standardised

PREDICTION_DRAWS = 64
"""How many fixed draws a stochastic head has at prediction."""

WATCHING_DRAWS = 16
"""How many it has for held-out rows, on which the loss is measured and calibrators are fitted. The NLL
differs by 0.001 from that of 64 draws, T by 1 %; the time is a quarter.
"""

_SEEN = 20_000
"""Net and head look at no more rows than this before training."""

_STEADY = ("temperature", "hyperplanes")
"""Parameter groups of heads that have no weight decay."""

_GATES = 10.0
"""The rate of gates, as a multiple of the rate of other parameters."""

_building = threading.Lock()
"""New parameters come from torch's global generator, which threads share: one thread at a time uses it."""


class CandidateDiverged(ArithmeticError):
    """A candidate whose loss, parameters or predictions are no longer finite."""


@final
class FeaturesModel(nn.Module):
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
class Training:
    """A net, a head, their optimiser, and how many epochs they have seen.

    `start` is a model to go on from, trained for `seen` epochs; without it, net and head are new and look at
    `rows` before they train.
    """

    def __init__(
        self,
        head: str | type[Head],
        candidate: Candidate,
        rows: Rows,
        *,
        seed: int,
        classes: int,
        start: FeaturesModel | None = None,
        seen: int = 0,
    ) -> None:
        self.batch_size = candidate.batch_size
        self.generator = torch.Generator(rows.x.device).manual_seed(seed)
        self.net, self.head = (
            _built(head, candidate, rows, seed, classes) if start is None else _copied(start)
        )
        set_draws(self.head, WATCHING_DRAWS)
        self._lent = False
        gates = [] if self.net.gates is None else [self.net.gates.weight]
        others = [p for p in self.net.parameters() if all(p is not gate for gate in gates)]
        groups = [RatedParameters(others, 1.0, candidate.weight_decay), RatedParameters(gates, _GATES, 0.0)]
        # Where training goes on, the size is still that of new weights. Otherwise weights that have grown
        # seven times larger would take steps seven times larger, and the model would become worse.
        new = self.head if start is None else _new_head(head, candidate, self.net.dim, classes, seed)
        for group, started in zip(self.head.parameter_groups(), new.parameter_groups(), strict=True):
            relative = _relative_size(started["params"], self.net.dim, classes)
            decay = 0.0 if group["name"] in _STEADY else candidate.weight_decay
            groups.append(RatedParameters(group["params"], relative, decay))
        self.optimizer = FusedAdamW(groups)
        self.epochs, self._seen = 0, seen

    def batches(self, rows: Rows) -> int:
        """How many mini-batches these rows are split into."""
        return max(1, len(rows) // self.batch_size)

    def epoch(self, rows: Rows, rates: Sequence[float]) -> float:
        """One pass over all rows in random order, a rate for each batch; the weighted mean objective."""
        if not self._lent:
            self.net.lend(self.generator)
            self._lent = True
        self.head.start_epoch(self._seen + self.epochs)
        self.net.train()
        mean_weight, total = rows.weight.mean(), 0.0
        for rate, (x, y, w) in zip(rates, rows.shuffled(len(rates), self.generator), strict=True):
            total += self._step(x, y, w / (mean_weight * len(x)), rate) * len(x)
        self.epochs += 1
        return total / len(rows)

    def _step(
        self,
        x: Float[Tensor, "batch features"],
        y: Tensor,
        w: Float[Tensor, " batch"],
        rate: float,
    ) -> float:
        try:
            k = self.net.members
            objective = self.head(self.net.each(x), y.repeat_interleave(k), generator=self.generator)
        except ValueError as error:
            if self._finite():
                raise
            raise CandidateDiverged(f"parameters are no longer finite in epoch {self.epochs + 1}") from error
        loss = torch.dot(objective, w.repeat_interleave(k) / k)
        value = loss.item()
        if not math.isfinite(value):
            raise CandidateDiverged(f"the objective is {value} in epoch {self.epochs + 1}; try a lower lr")
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step(rate)
        return value

    def _finite(self) -> bool:
        return all(bool(p.isfinite().all()) for p in self.net.parameters())

    @torch.no_grad()
    def logits(self, x: Float[Tensor, "n features"]) -> Float[Tensor, "draws n classes"]:
        """Logit samples of standardised features."""
        self.net.eval()
        if not self._finite():
            raise CandidateDiverged(f"parameters are no longer finite after epoch {self.epochs}")
        return torch.cat([self.head.logit_samples(self.net(rows)) for rows in x.split(1024)], dim=1)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A copy of all parameters and buffers."""
        return _state(self.net), _state(self.head)

    def model(
        self, inputs: Standardised, state: tuple[dict[str, Tensor], dict[str, Tensor]] | None = None
    ) -> FeaturesModel:
        """The net and the head, not copies, in `state` if it is given. Another epoch changes them."""
        if state is not None:
            self.net.load_state_dict(state[0])
            self.head.load_state_dict(state[1])
        self.net.lend(None)
        self._lent = False
        self.net.eval()
        set_draws(self.head, PREDICTION_DRAWS)
        return FeaturesModel(FeaturesNet(inputs, self.net), self.head)


def _built(
    head: str | type[Head], candidate: Candidate, rows: Rows, seed: int, classes: int
) -> tuple[FeatureBody, Head]:
    """A new net and a new head, started from a look at the rows."""
    make = HEADS[head] if isinstance(head, str) else head
    features = rows.x.shape[1]
    dim, projected = candidate.embedding(features, classes)
    net: dict[str, Any] = {"pieces": candidate.pieces, "uncut": candidate.uncut, "dropout": candidate.dropout}
    net |= {"members": candidate.members, "gates": candidate.gates, "projected": projected}
    with _building, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = FeatureBody(features, dim, candidate.hidden, **net).to(rows.x.device, rows.x.dtype)
        made = make(dim, classes, **candidate.options).to(rows.x.device, rows.x.dtype)
        step = -(-len(rows) // _SEEN)
        made.prepare(body.prepare(rows.x[::step], rows.weight[::step]))
    return body, made


def _new_head(head: str | type[Head], candidate: Candidate, dim: int, classes: int, seed: int) -> Head:
    """A head as it starts, without a look at rows."""
    make = HEADS[head] if isinstance(head, str) else head
    with _building, torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(dim, classes, **candidate.options)


def _copied(model: FeaturesModel) -> tuple[FeatureBody, Head]:
    return copy.deepcopy(model.net.body), copy.deepcopy(model.head)


def set_draws(head: Head, number: int) -> None:
    """Set how many fixed draws a prediction takes; a deterministic head has none."""
    if isinstance(head, StochasticHead):
        head.draws = number


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def _relative_size(parameters: Sequence[nn.Parameter], dim: int, classes: int) -> float:
    """How much larger the class weights start than Xavier's would, at least 1.

    Each step of Adam is about as large as its rate. Weights of size 100 would need far too many steps.
    """
    sizes = [float(p.detach().square().mean().sqrt()) for p in parameters if p.ndim == 2]
    return max([1.0, *(size * math.sqrt((dim + classes) / 2) for size in sizes)])
