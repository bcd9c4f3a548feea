"""Cached features: `.npz` or `.parquet` with `X`, `y`, and optionally `split`, `groups` and `classes`."""

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from spaceform.data.dataset import DataError, Dataset, Split
from spaceform.wording import counted

_PARTS = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}
_RESERVED = ("X", "y", "split", "groups", "classes")


def load_features(path: Path) -> Dataset:
    """Features of one item a row.

    ``y`` are integers or strings. ``classes`` names them in order, ``y`` being 0, 1, … then; without it they
    are numbered in sorted order. ``split`` says "train", "val" or "test". ``groups`` keeps items together. In
    a parquet file ``X`` is a column of equally long lists, or else every other numeric column is a feature.
    """
    columns, names = _read_parquet(path) if path.suffix == ".parquet" else (_read_npz(path), ())
    x, y = _inputs(columns, path), _array(columns, "y", path)
    if y.ndim != 1 or len(y) != len(x):
        raise DataError(
            f"{path} has {counted(len(x), 'row')} in X and y of shape {y.shape}; give one label a row."
        )
    labels, classes = _number_classes(y, columns.get("classes"), path)
    return Dataset(
        name=path.stem,
        classes=classes,
        labels=labels,
        inputs=torch.from_numpy(x),
        official=_official(columns.get("split"), len(x), path),
        groups=_groups(columns.get("groups"), len(x), path),
        source=(path,),
        columns=names,
    )


def read_inputs(path: Path, names: Sequence[str] = ()) -> NDArray[np.float32]:
    """X of a parquet file, whether or not there are labels.

    With ``names``, and a column for each feature, it has the columns of these names, in this order.
    """
    columns, _ = _read_parquet(path, labels=False, names=names)
    return _inputs(columns, path)


def _inputs(columns: Mapping[str, NDArray[Any]], path: Path) -> NDArray[np.float32]:
    x = _array(columns, "X", path)
    if x.ndim == 2 and x.shape[1] == 0:
        raise DataError(f"X in {path} has shape {x.shape}, no columns; give at least one feature an item.")
    if x.ndim != 2 or x.dtype.kind not in "fiu":
        raise DataError(
            f"X in {path} has shape {x.shape} and type {x.dtype}; it must be numbers, one row an item."
        )
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, which is said below
        x = x.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if len(bad):
        raise DataError(
            f"X in {path} has {counted(len(bad), 'row')} with NaN or infinite values, the first is row "
            f"{bad[0]}; remove or fill such rows."
        )
    return x


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with open(path, "rb") as file:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DataError(
                    f"{path} is a single array, not an .npz archive; save it by np.savez(file, X=X, y=y)."
                )
            return {name: _member(archive, name, path) for name in archive.files if name in _RESERVED}
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError) as error:
        raise DataError(f"{path} is cut short or damaged ({error}); write it again by np.savez.") from error
    except DataError:
        raise
    except ValueError as error:
        raise DataError(
            f"{path} is no archive of arrays; save X and y by np.savez(file, X=X, y=y)."
        ) from error


def _member(archive: Any, name: str, path: Path) -> NDArray[Any]:
    try:
        return np.asarray(archive[name])
    except ValueError as error:
        remedy = "X.astype(np.float32)" if name == "X" else f"{name}.astype(str), or integers"
        raise DataError(
            f"{name} in {path} holds Python objects, which are never read, as they can run code; "
            f"save it as {remedy}."
        ) from error


