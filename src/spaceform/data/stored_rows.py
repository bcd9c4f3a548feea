"""Rows of features that stay on the disk and are read when they are asked for.

Rows are read by their position into new memory. With a mapped file, the pages that were read would count as
the process's memory until the system takes them back.
"""

import hashlib
import itertools
import operator
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from numpy.typing import NDArray
from torch import Tensor

from spaceform.data.errors import DataError
from spaceform.foundation.messages import at_row

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
_Span: TypeAlias = tuple[int, int, int, bool, int, int]
"""Neighbours that are read at once: their file, the first there and how many are read; whether all of these
are asked for, once each; and which of the sorted rows that are asked for they are.
"""


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
        """Rows of the files, in this order: read in spans, from first to last, each into its place."""
        order = None if bool((np.diff(wanted) >= 0).all()) else np.argsort(wanted, kind="stable")
        rows = wanted if order is None else wanted[order]
        x = np.empty((len(rows), self._dim), np.float32)
        for number, spans in itertools.groupby(self._spans(rows), key=operator.itemgetter(0)):
            with _opened(self._files[number].path) as file:
                self._read_spans(file, spans, rows, x, order)
        self._require_numbers(x, wanted)
        return torch.from_numpy(x)

    def _spans(self, rows: _Rows) -> Iterator[_Span]:
        """Runs of sorted rows that are read at once: of one file, with small gaps, and not too long."""
        if not len(rows):
            return
        width, files = 4 * self._dim, np.searchsorted(self._starts, rows, side="right") - 1
        gaps = np.diff(rows)
        jump = (gaps > max(1, _READ_OVER // width)) | (np.diff(files) != 0)
        jump |= np.diff(rows // max(1, _SPAN // width)) != 0
        first = np.concatenate([[0], np.flatnonzero(jump) + 1])
        end = np.append(first[1:], len(rows))
        row, file = rows[first], files[first]
        uneven = np.concatenate([[0], np.cumsum(gaps != 1)])
        whole, count = uneven[first] == uneven[end - 1], rows[end - 1] - row + 1
        columns = (file, row - self._starts[file], count, whole, first, end)
        yield from zip(*(column.tolist() for column in columns), strict=True)

    def _read_spans(
        self,
        file: Any,
        spans: Iterable[_Span],
        rows: _Rows,
        x: Float32[np.ndarray, "rows dim"],
        order: _Rows | None,
    ) -> None:
        """Read each from its first row to its last, and keep those that are asked for."""
        view, line, places = _bytes_of(x), 4 * self._dim, None if order is None else order.tolist()
        for number, row, count, whole, first, end in spans:
            where = self._files[number]
            file.seek(where.offset + row * self._dim * where.dtype.itemsize)
            if where.dtype == np.float32 and whole and (places is None or count == 1):
                at = first if places is None else places[first]
                _fill(file, view[at * line : (at + count) * line], where, row + count)
                continue
            data: NDArray[Any] = np.empty((count, self._dim), where.dtype)
            _fill(file, _bytes_of(data), where, row + count)
            into = slice(first, end) if order is None else order[first:end]
            x[into] = data[rows[first:end] - rows[first]]

    def _require_numbers(self, x: Float32[np.ndarray, "rows dim"], rows: _Rows) -> None:
        """Refuse rows that a net cannot take; the first of them is named."""
        if not x.size:
            return
        low, high = torch.aminmax(torch.from_numpy(x))
        if float(low) >= -LARGEST and float(high) <= LARGEST:
            return
        bad = int(rows[~(np.abs(x) <= LARGEST).all(1)].min())
        number = int(np.searchsorted(self._starts, bad, side="right")) - 1
        first = at_row(bad - int(self._starts[number]))
        raise DataError(
            f"{first} of {self._files[number].path} has a value that is NaN, "
            f"infinite or larger than {LARGEST:g}; remove or fill such rows."
        )


def _opened(path: Path) -> Any:
    try:
        return open(path, "rb", buffering=0)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); put the file back.") from None


def _bytes_of(x: NDArray[Any]) -> memoryview:
    return x.reshape(-1).view(np.uint8).data


def _fill(file: Any, view: memoryview, where: FeatureFile, end: int) -> None:
    """Read as many bytes as there is room for, up to this row."""
    got = file.readinto(view)
    while got < len(view):
        more = file.readinto(view[got:])
        if not more:
            raise DataError(f"{where.path} ends before row {end}; write it again.")
        got += more
