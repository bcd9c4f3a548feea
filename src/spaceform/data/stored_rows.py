"""Rows of features that stay on the disk and are read when they are asked for.

Rows are read by their position into new memory. With a mapped file, the pages that were read would count as
the process's memory until the system takes them back.
"""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from numpy.typing import NDArray
from torch import Tensor

from spaceform.data.errors import DataError

WINDOW = 1024
"""How many blocks of neighbouring rows are in memory at a time; their rows are mixed."""
LARGEST = 1e18
"""The largest feature: float32 holds its square, which every net needs."""

_BLOCK_BYTES, _MOST_ROWS = 2**16, 64
"""The most bytes and the most rows of a block: a window has 64 MiB or less."""
_READ_OVER, _SPAN = 2**14, 2**21
"""Gaps up to this many bytes are read and dropped, not jumped over; and about how many bytes one read has."""
_SAMPLED = 256
"""How many rows the digest looks at."""

_Rows: TypeAlias = Int64[np.ndarray, " rows"]


class FeatureFile(NamedTuple):
    """Where the rows of one file lie."""

    path: Path
    offset: int
    rows: int
    dtype: np.dtype[Any]


@final
class StoredRows:
    """Rows of equal length in one or many files; with an index, some of them in some order.

    `rows[index]` reads. `part`, `joined` and `through` read nothing: they give other rows to be read.
    """

    ndim, dtype, device = 2, torch.float32, torch.device("cpu")

    def __init__(
        self,
        files: Sequence[FeatureFile],
        dim: int,
        index: _Rows | None = None,
        function: Callable[[Float32[Tensor, "rows dim"]], Tensor] | None = None,
    ) -> None:
        self._files, self._dim, self._function = tuple(files), dim, function
        self._starts = np.cumsum([0, *(file.rows for file in files)])
        self._index = np.arange(self._starts[-1]) if index is None else index

    def __len__(self) -> int:
        return len(self._index)

    @property
    def shape(self) -> torch.Size:
        """Rows and features."""
        return torch.Size((len(self), self._dim))

    @property
    def nbytes(self) -> int:
        """Bytes that all rows would take in memory."""
        return 4 * len(self) * self._dim

    @cached_property
    def digest(self) -> str:
        """A digest of the names and sizes of the files, and of the values of 256 rows from first to last."""
        digest = hashlib.blake2b(repr((self.shape, _SAMPLED)).encode())
        for file in self._files:
            digest.update(f"{file.path.name} {os.path.getsize(file.path)} {file.rows}\n".encode())
        some = np.unique(np.linspace(0, len(self) - 1, _SAMPLED).astype(np.int64))
        digest.update(self[torch.from_numpy(some)].numpy().tobytes())
        return digest.hexdigest()

    def __getitem__(self, index: Int64[Tensor, " some"] | slice) -> Float[Tensor, "some dim"]:
        """Read these rows."""
        wanted = self._index[index if isinstance(index, slice) else index.cpu().numpy()]
        return self._seen(self._read(wanted))

    def part(self, index: Tensor) -> "StoredRows":
        """These rows, by numbers or by a mask, still on the disk."""
        return StoredRows(self._files, self._dim, self._index[index.cpu().numpy()], self._function)

    def joined(self, other: "StoredRows") -> "StoredRows":
        """The rows of both, of the same files."""
        both = np.concatenate([self._index, other._index])
        return StoredRows(self._files, self._dim, both, self._function)

    def through(self, function: Callable[[Float32[Tensor, "rows dim"]], Tensor]) -> "StoredRows":
        """The same rows; `function` is applied when they are read."""
        assert self._function is None
        return StoredRows(self._files, self._dim, self._index, function)

    def split(self, rows: int) -> Iterator[Float[Tensor, "rows dim"]]:
        """All rows in order, `rows` at a time."""
        for first in range(0, len(self), rows):
            yield self[first : first + rows]

    def shuffled(
        self,
        sizes: Sequence[int],
        *,
        generator: torch.Generator,
        block: int | None = None,
        window: int = WINDOW,
    ) -> Iterator[tuple[Int64[Tensor, " batch"], Float[Tensor, "batch dim"]]]:
        """Every row once, in batches of these sizes: their numbers and the rows.

        Blocks of neighbours (64 KiB of rows each) are put in random order, and the rows of `window` blocks at
        a time are mixed. So the rows of a batch come from `window` random places. If neighbours on the disk
        share a class, the share of a class in a batch varies at most √(1 + batch/window) times as much as if
        all rows were mixed.
        """
        if sum(sizes) != len(self):
            raise ValueError(f"the batches have {sum(sizes):,} rows in all, and there are {len(self):,}")
        order, held, rows = deque(sizes), torch.empty(0, dtype=torch.int64), torch.empty(0, self._dim)
        width = max(1, min(_MOST_ROWS, _BLOCK_BYTES // (4 * self._dim))) if block is None else block
        blocks = torch.arange(len(self)).split(width)
        for places in torch.randperm(len(blocks), generator=generator).split(window):
            numbers = self._as_on_disk(torch.cat([blocks[i] for i in places.tolist()]))
            x = self._read(self._index[numbers.numpy()])
            mixed, at = torch.randperm(len(x), generator=generator), 0
            while order and len(held) + len(mixed) - at >= order[0]:
                some = mixed[at : at + order.popleft() - len(held)]
                at += len(some)
                yield torch.cat([held, numbers[some]]), self._seen(torch.cat([rows, x[some]]))
                held, rows = held[:0], rows[:0]
            some = mixed[at:]
            held, rows = torch.cat([held, numbers[some]]), torch.cat([rows, x[some]])
            del x  # before the next window is read

    def _as_on_disk(self, numbers: Int64[Tensor, " rows"]) -> Int64[Tensor, " rows"]:
        return numbers[torch.from_numpy(np.argsort(self._index[numbers.numpy()], kind="stable"))]

    def _seen(self, x: Float32[Tensor, "rows dim"]) -> Float[Tensor, "rows dim"]:
        return x if self._function is None else self._function(x)

    def _read(self, wanted: _Rows) -> Float32[Tensor, "rows dim"]:
        """Rows of the files, in this order: sorted, read in spans, and put back."""
        sorted_already = bool((np.diff(wanted) >= 0).all())
        order = None if sorted_already else np.argsort(wanted, kind="stable")
        rows = wanted if order is None else wanted[order]
        x = np.empty((len(rows), self._dim), np.float32)
        opened: tuple[int, Any] = -1, None
        try:
            for first, end in self._spans(rows):
                number = int(np.searchsorted(self._starts, rows[first], side="right")) - 1
                if opened[0] != number:
                    if opened[1] is not None:
                        opened[1].close()
                    opened = number, _opened(self._files[number].path)
                at = rows[first:end] - self._starts[number]
                _read_span(opened[1], self._files[number], at, x[first:end])
        finally:
            if opened[1] is not None:
                opened[1].close()
        self._require_numbers(x, rows)
        if order is not None:
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            return torch.from_numpy(x)[torch.from_numpy(back)]
        return torch.from_numpy(x)

    def _spans(self, rows: _Rows) -> Iterator[tuple[int, int]]:
        """Runs of sorted rows that are read at once: of one file, with small gaps, and not too long."""
        if not len(rows):
            return
        width = 4 * self._dim
        jump = np.diff(rows) > max(1, _READ_OVER // width)
        jump |= np.diff(rows // max(1, _SPAN // width)) != 0
        jump |= np.diff(np.searchsorted(self._starts, rows, side="right")) != 0
        ends = [*(np.flatnonzero(jump) + 1).tolist(), len(rows)]
        yield from zip([0, *ends[:-1]], ends, strict=True)

    def _require_numbers(self, x: Float32[np.ndarray, "rows dim"], rows: _Rows) -> None:
        """Refuse rows that a net cannot take; the first of them is named."""
        if not x.size:
            return
        low, high = torch.aminmax(torch.from_numpy(x))
        if float(low) >= -LARGEST and float(high) <= LARGEST:
            return
        bad = int(rows[np.flatnonzero(~(np.abs(x) <= LARGEST).all(1))[0]])
        number = int(np.searchsorted(self._starts, bad, side="right")) - 1
        raise DataError(
            f"row {bad - self._starts[number]:,} of {self._files[number].path} has a value that is NaN, "
            f"infinite or larger than {LARGEST:g}; remove or fill such rows."
        )


def _opened(path: Path) -> Any:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); put the file back.") from None


def _read_span(file: Any, where: FeatureFile, rows: _Rows, into: Float32[np.ndarray, "rows dim"]) -> None:
    """Read from the first of these rows to the last, and keep those that are asked for."""
    first, count, dim = int(rows[0]), int(rows[-1] - rows[0]) + 1, into.shape[1]
    whole = count == len(rows) and where.dtype == np.float32
    data: NDArray[Any] = into if whole else np.empty((count, dim), where.dtype)
    file.seek(where.offset + first * dim * where.dtype.itemsize)
    view, at = data.reshape(-1).view(np.uint8).data, 0
    while at < len(view):
        got = file.readinto(view[at:])
        if not got:
            raise DataError(f"{where.path} ends before row {first + count}; write it again.")
        at += got
    if not whole:
        into[...] = data[rows - first]
