"""Features in a folder of Arrow files: written shard by shard, memory-mapped when read.

`features.json` says what they are; `shard-00000.arrow`, `shard-00001.arrow`, … hold the rows. Each file is
either whole or not there, so extraction can go on after a kill. As long as `rows` in `features.json` is null,
shards are missing.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from spaceform.data.dataset import DataError, Dataset, Split
from spaceform.data.guard import require_room
from spaceform.data.stored_rows import StoredRows
from spaceform.foundation.messages import counted, first_line
from spaceform.foundation.values import parsed

if TYPE_CHECKING:
    from pyarrow import RecordBatch

ABOUT = "features.json"
SHARDS_FORMAT = "spaceform-features-1"


@final
@dataclass(frozen=True)
class About:
    """What a folder of shards holds: the content of `features.json`."""

    name: str
    """The name of the data."""
    net: str
    weights: str
    """A digest of the net's weights."""
    plan: str
    """A digest of everything that the rows depend on; shards of two plans are never mixed."""
    shards: int
    classes: tuple[str, ...] = ()
    preprocessing: dict[str, Any] = field(default_factory=dict)
    views: int = 0
    rows: int | None = None
    """None until all shards are there."""
    broken: tuple[str, ...] = ()
    """Items that could not be read and were left out."""
    photos: str = ""
    """`digest_of_photos` of the photos that the rows were made from."""
    format: str = SHARDS_FORMAT


@final
@dataclass(frozen=True, eq=False)
class Shard:
    """Some rows: features, the number of each row's item, and what is known of it."""

    x: Float32[np.ndarray, "rows dim"]
    columns: Mapping[str, NDArray[Any]]
    """Those of `y`, `file`, `split`, `view`, `groups` that there are."""
    broken: tuple[str, ...] = ()


