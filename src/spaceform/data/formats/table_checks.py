"""Refuse tables with semicolons or tabs as separators, with empty cells, or with too large numbers."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaceform.data.dataset import DataError
from spaceform.data.stored_rows import LARGEST
from spaceform.foundation.messages import at_row, counted

_OTHERS = {";": "';'", "\t": "a tab", "|": "'|'"}


def require_commas(path: Path) -> None:
    """Refuse a CSV file whose first line has other separators than commas; the error says how to write it."""
    with open(path, encoding="utf-8", errors="replace") as file:
        names = file.readline()
    for mark, called in _OTHERS.items():
        if mark in names and "," not in names:
            how = f"sep={mark!r}" + (", decimal=','" if mark == ";" else "")
            raise DataError(
                f"{path} is parted by {called} and not by commas; write it again, with pandas by "
                f"read_csv(file, {how}).to_csv(file, index=False)."
            )


def require_size(column: NDArray[Any], name: str, path: Path) -> None:
    """Refuse a column with a number that is too large to be a feature."""
    if column.dtype.kind != "b" and len(column):
        most = max(abs(float(column.min())), abs(float(column.max())))
        if np.isfinite(most) and most > LARGEST:
            raise DataError(
                f"{name} in {path} has a value of size {most:.3g}, and features go up to {LARGEST:g}; "
                "divide the column by a constant, or take its logarithm."
            )


def require_values(column: NDArray[Any], name: str, path: Path) -> None:
    """Refuse a column of a table with cells that hold no number."""
    if (count := int((bad := ~np.isfinite(column)).sum())) > 0:
        raise DataError(
            f"column {name!r} of {path} has {counted(count, 'empty, NaN or infinite cell')}, the first "
            f"in {at_row(int(bad.argmax()))}; fill them, or remove such rows or the column."
        )
