"""What `SpaceformClassifier` trains: a projection of features, a head, and their optimiser."""

import math
from collections.abc import Iterator
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spaceform.heads import Head
from spaceform.nets import thinned


@final
class ProjectionAndHead:
    """A net, a head, and what trains them."""

    def __init__(
        self,
        net: nn.Module,
        head: Head,
        lr: float,
        weight_decay: float,
        dropout: float,
        batch_size: int,
        seed: int,
    ) -> None:
        self.net, self.head, self.lr, self.dropout, self.batch_size = net, head, lr, dropout, batch_size
        self.generator = torch.Generator(next(net.parameters()).device).manual_seed(seed)
        groups: list[dict[str, Any]] = [{"params": [*net.parameters()], "relative": 1.0}]
        for group in head.parameter_groups():
            options = {"relative": _relative_size(group["params"], head.dim, head.num_classes)}
            if group["name"] in ("temperature", "hyperplanes"):
                options["weight_decay"] = 0.0
            groups.append({"params": group["params"], **options})
        self.optimizer = torch.optim.AdamW(groups, lr=lr, weight_decay=weight_decay)

    def train_epoch(self, x: Tensor, y: Tensor, w: Tensor, epoch: int, rate: float = 1.0) -> float:
        """One pass of mini-batches in random order, at `rate` times the rate; the weighted mean objective."""
        self.head.start_epoch(epoch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * group["relative"] * rate
        total, mean_weight = 0.0, w.mean()
        for rows in self._batches(len(x)):
            z = self.net(thinned(x[rows], self.dropout, self.generator))
            objective = (self.head(z, y[rows], generator=self.generator) * w[rows]).sum()
            self.optimizer.zero_grad()
            (objective / (mean_weight * len(rows))).backward()
            self.optimizer.step()
            total += objective.item()
        return total / float(w.sum())

    def _batches(self, n: int) -> Iterator[Tensor]:
        order = torch.randperm(n, generator=self.generator, device=self.generator.device)
        yield from order.tensor_split(-(-n // self.batch_size))

    @torch.no_grad()
    def embed(self, x: Tensor) -> Tensor:
        """Embeddings of standardised features."""
        return torch.cat([self.net(rows) for rows in x.split(1024)])

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Logit samples (draws, n, classes), in blocks; a function of each row alone."""
        return torch.cat([self.head.logit_samples(self.net(rows)) for rows in x.split(1024)], dim=1)

    def __getstate__(self) -> dict[str, Any]:
        state = {"device": self.generator.device, "at": self.generator.get_state()}
        return {**self.__dict__, "generator": state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self.generator = torch.Generator(state["generator"]["device"])
        self.generator.set_state(state["generator"]["at"])


@final
class Scaled(nn.Module):
    """Each feature times its own weight, plus an offset: an embedding as wide as the features.

    For thousands of features and not many more examples: a projection on a few hundred coordinates loses
    what the minor principal axes say, and one on as many as there are features learns the noise.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        return torch.addcmul(self.bias, x, self.weight)


def linear(x: Tensor, dim: int) -> nn.Module:
    """A projection on the principal axes of `x`; a rotation where there is room for all of them."""
    layer = nn.Linear(x.shape[1], dim)
    with torch.no_grad():
        nn.init.orthogonal_(layer.weight)
        layer.bias.zero_()
        if dim < min(x.shape):
            layer.weight.copy_(torch.svd_lowrank(x, q=dim, niter=2)[2].T)
    return layer


def with_hidden_layer(features: int, hidden: int, dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, dim))


def _relative_size(parameters: list[nn.Parameter], dim: int, classes: int) -> float:
    """How much larger than Xavier's the class weights start, at least 1.

    Adam's steps have the size of its rate: a concentration of a hundred should not take a hundred thousand.
    """
    sizes = [float(p.detach().square().mean().sqrt()) for p in parameters if p.ndim == 2]
    return max([1.0, *(size * math.sqrt((dim + classes) / 2) for size in sizes)])
