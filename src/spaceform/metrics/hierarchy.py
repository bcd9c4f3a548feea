"""How bad mistakes are if classes form a tree: the edges between the predicted class and the right one."""

from collections.abc import Hashable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.metrics.accuracy import mean
from spaceform.metrics.inputs import (
    TensorOrArray,
    as_counts,
    as_finite,
    as_labels,
    as_probs,
    as_tensor,
    predicted_class,
)

__all__ = ["expected_tree_distance", "mistake_distance", "tree_distances"]


def tree_distances(groups: Sequence[Sequence[Hashable]]) -> Float[Tensor, "classes classes"]:
    """Edges between every two classes, the leaves of a tree.

    `groups` names for each class the groups that it is in, from the root down: `[("animal", "bird"), ...]`.
    A name means a group within the group before it. Classes of one group are 2 edges apart.
    """
    number: dict[tuple[Hashable, ...], int] = {}
    deepest = max((len(path) for path in groups), default=0)
    if not groups:
        raise ValueError("groups is empty; name the groups of at least one class")
    # Row i has a number for each group of class i, by its whole path; what is missing equals nothing.
    nodes = torch.full((len(groups), deepest), -1)
    for i, path in enumerate(groups):
        for level in range(len(path)):
            nodes[i, level] = number.setdefault(tuple(path[: level + 1]), len(number))
    depth = torch.tensor([len(path) + 1 for path in groups])
    shared = torch.zeros(len(groups), len(groups), dtype=torch.long)
    for level in nodes.T:
        shared += (level[:, None] == level) & (level >= 0)
    distance = depth[:, None] + depth - 2 * shared
    return distance.fill_diagonal_(0).double()


def mistake_distance(
    scores: TensorOrArray, y: TensorOrArray, distances: TensorOrArray, *, counts: TensorOrArray | None = None
) -> Float[Tensor, "*draws"]:
    """Mean distance between the predicted class and the right one over mistakes; NaN where there are none.

    `distances` are those of `tree_distances`, or of any other matrix of what each confusion costs. Times the
    error rate, this is the mean over all examples.
    """
    s = as_finite(scores, "scores", 2)
    labels = as_labels(y, "y", *s.shape)
    found = _distances(distances, s.shape[1])[predicted_class(s).cpu(), labels.cpu()]
    wrong = predicted_class(s).cpu() != labels.cpu()
    n = as_counts(counts, len(labels)).double() * wrong
    return n @ found / n.sum(-1)


def expected_tree_distance(
    probs: TensorOrArray, y: TensorOrArray, distances: TensorOrArray, *, counts: TensorOrArray | None = None
) -> Float[Tensor, "*draws"]:
    """Σⱼ pⱼ d(j, y), mean over examples: how far from the right class the probability lies."""
    p = as_probs(probs)
    labels = as_labels(y, "y", *p.shape).cpu()
    rows = _distances(distances, p.shape[1])[:, labels].T
    return mean(torch.linalg.vecdot(p.cpu().double(), rows), counts=counts)


def _distances(distances: TensorOrArray, classes: int) -> Float[Tensor, "classes classes"]:
    d = as_tensor(distances, "distances").cpu().double()
    if d.shape != (classes, classes):
        raise ValueError(
            f"distances must have shape ({classes}, {classes}), a row for each class, got {tuple(d.shape)}"
        )
    return d
