"""What the columns of a table become: numbers as they are, text as one feature for each of its values.

A feature is a value, `TableFeature`, that says how its number is found in a row. So a run reads another
table in the same way: nothing is fitted anew.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from spaceform.data.errors import DataError

if TYPE_CHECKING:
    from pyarrow import ChunkedArray, Table

MOST_VALUES = 100
"""The most values of a text column; with more it is an identifier, a date or a sentence, and left out."""


@final
@dataclass(frozen=True)
class TableFeature:
    """One feature of a table.

    It is a number of the column `source`, with `fill` for an empty cell; or 1 if the cell is the text `value`
    and 0 if not; or 1 if the cell is empty and 0 if not (`is_empty`).
    """

    source: str
    value: str | None = None
    fill: float | None = None
    is_empty: bool = False

    @property
    def name(self) -> str:
        """The name of the feature for people."""
        if self.is_empty:
            return f"{self.source} is empty"
        return self.source if self.value is None else f"{self.source} = {self.value}"

    def of(self, table: "Table") -> NDArray[Any]:
        """The feature of every row."""
        cells = table[self.source]
        if self.is_empty:
            return np.asarray(cells.is_null(nan_is_null=True).to_numpy())
        if self.value is not None:
            return np.array([cell == self.value for cell in _texts(cells)])
        numbers = _numbers(cells)
        return numbers if self.fill is None else np.where(np.isnan(numbers), self.fill, numbers)


def columns_of(table: "Table", names: Sequence[str], rows: NDArray[np.bool_]) -> tuple[TableFeature, ...]:
    """The features that the columns of these names give; `rows` are those from which a fill is taken."""
    return tuple(column for name in names for column in _of_one(table, name, rows))


def is_category(cells: "ChunkedArray") -> bool:
    """Whether a column is text with few values, each of which is in more than one row on average."""
    import pyarrow as pa

    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary)
    if not any(is_kind(cells.type) for is_kind in kinds):
        return False
    values = {cell for cell in _texts(cells) if cell is not None}
    return 1 < len(values) <= min(MOST_VALUES, len(cells) // 2)


def is_number(cells: "ChunkedArray") -> bool:
    """Whether a column has numbers or booleans, and not only empty cells."""
    import pyarrow as pa

    kinds = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_decimal)
    return any(is_kind(cells.type) for is_kind in kinds) and cells.null_count < len(cells)


def require_columns(columns: Sequence[TableFeature], table: "Table", path: Any) -> None:
    """Raise an error if a table lacks a column, or has text where numbers are needed."""
    for column in columns:
        there = column.source in table.column_names
        numbers = column.value is None and not column.is_empty
        if there and (not numbers or _has_numbers(table[column.source], column)):
            continue
        kind, needed = " of numbers" if numbers else "", len({c.source for c in columns})
        if there and (wrong := _no_number(table[column.source])):
            raise DataError(
                f"{path}: column {column.source!r} must hold numbers, and its cell in {wrong}; "
                "write a number there, or leave the cell empty."
            )
        raise DataError(
            f"{path} has no column {column.source!r}{kind}, one of the {needed:,} that are needed; add it, "
            "or rename the column that holds it."
        )


def _has_numbers(cells: "ChunkedArray", column: TableFeature) -> bool:
    """Whether a feature can be made of these cells; all of them may be empty where empty cells are filled."""
    return is_number(cells) or (column.fill is not None and cells.null_count == len(cells))


def _no_number(cells: "ChunkedArray") -> str:
    """The first cell that is no number in a column most of whose cells are, with its row; or empty."""

    def is_one(cell: str) -> bool:
        try:
            float(cell)
        except ValueError:
            return False
        return True

    wrong = [(row, cell) for row, cell in enumerate(_texts(cells)) if cell and not is_one(cell)]
    most = 0 < len(wrong) <= len(cells) // 2
    return f"row {wrong[0][0]} (counted from 0) is {wrong[0][1]!r}" if most else ""


def _of_one(table: "Table", name: str, rows: NDArray[np.bool_]) -> Iterator[TableFeature]:
    cells = table[name]
    empty = bool(cells.is_null(nan_is_null=True).to_numpy().any())
    if is_number(cells):
        yield TableFeature(name, fill=_middle(_numbers(cells), rows) if empty else None)
    else:
        values = sorted({cell for cell in _texts(cells) if cell is not None})
        for value in values[1:] if len(values) == 2 and not empty else values:
            yield TableFeature(name, value=value)
    if empty:
        yield TableFeature(name, is_empty=True)


def _middle(numbers: NDArray[Any], rows: NDArray[np.bool_]) -> float:
    """The median of these rows; of all rows if these are empty."""
    known = numbers[rows & ~np.isnan(numbers)]
    return float(np.median(known if len(known) else numbers[~np.isnan(numbers)]))


def _numbers(cells: "ChunkedArray") -> NDArray[Any]:
    """Numbers or booleans; an empty cell is NaN."""
    import pyarrow as pa

    if pa.types.is_boolean(cells.type):
        cells = cells.cast(pa.uint8())
    cast = pa.types.is_decimal(cells.type) or pa.types.is_null(cells.type)
    return np.asarray((cells.cast(pa.float64()) if cast else cells).to_numpy())


def _texts(cells: "ChunkedArray") -> list[str | None]:
    return [None if cell is None else str(cell) for cell in cells.to_pylist()]
