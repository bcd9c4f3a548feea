"""Features in a file: `.npz`, `.parquet` or `.csv` with `y`, optionally `split` and `groups`."""

import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from spaceform.data.dataset import PARTS, DataError, Dataset, Split
from spaceform.data.guard import require_file, require_room, require_room_for_arrays
from spaceform.data.table_checks import require_commas, require_size, require_values
from spaceform.messages import counted

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Table

TABLES = frozenset({".parquet", ".csv"})
_RESERVED = ("X", "y", "split", "groups", "classes")
_VIEW = "view"
"""Beside `X`, of what `spaceform features --views` wrote: 0 is the item itself, 1, 2, … are views of it."""
_ARRAYS = (*_RESERVED, _VIEW)
_INDEX = re.compile(r"(__index_level_\d+__|Unnamed: \d+)?")
"""An index without a name, as pandas writes it to Parquet, reads it from CSV, and writes it to CSV."""


def load_features(path: Path) -> Dataset:
    """Features of one item a row.

    ``y`` are integers or strings, numbered in sorted order. ``split`` says "train", "val" or "test".
    ``groups`` keeps items together. An ``.npz`` has the features in ``X``; ``classes`` names the classes in
    order there, ``y`` being 0, 1, … then. In a table (``.parquet``, ``.csv``) ``X`` is a column of equally
    long lists, or else every other column of numbers or booleans is a feature. The index of a pandas data
    frame is none: on sorted data it would tell the class.
    """
    names: list[str] = []
    left_out: list[str] = []
    if path.suffix.lower() in TABLES:
        table = read_table(path)
        columns = _labels(table, path)
        if "X" not in table.column_names:
            names, left_out = _features(table)
        x = _table_inputs(table, names, path)
    else:
        columns = _read_npz(path)
        x = _inputs(_array(columns, "X", path), path)
    y = _array(columns, "y", path)
    if y.ndim != 1 or len(y) != len(x):
        raise DataError(
            f"{path} has {counted(len(x), 'row')} in X and y of shape {y.shape}; give one label a row."
        )
    labels, classes = number_classes(y, columns.get("classes"), path)
    if len(x) > 1 and (x == x[0]).all():
        raise DataError(f"all rows of {path} have the same features; give features that differ.")
    return Dataset(
        name=path.stem,
        classes=classes,
        labels=labels,
        inputs=torch.from_numpy(x),
        official=official_split(columns.get("split"), len(x), path),
        groups=same_groups(columns.get("groups"), len(x), path),
        views=_views(columns.get(_VIEW), len(x), path),
        columns=tuple(names),
        source=(path,),
        note=f"columns left out, as text or index: {', '.join(map(repr, left_out))}" if left_out else "",
    )


def read_inputs(path: Path, names: Sequence[str] = ()) -> NDArray[np.float32]:
    """X of a table, whether or not there are labels.

    With ``names``, and a column for each feature, it has the columns of these names, in this order.
    """
    table = read_table(path)
    features, _ = _features(table)
    missing = [name for name in names if name not in features]
    if missing and "X" not in table.column_names:
        raise DataError(
            f"{path} has no column {missing[0]!r} of numbers, one of the {len(names):,} features that are "
            "needed; add it, or rename the column that holds it."
        )
    return _table_inputs(table, names or features, path)


def _inputs(x: NDArray[Any], path: Path) -> NDArray[np.float32]:
    if x.ndim == 2 and x.shape[1] == 0:
        raise DataError(f"X in {path} has shape {x.shape}, no columns; give at least one feature an item.")
    if x.ndim in (3, 4):
        raise DataError(
            f"X in {path} has shape {x.shape}, as images have; save these in a folder with a sub-folder for "
            "each class, or give one row of features an item, such as X.reshape(len(X), -1)."
        )
    if x.ndim != 2 or x.dtype.kind not in "fiub":
        raise DataError(
            f"X in {path} has shape {x.shape} and type {x.dtype}; it must be numbers, one row for each item."
        )
    bad = np.flatnonzero(~np.isfinite(x).all(axis=1))
    if len(bad):
        raise DataError(
            f"X in {path} has {counted(len(bad), 'row')} with NaN or infinite values, the first is row "
            f"{bad[0]}; remove or fill such rows."
        )
    for i in range(x.shape[1]):
        require_size(x[:, i], f"column {i} of X", path)
    return x.astype(np.float32)


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    require_file(path)
    try:
        with open(path, "rb") as file:
            require_room_for_arrays(file, path, _ARRAYS)
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DataError(
                    f"{path} is a single array, not an .npz archive; save it by np.savez(file, X=X, y=y)."
                )
            return {name: _member(archive, name, path) for name in archive.files if name in _ARRAYS}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, MemoryError) as error:
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
        if "EOF" in str(error):  # less than its header says
            raise DataError(
                f"{name} in {path} is cut short ({error}); copy it again, or write it by np.savez."
            ) from error
        remedy = "X.astype(np.float32)" if name == "X" else f"{name}.astype(str), or integers"
        raise DataError(
            f"{name} in {path} holds Python objects, which are never read, as they can run code; "
            f"save it as {remedy}."
        ) from error


