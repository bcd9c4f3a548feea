"""How good an embedding is with a few labelled items, and whether its confidence tells when it fails."""

import math

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from spaceform.geometry import Geometry, Sphere
from spaceform.metrics.bootstrap import Interval
from spaceform.metrics.confidence import auroc
from spaceform.metrics.inputs import TensorOrArray, as_finite, as_labels
from spaceform.metrics.retrieval import Retrieval

__all__ = ["few_shot_accuracy", "r_auroc"]

_MOST_NUMBERS = 1 << 22  # numbers held at a time


def r_auroc(confidence: TensorOrArray, found: Retrieval) -> Float[Tensor, ""]:
    """R-AUROC: does the confidence of a query say whether its nearest neighbour has its class?

    The AUROC of `confidence` (`head.confidence(z)`, one number a query) against a Recall@1 of 0 or 1, as the
    URL benchmark has it (Kirchhof et al. 2023). `found` is what `retrieval` gives for the same queries; those
    without a relevant item are left out.
    """
    κ = as_finite(confidence, "confidence", 1).cpu()
    first = found.first_rank
    if len(κ) != len(first):
        raise ValueError(f"confidence has {len(κ)} entries for {len(first)} queries; the lengths must agree")
    asked = ~first.isnan()
    if not bool(asked.any()):
        raise ValueError("no query has a relevant item; every class has one member")
    return auroc(κ[asked], first[asked] <= 1)


def few_shot_accuracy(
    z: TensorOrArray,
    y: TensorOrArray,
    geometry: Geometry | None = None,
    *,
    ways: int = 5,
    shots: int = 1,
    queries: int = 15,
    episodes: int = 1000,
    generator: Generator | None = None,
) -> Interval:
    """Accuracy of the nearest prototype, mean over random episodes, with its 95 % interval.

    An episode has `ways` classes; of each, `shots` items make a prototype, the geometry's midpoint (default:
    the sphere's), and `queries` other items look for the nearest prototype. If several prototypes are equally
    near, each is taken with the same probability. The interval is that of the mean over the episodes. These
    share items, so it does not say how different the value would be with other items.
    """
    geometry = Sphere() if geometry is None else geometry
    x = as_finite(z, "z", 2)
    labels = as_labels(y, "y", len(x)).to(x.device)
    least = {"ways": (ways, 2), "shots": (shots, 1), "queries": (queries, 1), "episodes": (episodes, 2)}
    for name, (value, bound) in least.items():
        if value < bound:
            raise ValueError(f"{name} must be at least {bound}, got {value}")
    members = _members(labels, ways, shots + queries)
    rows = max(1, _MOST_NUMBERS // max(members.numel(), ways * ways * queries * x.shape[1]))
    right = torch.cat(
        [
            _episodes(x, members, geometry, ways, shots, queries, min(rows, episodes - start), generator)
            for start in range(0, episodes, rows)
        ]
    )
    mean, error = right.mean().item(), right.std().item() / math.sqrt(episodes)
    return Interval(mean, mean - 1.96 * error, mean + 1.96 * error, error)


def _members(y: Int[Tensor, " n"], ways: int, needed: int) -> Int[Tensor, "classes most"]:
    """The items of each class that has enough of them, padded by −1."""
    _, ids, sizes = torch.unique(y, return_inverse=True, return_counts=True)
    large = (sizes >= needed).nonzero()[:, 0].tolist()
    if len(large) < ways:
        raise ValueError(
            f"{ways} ways need {ways} classes with at least {needed} items (shots + queries), "
            f"but {len(large)} have as many; ask for fewer ways, shots or queries"
        )
    lists = [(ids == j).nonzero()[:, 0] for j in large]
    return torch.nn.utils.rnn.pad_sequence(lists, batch_first=True, padding_value=-1)


def _episodes(
    x: Float[Tensor, "n dim"],
    members: Int[Tensor, "classes most"],
    geometry: Geometry,
    ways: int,
    shots: int,
    queries: int,
    episodes: int,
    generator: Generator | None,
) -> Float[Tensor, " episodes"]:
    """The accuracy of each episode."""

    def drawn(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator).to(x.device)

    classes = drawn(episodes, len(members)).topk(ways, -1).indices
    pool = members[classes]
    keys = torch.where(pool >= 0, drawn(*pool.shape), -1)
    items = pool.gather(-1, keys.topk(shots + queries, -1).indices)
    prototypes = geometry.midpoint(x[items[..., :shots]])
    asked = x[items[..., shots:]]
    similarity = geometry.similarity(asked[:, :, :, None], prototypes[:, None, None])
    nearest = similarity >= similarity.amax(-1, keepdim=True)
    own = nearest.diagonal(dim1=1, dim2=3).double()  # way i asks, prototype i answers
    share = own / nearest.sum(-1).transpose(1, 2)
    return share.mean((1, 2)).cpu()
