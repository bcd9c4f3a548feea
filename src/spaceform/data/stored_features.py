"""Features that stay on the disk: a folder of Arrow shards or of `.npy` files, read block by block.

Blocks are read by position into memory of their own. A mapped file would do the same, but the pages that were
touched would count as the process's memory until the system takes them back.
"""

import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float32, Int64
from numpy.typing import NDArray
from torch import Tensor

from spaceform.data.dataset import DataError
from spaceform.data.shards import ABOUT, Shards

BLOCK = 64
"""Rows that are read together, and stay together until the rows of a window are mixed."""
WINDOW = 1024
"""Blocks that are in memory at once, and whose rows are mixed."""


class FeatureBatch(NamedTuple):
    """Some rows and their labels."""

    x: Float32[Tensor, "rows dim"]
    y: Int64[Tensor, " rows"]


class _Part(NamedTuple):
    """Where the rows of one file lie."""

    path: Path
    offset: int
    rows: int
    dtype: np.dtype[Any]


@final
class StoredFeatures:
    """Rows of features on the disk, with their labels in memory.

    A folder is what `spaceform features` writes, or holds pairs of `.npy` files, `X*.npy` with rows of
    features and `y*.npy` with labels from 0, in the order of their names.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if (self.folder / ABOUT).is_file():
            self._parts, self.dim, labels = _arrow(self.folder)
        else:
            self._parts, self.dim, labels = _numpy(self.folder)
        self.labels: Int64[Tensor, " rows"] = torch.from_numpy(labels.astype(np.int64))
        counted = sum(part.rows for part in self._parts)
        if counted != len(labels):
            raise DataError(f"{folder} has {counted:,} rows and {len(labels):,} labels; give one each.")

    def __len__(self) -> int:
        return len(self.labels)

    def blocks(self, rows: int = BLOCK * WINDOW) -> Iterator[FeatureBatch]:
        """All rows in order, this many at a time: for evaluation, embedding and search."""
        start = 0
        for part in self._parts:
            for first in range(0, part.rows, rows):
                x = _read(part, first, min(rows, part.rows - first), self.dim)
                yield FeatureBatch(torch.from_numpy(x), self.labels[start + first : start + first + len(x)])
            start += part.rows

    def shuffled(
        self, batch_size: int, *, seed: int, epoch: int = 0, block: int = BLOCK, window: int = WINDOW
    ) -> Iterator[FeatureBatch]:
        """Every row once, in batches; a function of the seed and the epoch.

        Blocks of all files stand in random order; the rows of `window` of them at a time are mixed. So rows
        of a batch come from `window` random places. Where neighbours on the disk share a class, the share of
        a class in a batch varies √(1 + batch_size/window) times as much as if all rows had been mixed, and no
        more than that. The last batch may be smaller.
        """
        for name, value in {"batch_size": batch_size, "block": block, "window": window}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        random = np.random.default_rng([seed, epoch])
        places = self._places(block)
        order = random.permutation(len(places))
        rest = FeatureBatch(torch.empty(0, self.dim), torch.empty(0, dtype=torch.int64))
        for first in range(0, len(order), window):
            x, y = self._window([places[i] for i in sorted(order[first : first + window])])
            mixed = torch.from_numpy(random.permutation(len(x)))
            last = first + window >= len(order)
            rest = yield from _batches(rest, FeatureBatch(x, y), mixed, batch_size, last)

    def _places(self, block: int) -> list[tuple[int, int, int, int]]:
        """(part, first row in it, rows, first row of all) of every block."""
        found: list[tuple[int, int, int, int]] = []
        start = 0
        for number, part in enumerate(self._parts):
            firsts = range(0, part.rows, block)
            found += [(number, first, min(block, part.rows - first), start + first) for first in firsts]
            start += part.rows
        return found

    def _window(self, places: list[tuple[int, int, int, int]]) -> FeatureBatch:
        x = np.empty((sum(rows for _, _, rows, _ in places), self.dim), np.float32)
        at, labels = 0, []
        for number, first, rows, start in places:
            _read(self._parts[number], first, rows, self.dim, into=x[at : at + rows])
            labels.append(self.labels[start : start + rows])
            at += rows
        return FeatureBatch(torch.from_numpy(x), torch.cat(labels))


def _batches(
    rest: FeatureBatch, rows: FeatureBatch, order: Int64[Tensor, " rows"], size: int, last: bool
) -> Generator[FeatureBatch, None, FeatureBatch]:
    """Batches of what was left and of rows in this order; gives back what is left now."""
    at = 0
    while len(rest.x) + len(order) - at >= size:
        index = order[at : at + size - len(rest.x)]
        at += len(index)
        yield FeatureBatch(torch.cat([rest.x, rows.x[index]]), torch.cat([rest.y, rows.y[index]]))
        rest = FeatureBatch(rest.x[:0], rest.y[:0])
    index = order[at:]
    rest = FeatureBatch(torch.cat([rest.x, rows.x[index]]), torch.cat([rest.y, rows.y[index]]))
    if last and len(rest.x):
        yield rest
    return rest


def _read(
    part: _Part, first: int, rows: int, dim: int, into: Float32[np.ndarray, "rows dim"] | None = None
) -> Float32[np.ndarray, "rows dim"]:
    """Rows of one file, from the disk."""
    width = dim * part.dtype.itemsize
    data = np.empty((rows, dim), part.dtype) if into is None or part.dtype != np.float32 else into
    with open(part.path, "rb", buffering=0) as file:
        file.seek(part.offset + first * width)
        view, at = data.reshape(-1).view(np.uint8).data, 0
        while at < len(view):
            got = file.readinto(view[at:])
            if not got:
                raise DataError(f"{part.path} ends before row {first + rows}; write it again.")
            at += got
    if into is None:
        return data.astype(np.float32, copy=False)
    if data is not into:
        into[...] = data
    return into


def _arrow(folder: Path) -> tuple[list[_Part], int, NDArray[Any]]:
    """Where X lies in each shard: the distance of its memory from that of the mapped file."""
    import pyarrow as pa

    shards = Shards.open(folder)
    labels = shards.column("y")
    if labels is None:
        raise DataError(f"{folder} holds features without labels; extract them from data with labels.")
    if shards.about.rows is None:
        raise DataError(f"{folder} lacks shards: the extraction was stopped; run the same command again.")
    parts, dim = [], 0
    for number in range(shards.about.shards):
        path = folder / f"shard-{number:05d}.arrow"
        with pa.memory_map(str(path)) as source:
            batch = pa.ipc.open_file(source).get_batch(0)
            if not batch.num_rows:
                continue
            source.seek(0)
            beginning = source.read_buffer(1).address
            lists = batch["X"]
            dim = lists.type.list_size
            offset = lists.values.buffers()[1].address - beginning
            parts.append(_Part(path, offset, batch.num_rows, np.dtype(np.float32)))
    return parts, dim, labels


def _numpy(folder: Path) -> tuple[list[_Part], int, NDArray[Any]]:
    features, labels = sorted(folder.glob("X*.npy")), sorted(folder.glob("y*.npy"))
    if not features or len(features) != len(labels):
        names = json.dumps([path.name for path in [*features, *labels]][:4])
        raise DataError(
            f"{folder} must hold as many X*.npy as y*.npy files, and it has {names}; "
            "save each part of the features by np.save(folder / 'X-0.npy', X), and its labels as y-0.npy."
        )
    parts, dims = [], set()
    for path in features:
        x = np.load(path, mmap_mode="r")
        if x.ndim != 2 or x.dtype.kind != "f" or not x.flags.c_contiguous:
            raise DataError(
                f"{path} has shape {x.shape} and type {x.dtype}; save rows of floating-point features, in C "
                "order."
            )
        parts.append(_Part(path, os.path.getsize(path) - x.nbytes, len(x), x.dtype))
        dims.add(x.shape[1])
    if len(dims) > 1:
        raise DataError(f"the features in {folder} have {sorted(dims)} columns; give all files the same.")
    return parts, dims.pop(), np.concatenate([np.load(path) for path in labels])
