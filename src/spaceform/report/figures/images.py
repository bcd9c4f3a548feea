"""Pictures of test items: thumbnails, one sheet of all of them for the page, grids, rows of neighbours."""

import base64
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from PIL import Image
from torch import Tensor

from spaceform import data
from spaceform.data.formats import FILE_FORMATS
from spaceform.foundation.messages import sentence
from spaceform.report.readable import readable

Thumbnails = UInt8[np.ndarray, "items side side channels"]
_LARGEST_SIDE = 32
"""The longest edge of a small image, in pixels; photos are shown a little larger."""
_PHOTO = 48


@final
class Pictures:
    """The images of a data set, by index; small ones from memory, photos decoded when asked for."""

    def __init__(self, dataset: data.Dataset) -> None:
        self._dataset = dataset
        self.photos = dataset.kind == "photos"
        if isinstance(inputs := dataset.inputs, Tensor):
            self.side = min(max(inputs.shape[-2:]), _LARGEST_SIDE)
            self.channels = 1 if inputs.shape[1] == 1 else 3
        else:
            self.side, self.channels = _PHOTO, 3

    def thumbnails(self, index: Int64[np.ndarray, " items"]) -> Thumbnails:
        """Square thumbnails; a photo that cannot be read is grey."""
        inputs = self._dataset.inputs
        if isinstance(inputs, Tensor):
            return self._from_memory(inputs[torch.from_numpy(index)])
        found = np.full((len(index), self.side, self.side, 3), 128, np.uint8)
        assert isinstance(inputs, tuple)
        for row, i in enumerate(index.tolist()):
            try:
                photo = data.photos.decode(inputs[i], 2 * self.side)
            except data.DataError:
                continue
            edge = min(photo.size)
            left, top = (photo.width - edge) // 2, (photo.height - edge) // 2
            square = photo.crop((left, top, left + edge, top + edge))
            found[row] = np.asarray(square.resize((self.side, self.side), Image.Resampling.LANCZOS))
        return found

    def _from_memory(self, x: UInt8[Tensor, "items channels height width"]) -> Thumbnails:
        height, width = x.shape[-2:]
        edge = max(height, width)
        if height != width:
            top, left = (edge - height) // 2, (edge - width) // 2
            x = torch.nn.functional.pad(x, (left, edge - width - left, top, edge - height - top))
        if edge > self.side:
            small = torch.nn.functional.adaptive_avg_pool2d(x.float(), self.side)
            x = small.round().to(torch.uint8)
        x = x[:, :3] if x.shape[1] >= 3 else x[:, :1]
        return x.permute(0, 2, 3, 1).numpy()


_FEATURES = "The data are feature vectors; there are no images to show."


def open_pictures(name: str) -> Pictures | str:
    """The images of a data set, or the sentence that says why there are none."""
    if Path(name).suffix.lower() in FILE_FORMATS and Path(name).is_file():
        return _FEATURES  # without reading them: that may take a second or more
    try:
        dataset = data.load(name, download=False)
    except (
        Exception
    ) as error:  # the data may have been removed or changed; the report goes on without pictures
        return readable(f"The images cannot be shown: {sentence(error)}")
    if dataset.kind == "features":
        return _FEATURES
    if dataset.kind == "texts":
        return "The data are texts; there are no images to show."
    return Pictures(dataset)


@final
@dataclass(frozen=True)
class Encoded:
    """A compressed image for a page."""

    mime: str
    content: bytes
    width: int
    height: int

    @property
    def base64(self) -> str:
        return base64.b64encode(self.content).decode()

    @property
    def uri(self) -> str:
        return f"data:{self.mime};base64,{self.base64}"


@final
@dataclass(frozen=True)
class Sheet:
    """All thumbnails in one image, row by row."""

    image: Encoded
    side: int
    columns: int


def sheet(thumbnails: Thumbnails, most: int) -> Sheet:
    """All thumbnails in one image of about `most` bytes at most: grey in 16 levels, colour as WebP."""
    count, side, _, channels = thumbnails.shape
    columns = math.ceil(math.sqrt(count))
    if channels == 1:
        image = encode_grey(tiled(thumbnails, columns)[..., 0])
        return Sheet(image, side, columns)
    for edge, quality in ((side, 60), (side, 35), (24, 45), (20, 35), (16, 30)):
        small = _resized(thumbnails, min(edge, side))
        image = encode_color(tiled(small, columns), quality)
        if len(image.content) <= most:
            break
    return Sheet(image, min(edge, side), columns)


