"""The idx format of MNIST and FashionMNIST, plain or gzipped."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from spaceform.data.dataset import DataError, Dataset, Split

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def read_idx(path: Path) -> UInt8[Tensor, "..."]:
    """The array of an idx file of bytes: magic number (0, 0, 8, rank), big-endian sizes, then the bytes."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            content = file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is cut short or damaged ({error}); delete it and fetch it again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{path} is not an idx file of bytes; delete it and fetch it again.")
    rank = content[3]
    start = 4 + 4 * rank
    shape = struct.unpack(f">{rank}I", content[4:start]) if len(content) >= start else (0,)
    if len(content) - start != int(np.prod(shape)):
        raise DataError(
            f"{path} announces {int(np.prod(shape)):,} bytes and holds {max(len(content) - start, 0):,}; "
            "it is cut short or damaged: delete it and fetch it again."
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def load_idx(folder: Path, name: str, classes: tuple[str, ...]) -> Dataset:
    """The four files of MNIST or FashionMNIST, train first."""
    paths = [_find(folder, stem) for stem in FILES]
    arrays = [read_idx(path) for path in paths]
    for images, labels, path, label_path in zip(
        arrays[::2], arrays[1::2], paths[::2], paths[1::2], strict=True
    ):
        if images.ndim != 3:
            raise DataError(f"{path} holds an array of rank {images.ndim}, not images; use the image file.")
        if labels.ndim != 1 or len(labels) != len(images):
            raise DataError(
                f"{label_path} holds {labels.numel():,} labels, {path.name} {len(images):,} images; "
                "use the label file that belongs to them."
            )
    train, test = len(arrays[1]), len(arrays[3])
    return Dataset(
        name=name,
        classes=classes,
        labels=torch.cat([arrays[1], arrays[3]]).long(),
        inputs=torch.cat([arrays[0], arrays[2]]).unsqueeze(1),
        official=Split(torch.arange(train), test=torch.arange(train, train + test)),
        source=(folder, *paths),
    )


def _find(folder: Path, stem: str) -> Path:
    for path in (folder / stem, folder / f"{stem}.gz", folder / stem.replace("-idx", ".idx")):
        if path.is_file():
            return path
    raise DataError(f"{folder} lacks {stem}.gz; put the four original files there.")
