"""What turns inputs into embeddings: the paper's small net, a small residual net, timm's, a projection."""

import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

# Loops over the channels of channels-last memory run in vectors of eight: six channels cost a CPU twice that.
_LANES = 8


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
        _xavier(self)
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
    missing = x.shape[1] - conv.in_channels  # spare channels of the block before
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
    """Batch norm in training where the last `spare` channels hold nothing; they stay zero."""
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
        _xavier(self.embedding)
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
            # Channels last in what is sliced, so that gradients are laid out as the others are.
            pixels = x.permute(0, 2, 3, 1)[:, :: self.stride, :: self.stride]
            x = F.pad(pixels, (0, self.new)).permute(0, 3, 1, 2)
        return y.add_(x).relu_()


@final
class Projection(nn.Module):
    """Inputs, flattened, to an embedding by one linear map, or by two with batch norm and ReLU between.

    `standardize` puts a batch norm without parameters before them: features of any scale will do. Then
    `dropout` leaves out that share of the features, in training.
    """

    def __init__(
        self,
        dim: int,
        input_shape: Sequence[int],
        hidden: int | None = None,
        standardize: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        features = torch.Size(input_shape).numel()
        first: list[nn.Module] = [nn.Flatten()]
        if standardize:
            first.append(nn.BatchNorm1d(features, eps=1e-10, affine=False))  # small beside any variance
        if dropout:
            first.append(_Dropout(dropout))
        if hidden is None:
            self.layers = nn.Sequential(*first, nn.Linear(features, dim))
        else:
            self.layers = nn.Sequential(
                *first,
                nn.Linear(features, hidden, bias=False),
                nn.BatchNorm1d(hidden),
                nn.ReLU(),
                nn.Linear(hidden, dim),
            )
        _xavier(self)

    def forward(self, x: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch dim"]:
        return self.layers(x)


@final
class _Dropout(nn.Module):
    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, x: Float[Tensor, "batch features"]) -> Float[Tensor, "batch features"]:
        return thinned(x, self.share) if self.training else x


def thinned(
    x: Float[Tensor, "batch features"], share: float, generator: torch.Generator | None = None
) -> Float[Tensor, "batch features"]:
    """Dropout of a share, to 1/256, of the numbers: `nn.Dropout` five times as fast on a CPU.

    A random byte a number, eight from one draw.
    """
    kept = max(1, round(256 * (1 - share)))
    if kept == 256:
        return x
    draws = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
    draws.random_(-(2**63), None, generator=generator)  # all 64 bits
    return x * (draws.view(torch.uint8)[: x.numel()].view(x.shape) < kept) * (256 / kept)


@final
class Backbone(nn.Module):
    """A model of timm without its classifier, then a linear map to the embedding.

    `freeze_batch_norm` keeps the running statistics, in training too; scale and shift still train.
    """

    def __init__(
        self, features: nn.Module, num_features: int, dim: int, freeze_batch_norm: bool = False
    ) -> None:
        super().__init__()
        self.features = features
        self.embedding = nn.Linear(num_features, dim)
        self.freeze_batch_norm = freeze_batch_norm
        _xavier(self.embedding)

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode)
        if self.freeze_batch_norm:
            for module in self.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
        return self.embedding(self.features(x))


