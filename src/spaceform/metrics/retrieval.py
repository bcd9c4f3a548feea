"""Is the nearest of the same class? mAP@R, R-precision, Recall@k, precision@1: exact, streaming over blocks.

For a query with R relevant items (same label; in the gallery, itself left out) and rankⱼ the place of its
j-th best relevant item:

    AP@R = (1/R) Σⱼ [rankⱼ ≤ R] j/rankⱼ,   R-precision = (1/R) Σⱼ [rankⱼ ≤ R],   Recall@k = [rank₁ ≤ k].

Ties count against the query: rankⱼ = j + the number of other items that are at least as near. So an embedding
that has collapsed to a point scores 0, and no value depends on the order of the examples. Similarities that
agree to within the rounding of the inner product (4 ε ‖f‖‖f'‖) are ties.

A query without a relevant item (a class with one member, or a class that the gallery does not have) has no
AP: its value is NaN, and it is left out of every mean.

Only the places of relevant items are needed, not a sorted gallery. Items are scored by one gemm for each
block. The R-th best of the maxima of strided groups is a lower bound for the R-th best item. Only the few
groups that reach this bound are searched, and the items found there are counted against the relevant items.
The extra memory does not depend on N.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.geometry import Geometry, Ranking, Sphere
from spaceform.metrics.inputs import TensorOrArray, as_finite, as_labels

__all__ = ["Retrieval", "expected_retrieval", "map_at_r", "retrieval"]

_STRIP_SCORES = 1 << 22  # the most scores of a strip of queries
_GROUP = 16  # items that share a maximum
_TILE = 512  # queries of a strip, if its inner products are used twice
_WAITING_BYTES = 13 << 26  # the most bytes of inner products that wait for their second use


@final
@dataclass(frozen=True, eq=False)
class Retrieval:
    """Means over the queries that have a relevant item, and the values of each query behind them."""

    map_at_r: float
    r_precision: float
    precision_at_1: float
    recall: dict[int, float]
    average_precision: Float[Tensor, " queries"]
    """AP@R of each query; NaN where nothing is relevant."""
    precision: Float[Tensor, " queries"]
    """R-precision of each query; NaN where nothing is relevant."""
    first_rank: Float[Tensor, " queries"]
    """The place of the best relevant item: exact up to the largest of R and k, infinite above; NaN if there
    is no relevant item.
    """


def retrieval(
    z: TensorOrArray,
    y: TensorOrArray,
    geometry: Geometry | None = None,
    queries: tuple[TensorOrArray, TensorOrArray] | None = None,
    k: Sequence[int] = (1, 10, 100, 1000),
) -> Retrieval:
    """Search the gallery z with labels y for each query, in the geometry's own metric (default: cosine).

    `queries` is (z, y) of separate queries; without it every gallery item queries all the others.
    """
    geometry = Sphere() if geometry is None else geometry
    if not isinstance(geometry, Geometry):
        raise TypeError(
            "geometry must be Sphere(), Euclidean(), PoincareBall(curvature) or Hyperboloid(curvature), "
            f"got {geometry!r}; "
            "a head has its own as head.geometry"
        )
    ks = _checked_k(k)
    gallery, labels = _embeddings(z, y, "z", "y")
    if queries is None:
        asked, asked_labels = gallery, labels
    else:
        asked, asked_labels = _embeddings(*queries, "queries' z", "queries' y")
        if asked.shape[1] != gallery.shape[1]:
            raise ValueError(
                f"queries have dimension {asked.shape[1]}, the gallery {gallery.shape[1]}; they must agree"
            )
        asked, asked_labels = asked.to(gallery), asked_labels.to(gallery.device)
    classes, ids = torch.unique(torch.cat([labels, asked_labels]), return_inverse=True)
    ids, asked_ids = ids[: len(labels)], ids[len(labels) :]
    order = torch.bincount(ids, minlength=len(classes))[
        asked_ids
    ].argsort()  # queries with similar R together
    asked_ids, asked_order = asked_ids[order], geometry.ranking(asked[order])
    items = asked_order if queries is None else geometry.ranking(gallery)
    members = _Members(asked_ids if queries is None else ids, asked_ids, len(classes), own=queries is None)
    found = _search(asked_order, items, members, max(ks))
    return _summary(found[:, order.argsort()].cpu(), ks)


def map_at_r(
    z: TensorOrArray,
    y: TensorOrArray,
    geometry: Geometry | None = None,
    queries: tuple[TensorOrArray, TensorOrArray] | None = None,
) -> float:
    """Mean average precision at R; see `retrieval`."""
    return retrieval(z, y, geometry, queries, k=(1,)).map_at_r


def expected_retrieval(
    samples: Iterable[TensorOrArray],
    y: TensorOrArray,
    geometry: Geometry | None = None,
    k: Sequence[int] = (1, 10, 100, 1000),
) -> Retrieval:
    """Mean over sampled copies of all embeddings, E[mAP@R(z₁…z_N)], as the paper evaluates vMF.

    `samples` is (draws, N, dim), or any iterable of (N, dim): a generator of draws never holds two. The
    values of each query are means over the draws, `first_rank` too.
    """
    draws = [retrieval(z, y, geometry, k=k) for z in samples]
    if not draws:
        raise ValueError("samples is empty; at least one draw of the embeddings is needed")
    per_query = (
        torch.stack([getattr(r, name) for r in draws]).mean(0)
        for name in ("average_precision", "precision", "first_rank")
    )

    def over_draws(values: list[float]) -> float:
        return float(np.mean(values))

    return Retrieval(
        over_draws([r.map_at_r for r in draws]),
        over_draws([r.r_precision for r in draws]),
        over_draws([r.precision_at_1 for r in draws]),
        {i: over_draws([r.recall[i] for r in draws]) for i in draws[0].recall},
        *per_query,
    )


class _Members:
    """Which items are relevant to each query."""

    def __init__(self, items: Int[Tensor, " n"], asked: Int[Tensor, " m"], classes: int, own: bool) -> None:
        self.items, self.asked, self.own = items, asked, own
        self.size = torch.bincount(items, minlength=classes)
        self.order = items.argsort(stable=True)
        self.start = self.size.cumsum(0) - self.size
        self.relevant: Int[Tensor, " m"] = self.size[asked] - int(own)
        """R of each query."""

    def of(self, rows: Int[Tensor, " rows"]) -> tuple[Int[Tensor, "rows most"], Tensor]:
        """Relevant items of each query, padded to the longest list, and which entries are real."""
        label = self.asked[rows]
        j = torch.arange(int(self.size[label].max()), device=label.device)
        index = self.order[(self.start[label, None] + j).clamp_max(len(self.order) - 1)]
        real = j < self.size[label, None]
        if self.own:
            real &= index != rows[:, None]
        return index, real


def _search(asked: Ranking, items: Ranking, members: _Members, farthest: int) -> Float[Tensor, "three m"]:
    """AP@R, R-precision and place of the best relevant item of every query, a strip at a time."""
    N, features = len(items), items.features
    out = torch.full((3, len(asked)), torch.nan, dtype=torch.float64, device=features.device)
    mirrored = members.own and N * N * features.element_size() // 4 <= _WAITING_BYTES
    rows = _TILE if mirrored else max(1, min(1024, _STRIP_SCORES // N))
    width = -(-N // _GROUP) * _GROUP
    scores = features.new_full((min(rows, len(asked)), width), -torch.inf)
    norms = torch.linalg.vector_norm(features, dim=-1)
    shifted = bool((asked.scale != 1).any() | (items.bias != 0).any())
    kept: dict[tuple[int, int], Tensor] = {}
    for start in range(0, len(asked), rows):
        strip = slice(start, min(start + rows, len(asked)))
        S = scores[: strip.stop - start]
        if mirrored:
            _inner_products(features, strip, kept, S[:, :N])
            if shifted:
                S[:, :N].mul_(asked.scale[strip, None]).sub_(items.bias)
        else:
            _score(asked[strip], items, S[:, :N])
        block = torch.arange(start, strip.stop, device=features.device)
        some = members.relevant[strip] > 0
        if not bool(some.all()):
            S, block = S[some], block[some]
        if len(block):
            own_norm = asked.scale[block] * torch.linalg.vector_norm(asked.features[block], dim=-1)
            out[:, block] = _places(S, block, own_norm, norms, items.bias, members, farthest)
    return out


def _inner_products(
    features: Float[Tensor, "n dim"],
    strip: slice,
    kept: dict[tuple[int, int], Tensor],
    out: Float[Tensor, "m n"],
) -> None:
    """A strip of the Gram matrix: a part comes from earlier strips, the rest is kept for later strips.

    At most a quarter of the matrix is held at a time.
    """
    torch.mm(features[strip], features[strip.start :].T, out=out[:, strip.start :])
    for i in range(0, strip.start, _TILE):
        out[:, i : i + _TILE] = kept.pop((strip.start, i))
    for j in range(strip.stop, len(features), _TILE):
        kept[j, strip.start] = out[:, j : j + _TILE].T.contiguous()


def _score(asked: Ranking, items: Ranking, out: Float[Tensor, "m n"]) -> None:
    """`Ranking.scores` into memory that is there already."""
    torch.mm(asked.features * asked.scale[:, None], items.features.T, out=out)
    if bool(items.bias.any()):
        out.sub_(items.bias)


def _places(
    S: Float[Tensor, "m padded"],
    block: Int[Tensor, " m"],
    own_norm: Float[Tensor, " m"],
    norms: Float[Tensor, " n"],
    bias: Float[Tensor, " n"],
    members: _Members,
    farthest: int,
) -> Float[Tensor, "three m"]:
    R = members.relevant[block]
    index, real = members.of(block)
    ε = 4 * torch.finfo(S.dtype).eps
    slack = ε * (own_norm[:, None] * norms[index] + bias[index].abs())
    P = torch.where(real, S.gather(1, index) - slack, -torch.inf)
    if members.own:
        S.scatter_(1, block[:, None], -torch.inf)
    most = int(R.max())
    P = P.sort(1, descending=True).values[:, :most]
    # Items below the R-th best do not matter, nor do items below the last relevant item that counts.
    maxima = S.view(len(S), _GROUP, -1).amax(1)
    bound = _lower_bound(S, maxima, R) - ε * (own_norm * norms.max() + bias.abs().max())
    bound = torch.where(bound[:, None] <= P, P, torch.inf).amin(1)
    row, value = _others(S, maxima, bound, members.asked[block], members.items)
    above = _count(P, row, value)
    j = torch.arange(1, most + 1, device=S.device)
    rank = j + above
    hit = (rank <= R[:, None]) & (bound[:, None] <= P)
    first = torch.where(hit[:, 0], rank[:, 0].double(), torch.inf)
    if farthest > int(R.min()):
        late = (~hit[:, 0]).nonzero().squeeze(-1)
        first[late] = _first_place(S, P, index, real, late)
    return torch.stack([(hit * j / rank.double()).sum(1) / R, hit.sum(1) / R.double(), first])


def _first_place(
    S: Tensor, P: Tensor, index: Tensor, real: Tensor, rows: Int[Tensor, " m"]
) -> Float[Tensor, " m"]:
    """1 + the number of other items at least as near as the best relevant one."""
    if len(rows) == 0:
        return S.new_zeros(0, dtype=torch.float64)
    T, best = S[rows], P[rows, :1]
    near = torch.ge(T, best, out=torch.empty_like(T)).sum(1)
    mine = ((T.gather(1, index[rows]) >= best) & real[rows]).sum(1)
    return (1 + near - mine).double()


def _lower_bound(
    S: Float[Tensor, "m padded"], maxima: Float[Tensor, "m groups"], R: Int[Tensor, " m"]
) -> Float[Tensor, " m"]:
    """A value that at least R items of each row reach: the R-th best maximum of the groups, or item."""
    most = int(R.max())
    best = maxima if 4 * most <= maxima.shape[1] else S
    if S.device.type != "cpu":
        return best.topk(most, 1).values.gather(1, R[:, None] - 1).squeeze(1)
    places = best.shape[1] - R.numpy()
    ordered = np.partition(best.numpy(), np.unique(places), axis=1)  # much faster than topk
    return torch.from_numpy(ordered[np.arange(len(S)), places])


def _others(
    S: Float[Tensor, "m padded"],
    maxima: Float[Tensor, "m groups"],
    bound: Float[Tensor, " m"],
    asked: Int[Tensor, " m"],
    items: Int[Tensor, " n"],
) -> tuple[Int[Tensor, " found"], Float[Tensor, " found"]]:
    """Items of another class that reach the bound: their row and score."""
    groups = maxima.shape[1]
    row, group = (maxima >= bound[:, None]).nonzero(as_tuple=True)
    scores = S.view(len(S), _GROUP, groups)[row, :, group]
    hit, lane = (scores >= bound[row, None]).nonzero(as_tuple=True)
    row, item = row[hit], lane * groups + group[hit]
    other = items[item] != asked[row]
    return row[other], scores[hit, lane][other]


def _count(
    P: Float[Tensor, "m most"], row: Int[Tensor, " found"], value: Float[Tensor, " found"]
) -> Int[Tensor, "m most"]:
    """For each relevant item, best first, how many others score at least as high."""
    m, most = P.shape
    flat, first = P.flatten(), row * most
    low, high = torch.zeros_like(row), torch.full_like(row, most)
    for _ in range(most.bit_length()):  # the first relevant item that does not exceed the value
        middle = (low + high) // 2
        exceeds = (flat[first + middle.clamp_max(most - 1)] > value) & (middle < high)
        low, high = torch.where(exceeds, middle + 1, low), torch.where(exceeds, high, middle)
    counts = torch.bincount(row * (most + 1) + low, minlength=m * (most + 1))
    return counts.view(m, most + 1)[:, :most].cumsum(1)


def _summary(found: Float[Tensor, "three m"], ks: Sequence[int]) -> Retrieval:
    ap, precision, first = found
    seen = first[~first.isnan()]
    recall = {k: (seen <= k).double().mean().item() for k in ks}
    return Retrieval(
        ap.nanmean().item(),
        precision.nanmean().item(),
        (seen <= 1).double().mean().item(),
        recall,
        ap,
        precision,
        first,
    )


def _checked_k(k: Sequence[int]) -> tuple[int, ...]:
    ks = tuple(k)
    if not ks or any(not isinstance(i, int) or i < 1 for i in ks):
        raise ValueError(f"k must be positive integers, at least one, got {k!r}")
    return ks


def _embeddings(z: TensorOrArray, y: TensorOrArray, name: str, label_name: str) -> tuple[Tensor, Tensor]:
    x = as_finite(z, name, 2)
    return x, as_labels(y, label_name, len(x)).to(x.device)