def tiled(thumbnails: Thumbnails, columns: int, gap: int = 0) -> UInt8[np.ndarray, "height width depth"]:
    """Thumbnails row by row; with a gap an alpha channel keeps it transparent."""
    count, side, _, channels = thumbnails.shape
    rows = math.ceil(count / columns)
    if not gap:
        full = np.zeros((rows * columns, side, side, channels), np.uint8)
        full[:count] = thumbnails
        grid = full.reshape(rows, columns, side, side, channels).transpose(0, 2, 1, 3, 4)
        return grid.reshape(rows * side, columns * side, channels)
    step = side + gap
    canvas = np.zeros((rows * step - gap, columns * step - gap, 4), np.uint8)
    for i, picture in enumerate(thumbnails):
        top, left = i // columns * step, i % columns * step
        canvas[top : top + side, left : left + side, :3] = picture
        canvas[top : top + side, left : left + side, 3] = 255
    return canvas


def enlarged(thumbnails: Thumbnails, least: int) -> UInt8[np.ndarray, "items edge edge channels"]:
    """Images enlarged by a whole number, so that an edge has at least `least` pixels."""
    times = max(1, math.ceil(least / thumbnails.shape[1]))
    return thumbnails.repeat(times, 1).repeat(times, 2)


def rows_of_neighbours(
    query: Thumbnails,
    nearest: list[UInt8[np.ndarray, "nearest side side channels"]],
    right: list[list[bool]],
    gap: int = 3,
) -> UInt8[np.ndarray, "height width 4"]:
    """One row for each query: the query, a space, its nearest items; wrong ones get a frame and a cross."""
    side, count = query.shape[1], nearest[0].shape[0]
    step, frame = side + gap, max(2, side // 14)
    canvas = np.zeros((len(query) * step - gap, (count + 1) * step + 3 * gap, 4), np.uint8)
    for row in range(len(query)):
        top = row * step
        for column in range(count + 1):
            left = column * step + (4 * gap if column else 0)
            cell = canvas[top : top + side, left : left + side]
            cell[..., :3] = query[row] if column == 0 else nearest[row][column - 1]
            cell[..., 3] = 255
            if column and not right[row][column - 1]:
                _cross_out(cell, frame)
    return canvas


def _cross_out(cell: UInt8[np.ndarray, "side side 4"], frame: int) -> None:
    red = (222, 61, 38, 255)
    cell[:frame], cell[-frame:], cell[:, :frame], cell[:, -frame:] = red, red, red, red
    corner = len(cell) // 3
    i, j = np.indices((corner, corner))
    mark = (np.abs(i - j) < frame * 0.8) | (np.abs(i + j - corner + 1) < frame * 0.8)
    target = cell[:corner, -corner:]
    target[:] = (255, 255, 255, 255)
    target[mark] = red


def encode_grey(image: UInt8[np.ndarray, "height width"]) -> Encoded:
    """PNG of 16 grey levels: half the size of 256, and thumbnails look the same."""
    levels = Image.fromarray(np.round(image / 17).astype(np.uint8)).convert("P")
    levels.putpalette([value for level in range(16) for value in (17 * level,) * 3])
    return _saved(levels, "PNG", bits=4)


def encode_color(image: UInt8[np.ndarray, "height width channels"], quality: int) -> Encoded:
    """Lossy WebP."""
    return _saved(Image.fromarray(image), "WEBP", quality=quality, method=2)


def encode_exact(image: UInt8[np.ndarray, "height width channels"]) -> Encoded:
    """PNG, with transparency where there is an alpha channel."""
    return _saved(Image.fromarray(image), "PNG")


def _saved(image: Image.Image, kind: str, **options: Any) -> Encoded:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return Encoded(f"image/{kind.lower()}", stream.getvalue(), *image.size)


def _resized(thumbnails: Thumbnails, edge: int) -> UInt8[np.ndarray, "items edge edge channels"]:
    if thumbnails.shape[1] == edge:
        return thumbnails
    x = torch.from_numpy(thumbnails).permute(0, 3, 1, 2).float()
    small = torch.nn.functional.adaptive_avg_pool2d(x, edge)
    return small.round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
