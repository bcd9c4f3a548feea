"""Tables: how each kind is read, which columns are labels, and which are features.

A new kind of table is a function and one line of `TABLES`: labels, features, texts and predictions follow.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from spaceform.data.dataset import PARTS
from spaceform.data.errors import DataError
from spaceform.data.formats.table_checks import require_commas
from spaceform.data.guard import require_file, require_room
from spaceform.data.table_columns import is_category, is_number
from spaceform.foundation.messages import at_row, counted, first_line

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Table

RESERVED = ("X", "y", "split", "groups", "classes")
VIEW = "view"
"""The column of views that `spaceform features --views` writes: 0 is the item itself, 1, 2, … are its views.
"""
_USUAL_LABELS = ("label", "labels", "target", "class")
_EMPTY = ("", "?", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "#N/A", "#NA")
"""The texts that stand for an empty cell in a CSV file."""
_INDEX = re.compile(r"(__index_level_\d+__|Unnamed: \d+)?")
"""An index without a name, as pandas writes it to Parquet, reads it from CSV, and writes it to CSV."""


def _read_csv(path: Path) -> "Table":
    import pyarrow as pa
    import pyarrow.csv

    require_room(path.stat().st_size, path)
    require_commas(path)
    empty = pa.csv.ConvertOptions(strings_can_be_null=True, null_values=_EMPTY)
    try:
        table = pa.csv.read_csv(path, convert_options=empty)
    except pa.ArrowInvalid:
        if not path.read_bytes().strip():
            raise _no_rows(path) from None
        raise
    if any(pa.types.is_binary(field.type) for field in table.schema):
        raise DataError(f"{path} is not written in UTF-8; save it so.")
    return table


def _read_parquet(path: Path) -> "Table":
    import pyarrow.parquet as pq

    require_room(_unpacked(pq.read_metadata(path)), path)
    return pq.read_table(path)


TABLES: dict[str, Callable[[Path], "Table"]] = {".parquet": _read_parquet, ".csv": _read_csv}
"""The function that reads a table, by file ending: path in, table out. `read_table` explains errors."""


def read_table(path: Path) -> "Table":
    """The table in a file of one of the kinds of `TABLES`; if it is damaged, the error says so."""
    import pyarrow as pa

    ending = path.suffix.lower()
    require_file(path)
    try:
        table = TABLES[ending](path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} is cut short or no {ending} file ({_first_sentence(error)}); copy or write it again."
        ) from error
    names = table.column_names
    if twice := [name for name in names if names.count(name) > 1]:
        raise DataError(f"{path} has {names.count(twice[0])} columns {twice[0]!r}; rename or remove one.")
    if not len(table):
        raise _no_rows(path)
    return table


def a_table() -> str:
    """Which files are tables, for a sentence: a .parquet or .csv file."""
    *others, last = TABLES
    return f"a {', '.join(others)} or {last} file"


def _no_rows(path: Path) -> DataError:
    return DataError(f"{path} has no rows; add an item to each line below the line of names.")


def _unpacked(about: Any) -> int:
    """The most bytes that a Parquet file takes in memory: eight for each number that its metadata list."""
    groups = (about.row_group(i) for i in range(about.num_row_groups))
    return sum(8 * group.column(j).num_values for group in groups for j in range(group.num_columns))


def has_labels(names: Sequence[str]) -> bool:
    """Whether one of the columns is that of the labels."""
    return "y" in names or len([name for name in names if name.lower() in _USUAL_LABELS]) == 1


def with_labels(table: "Table", label: str | None, path: Path) -> tuple["Table", str]:
    """The table with its labels in a column `y`, and the name that this column had."""
    names = table.column_names
    usual = [name for name in names if name.lower() in _USUAL_LABELS]
    if label is None:
        label = "y" if "y" in names or len(usual) != 1 else usual[0]
    if label not in names:
        there = ", ".join(map(repr, names)) or "none"
        if any(_is_number(name) for name in names):
            raise DataError(
                f"{path} has numbers where the names of its columns should be ({there}); put a line of names "
                f"first, with {label!r} for the labels."
            )
        raise DataError(
            f"{path} has no column {label!r} of labels (its columns: {there}); name the column that holds "
            "them by --label, or rename it to 'y'."
        )
    if label != "y" and "y" in names:
        raise DataError(f"{path} has a column 'y' beside its labels {label!r}; rename or remove it.")
    renamed = table.rename_columns(["y" if name == label else name for name in names])
    return renamed.replace_schema_metadata(table.schema.metadata), label


def labels_of(table: "Table", label: str, path: Path) -> dict[str, NDArray[Any]]:
    """The columns that say something about rows; `label` is the name that `y` has in the file."""
    columns = {}
    for name in ("y", "split", "groups", *([VIEW] if "X" in table.column_names else [])):
        if name in table.column_names:
            if empty := table[name].null_count:
                raise DataError(
                    f"column {label if name == 'y' else name!r} of {path} has "
                    f"{counted(empty, 'empty cell')}; fill them, or remove "
                    "their rows."
                )
            columns[name] = _plain(table[name])
    return columns


def feature_columns(table: "Table") -> tuple[list[str], list[str]]:
    """The columns that give features, and those that are neither features nor reserved."""
    index = (table.schema.pandas_metadata or {}).get("index_columns", ())
    others = [name for name in table.column_names if name not in RESERVED]
    features = [
        name
        for name in others
        if (is_number(table[name]) or (is_category(table[name]) and not _names_the_class(table, name)))
        and name not in index
        and not _INDEX.fullmatch(name)
    ]
    return features, [name for name in others if name not in features]


def _names_the_class(table: "Table", name: str) -> bool:
    """Whether a column of text is only another name for the labels."""
    if "y" not in table.column_names:
        return False
    cells, labels = table[name].to_pylist(), table["y"].to_pylist()
    return len(set(cells)) == len(set(labels)) == len(set(zip(cells, labels, strict=True)))


def texts_in(table: "Table") -> list[str]:
    """Columns of text with too many values for a feature."""
    import pyarrow as pa

    return [
        name
        for name in table.column_names
        if name not in RESERVED
        and not _INDEX.fullmatch(name)
        and (pa.types.is_string(table[name].type) or pa.types.is_large_string(table[name].type))
        and not is_category(table[name])
        and len(set(table[name].to_pylist())) > 1
    ]


def not_for_testing(split: NDArray[Any] | None, rows: int) -> NDArray[np.bool_]:
    if split is None:
        return np.ones(rows, bool)
    return np.array([PARTS.get(str(part).lower()) != "test" for part in split.flat])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def require_plain_numbers(table: "Table", path: Path) -> None:
    """Refuse a column of numbers that is read as text because of a row of text, such as names or units."""
    import pyarrow as pa

    for name in table.column_names:
        if name in RESERVED or not pa.types.is_string(table[name].type):
            continue
        cells = [str(cell) for cell in table[name].to_pylist() if cell is not None]
        odd = [cell for cell in cells if not _is_number(cell)]
        if 0 < len(odd) <= len(cells) // 10:
            first = at_row(table[name].to_pylist().index(odd[0]))
            raise DataError(
                f"column {name!r} of {path} has numbers, but {odd[0]!r} in {first}; remove such rows, or "
                "leave the cells empty."
            )


def lists_of(rows: "ChunkedArray", path: Path) -> NDArray[Any]:
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
            f"column 'X' of {path} is empty in {counted(rows.null_count, 'row')}, the first is "
            f"{at_row(first)}; remove or fill such rows."
        )
    if len(pc.unique(pc.list_value_length(rows))) > 1:
        raise DataError(
            f"column 'X' of {path} has rows of different lengths; each must hold the same features."
        )
    values = pc.list_flatten(rows).to_numpy()
    return values.reshape(len(rows), len(values) // max(1, len(rows)))


def _first_sentence(error: Exception) -> str:
    return first_line(error).partition(". ")[0]


def _plain(column: Any) -> NDArray[Any]:
    """A column of numbers or strings as an array, whether or not it was stored as categories."""
    values = np.asarray(column.to_pylist())
    return values.astype(str) if values.dtype == object else values
