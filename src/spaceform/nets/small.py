"""The paper's net for MNIST and FashionMNIST."""

from collections.abc import Sequence
from typing import Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from spaceform.nets.options import NetOptions, require_images
from spaceform.nets.start import xavier

# A CPU works on channels-last memory in vectors of eight channels: six channels take twice the time of eight.
_LANES = 8


@final
class SmallOptions(NetOptions):
    """`SmallNet`, for images of 4x4 or more."""

    name: Literal["small"] = "small"

    def build(self, input_shape: Sequence[int]) -> nn.Module:
        require_images(self.name, input_shape, least=4)
        return SmallNet(self.dim, input_shape)


@final
class SmallNet(nn.Module):
    """The paper's net for MNIST and FashionMNIST: two blocks of 5x5 convolution, batch norm, ReLU, max-pool.

    Then 120 units with batch norm and ReLU, and the embedding. Weights are Xavier uniform, biases zero. A
    bias before batch norm would be subtracted again, so there is none; ReLU and max-pool commute, so the pool
    comes first.
    """

    def __init__(self, dim: int, input_shape: Sequence[int] = (1, 28, 28)) -> None:
        super().__init__()
        channels, height, width = input_shape
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=2, bias=False)
        self.norm1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 16, 5, padding=2, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.hidden = nn.Linear(16 * (height // 4) * (width // 4), 120, bias=False)
        self.norm3 = nn.BatchNorm1d(120)
        self.embedding = nn.Linear(120, dim)
        xavier(self)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
        x = x.contiguous(memory_format=torch.channels_last)
        x = _conv_norm_pool_relu(x, self.conv1, self.norm1)
        x = _conv_norm_pool_relu(x, self.conv2, self.norm2)
        x = F.relu(self.norm3(self.hidden(x.flatten(1))))
        return self.embedding(x)


def _conv_norm_pool_relu(
    x: Float[Tensor, "batch channels height width"], conv: nn.Conv2d, norm: nn.BatchNorm2d
) -> Float[Tensor, "batch filters half_height half_width"]:
    plain = not x.is_cpu or type(norm) is not nn.BatchNorm2d or torch.compiler.is_compiling()
    spare = 0 if plain else -conv.out_channels % _LANES
    missing = x.shape[1] - conv.in_channels  # spare channels of the previous block
    weight = F.pad(conv.weight, (0, 0, 0, 0, 0, missing, 0, spare)) if spare or missing else conv.weight
    if norm.training:
        y = F.conv2d(x, weight, padding=conv.padding)
        return F.relu(F.max_pool2d(_spared_batch_norm(y, norm, spare) if spare else norm(y), 2))
    scale, shift = (F.pad(t, (0, spare)).view(-1, 1, 1) for t in _affine(norm))
    y = F.conv2d(x, weight * scale[..., None], padding=conv.padding)
    return F.relu(F.max_pool2d(y, 2) + shift)


def _spared_batch_norm(
    y: Float[Tensor, "batch widened height width"], norm: nn.BatchNorm2d, spare: int
) -> Float[Tensor, "batch widened height width"]:
    """Batch norm in training if the last `spare` channels are empty; they stay zero."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert norm.num_batches_tracked is not None
    assert norm.momentum is not None
    mean, var, weight, bias = (
        F.pad(t, (0, spare)) for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    )
    y = F.batch_norm(y, mean, var, weight, bias, training=True, momentum=norm.momentum, eps=norm.eps)
    with torch.no_grad():
        norm.running_mean.copy_(mean[:-spare])
        norm.running_var.copy_(var[:-spare])
        norm.num_batches_tracked.add_(1)
    return y


def _affine(norm: nn.BatchNorm2d) -> tuple[Float[Tensor, " channels"], Float[Tensor, " channels"]]:
    """Batch norm in evaluation, as x · scale + shift."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
    return scale, norm.bias - norm.running_mean * scale
