"""How good sets of classes are: how often they hold the true class, and how large they are."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from spaceform.metrics.accuracy import mean
from spaceform.metrics.inputs import TensorOrArray, as_labels, as_tensor

__all__ = ["set_coverage", "set_size"]


def set_coverage(
    sets: TensorOrArray, y: TensorOrArray, *, counts: TensorOrArray | None = None
) -> Float[Tensor, "*draws"]:
    """Share of items whose set holds their class."""
    inside = _as_sets(sets)
    labels = as_labels(y, "y", *inside.shape).to(inside.device)
    return mean(inside.gather(-1, labels[:, None])[:, 0].double(), counts=counts)


def set_size(sets: TensorOrArray, *, counts: TensorOrArray | None = None) -> Float[Tensor, "*draws"]:
    """Mean number of classes in a set."""
    return mean(_as_sets(sets).sum(-1).double(), counts=counts)


def _as_sets(sets: TensorOrArray) -> Bool[Tensor, "batch classes"]:
    t = as_tensor(sets, "sets")
    if t.dtype != torch.bool or t.ndim != 2:
        raise ValueError(
            f"sets must be booleans of shape (items, classes), got {t.dtype} of shape {tuple(t.shape)}"
        )
    return t
