"""Sets whose threshold depends on the embedding's norm or concentration."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.decisions.prediction_sets import PredictionSets

_MOST_KNOTS = 6
_PER_KNOT = 5
"""How many items each knot needs below its quantile: fewer items say little about where the quantile is."""
_EQUAL = 1e-3
"""Logarithms of norms that differ by less are equal: float32 would make noise of a slope between them."""


@final
class NormAwareSets(PredictionSets):
    """All classes whose log-odds reach a line that depends on the norm or concentration κ.

    With one threshold for all items, sets of clear items hold the true class too often, and sets of doubtful
    items too rarely; the norm says which items are clear. Half of the held-out items give the line: the (1 −
    coverage) quantile of the true class's log-odds in groups of similar κ, linear in log κ between the
    groups, constant outside them. The other half says by how much the whole line must move, so the promise is
    the same as for every split conformal set. With few items the line is level, and the sets are those of
    LAC.
    """

    name = "norm_aware"
    fitted_buffers = ("threshold", "log_confidence", "line")
    log_confidence: Tensor
    """The log confidence of the groups."""
    line: Tensor
    """The quantile of the log-odds in each group."""

    def _prepare(
        self,
        p: Float[Tensor, "batch classes"],
        y: Int[Tensor, " batch"],
        confidence: Float[Tensor, " batch"] | None,
    ) -> Int[Tensor, " rest"]:
        x = _log(_given(confidence))
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0)).to(y.device)
        first, rest = order[::2], order[1::2]
        odds = _log_odds(p[first]).gather(1, y[first, None])[:, 0].double().cpu()
        self.log_confidence, self.line = _line(x[first].double().cpu(), odds, 1 - self.coverage)
        return rest

    def _typicality(
        self, p: Float[Tensor, "batch classes"], confidence: Float[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch classes"]:
        x = _log(_given(confidence))
        at, line = self.log_confidence.to(p), self.line.to(p)
        way = ((x[:, None] - at[:-1]) / at.diff()).clamp(0, 1)
        return _log_odds(p) - (line[0] + way @ line.diff())[:, None]


def _line(
    x: Float[Tensor, " n"], odds: Float[Tensor, " n"], share: float
) -> tuple[Float[Tensor, " knots"], Float[Tensor, " knots"]]:
    """The median place and the quantile of each group; a level line has two equal knots."""
    groups = min(_MOST_KNOTS, max(1, int(len(x) * share / _PER_KNOT)))
    parts = [part for part in x.argsort().tensor_split(groups) if len(part)]
    at = [float(x[part].median()) for part in parts]
    value = [float(odds[part].quantile(share)) for part in parts]
    kept = [0]
    for i in range(1, len(at)):
        kept += [i] if at[i] - at[kept[-1]] > _EQUAL else []
    if len(kept) == 1:
        level = float(odds.quantile(share))
        return torch.tensor([at[0], at[0] + 1]).double(), torch.tensor([level, level]).double()
    return torch.tensor([at[i] for i in kept]).double(), torch.tensor([value[i] for i in kept]).double()


def _log_odds(p: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch classes"]:
    """The logarithm of p/(1 − p), finite also for 0 and 1."""
    tiny = torch.finfo(p.dtype).tiny
    top = p.argmax(-1, keepdim=True)
    rest = p.scatter(-1, top, 0).sum(-1, keepdim=True)  # 1 − p has no digits left where p is near 1
    return p.clamp_min(tiny).log() - (1 - p).scatter(-1, top, rest).clamp_min(tiny).log()


def _log(confidence: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    return confidence.clamp_min(torch.finfo(confidence.dtype).tiny).log()


def _given(confidence: Tensor | None) -> Float[Tensor, " batch"]:
    if confidence is None:
        raise ValueError("NormAwareSets needs confidence=, one number per item; pass head.confidence(z)")
    return confidence
