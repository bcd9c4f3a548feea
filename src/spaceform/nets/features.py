"""Nets for features: standardisation, then a scale of every feature, a projection, or hidden layers."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from spaceform.foundation.values import Natural, Width
from spaceform.nets.options import NetOptions
from spaceform.nets.pieces import Pieces, pieces_width

_NORM = 3.0
"""The root mean square of ‖z‖ at the start. If larger, Euclidean and hyperbolic logits are large noise."""

_LARGEST_STANDARDISED = 1e15
"""The largest standardised feature: squares of much larger numbers overflow in float32."""

_TINY = 1e-30
"""Spreads and sizes below it count as this: the inverse of a smaller one overflows in float32."""

_BLOCK_ROWS = 1024
"""How many rows are in double precision at a time."""

_STORED_BATCHES, _STORED_USES = 8, 32
"""For how many batches a dropout's store has room, and after how many batches it is drawn again."""


@final
class FeaturesOptions(NetOptions):
    """`FeaturesNet`, for rows of numbers: what the engine for features trains."""

    name: Literal["features"] = "features"
    hidden: tuple[Width, ...] = ()
    """Units of each hidden layer. Without hidden layers the embedding is linear in the features."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of hidden units that is left out in training; without hidden layers, share of features."""
    pieces: Natural = 0
    """The range of each feature is cut into this many pieces. The progress through each piece is an input,
    too; tables need this.
    """
    uncut: Natural = 0
    """How many features are not cut into pieces: those with the fewest values in the training rows. A feature
    of two values, such as whether a cell has a certain text, would gain nothing.
    """
    members: Annotated[int, Field(ge=1)] = 1
    """How many nets with hidden layers are trained side by side; the embedding is their mean."""
    gates: bool = False
    """Whether each feature (and each piece) is first multiplied by a factor that learns fast."""
    projected: bool = True
    """Whether features are projected. If not (only without hidden layers), each feature has a scale and an
    offset, and `dim` is the number of features, pieces included.
    """

    def build(self, input_shape: Sequence[int]) -> "FeaturesNet":
        """The net; mean and spread of the features are not known yet."""
        features = torch.Size(input_shape).numel()
        if self.uncut > features:
            raise ValueError(f"net.uncut={self.uncut} is more than the {features} features; lower it")
        width = pieces_width(features, self.pieces, self.uncut)
        if not (self.projected or self.hidden) and self.dim != width:
            raise ValueError(
                f"net.projected=false keeps the {width} features as they are, but net.dim is {self.dim}; "
                f"set net.dim={width}, or net.projected=true"
            )
        self._require_hidden_layers_where_asked()
        body = FeatureBody(
            features,
            self.dim,
            self.hidden,
            pieces=self.pieces,
            uncut=self.uncut,
            dropout=self.dropout,
            members=self.members,
            gates=self.gates,
            projected=self.projected,
        )
        return FeaturesNet(Standardised(features), body)

    def _require_hidden_layers_where_asked(self) -> None:
        """Refuse options that need hidden layers in a net without them, and the other way round."""
        if self.hidden and not self.projected:
            raise ValueError(
                f"net.projected=false is for nets without hidden layers, and net.hidden is {self.hidden}; "
                "leave out one of them"
            )
        if not self.hidden and (self.members > 1 or self.gates):
            option = f"net.members={self.members}" if self.members > 1 else "net.gates=true"
            raise ValueError(
                f"{option} is for nets with hidden layers; set net.hidden too, such as [256, 256]"
            )


@runtime_checkable
class RowBlocks(Protocol):
    """Rows of features, in memory or not: a tensor is one."""

    @property
    def dtype(self) -> torch.dtype:
        """The type of the features."""

    def split(self, rows: int, /) -> Iterable[Tensor]:
        """All rows in order, `rows` at a time."""