@final
class Shards:
    """A folder of shards. Shards can be added, and be read without loading all of them into memory."""

    def __init__(self, folder: Path, about: About) -> None:
        self.folder, self.about = folder, about

    @classmethod
    def begin(cls, folder: Path, about: About) -> "Shards":
        """Make a new folder, or open one of the same plan to go on with; any other folder is refused."""
        if not folder.exists():
            _make(folder)
        elif not folder.is_dir():
            raise DataError(f"{folder} is a file; choose another name for the folder of features.")
        elif (folder / ABOUT).exists():
            there = cls.open(folder)
            if there.about.plan != about.plan:
                raise DataError(
                    f"{folder} holds features of {there.about.name} by {there.about.net}, made in another "
                    "way than is asked for now; choose another name, or remove the folder."
                )
            there._sweep()
            return there
        elif any(folder.iterdir()):
            raise DataError(f"{folder} is not empty and holds no features; choose another name.")
        shards = cls(folder, about)
        shards._say(about)
        return shards

    @classmethod
    def open(cls, folder: Path) -> "Shards":
        """The folder as it is, finished or not."""
        path = folder / ABOUT
        try:
            about: About = parsed(path.read_bytes(), About)
        except OSError as error:
            raise DataError(
                f"{path} cannot be read ({error.strerror}); extract the features again."
            ) from None
        except ValueError as error:
            raise DataError(
                f"{path} is damaged or not written by this program ({error}); extract the features again."
            ) from None
        if about.format != SHARDS_FORMAT:
            raise DataError(
                f"{path} has the format {about.format!r}, not {SHARDS_FORMAT!r}; extract them again."
            )
        return cls(folder, about)

    @classmethod
    def done(cls, folder: Path, plan: str) -> "Shards | None":
        """The folder, if all shards of this plan are there, or None."""
        if not (folder / ABOUT).is_file():
            return None
        shards = cls.open(folder)
        return shards if shards.about.plan == plan and shards.about.rows is not None else None

    @property
    def missing(self) -> list[int]:
        """The numbers of the shards that are not there yet."""
        return [i for i in range(self.about.shards) if not self._path(i).exists()]

    def write(self, number: int, shard: Shard) -> None:
        """Add a shard: all of it, or nothing."""
        import pyarrow as pa

        rows, dim = shard.x.shape
        flat = pa.array(np.ascontiguousarray(shard.x, np.float32).reshape(-1))
        columns = {"X": pa.FixedSizeListArray.from_arrays(flat, dim)}
        columns |= {name: pa.array(values) for name, values in shard.columns.items()}
        batch = pa.RecordBatch.from_pydict(columns)
        batch = batch.replace_schema_metadata({"broken": json.dumps(shard.broken)})
        assert batch.num_rows == rows
        with whole_file(self._path(number)) as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)

    def finish(self) -> "Shards":
        """Count the rows, and say that all are there."""
        rows, broken = 0, []
        for batch in self.batches():
            rows += batch.num_rows
            broken += self._broken_of(batch)
        about = replace(self.about, rows=rows, broken=tuple(broken))
        self._say(about)
        return Shards(self.folder, about)

    def _broken_of(self, batch: "RecordBatch") -> list[str]:
        """The items that were left out of a shard."""
        try:
            said: list[str] = parsed((batch.schema.metadata or {}).get(b"broken", b""), list[str])
        except ValueError as error:
            raise DataError(
                f"a shard of {self.folder} does not say which items are broken ({error}); remove that "
                "folder and extract the features again."
            ) from None
        return said

    def batches(self) -> Iterator["RecordBatch"]:
        """The rows shard by shard, memory-mapped: `X`, and the columns that there are."""
        import pyarrow as pa

        for path in self.paths:
            try:
                file = pa.ipc.open_file(pa.memory_map(str(path)))
                yield file.get_batch(0)
            except (pa.ArrowException, OSError) as error:
                raise self.damaged(path, error) from None

    def blocks(self) -> Iterator[Float32[np.ndarray, "rows dim"]]:
        """The features shard by shard: read-only arrays over the mapped files, without a copy."""
        for batch in self.batches():
            if batch.num_rows:
                yield features_in(batch)

    def column(self, name: str) -> NDArray[Any] | None:
        """A column of all rows, or None where there is none."""
        parts = [
            batch[name].to_numpy(zero_copy_only=False)
            for batch in self.batches()
            if name in batch.schema.names
        ]
        return np.concatenate(parts) if parts else None

    def features(self) -> Float32[np.ndarray, "rows dim"]:
        """All features in memory, where they fit."""
        self.require_all()
        sizes = [block.nbytes for block in self.blocks()]
        require_room(sum(sizes), self.folder)
        return np.concatenate(list(self.blocks()))

    def require_all(self) -> None:
        """Refuse a folder that lacks shards."""
        if self.about.rows is None:
            raise DataError(
                f"{self.folder} lacks {counted(len(self.missing), 'shard')} of {self.about.shards:,}: the "
                "extraction was stopped; run the same command again to finish it."
            )

    @property
    def paths(self) -> list[Path]:
        """The files of all shards, in order."""
        return [self._path(number) for number in range(self.about.shards)]

    def damaged(self, path: Path, error: Exception) -> DataError:
        """The error for a shard that cannot be read."""
        return DataError(
            f"{path} is missing or damaged ({first_line(error)}); remove {self.folder} and "
            "extract the features again."
        )

    def remove(self) -> None:
        """Remove the files that were written here, and the folder where nothing else is in it."""
        self._sweep()
        (self.folder / ABOUT).unlink(missing_ok=True)
        for number in range(self.about.shards):
            self._path(number).unlink(missing_ok=True)
        (self.folder / ".lock").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(path.stat().st_size for i in range(self.about.shards) if (path := self._path(i)).exists())

    def _path(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.arrow"

    def _say(self, about: About) -> None:
        with whole_file(self.folder / ABOUT) as file:
            file.write((json.dumps(asdict(about), indent=1) + "\n").encode())

    def _sweep(self) -> None:
        """Remove the unfinished files of a killed process."""
        for path in self.folder.glob(".*.arrow.*.tmp"):
            path.unlink(missing_ok=True)
        for path in self.folder.glob(f".{ABOUT}.*.tmp"):
            path.unlink(missing_ok=True)


def features_in(batch: "RecordBatch") -> Float32[np.ndarray, "rows dim"]:
    """X of a shard, as a view of its memory."""
    lists = batch["X"]
    return lists.flatten().to_numpy(zero_copy_only=True).reshape(len(lists), lists.type.list_size)


def shards_dataset(
    shards: Shards, inputs: Float32[Tensor, "rows dim"] | StoredRows, y: NDArray[Any], digest: str
) -> Dataset:
    """The rows of shards with their labels, split, groups and views."""
    part, groups, view = (shards.column(name) for name in ("split", "groups", "view"))
    official = None
    if part is not None:
        train, val, test = (torch.from_numpy(np.flatnonzero(part == p)) for p in ("train", "val", "test"))
        official = Split(train, val, test)
    return Dataset(
        name=shards.about.name,
        classes=shards.about.classes,
        labels=torch.from_numpy(y.astype(np.int64)),
        inputs=inputs,
        official=official,
        groups=None if groups is None else torch.from_numpy(groups.astype(np.int64)),
        views=None if view is None else torch.from_numpy(view.astype(np.int64)),
        source=(shards.folder,),
        note=f"{counted(len(shards.about.broken), 'broken item')} left out" if shards.about.broken else "",
        shrunk_from=digest,
    )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise OSError(
            error.errno, f"cannot make the folder {folder} ({error.strerror}); choose another place"
        ) from None


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Any]:
    """A file to write into; it gets its name when it is whole and on the disk."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError):
            raise OSError(
                error.errno,
                f"cannot write {path} ({error.strerror or error}); the shards before it are kept: make room, "
                "and run the same command again",
            ) from None
        raise
