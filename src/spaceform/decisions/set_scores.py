"""Three ways to say how typical a class is of an item: by its probability, or by its rank among all."""

import math
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.decisions.prediction_sets import PredictionSets


@final
class LeastAmbiguousSets(PredictionSets):
    """LAC: all classes whose probability reaches the threshold (Sadinle et al. 2019).

    The smallest sets on average, if the probabilities are right. Its usual score is 1 − p_y.
    """

    name = "lac"

    def _typicality(
        self,
        p: Float[Tensor, "batch classes"],
        confidence: Float[Tensor, " batch"] | None,  # noqa: ARG002
    ) -> Float[Tensor, "batch classes"]:
        return p


@final
class AdaptiveSets(PredictionSets):
    """APS: the likeliest classes, until their probabilities sum to the threshold (Romano et al. 2020).

    Sets of hard items become larger, those of easy items smaller. The typicality of a class is the sum of all
    smaller probabilities. The usual score is 1 minus that: the sum of the probabilities from the largest down
    to y, with y, without the random part that some use. Equally likely classes count in the order of their
    numbers.
    """

    name = "aps"

    def _typicality(
        self,
        p: Float[Tensor, "batch classes"],
        confidence: Float[Tensor, " batch"] | None,  # noqa: ARG002
    ) -> Float[Tensor, "batch classes"]:
        return _below(p)[0]


@final
class RegularizedAdaptiveSets(PredictionSets):
    """RAPS: APS where every rank after the first `free_ranks` costs `penalty` (Angelopoulos et al. 2021).

    The penalty keeps long tails of unlikely classes out of the sets.
    """

    name = "raps"

    def __init__(
        self, coverage: float = 0.9, *, by_class: bool = False, penalty: float = 0.01, free_ranks: int = 1
    ) -> None:
        super().__init__(coverage, by_class=by_class)
        if not 0 <= penalty < math.inf:
            raise ValueError(f"penalty must be finite and not negative, got {penalty!r}")
        if not isinstance(free_ranks, int) or free_ranks < 0:
            raise ValueError(f"free_ranks must be a whole number of at least 0, got {free_ranks!r}")
        self.penalty, self.free_ranks = penalty, free_ranks

    def _typicality(
        self,
        p: Float[Tensor, "batch classes"],
        confidence: Float[Tensor, " batch"] | None,  # noqa: ARG002
    ) -> Float[Tensor, "batch classes"]:
        below, rank = _below(p)
        return below - self.penalty * (rank - self.free_ranks).clamp_min(0).to(p)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, penalty={self.penalty:g}, free_ranks={self.free_ranks}"


def _below(
    p: Float[Tensor, "batch classes"],
) -> tuple[Float[Tensor, "batch classes"], Int[Tensor, "batch classes"]]:
    """For each class, the probability of all less likely classes, and its rank (1 for the likeliest)."""
    # ONNX only has a sort that keeps the order of equals, and no argument that asks for it.
    traced = torch.compiler.is_compiling()
    order = (p.sort(-1, True) if traced else p.sort(dim=-1, descending=True, stable=True)).indices
    falling = p.gather(-1, order)
    # Summed from the least likely: beside a probability near 1 the sum of the rest would have no digits left.
    after = F.pad(falling[:, 1:].flip(-1).cumsum(-1).flip(-1), (0, 1))
    place = torch.arange(1, p.shape[-1] + 1, device=p.device).expand_as(order)
    return torch.zeros_like(p).scatter(-1, order, after), torch.zeros_like(order).scatter(-1, order, place)
