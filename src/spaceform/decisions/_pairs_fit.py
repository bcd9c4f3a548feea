"""Pairs of items to learn from, and the fit of a calibrated ratio to them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

MOST = 50_000
"""The most pairs of each kind. With this many pairs Cllr is known to half a per cent."""


class FitStart(NamedTuple):
    """Where a fit begins: the free part of the shape, the part that stays, and the line."""

    free: Float[Tensor, " p"]
    kept: Float[Tensor, " q"]
    scale: float
    offset: float


class PairRows(NamedTuple):
    """The row numbers of the two members of each pair."""

    first: Int[Tensor, " pairs"]
    second: Int[Tensor, " pairs"]
    same: Bool[Tensor, " pairs"]


def pair_rows(y: Int[Tensor, " n"]) -> PairRows:
    """Pairs of one class and pairs of two classes: all of them, or `MOST` of each kind if there are more."""
    g = torch.Generator().manual_seed(0)
    one, other = _same_pairs(y, g), _different_pairs(y, g)
    for rows, kind in ((one, "of one class"), (other, "of two classes")):
        if rows.shape[1] == 0:
            raise ValueError(f"y has no pair {kind}; hold out at least two classes with two items each")
    first, second = torch.cat([one, other], 1)
    return PairRows(first, second, torch.arange(len(first)) < one.shape[1])


def _same_pairs(y: Int[Tensor, " n"], g: torch.Generator) -> Int[Tensor, "2 pairs"]:
    """All pairs inside the classes, from as many items of each class as the limit allows."""
    lists = [(y == j).nonzero()[:, 0] for j in y.unique()]
    sizes = torch.tensor([len(rows) for rows in lists])
    most = int(sizes.max())
    while most > 2 and int((sizes.clamp_max(most) * (sizes.clamp_max(most) - 1) // 2).sum()) > MOST:
        most = max(2, most - max(1, most // 20))
    parts = []
    for rows in lists:
        chosen = rows[torch.randperm(len(rows), generator=g)[:most]]
        i, j = torch.triu_indices(len(chosen), len(chosen), 1)
        parts.append(torch.stack([chosen[i], chosen[j]]))
    found = torch.cat(parts, 1)
    return found[:, torch.randperm(found.shape[1], generator=g)[:MOST]]


def _different_pairs(y: Int[Tensor, " n"], g: torch.Generator) -> Int[Tensor, "2 pairs"]:
    N = len(y)
    if N * (N - 1) // 2 <= 4 * MOST:
        found = torch.triu_indices(N, N, 1)
    else:
        found = torch.randint(N, (2, 4 * MOST), generator=g)
    found = found[:, y[found[0]] != y[found[1]]]
    return found[:, torch.randperm(found.shape[1], generator=g)[:MOST]]


def fit_ratio(
    ratio: Callable[[Tensor], Float[Tensor, " pairs"]],
    start: FitStart,
    same: Bool[Tensor, " pairs"],
    classes: int,
) -> tuple[Float[Tensor, " p"], Float[Tensor, "2"]]:
    """The shape θ and the line (scale, offset) for which scale · ratio(θ) + offset has the least Cllr.

    If pairs are told apart without error, the scale would become infinite. So the differences from the start
    (for the scale, the difference of logarithms) have the prior N(0, 3²), which weighs as much as one class
    of `classes`: pairs share items and classes, and a few classes say little about others, however many pairs
    they have.
    """
    free = torch.zeros(len(start.free) + 2, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [free], max_iter=200, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def line(t: Tensor) -> tuple[Tensor, Tensor]:
        grown = t[-2].exp()
        return grown * start.scale, grown * start.offset + t[-1]

    def loss() -> Tensor:
        optimiser.zero_grad()
        scale, offset = line(free)
        found = scale * ratio(start.free + free[:-2]) + offset
        value = (F.softplus(-found[same]).mean() + F.softplus(found[~same]).mean()) / 2
        value = value + free.square().sum() / (2 * 9 * classes)
        value.backward()
        return value

    optimiser.step(loss)
    end = free.detach()
    return start.free + end[:-2], torch.stack(line(end))
