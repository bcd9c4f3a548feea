"""Photos: decoding by Pillow, transforms by torchvision, one photo at a time, reproducible one by one."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from spaceform.data.dataset import DataError
from spaceform.data.guard import require_file
from spaceform.foundation.torchvision import ensure_torchvision

if TYPE_CHECKING:
    from PIL.Image import Image

Between: TypeAlias = tuple[float, float]

FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF", "PPM")
"""The formats that are decoded, whatever the name of the file. (An EPS file, for example, would start
Ghostscript.)
"""

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@final
@dataclass(frozen=True)
class Photos:
    """Resize, jitter the colours, crop at random and resize, flip, z-score; for evaluation resize, crop the
    centre.

    ``resize`` is (height, width), or one number for the shorter edge. The jitter ranges are factors; hue is a
    shift. ``None`` leaves a property as it is. A large JPEG is decoded at a part of its size, with edges of
    ``draft`` times ``resize`` or more.
    """

    resize: int | tuple[int, int] = 256
    size: int = 224
    brightness: Between | None = None
    contrast: Between | None = None
    saturation: Between | None = None
    hue: Between | None = None
    crop_area: Between = (0.16, 1.0)
    crop_aspect: Between = (0.75, 1.33)
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    resampling: Literal["bilinear", "bicubic"] = "bilinear"
    draft: int = 1

    def train(self, path: Path, seed: int) -> Float[Tensor, "3 size size"]:
        """The photo, augmented at random: the same for the same seed, in any process."""
        image = decode(path, self.least)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return self._train(image)

    def evaluate(self, path: Path) -> Float[Tensor, "3 size size"]:
        """The photo as validation and test see it."""
        return self.scaled(self.pixels(path))

    def pixels(self, path: "Path | Image") -> UInt8[Tensor, "3 size size"]:
        """The photo resized and cropped, before the z-score; safe to call in many threads."""
        photo = decode(path, self.least) if isinstance(path, Path) else path
        photo = photo.resize(self._edges(photo.width, photo.height), self._filter)
        left, top = (round((edge - self.size) / 2) for edge in photo.size)
        return _tensor(photo.crop((left, top, left + self.size, top + self.size)))

    def view(self, path: "Path | Image", seed: int) -> UInt8[Tensor, "3 size size"]:
        """A random crop, flipped or not, before the z-score: a function of the seed, safe in any thread."""
        photo = decode(path, self.least) if isinstance(path, Path) else path
        rng = np.random.default_rng(seed)
        area = photo.width * photo.height * rng.uniform(*self.crop_area)
        aspect = np.exp(rng.uniform(*np.log(self.crop_aspect)))
        width = min(float(photo.width), np.sqrt(area * aspect))
        height = min(float(photo.height), np.sqrt(area / aspect))
        left, top = rng.uniform(0, photo.width - width), rng.uniform(0, photo.height - height)
        box = (left, top, left + width, top + height)
        pixels = _tensor(photo.resize((self.size, self.size), self._filter, box))
        return pixels.flip(2) if rng.random() < 0.5 else pixels

    def scaled(self, pixels: UInt8[Tensor, "*batch 3 size size"]) -> Float[Tensor, "*batch 3 size size"]:
        """Pixels of 0 to 255 as the net takes them: scaled to 0 to 1, then z-scored."""
        mean, std = (torch.tensor(v, device=pixels.device).view(3, 1, 1) for v in (self.mean, self.std))
        return pixels.float().div_(255).sub_(mean).div_(std)

    @property
    def least(self) -> int:
        """Pixels of an edge below which a JPEG is not shrunk by its decoder."""
        return self.draft * (self.resize if isinstance(self.resize, int) else max(self.resize))

    @property
    def _filter(self) -> Any:
        from PIL import Image

        return Image.Resampling[self.resampling.upper()]

    def _edges(self, width: int, height: int) -> tuple[int, int]:
        """Width and height after the resize."""
        if not isinstance(self.resize, int):
            return self.resize[1], self.resize[0]
        short, edge = min(width, height), self.resize
        return (edge, int(edge * height / width)) if width == short else (int(edge * width / height), edge)

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
                v2.Resize(self.resize, _interpolation(self.resampling), antialias=True),
                *([v2.ColorJitter(**jitter)] if jitter else []),
                v2.RandomResizedCrop(
                    self.size,
                    scale=self.crop_area,
                    ratio=self.crop_aspect,
                    interpolation=_interpolation(self.resampling),
                    antialias=True,
                ),
                v2.RandomHorizontalFlip(),
                *self._to_tensor(v2),
            ]
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
        (256, 256),
        brightness=(0.7, 1.3),
        contrast=(0.7, 1.3),
        saturation=(0.7, 1.3),
        hue=(-0.1, 0.1),
        crop_aspect=(1.0, 1.0),
    ),
    "cub200": Photos(256, brightness=(0.75, 1.25), contrast=(0.75, 1.25), saturation=(0.75, 1.25)),
    "sop": Photos((256, 256)),
}
"""The paper's ranges and sizes, by data set (appendix D.2).