def _xavier(module: nn.Module) -> None:
    for inner in module.modules():
        if isinstance(inner, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(inner.weight)
            if inner.bias is not None:
                nn.init.zeros_(inner.bias)


def _small(dim: int, input_shape: Sequence[int], **options: Any) -> nn.Module:
    _only("small", options)
    _require_images("small", input_shape)
    return SmallNet(dim, input_shape)


def _residual(dim: int, input_shape: Sequence[int], **options: Any) -> nn.Module:
    _only("residual", options)
    _require_images("residual", input_shape)
    return ResidualNet(dim, input_shape)


def _require_images(name: str, input_shape: Sequence[int]) -> None:
    if len(input_shape) != 3 or min(input_shape[1:]) < 4:
        raise ValueError(
            f"net {name!r} takes images of 4x4 or more, got inputs of shape {tuple(input_shape)}; "
            "try 'projection'"
        )


def _projection(
    dim: int,
    input_shape: Sequence[int],
    hidden: int | None = None,
    standardize: bool = False,
    dropout: float = 0.0,
    **options: Any,
) -> nn.Module:
    _only("projection", options)
    return Projection(dim, input_shape, hidden, standardize, dropout)


def _resnet50(dim: int, input_shape: Sequence[int], **options: Any) -> nn.Module:
    # of timm's many ResNet50 weights, the ones of 2015 that the paper started from
    return _timm("resnet50.tv_in1k", dim, input_shape, **options)


def _timm(
    name: str,
    dim: int,
    input_shape: Sequence[int],
    *,
    hidden: int | None = None,
    standardize: bool = False,
    stem: str = "imagenet",
    pretrained: bool = False,
    weights: str | None = None,
    freeze_batch_norm: bool = False,
) -> nn.Module:
    from spaceform._torchvision import ensure_torchvision

    ensure_torchvision()
    import timm

    if not timm.is_model(name):
        known = [*NETS, *timm.list_models()]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown net {name!r}; {hint}choose from {', '.join(NETS)}, or any model of timm")
    if hidden is not None:
        raise ValueError(f"net.hidden={hidden} belongs to net 'projection'; {name!r} has no such option")
    if standardize:
        raise ValueError(f"net.standardize belongs to net 'projection'; {name!r} has no such option")
    if len(input_shape) != 3:
        raise ValueError(
            f"net {name!r} takes images, got inputs of shape {tuple(input_shape)}; try 'projection'"
        )
    try:
        fetch = pretrained and weights is None
        features: Any = timm.create_model(name, pretrained=fetch, num_classes=0, in_chans=input_shape[0])
    except Exception as error:
        if not fetch:
            raise
        raise OSError(
            f"the pretrained weights of {name!r} could not be fetched ({type(error).__name__}: {error}); "
            "set net.weights to a local safetensors file"
        ) from error
    if stem == "cifar":
        if not isinstance(getattr(features, "conv1", None), nn.Conv2d):
            raise ValueError(f"net.stem='cifar' is for the ResNets of timm; {name!r} has no such stem")
        old = features.conv1
        features.conv1 = nn.Conv2d(old.in_channels, old.out_channels, 3, stride=1, padding=1, bias=False)
        nn.init.kaiming_normal_(features.conv1.weight, mode="fan_out", nonlinearity="relu")
    if weights is not None:
        _load_weights(features, Path(weights), name)
    return Backbone(features, features.num_features, dim, freeze_batch_norm)


def _load_weights(features: nn.Module, path: Path, name: str) -> None:
    """Weights from a safetensors file; those of a classifier that was cut off are left out."""
    import safetensors
    import safetensors.torch

    try:
        tensors = safetensors.torch.load_file(path)
    except FileNotFoundError:
        raise ValueError(f"net.weights: there is no file {str(path)!r}") from None
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(
            f"net.weights: {path} is not a safetensors file ({error}); pickled weights are not read: "
            "convert them by safetensors.torch.save_file"
        ) from None
    missing = [
        key for key in features.state_dict() if key not in tensors and not key.endswith("num_batches_tracked")
    ]
    if missing:
        raise ValueError(
            f"net.weights: {path} does not fit {name!r}: it lacks {missing[0]!r}"
            + (f" and {len(missing) - 1} more" if len(missing) > 1 else "")
        )
    try:
        features.load_state_dict(
            {k: v for k, v in tensors.items() if k in features.state_dict()}, strict=False
        )
    except RuntimeError as error:
        raise ValueError(
            f"net.weights: {path} does not fit {name!r}: {str(error).splitlines()[-1].strip()}"
        ) from None


def _only(name: str, options: dict[str, Any]) -> None:
    for option, value in options.items():
        raise ValueError(f"net.{option}={value!r} is not an option of net {name!r}; remove it")


NETS: dict[str, Callable[..., nn.Module]] = {
    "small": _small,
    "residual": _residual,
    "projection": _projection,
    "resnet50": _resnet50,
}
_UNSET = {
    "hidden": None,
    "standardize": False,
    "dropout": 0.0,
    "stem": "imagenet",
    "pretrained": False,
    "weights": None,
    "freeze_batch_norm": False,
}


def build(name: str, dim: int, input_shape: Sequence[int], **options: Any) -> nn.Module:
    """The net `name`, from inputs of `input_shape` (channels, height, width) or (features,) to `dim` numbers.

    Options: `hidden`, `standardize`, `dropout` (projection); `stem`, `pretrained`, `weights`,
    `freeze_batch_norm` (ResNet50 and timm).
    """
    given = {option: value for option, value in options.items() if value != _UNSET[option]}
    if name in NETS:
        return NETS[name](dim, input_shape, **given)
    return _timm(name, dim, input_shape, **given)
