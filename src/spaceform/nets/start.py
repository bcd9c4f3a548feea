"""How the weights of a net start."""

from torch import nn


def xavier(module: nn.Module) -> None:
    """Xavier uniform weights and zero biases in every convolution and linear layer."""
    for inner in module.modules():
        if isinstance(inner, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(inner.weight)
            if inner.bias is not None:
                nn.init.zeros_(inner.bias)
