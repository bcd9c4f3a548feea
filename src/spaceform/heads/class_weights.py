"""How the class weights of a head start."""

from typing import Literal, TypeAlias

import torch
from torch import nn

Init: TypeAlias = Literal["xavier", "torch"]
"""Xavier uniform, or torch's default for a linear layer: uniform up to 1/√dim, however many classes."""


def class_weights(num_classes: int, dim: int, init: Init) -> nn.Parameter:
    """One weight a class, of shape (classes, dim), at its start."""
    if init == "xavier":
        return nn.Parameter(nn.init.xavier_uniform_(torch.empty(num_classes, dim)))
    if init == "torch":
        return nn.Parameter(nn.init.uniform_(torch.empty(num_classes, dim), -(dim**-0.5), dim**-0.5))
    raise ValueError(f"init must be 'xavier' or 'torch', got {init!r}")
