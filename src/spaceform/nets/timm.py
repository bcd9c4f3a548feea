"""Any model of timm, ResNet50 above all, with an embedding in place of its classifier."""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, final

from jaxtyping import Float
from torch import Tensor, nn

from spaceform.foundation.torchvision import ensure_torchvision
from spaceform.nets.options import NetOptions, own_names, require_images
from spaceform.nets.pretrained import ALIASES, pretrained
from spaceform.nets.start import xavier
from spaceform.nets.weights import put_weights, read_weights


@final
class TimmOptions(NetOptions):
    """`TimmNet`: a model of timm by its name, for images."""

    stem: Literal["imagenet", "cifar"] = "imagenet"
    """"cifar" is a first convolution of 3x3 with stride 1, for images of 32x32; only ResNets."""
    pretrained: bool = False
    weights: str | None = None
    """A local file of pretrained weights, safetensors or `.pth`; None finds them where `pretrained`."""
    freeze_batch_norm: Literal["none", "statistics", "all"] = "none"
    """What training does not change in batch norm: the running statistics, or also scale and shift."""
    init: Literal["xavier", "torch"] = "xavier"
    """Start values of the embedding's weights: Xavier uniform, or torch's (uniform up to 1/√inputs)."""

    def build(self, input_shape: Sequence[int]) -> nn.Module:
        features = _features(self, input_shape)
        if self.stem == "cifar":
            _set_cifar_stem(features, self.name)
        if self.weights is not None:
            path = Path(self.weights)
            put_weights(features, read_weights(path), path, self.name)
        frozen = self.freeze_batch_norm
        return TimmNet(features, features.num_features, self.dim, freeze_batch_norm=frozen, init=self.init)

    def without_weights(self) -> "NetOptions":
        return self.model_copy(update={"pretrained": False, "weights": None})


@final
class TimmNet(nn.Module):
    """A model of timm without its classifier, then a linear map to the embedding.

    `freeze_batch_norm="statistics"` keeps the running statistics, in training too; `"all"` also keeps scale
    and shift.
    """

    def __init__(
        self,
        features: nn.Module,
        num_features: int,
        dim: int,
        *,
        freeze_batch_norm: Literal["none", "statistics", "all"] = "none",
        init: Literal["xavier", "torch"] = "xavier",
    ) -> None:
        super().__init__()
        self.features = features
        self.embedding = nn.Linear(num_features, dim)
        self.freeze_batch_norm = freeze_batch_norm
        if init == "xavier":
            xavier(self.embedding)
        nn.init.zeros_(self.embedding.bias)
        if freeze_batch_norm == "all":
            for norm in self._batch_norms():
                norm.requires_grad_(False)

    def train(self, mode: bool = True) -> "TimmNet":
        super().train(mode)
        if self.freeze_batch_norm != "none":
            for norm in self._batch_norms():
                norm.eval()
        return self

    def _batch_norms(self) -> Iterator[nn.Module]:
        return (m for m in self.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm))

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
        return self.embedding(self.features(x))


def _features(options: TimmOptions, input_shape: Sequence[int]) -> Any:
    ensure_torchvision()
    import timm

    name = ALIASES.get(options.name, options.name)
    if not timm.is_model(name):
        raise ValueError(_unknown_net(name, timm.list_models()))
    require_images(options.name, input_shape)
    if options.pretrained and options.weights is None:
        return pretrained(name, input_shape[0])[0]
    return timm.create_model(name, num_classes=0, in_chans=input_shape[0])


def _unknown_net(name: str, models: list[str]) -> str:
    ours = [*own_names(), *ALIASES]
    near = difflib.get_close_matches(name, [*ours, *models], n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown net {name!r}; {hint}choose from {', '.join(ours)}, or any model of timm"


def _set_cifar_stem(features: Any, name: str) -> None:
    old = getattr(features, "conv1", None)
    if not isinstance(old, nn.Conv2d):
        raise ValueError(f"net.stem='cifar' is for the ResNets of timm; {name!r} has no such stem")
    features.conv1 = nn.Conv2d(old.in_channels, old.out_channels, 3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(features.conv1.weight, mode="fan_out", nonlinearity="relu")
