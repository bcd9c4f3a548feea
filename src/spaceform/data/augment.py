"""Preprocessing of small images before the net: whole batches, on the device.

Randomness comes in two steps. `Pixels.draw` makes a few integers for each image, on the CPU, from a
generator; `Pixels.train` applies them on the device of the images. So images are augmented in the same way on
every device and for any division of a batch among processes.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias, final

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

AugmentationDraws: TypeAlias = Int64[Tensor, "batch 5"]
"""For each image: row and column of the crop, whether to flip, row and column of the occluded patch."""


@final
@dataclass(frozen=True)
class Pixels:
    """Scale to [0, 1], z-score if there are constants; in training also reflect-pad, crop, flip and occlude.

    The occluded patch lies wholly inside the image, uniformly placed, and is zero after the z-score.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    pad: int = 0
    flip: bool = False
    occlusion: int = 0

    @property
    def random(self) -> bool:
        """Whether training images differ from evaluation images."""
        return self.pad > 0 or self.flip or self.occlusion > 0

    def draw(
        self, batch: int, height: int, width: int, *, generator: torch.Generator | None = None
    ) -> AugmentationDraws:
        """The random integers for a batch."""
        if self.pad >= min(height, width) or self.occlusion > min(height, width):
            raise ValueError(
                f"pad={self.pad} and occlusion={self.occlusion} must be smaller than the images, "
                f"which are {height}x{width}."
            )
        crop = torch.randint(2 * self.pad + 1, (batch, 2), generator=generator)
        flip = torch.randint(2, (batch, 1), generator=generator) * int(self.flip)
        top = torch.randint(height - self.occlusion + 1, (batch, 1), generator=generator)
        left = torch.randint(width - self.occlusion + 1, (batch, 1), generator=generator)
        return torch.cat([crop, flip, top, left], dim=1)

    def train(
        self, images: UInt8[Tensor, "batch channels height width"], draws: AugmentationDraws
    ) -> Float[Tensor, "batch channels height width"]:
        """Augmented images, float32, on the device of ``images``."""
        draws = draws.to(images.device, non_blocking=True)
        x = self.evaluate(crop_flip(images, draws[:, :3], self.pad) if self.pad or self.flip else images)
        return occlude(x, draws[:, 3:], self.occlusion) if self.occlusion else x

    def evaluate(
        self, images: UInt8[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch channels height width"]:
        """Images as validation and test see them, float32."""
        x = images.float()
        if not self.mean:
            return x.div_(255)
        shift, scale = _affine(self.mean, self.std, x.device)
        return x.sub_(shift).mul_(scale)


@lru_cache(maxsize=32)  # a copy to the device for each batch would make the host wait
def _affine(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """The z-score of bytes: subtract 255 μ, multiply by 1 / (255 σ)."""
    shift = torch.tensor([255 * m for m in mean], device=device)
    scale = torch.tensor([1 / (255 * s) for s in std], device=device)
    return shift.view(1, -1, 1, 1), scale.view(1, -1, 1, 1)


def crop_flip(
    images: UInt8[Tensor, "batch channels height width"], draws: Int64[Tensor, "batch 3"], pad: int
) -> UInt8[Tensor, "batch channels height width"]:
    """Pad by reflection, crop back to size at the drawn place, flip left to right where drawn.

    One gather: a row or column i of the crop at offset o is |i + o − pad|, reflected at the far edge too.
    """
    height, width = images.shape[-2:]
    top, left, flip = draws[:, 0, None], draws[:, 1, None], draws[:, 2, None]
    row = torch.arange(height, device=images.device)
    column = torch.arange(width, device=images.device)
    column = column + flip * (width - 1 - 2 * column)
    rows = _reflect(row + top - pad, height)
    columns = _reflect(column + left - pad, width)
    place = rows[:, :, None] * width + columns[:, None, :]
    flat = images.flatten(2)
    return flat.gather(2, place.flatten(1)[:, None].expand_as(flat)).view_as(images)


def occlude(
    x: Float[Tensor, "batch channels height width"], corner: Int64[Tensor, "batch 2"], size: int
) -> Float[Tensor, "batch channels height width"]:
    """Set a ``size`` x ``size`` patch with its top left at ``corner`` to zero."""
    height, width = x.shape[-2:]
    down = torch.arange(height, device=x.device) - corner[:, 0, None]
    across = torch.arange(width, device=x.device) - corner[:, 1, None]
    inside_rows = (down >= 0) & (down < size)
    inside_columns = (across >= 0) & (across < size)
    seen = ~(inside_rows[:, :, None] & inside_columns[:, None, :])
    return x * seen[:, None]


def _reflect(i: Int64[Tensor, "batch side"], size: int) -> Int64[Tensor, "batch side"]:
    i = i.abs()
    return torch.where(i < size, i, 2 * (size - 1) - i)


PIXELS = {
    "digits": Pixels(),
    "mnist": Pixels(),
    "fashion-mnist": Pixels(),
    "cifar10": Pixels((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), pad=4, flip=True, occlusion=8),
    "cifar100": Pixels((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), pad=4, flip=True, occlusion=8),
}
"""The paper's constants, by data set (appendix D.2)."""


def pixels_for(name: str, images: UInt8[Tensor, "items channels height width"]) -> Pixels:
    """The paper's preprocessing of this data set; otherwise z-score by the given images, pad and crop.

    A user's own images are neither flipped nor occluded: whether the label stays true depends on the data.
    """
    if name in PIXELS and len(PIXELS[name].mean) in {0, images.shape[1]}:
        return PIXELS[name]
    x = images.double() / 255
    mean, std = x.mean((0, 2, 3)), x.std((0, 2, 3)).clamp_min(1e-3)
    return Pixels(tuple(mean.tolist()), tuple(std.tolist()), pad=min(images.shape[-2:]) // 8)