@final
class Standardised(nn.Module):
    """(x − mean)/spread of each feature, as the training rows have them; constant features become 0."""

    mean: Tensor
    inverse: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("inverse", torch.ones(features))

    @torch.no_grad()
    def fit(self, x: RowBlocks, weight: Float[Tensor, " n"]) -> "Standardised":
        """Take mean and spread of the rows, each with its weight; then work in their type."""
        w = (weight.double() / weight.double().sum()).split(_BLOCK_ROWS)
        mean = sum(
            (a @ b.double() for a, b in zip(w, x.split(_BLOCK_ROWS), strict=True)),
            torch.zeros((), device=weight.device),
        )
        square = sum(
            (a @ (b.double() - mean).square() for a, b in zip(w, x.split(_BLOCK_ROWS), strict=True)),
            torch.zeros_like(mean),
        )
        spread, rounding = square.sqrt(), 1e-12 if x.dtype == torch.float64 else 1e-7
        constant = (spread <= rounding * mean.abs()) | (spread == 0)
        self.to(weight.dtype)
        self.mean.copy_(mean)
        self.inverse.copy_(spread.masked_fill(constant, torch.inf).reciprocal())
        return self

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        return (x - self.mean).mul_(self.inverse).clamp_(-_LARGEST_STANDARDISED, _LARGEST_STANDARDISED)

    def reach(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, " batch"]:
        """Of each row the feature farthest from the mean of the training rows, in standard deviations.

        Embeddings cannot tell: features in pieces are bounded, and the last piece is as full at ten standard
        deviations as at a million. A constant feature says nothing to the net. It has no spread either: its
        unit is the geometric mean of the spreads of the others, or its own size, where that is smaller.
        """
        size = self.mean.abs()
        typical = torch.where(self.inverse > 0, self.inverse.clamp_min(_TINY).log(), 0).sum()
        typical = (-typical / (self.inverse > 0).sum().clamp_min(1)).exp()
        unit = torch.where(size > 0, torch.minimum(size, typical), typical)
        each = torch.where(self.inverse > 0, self.inverse, unit.clamp_min(_TINY).reciprocal())
        return ((x - self.mean) * each).abs().amax(1).clamp_max(_LARGEST_STANDARDISED)