def _read_parquet(
    path: Path, *, labels: bool = True, names: Sequence[str] = ()
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Columns by name, those of the features together as X; and the names of the features."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist.") from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is cut short or no parquet file ({_first_sentence(error)}); copy or write it again."
        ) from error
    columns = {}
    if labels and "y" not in table.column_names:
        there = ", ".join(map(repr, table.column_names)) or "none"
        raise DataError(
            f"{path} has no column 'y' of labels (its columns: {there}); rename the column that holds them "
            "to 'y'."
        )
    for name in _RESERVED[1:-1] if labels else ():
        if name in table.column_names:
            if empty := table[name].null_count:
                raise DataError(
                    f"column {name!r} of {path} has {counted(empty, 'empty cell')}; fill them, or remove "
                    "their rows."
                )
            columns[name] = _plain(table[name])
    if "X" in table.column_names:
        rows = table["X"]
        lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
        if not any(is_list(rows.type) for is_list in lists):
            raise DataError(
                f"column 'X' of {path} has type {rows.type}; each row must hold a list of numbers."
            )
        if rows.null_count:
            first = pc.index(pc.is_null(rows), True).as_py()
            raise DataError(
                f"column 'X' of {path} is empty in {counted(rows.null_count, 'row')}, the first is row "
                f"{first}; remove or fill such rows."
            )
        if len(pc.unique(pc.list_value_length(rows))) > 1:
            raise DataError(
                f"column 'X' of {path} has rows of different lengths; each must hold the same features."
            )
        values = pc.list_flatten(rows).to_numpy()
        columns["X"] = values.reshape(len(rows), len(values) // max(1, len(rows)))
        names = ()
    else:
        numeric = [
            field.name
            for field in table.schema
            if field.name not in _RESERVED
            and (pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
        ]
        if missing := [name for name in names if name not in numeric]:
            raise DataError(
                f"{path} has no column {missing[0]!r} of numbers, one of the {len(names):,} features that "
                "are needed; add it, or rename the column that holds it."
            )
        names = names or numeric
        if names:
            columns["X"] = np.column_stack([table[name].to_numpy().astype(np.float32) for name in names])
    return columns, tuple(names)


def _first_sentence(error: Exception) -> str:
    return str(error).splitlines()[0].partition(". ")[0].rstrip(".")


def _plain(column: Any) -> NDArray[Any]:
    """A column of numbers or strings as an array, whether or not it was stored as categories."""
    values = np.asarray(column.to_pylist())
    return values.astype(str) if values.dtype == object else values


def _array(columns: Mapping[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    if name not in columns:
        if path.suffix == ".parquet":
            raise DataError(
                f"{path} has no features; give a column 'X' of lists of numbers, or a column of numbers for "
                "each feature."
            )
        raise DataError(
            f"{path} has no array {name!r} (it has {', '.join(sorted(columns)) or 'neither X nor y'}); "
            "save both by np.savez(file, X=X, y=y)."
        )
    return columns[name]


def _number_classes(
    y: NDArray[Any], names: NDArray[Any] | None, path: Path
) -> tuple[Int64[Tensor, "items"], tuple[str, ...]]:
    if y.dtype.kind == "f" and np.array_equal(y, np.floor(y)):
        y = y.astype(np.int64)
    if y.dtype.kind not in "iuUSb":
        raise DataError(f"y in {path} has type {y.dtype}; labels are integers or strings.")
    if names is None or y.dtype.kind in "US":
        values, numbers = np.unique(y, return_inverse=True)
        return torch.from_numpy(numbers.astype(np.int64)), tuple(_name(value) for value in values)
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(names):
        raise DataError(
            f"y in {path} goes from {y.min()} to {y.max()}, but classes has {counted(len(names), 'name')}; "
            "number the labels from 0 in the order of the names."
        )
    return torch.from_numpy(y.astype(np.int64)), tuple(_name(value) for value in names)


def _name(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _official(part: NDArray[Any] | None, n: int, path: Path) -> Split | None:
    if part is None:
        return None
    known = [_PARTS.get(_name(value).lower()) for value in part.flat]
    if part.shape != (n,) or None in known:
        wrong = "a wrong length" if part.shape != (n,) else f"the value {part.flat[known.index(None)]!r}"
        raise DataError(
            f"split in {path} has {wrong}; give 'train', 'val' or 'test' for each of the {n:,} rows."
        )
    names = np.array(known)
    train, val, test = (torch.from_numpy(np.flatnonzero(names == p)) for p in ("train", "val", "test"))
    if not len(train):
        raise DataError(f"split in {path} marks no row as 'train'.")
    return Split(train, val, test)


def _groups(groups: NDArray[Any] | None, n: int, path: Path) -> Int64[Tensor, "items"] | None:
    if groups is None:
        return None
    if groups.shape != (n,):
        raise DataError(
            f"groups in {path} has shape {groups.shape}; give one group for each of the {n:,} rows."
        )
    return torch.from_numpy(np.unique(groups, return_inverse=True)[1].astype(np.int64))
