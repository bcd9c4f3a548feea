"""Photos: decoding by Pillow, transforms by torchvision, one photo at a time, reproducible one by one."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, final

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform._torchvision import ensure_torchvision
from spaceform.data.dataset import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

Range: TypeAlias = tuple[float, float]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@final
@dataclass(frozen=True)
class Photos:
    """Resize, jitter the colours, crop at random and resize, flip, z-score; for evaluation resize, crop the
    centre.

    ``resize`` is (height, width), or one number for the shorter edge. The jitter ranges are factors; hue is a
    shift. ``None`` leaves a property as it is.
    """

    resize: int | tuple[int, int] = 256
    size: int = 224
    brightness: Range | None = None
    contrast: Range | None = None
    saturation: Range | None = None
    hue: Range | None = None
    crop_area: Range = (0.16, 1.0)
    crop_aspect: Range = (0.75, 1.33)
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD

    def train(self, path: Path, seed: int) -> Float[Tensor, "3 size size"]:
        """The photo, augmented at random: the same for the same seed, in any process."""
        image = decode(path, self._least)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self._train(image)

    def evaluate(self, path: Path) -> Float[Tensor, "3 size size"]:
        """The photo as validation and test see it."""
        return self._evaluate(decode(path, self._least))

    @property
    def _least(self) -> int:
        return self.resize if isinstance(self.resize, int) else max(self.resize)

    @cached_property
    def _train(self) -> Any:
        v2 = _transforms()
        jitter = {
            name: factors
            for name in ("brightness", "contrast", "saturation", "hue")
            if (factors := getattr(self, name)) is not None
        }
        return v2.Compose(
            [
                v2.Resize(self.resize, antialias=True),
                *([v2.ColorJitter(**jitter)] if jitter else []),
                v2.RandomResizedCrop(self.size, scale=self.crop_area, ratio=self.crop_aspect, antialias=True),
                v2.RandomHorizontalFlip(),
                *self._to_tensor(v2),
            ]
        )

    @cached_property
    def _evaluate(self) -> Any:
        v2 = _transforms()
        return v2.Compose(
            [v2.Resize(self.resize, antialias=True), v2.CenterCrop(self.size), *self._to_tensor(v2)]
        )

    def _to_tensor(self, v2: Any) -> list[Any]:
        return [
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(self.mean, self.std),
            v2.ToPureTensor(),
        ]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}


PHOTOS = {
    "cars196": Photos(
        (256, 256), brightness=(0.7, 1.3), contrast=(0.7, 1.3), saturation=(0.7, 1.3), hue=(-0.1, 0.1)
    ),
    "cub200": Photos(256, brightness=(0.75, 1.25), contrast=(0.75, 1.25), saturation=(0.75, 1.25)),
    "sop": Photos((256, 256)),
}
"""The paper's ranges and sizes, by data set (appendix D.2; it gives no aspect ratio for Cars196: ours)."""


def photos_for(name: str) -> Photos:
    """The paper's preprocessing where it has one; own photos are treated as those of CUB-200."""
    return PHOTOS.get(name, PHOTOS["cub200"])


def decode(path: Path, least: int | None = None) -> "Image":
    """The photo in RGB.

    With ``least``, a JPEG may be decoded at a half, a quarter or an eighth of its size (the decoder's draft
    mode), never below ``least`` pixels on an edge.
    """
    from PIL import Image

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                if least is not None:
                    image.draft("RGB", (least, least))
                if image.mode == "P":
                    return image.convert("RGBA").convert("RGB")
                return image.convert("RGB")
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; put the photo back or remove it from the list.") from error
    except (
        Exception
    ) as error:  # decoders of damaged files raise OSError, SyntaxError, ValueError, struct.error, …
        raise DataError(f"{path} cannot be decoded as an image ({error}); replace or remove it.") from error


def present(paths: Sequence[Path]) -> list[bool]:
    """Which files exist, with one listing a folder instead of one question a file."""
    listed: dict[Path, set[str]] = {}
    for folder in {path.parent for path in paths}:
        listed[folder] = set(os.listdir(folder)) if folder.is_dir() else set()
    return [path.name in listed[path.parent] for path in paths]


def _transforms() -> Any:
    ensure_torchvision()
    from torchvision.transforms import v2

    return v2