def read_table(path: Path) -> "Table":
    """A CSV or Parquet file; a sentence where it cannot be read."""
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet as pq

    csv = path.suffix.lower() == ".csv"
    require_file(path)
    try:
        if csv:
            require_commas(path)
            empty = pa.csv.ConvertOptions(strings_can_be_null=True)
            table = pa.csv.read_csv(path, convert_options=empty)
        else:
            require_room(_unpacked(pq.read_metadata(path)), path)
            table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        kind = "CSV" if csv else "parquet"
        raise DataError(
            f"{path} is cut short or no {kind} file ({_first_sentence(error)}); copy or write it again."
        ) from error
    names = table.column_names
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{path} has {names.count(twice[0])} columns {twice[0]!r}; rename or remove one.")
    if csv and any(pa.types.is_binary(field.type) for field in table.schema):
        raise DataError(f"{path} is not written in UTF-8; save it so.")
    return table


def _unpacked(about: Any) -> int:
    """Bytes of a Parquet file in memory, eight a number at the most; its metadata say how many there are."""
    groups = (about.row_group(i) for i in range(about.num_row_groups))
    return sum(8 * group.column(j).num_values for group in groups for j in range(group.num_columns))


def _labels(table: "Table", path: Path) -> dict[str, NDArray[Any]]:
    if "y" not in table.column_names:
        there = ", ".join(map(repr, table.column_names)) or "none"
        if any(_is_number(name) for name in table.column_names):
            raise DataError(
                f"{path} has numbers where the names of its columns should be ({there}); put a line of names "
                "first, with 'y' for the labels."
            )
        raise DataError(
            f"{path} has no column 'y' of labels (its columns: {there}); rename the column that holds them "
            "to 'y'."
        )
    columns = {}
    for name in ("y", "split", "groups", *([_VIEW] if "X" in table.column_names else [])):
        if name in table.column_names:
            if empty := table[name].null_count:
                raise DataError(
                    f"column {name!r} of {path} has {counted(empty, 'empty cell')}; fill them, or remove "
                    "their rows."
                )
            columns[name] = _plain(table[name])
    return columns


def _features(table: "Table") -> tuple[list[str], list[str]]:
    """The columns that are features, and those that are neither features nor reserved."""
    import pyarrow as pa

    numbers = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal)
    index = (table.schema.pandas_metadata or {}).get("index_columns", ())
    others = [field for field in table.schema if field.name not in _RESERVED]
    features = [
        field.name
        for field in others
        if any(are(field.type) for are in numbers)
        and field.name not in index
        and not _INDEX.fullmatch(field.name)
    ]
    return features, [field.name for field in others if field.name not in features]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _without_features(table: "Table", path: Path) -> str:
    """Why there are none: often one row of text, such as names or units, makes a column of numbers text."""
    import pyarrow as pa

    for name in table.column_names:
        if name in _RESERVED or not pa.types.is_string(table[name].type):
            continue
        cells = [str(cell) for cell in table[name].to_pylist()]
        odd = [i for i, cell in enumerate(cells) if not _is_number(cell)]
        if 0 < len(odd) <= len(cells) // 10:
            return (
                f"column {name!r} of {path} has numbers, but {cells[odd[0]]!r} in row {odd[0] + 1:,}; remove "
                "such rows, or leave the cells empty."
            )
    return (
        f"{path} has no features; give a column 'X' of lists of numbers, or a column of numbers for each one."
    )


