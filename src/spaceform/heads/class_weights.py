"""Start values of the class weights of a head."""

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

Init: TypeAlias = Literal["xavier", "torch"]
"""Xavier uniform, or torch's default for a linear layer: uniform up to 1/√dim, however many classes."""


def class_weights(num_classes: int, dim: int, init: Init) -> nn.Parameter:
    """Start values: one weight for each class, of shape (classes, dim)."""
    weight = nn.Parameter(torch.empty(num_classes, dim))
    start_class_weights(weight, num_classes, init)
    return weight


@torch.no_grad()
def start_class_weights(weight: Tensor, num_classes: int, init: Init) -> None:
    """Fill the weights of some or all of `num_classes` classes with start values; the last axis is dim."""
    dim = weight.shape[-1]
    bounds = {"xavier": math.sqrt(3) * math.sqrt(2 / (num_classes + dim)), "torch": dim**-0.5}
    if init not in bounds:
        raise ValueError(f"init must be 'xavier' or 'torch', got {init!r}")
    nn.init.uniform_(weight, -bounds[init], bounds[init])