It gives no aspect ratio for Cars196: its code and the work that it follows keep the crop square.
"""


def photos_for(name: str) -> Photos:
    """The paper's preprocessing where it has one; own photos are treated as those of CUB-200."""
    return PHOTOS.get(name, PHOTOS["cub200"])


def decode(path: Path, least: int | None = None) -> "Image":
    """The photo in RGB: upright by its EXIF orientation, with white behind transparent parts.

    Values of more than 8 bits are scaled by the range of their type, never by the extremes of the photo, so
    that photos keep their brightness relative to each other: 16 bits are divided by 257, floats from 0 to 1
    multiplied by 255. If the type does not say what white is (32-bit integers, other floats), the photo is
    refused.

    Only ``FORMATS`` are read, and only plain files. A picture of more pixels than Pillow's limit is refused.

    With ``least``, a JPEG may be decoded at a half, a quarter or an eighth of its size (the decoder's draft
    mode), never below ``least`` pixels on an edge.
    """
    from PIL import Image, UnidentifiedImageError

    require_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            warnings.filterwarnings("ignore", "Corrupt EXIF data")
            with Image.open(path, formats=FORMATS) as image:
                if least is not None:
                    image.draft("RGB", (least, least))
                image.filename = ""  # no memory mapping, which takes a turned TIFF's height for its width
                image.load()
                turn = _TURNS.get(_orientation(image))
                photo = _rgb(image, path)
                return photo if turn is None else photo.transpose(Image.Transpose[turn])
    except DataError:
        raise
    except UnidentifiedImageError as error:
        raise DataError(
            f"{path} cannot be decoded as an image ({', '.join(FORMATS)} are read); convert or remove it."
        ) from error
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise DataError(f"{path} has more than {most:,} pixels, too many to read; shrink it.") from error
    except (
        Exception
    ) as error:  # decoders of damaged files raise OSError, SyntaxError, ValueError, struct.error, …
        raise DataError(f"{path} cannot be decoded as an image ({error}); replace or remove it.") from error


_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""The operation that turns a photo upright, by its EXIF orientation."""


def _orientation(image: "Image") -> int:
    from PIL.ExifTags import Base

    try:
        return int(image.getexif().get(Base.Orientation, 1))
    except Exception:  # damaged metadata may raise anything, and the pixels are not affected
        return 1


def _rgb(image: "Image", path: Path) -> "Image":
    from PIL import Image

    if image.mode in {"I", "F"} or image.mode.startswith("I;16"):
        return Image.fromarray(_bytes(image, path)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    return image.convert("RGB")


def _bytes(image: "Image", path: Path) -> UInt8[np.ndarray, "height width"]:
    """Grey values of more than 8 bits, scaled from the range of their type to 0 to 255."""
    x = np.asarray(image)
    low, high = x.min(), x.max()
    if image.mode == "F":
        if not (low >= 0 and high <= 1):
            raise DataError(
                f"{path} holds floats from {low:g} to {high:g}, and only 0 to 1 has a known black and white; "
                "scale it to that, or save it with 8 or 16 bits."
            )
        return np.rint(255 * x).astype(np.uint8)
    if image.mode == "I" and image.format not in {"PNG", "PPM"}:  # in these formats it means 16 bits
        raise DataError(
            f"{path} holds 32-bit or signed integers ({low} to {high}), which do not say what white is; save "
            "it with 8 or 16 bits."
        )
    if 0 < high < 256:
        raise DataError(
            f"{path} holds 16 bits, white being 65535, but no value above {high}: it would be black; save it "
            "with 8 bits, or scale it to 16."
        )
    return ((x.astype(np.uint32) + 128) // 257).astype(np.uint8)


def present(paths: Sequence[Path]) -> list[bool]:
    """Which files exist; each folder is listed once, instead of a question for each file."""
    listed: dict[Path, set[str]] = {}
    for folder in {path.parent for path in paths}:
        listed[folder] = set(os.listdir(folder)) if folder.is_dir() else set()
    return [path.name in listed[path.parent] for path in paths]


def _tensor(photo: "Image") -> UInt8[Tensor, "3 height width"]:
    return torch.from_numpy(np.array(photo)).permute(2, 0, 1)


def _interpolation(resampling: str) -> Any:
    ensure_torchvision()
    from torchvision.transforms import InterpolationMode

    return InterpolationMode(resampling)


def _transforms() -> Any:
    ensure_torchvision()
    from torchvision.transforms import v2

    return v2