@final
class Scaled(nn.Module):
    """Each feature times its own weight, plus an offset: an embedding as wide as the features.

    It is for thousands of features with not many more examples: a projection to a few hundred coordinates
    loses what the minor principal axes say, and a projection to thousands learns the noise.
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        return torch.addcmul(self.bias, x, self.weight)


@final
class Gates(nn.Module):
    """Each feature, with its pieces, times a factor; the training loop gives it a higher rate.

    To ignore a useless feature, a hidden layer alone must shrink hundreds of weights; here it is one factor.
    This is the scaling layer of Holzmüller et al. 2024 (RealMLP).
    """

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))

    def forward(self, x: Float[Tensor, "batch width"], pieces: Pieces | None) -> Float[Tensor, "batch width"]:
        return x * (self.weight if pieces is None else pieces.spread(self.weight))


@final
class Dropout(nn.Module):
    """Leaves out a share of the numbers while training; the share is rounded to 1/256.

    A batch takes its mask from a random place in a store, which has room for eight batches and is drawn again
    after 32. Inside a batch all draws are independent. This takes a tenth of the time of a new mask for every
    batch. The draws come from `generator`, which the training loop lends.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.generator: torch.Generator | None = None
        self._store, self._uses = torch.empty(0), 0

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        kept = max(1, round(256 * (1 - self.share)))
        if not self.training or kept == 256:
            return x
        if self._uses % _STORED_USES == 0 or len(self._store) < x.numel():
            self._store, self._uses = self._masks(_STORED_BATCHES * x.numel(), kept, x), 0
        self._uses += 1
        places = len(self._store) - x.numel() + 1
        at = int(torch.randint(places, (), generator=self.generator, device=x.device))
        return x * self._store[at : at + x.numel()].view(x.shape)

    def _masks(self, size: int, kept: int, like: Tensor) -> Tensor:
        """0 or 256/kept; a random byte decides, and eight are drawn at once."""
        draws = torch.empty(-(-size // 8), dtype=torch.int64, device=like.device)
        draws.random_(-(2**63), None, generator=self.generator)  # all 64 bits
        return (draws.view(torch.uint8)[:size] < kept).to(like.dtype).mul_(256 / kept)

    def lend(self, generator: torch.Generator | None) -> None:
        """The source of randomness; None takes it back, and the store with it."""
        self.generator, self._store, self._uses = generator, torch.empty(0), 0

    def extra_repr(self) -> str:
        return f"share={self.share:g}"


@final
class FeaturesNet(nn.Module):
    """Features as they come in, embeddings out."""

    def __init__(self, inputs: Standardised, body: "FeatureBody") -> None:
        super().__init__()
        self.inputs, self.body = inputs, body

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        return self.body(self.inputs(x).to(self.body.factor.dtype))

    def reach(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, " batch"]:
        """How far each row lies from the training rows, as `Standardised.reach` has it."""
        return self.inputs.reach(x)


@final
class FeatureBody(nn.Module):
    """Standardised features in, embeddings out.

    `prepare` looks at training rows before training. It takes their quantiles, if features are given in
    pieces, and sets a constant factor with which embeddings start with a norm of about 3.

    Several `members` are nets with their own hidden layers, before one head. In training each member must
    find the class alone (`each`). The embedding of a row is the mean of its members' embeddings, so it is
    shorter if they disagree.
    """

    factor: Tensor

    def __init__(
        self,
        features: int,
        dim: int,
        hidden: Sequence[int] = (),
        *,
        pieces: int = 0,
        uncut: int = 0,
        dropout: float = 0.0,
        members: int = 1,
        gates: bool = False,
        projected: bool = True,
    ) -> None:
        super().__init__()
        self.dim, self.members = dim, members if hidden else 1
        self.pieces = Pieces(features, pieces, uncut) if pieces and uncut < features else None
        self.gates = Gates(features) if gates and hidden else None
        width = features if self.pieces is None else self.pieces.width
        self.body = _layers(width, dim, hidden, dropout, self.members, projected)
        self.register_buffer("factor", torch.ones(()))

    @torch.no_grad()
    def prepare(self, x: Float[Tensor, "n features"], weight: Float[Tensor, " n"]) -> Float[Tensor, "n dim"]:
        """Set quantiles and factor; gives the embeddings of these rows."""
        self.eval()
        if self.pieces is not None:
            self.pieces.fit(x, weight)
        z = self._side_by_side(x)[:, 0]
        size = torch.linalg.vector_norm(z, dim=1).square().mean().sqrt()
        factor = torch.where(size > 0, _NORM / size, torch.ones_like(size))
        self.factor.mul_(factor)
        return z * factor

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch dim"]:
        return self._side_by_side(x).mean(1)

    def each(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "rows dim"]:
        """The embeddings of all members: those of the first row, of the second, ..."""
        return self._side_by_side(x).flatten(0, 1)

    def _side_by_side(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch members dim"]:
        x = x if self.pieces is None else self.pieces(x)
        x = x if self.gates is None else self.gates(x, self.pieces)
        return (self.body(x) * self.factor).unflatten(1, (self.members, self.dim))

    def lend(self, generator: torch.Generator | None) -> None:
        """The source of randomness of every dropout; None takes it back."""
        for module in self.modules():
            if isinstance(module, Dropout):
                module.lend(generator)


@final
class SideBySide(nn.Module):
    """A linear layer for each of the members, whose features stand in a row one after the other."""

    def __init__(self, features: int, units: int, members: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(members, features, units))
        nn.init.uniform_(self.weight, -(features**-0.5), features**-0.5)  # as nn.Linear starts

    def forward(self, x: Float[Tensor, "batch all_features"]) -> Float[Tensor, "batch all_units"]:
        x = x.unflatten(1, self.weight.shape[:2]).transpose(0, 1)
        return x.bmm(self.weight).transpose(0, 1).flatten(1)


def _layers(
    width: int, dim: int, hidden: Sequence[int], dropout: float, members: int, projected: bool
) -> nn.Module:
    if not hidden and not projected:
        return nn.Sequential(Dropout(dropout), Scaled(width))
    layers: list[nn.Module] = []
    for i, units in enumerate(hidden):
        # A bias before batch norm would be subtracted again. The first layer of all members is one.
        one = i == 0 or members == 1
        linear = nn.Linear(width, members * units, bias=False) if one else SideBySide(width, units, members)
        layers += [linear, nn.BatchNorm1d(members * units), nn.ReLU(), Dropout(dropout)]
        width = units
    return nn.Sequential(*(layers or [Dropout(dropout)]), *_last(width, dim, members))


def _last(width: int, dim: int, members: int) -> list[nn.Module]:
    """The last layer, orthogonal at the start."""
    if members == 1:
        last = nn.Linear(width, dim)
        nn.init.orthogonal_(last.weight)
        nn.init.zeros_(last.bias)
        return [last]
    each = SideBySide(width, dim, members)
    for weight in each.weight:
        nn.init.orthogonal_(weight)
    return [each]