def _table_inputs(table: "Table", features: Sequence[str], path: Path) -> NDArray[np.float32]:
    if not len(table):
        raise DataError(f"{path} has no rows; add an item to each line.")
    if "X" in table.column_names:
        return _inputs(_lists(table["X"], path), path)
    if not features:
        raise DataError(_without_features(table, path))
    x = np.empty((len(table), len(features)), np.float32)
    for i, name in enumerate(features):
        column = _numbers(table[name])
        require_size(column, f"column {name!r}", path)
        require_values(column, name, path)
        x[:, i] = column
    return _inputs(x, path)


def _numbers(column: "ChunkedArray") -> NDArray[Any]:
    """A column of numbers or booleans; an empty cell is NaN."""
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        return column.cast(pa.uint8()).to_numpy()
    return (column.cast(pa.float64()) if pa.types.is_decimal(column.type) else column).to_numpy()


def _lists(rows: "ChunkedArray", path: Path) -> NDArray[Any]:
    """The rows of a column of equally long lists."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_list(rows.type) for is_list in lists):
        raise DataError(
            f"column 'X' of {path} has type {rows.type}; each row must hold a list of numbers; rename it if "
            "it is one feature of many."
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
    return values.reshape(len(rows), len(values) // max(1, len(rows)))


def _first_sentence(error: Exception) -> str:
    return str(error).splitlines()[0].partition(". ")[0].rstrip(".")


def _plain(column: Any) -> NDArray[Any]:
    """A column of numbers or strings as an array, whether or not it was stored as categories."""
    values = np.asarray(column.to_pylist())
    return values.astype(str) if values.dtype == object else values


def _array(columns: Mapping[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    if name not in columns:
        raise DataError(
            f"{path} has no array {name!r} (it has {', '.join(sorted(columns)) or 'neither X nor y'}); "
            "save both by np.savez(file, X=X, y=y)."
        )
    return columns[name]


def number_classes(
    y: NDArray[Any], names: NDArray[Any] | None, path: Path
) -> tuple[Int64[Tensor, "items"], tuple[str, ...]]:
    if y.dtype.kind == "f":
        if len(bad := np.flatnonzero(~np.isfinite(y))):
            raise DataError(
                f"y in {path} is NaN or infinite in {counted(len(bad), 'row')}, the first is row {bad[0]}; "
                "label or remove such rows."
            )
        if np.array_equal(y, np.floor(y)):
            y = y.astype(np.int64)
    if y.dtype.kind not in "iuUSb":
        raise DataError(
            f"y in {path} has type {y.dtype}; labels are integers or strings: put such numbers into classes."
        )
    if names is None or y.dtype.kind in "US":
        values, numbers = np.unique(y, return_inverse=True)
        return torch.from_numpy(numbers.astype(np.int64)), tuple(_name(value) for value in values)
    distinct, counts = np.unique(names, return_counts=True)
    if names.ndim != 1 or len(distinct) < len(names):
        wrong = f"{_name(distinct[counts.argmax()])!r} twice" if names.ndim == 1 else f"shape {names.shape}"
        raise DataError(f"classes in {path} has {wrong}; give each class one name of its own.")
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < len(names):
        raise DataError(
            f"y in {path} goes from {y.min()} to {y.max()}, but classes has {counted(len(names), 'name')}; "
            "number the labels from 0 in the order of the names."
        )
    return torch.from_numpy(y.astype(np.int64)), tuple(_name(value) for value in names)


def _name(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def official_split(part: NDArray[Any] | None, n: int, path: Path) -> Split | None:
    if part is None:
        return None
    known = [PARTS.get(_name(value).lower()) for value in part.flat]
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


def same_groups(groups: NDArray[Any] | None, n: int, path: Path) -> Int64[Tensor, "items"] | None:
    if groups is None:
        return None
    if groups.shape != (n,):
        raise DataError(
            f"groups in {path} has shape {groups.shape}; give one group for each of the {n:,} rows."
        )
    return torch.from_numpy(np.unique(groups, return_inverse=True)[1].astype(np.int64))


def _views(views: NDArray[Any] | None, n: int, path: Path) -> Int64[Tensor, "items"] | None:
    if views is None:
        return None
    if views.shape != (n,) or views.dtype.kind not in "iu":
        raise DataError(f"view in {path} must be one whole number for each of the {n:,} rows; remove it.")
    return torch.from_numpy(views.astype(np.int64))
