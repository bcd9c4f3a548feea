"""A folder of features as a data set: Arrow shards, or `.npy` files. What is too large stays on the disk."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray
from torch import Tensor

from spaceform.data.dataset import DataError, Dataset
from spaceform.data.formats.feature_files import number_classes, official_split, same_groups
from spaceform.data.formats.shards import Shards, shards_dataset
from spaceform.data.guard import STAYS, memory
from spaceform.data.stored_rows import FeatureFile, StoredRows

_LABELS, _OPTIONAL = "y", ("split", "groups")


def kept_or_read(rows: StoredRows) -> Float32[Tensor, "rows dim"] | StoredRows:
    """The rows in memory; if they would take more than a quarter of it, they stay on the disk."""
    return rows if rows.nbytes > STAYS * memory() else rows[:]


def load_stored_shards(folder: Path) -> Dataset:
    """What `spaceform features` wrote into a folder."""
    shards = Shards.open(folder)
    shards.require_all()
    y = shards.column("y")
    if y is None:
        raise DataError(f"{folder} holds features without labels; extract them from data with labels.")
    rows = rows_of_shards(shards)
    return shards_dataset(shards, kept_or_read(rows), y, rows.digest)


def rows_of_shards(shards: Shards) -> StoredRows:
    """Where X lies in each shard: the offset of its memory from the start of the mapped file."""
    import pyarrow as pa

    shards.require_all()
    files, dim = [], 0
    for path in shards.paths:
        try:
            with pa.memory_map(str(path)) as source:
                batch = pa.ipc.open_file(source).get_batch(0)
                if not batch.num_rows:
                    continue
                source.seek(0)
                beginning = source.read_buffer(1).address
                lists = batch["X"]
                dim = lists.type.list_size
                offset = lists.values.buffers()[1].address - beginning
                files.append(FeatureFile(path, offset, batch.num_rows, np.dtype(np.float32)))
        except (pa.ArrowException, OSError) as error:
            raise shards.damaged(path, error) from None
    return StoredRows(files, dim)


def has_arrays(folder: Path) -> bool:
    """Whether a folder holds features in `.npy` files."""
    return folder.is_dir() and any(folder.glob("X*.npy"))


def load_arrays(folder: Path) -> Dataset:
    """Files `X*.npy` with rows of features and `y*.npy` with their labels, in the order of their names.

    Labels are integers or strings. `split*.npy` ("train", "val", "test") and `groups*.npy` may stand beside
    them, and `classes.npy` with the names of the classes, `y` being 0, 1, … then.
    """
    rows = rows_of_arrays(folder)
    columns = {name: _column(folder, name, len(rows)) for name in (_LABELS, *_OPTIONAL)}
    y = columns[_LABELS]
    if y is None:
        raise DataError(f"{folder} has features and no labels; save those of X-0.npy as y-0.npy, and so on.")
    names = _array(folder / "classes.npy") if (folder / "classes.npy").exists() else None
    labels, classes = number_classes(y, names, folder)
    return Dataset(
        name=folder.name,
        classes=classes,
        labels=labels,
        inputs=kept_or_read(rows),
        official=official_split(columns["split"], len(rows), folder),
        groups=same_groups(columns["groups"], len(rows), folder),
        source=(folder,),
        shrunk_from=rows.digest,
    )


def rows_of_arrays(folder: Path) -> StoredRows:
    """Where the rows of each `X*.npy` lie."""
    files, dims = [], set()
    for path in sorted(folder.glob("X*.npy")):
        x = _array(path, mmap_mode="r")
        if x.ndim != 2 or x.dtype.kind not in "fiub" or not x.flags.c_contiguous or not x.shape[1]:
            raise DataError(
                f"{path} has shape {x.shape} and type {x.dtype}; save one row of numbers for each item, in C "
                "order."
            )
        if len(x):
            files.append(FeatureFile(path, os.path.getsize(path) - x.nbytes, len(x), x.dtype))
        dims.add(x.shape[1])
    if len(dims) > 1:
        raise DataError(f"the features in {folder} have {sorted(dims)} columns; give all files the same.")
    if not files:
        raise DataError(f"the features in {folder} have no rows; save one for each item.")
    return StoredRows(files, dims.pop())


def _column(folder: Path, name: str, rows: int) -> NDArray[Any] | None:
    """One value a row, of all files of this name."""
    found = [_array(path) for path in sorted(folder.glob(f"{name}*.npy"))]
    if not found:
        return None
    if any(part.ndim != 1 for part in found) or sum(map(len, found)) != rows:
        shapes = ", ".join(str(part.shape) for part in found[:4])
        raise DataError(
            f"{name}*.npy in {folder} have the shapes {shapes}, and X*.npy {rows:,} rows; give one each."
        )
    return np.concatenate(found)


def _array(path: Path, **options: Any) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(path, allow_pickle=False, **options)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{path} is cut short or no array of numbers or strings ({error}); write it again by np.save."
        ) from None
    return found
