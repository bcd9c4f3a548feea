"""Features in a file: an `.npz` or a table, with `y`, optionally `split` and `groups`."""

import shlex
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
from spaceform.data.formats.table_checks import require_size, require_values
from spaceform.data.formats.table_files import (
    RESERVED,
    TABLES,
    VIEW,
    feature_columns,
    labels_of,
    lists_of,
    not_for_testing,
    read_table,
    require_plain_numbers,
    texts_in,
    with_labels,
)
from spaceform.data.guard import require_file, require_room_for_arrays
from spaceform.data.table_columns import TableFeature, columns_of, require_columns
from spaceform.foundation.messages import at_row, counted

if TYPE_CHECKING:
    from pyarrow import Table

_ARRAYS = (*RESERVED, VIEW)


def load_features(path: Path, asked: str | None = None) -> Dataset:
    """Features of one item a row.

    ``y`` are integers or strings, numbered in sorted order. ``split`` says "train", "val" or "test".
    ``groups`` keeps items together. An ``.npz`` has the features in ``X``; ``classes`` names the classes in
    order there, and ``y`` is 0, 1, … then. In a table (`TABLES`) ``X`` is a column of lists of equal length.
    Without it, every other column of numbers or booleans is a feature, and so is every value of a text column
    with few values (`table_columns`). The index of a pandas data frame is no feature: on sorted data it would
    tell the class. ``asked`` names the column of a table that holds ``y``.
    """
    said: list[str] = []
    features: tuple[TableFeature, ...] = ()
    label = "y"
    if path.suffix.lower() in TABLES:
        table = read_table(path)
        table, label = with_labels(table, asked, path)
        said += [f"labels are the column {label!r}"] if label != "y" else []
        columns = labels_of(table, label, path)
        if "X" not in table.column_names:
            require_plain_numbers(table, path)
            names, left_out = feature_columns(table)
            features = columns_of(table, names, not_for_testing(columns.get("split"), len(table)))
            if left_out:
                said.append(f"columns left out, as text or index: {', '.join(map(repr, left_out))}")
            if texts := texts_in(table):
                said.append(
                    f"column {texts[0]!r} holds texts; to compare heads on these texts, read by a pretrained "
                    f"net, give --text {shlex.quote(texts[0])}"
                )
        x = _table_inputs(table, features, path)
    else:
        columns = _read_npz(path)
        if not _array(columns, "X", path).size and not _array(columns, "y", path).size:
            raise DataError(
                f"{path} has no rows in X and y; save a row of features and a label for each item."
            )
        x = _inputs(columns["X"], path)
    y = _array(columns, "y", path)
    if y.ndim != 1 or len(y) != len(x):
        raise DataError(
            f"{path} has {counted(len(x), 'row')} in X and y of shape {y.shape}; give one label a row."
        )
    labels, classes = number_classes(y, columns.get("classes"), path, label)
    if len(x) > 1 and (x == x[0]).all():
        raise DataError(f"all rows of {path} have the same features; give features that differ.")
    return Dataset(
        name=path.stem,
        classes=classes,
        labels=labels,
        inputs=torch.from_numpy(x),
        official=official_split(columns.get("split"), len(x), path),
        groups=same_groups(columns.get("groups"), len(x), path),
        views=_views(columns.get(VIEW), len(x), path),
        columns=features,
        label=asked,
        source=(path,),
        note="; ".join(said),
        files=tuple(files.tolist())
        if (files := columns.get("files")) is not None and len(files) == len(x)
        else (),
    )


def read_inputs(path: Path, columns: Sequence[TableFeature] = ()) -> NDArray[np.float32]:
    """X of a table, whether or not there are labels.

    With ``columns``, and no column ``X`` of lists, it has these features, in this order.
    """
    table = read_table(path)
    if "X" not in table.column_names:
        require_columns(columns, table, path)
        columns = columns or columns_of(table, feature_columns(table)[0], np.ones(len(table), bool))
    return _table_inputs(table, columns, path)


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
            f"X in {path} has {counted(len(bad), 'row')} with NaN or infinite values, the first is "
            f"{at_row(int(bad[0]))}; remove or fill such rows."
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
            found = {name: _member(archive, name, path) for name in archive.files if name in _ARRAYS}
            return found | _file_names(archive)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, MemoryError) as error:
        raise DataError(f"{path} is cut short or damaged ({error}); write it again by np.savez.") from error
    except DataError:
        raise
    except ValueError as error:
        raise DataError(
            f"{path} is no archive of arrays; save X and y by np.savez(file, X=X, y=y)."
        ) from error


def _file_names(archive: Any) -> dict[str, NDArray[Any]]:
    """`files`, which `spaceform features` writes; anything else of that name is ignored."""
    try:
        names = np.asarray(archive["files"] if "files" in archive.files else None)
    except ValueError:  # Python objects
        return {}
    return {"files": names} if names.ndim == 1 and names.dtype.kind == "U" else {}


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


def _table_inputs(table: "Table", features: Sequence[TableFeature], path: Path) -> NDArray[np.float32]:
    if "X" in table.column_names:
        return _inputs(lists_of(table["X"], path), path)
    if not features and (texts := texts_in(table)):
        raise DataError(
            f"{path} has no features, but texts in {', '.join(map(repr, texts))}; name the column to be read "
            f"by --text, as --text {texts[0]!r}."
        )
    if not features:
        raise DataError(
            f"{path} has no features; give a column 'X' of lists of numbers, or a column of numbers for each "
            "one."
        )
    x = np.empty((len(table), len(features)), np.float32)
    for i, feature in enumerate(features):
        column = feature.of(table)
        require_size(column, f"column {feature.name!r}", path)
        require_values(column, feature.name, path)
        x[:, i] = column
    return _inputs(x, path)


def _array(columns: Mapping[str, NDArray[Any]], name: str, path: Path) -> NDArray[Any]:
    if name not in columns:
        raise DataError(
            f"{path} has no array {name!r} (it has {', '.join(sorted(columns)) or 'neither X nor y'}); "
            "save both by np.savez(file, X=X, y=y)."
        )
    return columns[name]


def number_classes(
    y: NDArray[Any], names: NDArray[Any] | None, path: Path, label: str = "y"
) -> tuple[Int64[Tensor, "items"], tuple[str, ...]]:
    """Numbers for the labels, and the names of the classes; `label` is what the labels are called there."""
    if y.dtype.kind == "f":
        if len(bad := np.flatnonzero(~np.isfinite(y))):
            raise DataError(
                f"{label} in {path} is NaN or infinite in {counted(len(bad), 'row')}, the first is "
                f"{at_row(int(bad[0]))}; label or remove such rows."
            )
        if np.array_equal(y, np.floor(y)):
            y = y.astype(np.int64)
    if y.dtype.kind not in "iuUSb":
        raise DataError(
            f"{label} in {path} has type {y.dtype}; labels are integers or strings: put such numbers into "
            "classes."
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
        wrong = (
            "a wrong length" if part.shape != (n,) else f"the value {_name(part.flat[known.index(None)])!r}"
        )
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
