"""Features cut into pieces, so that a linear layer can fit any curve of each of them."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

_SOFT = 3.0
"""The soft bound of standardised features, if they are also given in pieces."""

_ROUNDS = 20
"""Rounds that cut frequent values to one piece: each leaves fewer rows, and so smaller pieces."""


@final
class Pieces(nn.Module):
    """Each feature, softly bounded, and how far it has come through each of `pieces` parts of its range.

    The `uncut` features with the fewest values have no pieces.

    Piece i is (x − a_i)/(a_{i+1} − a_i) kept in [0, 1], with quantiles a_i of the training rows. A linear
    layer can then fit any curve of each feature (Gorishniy et al. 2022, piecewise linear encoding). A value
    that many rows share counts for one piece at most, so that other values get pieces, too. If a feature has
    few values, these are the a_i: then the code of a category can have any effect.
    """

    edges: Tensor
    cut: Tensor
    """The places of the features that are cut."""

    def __init__(self, features: int, pieces: int, uncut: int = 0) -> None:
        super().__init__()
        self.width, self.all = pieces_width(features, pieces, uncut), uncut == 0
        self.register_buffer("edges", torch.zeros(features - uncut, pieces + 1))
        self.register_buffer("cut", torch.arange(features - uncut))

    @torch.no_grad()
    def fit(self, x: Float[Tensor, "n features"], weight: Float[Tensor, " n"]) -> None:
        """Choose the features that are cut, and take their quantiles in these rows."""
        if not self.all:
            values = torch.tensor([len(column.unique()) for column in x.T], device=x.device)
            most = values.argsort(descending=True, stable=True)[: len(self.cut)]
            self.cut.copy_(most.sort().values)
        for place, j in enumerate(self.cut.tolist()):
            self.edges[place] = _edges(x[:, j], weight.double(), self.edges.shape[1])

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch width"]:
        low, size = self.edges[:, :-1], self.edges.diff(dim=1)
        inverse = size.masked_fill(size == 0, torch.inf).reciprocal()
        progress = ((self._of_cut(x)[:, :, None] - low) * inverse).clamp(0, 1)
        return torch.cat([x * (1 + (x / _SOFT).square()).rsqrt(), progress.flatten(1)], dim=1)

    def spread(self, each: Float[Tensor, " features"]) -> Float[Tensor, " width"]:
        """A number of each feature, for the feature and all of its pieces."""
        return torch.cat([each, self._of_cut(each).repeat_interleave(self.edges.shape[1] - 1)])

    def _of_cut(self, x: Tensor) -> Tensor:
        return x if self.all else x[..., self.cut]


def pieces_width(features: int, pieces: int, uncut: int) -> int:
    """How many numbers there are of features and their pieces."""
    return features + pieces * (features - uncut)


def _edges(x: Float[Tensor, " n"], weight: Float[Tensor, " n"], count: int) -> Float[Tensor, " count"]:
    """All values if they are few, with the last one repeated; otherwise quantiles."""
    values, which = x.unique(return_inverse=True)
    if len(values) <= count:
        return torch.cat([values, values[-1:].expand(count - len(values))])
    mass = torch.zeros(len(values), dtype=weight.dtype, device=x.device).index_add_(0, which, weight)
    for _ in range(_ROUNDS):
        mass = mass.clamp_max(mass.sum() / (count - 1))
    reached = mass.cumsum(0)
    levels = torch.linspace(0, 1, count, dtype=weight.dtype, device=x.device)
    return values[torch.searchsorted(reached, levels * reached[-1]).clamp_max(len(values) - 1)]
