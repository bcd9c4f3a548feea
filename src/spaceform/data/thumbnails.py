"""Photos shrunk once and held in memory: small enough for a net that trains on a laptop."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from spaceform.data.dataset import Dataset, digest_of_photos
from spaceform.data.photos import decode


def thumbnails(dataset: Dataset, edge: int) -> Dataset:
    """The same data with photos as pixels of `edge` x `edge`; what is in memory already stays as it is."""
    if not isinstance(dataset.inputs, tuple):
        return dataset
    return replace(dataset, inputs=shrunk(dataset.inputs, edge), shrunk_from=digest_of_photos(dataset.inputs))


def shrunk(paths: Sequence[Path], edge: int) -> UInt8[Tensor, "items 3 height width"]:
    """The middle square of each photo, shrunk to `edge` pixels."""
    from PIL import Image

    pixels = torch.empty(len(paths), 3, edge, edge, dtype=torch.uint8)
    for i, path in enumerate(paths):
        photo = decode(path, 2 * edge)  # the decoder shrinks half the way, the filter the rest
        side = min(photo.size)
        left, top = (photo.width - side) // 2, (photo.height - side) // 2
        square = photo.crop((left, top, left + side, top + side)).resize(
            (edge, edge), Image.Resampling.BILINEAR
        )
        pixels[i] = torch.from_numpy(np.array(square)).permute(2, 0, 1)
    return pixels
