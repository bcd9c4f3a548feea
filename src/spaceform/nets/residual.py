"""A residual net of eight layers, for small images."""

from collections.abc import Sequence
from typing import Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from spaceform.nets.options import NetOptions, require_images
from spaceform.nets.start import xavier


@final
class ResidualOptions(NetOptions):
    """`ResidualNet`, for images of 4x4 or more."""

    name: Literal["residual"] = "residual"

    def build(self, input_shape: Sequence[int]) -> nn.Module:
        require_images(self.name, input_shape, least=4)
        return ResidualNet(self.dim, input_shape)


@final
class ResidualNet(nn.Module):
    """A residual net of eight layers for small images: blocks of 16, 32 and 64 channels, mean, embedding.

    The smallest of the CIFAR nets of He et al. (2016): one block a stage; where a block halves the image, its
    shortcut takes every second pixel and leaves the new channels zero.
    """

    def __init__(self, dim: int, input_shape: Sequence[int] = (3, 32, 32)) -> None:
        super().__init__()
        self.conv = nn.Conv2d(input_shape[0], 16, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(_Block(16, 16), _Block(16, 32), _Block(32, 64))
        self.embedding = nn.Linear(64, dim)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        xavier(self.embedding)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
        x = x.contiguous(memory_format=torch.channels_last)
        x = self.blocks(self.norm(self.conv(x)).relu_())
        return self.embedding(x.permute(0, 2, 3, 1).mean((1, 2)))


@final
class _Block(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.stride, self.new = (1 if filters == channels else 2), filters - channels
        self.conv1 = nn.Conv2d(channels, filters, 3, stride=self.stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu_()))
        if self.new:
            # The sliced tensor has its channels last, so that all gradients have the same memory layout.
            pixels = x.permute(0, 2, 3, 1)[:, :: self.stride, :: self.stride]
            x = F.pad(pixels, (0, self.new)).permute(0, 3, 1, 2)
        return y.add_(x).relu_()
