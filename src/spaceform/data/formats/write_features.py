"""Shards put together into one file: `.npz` or `.parquet`, as `load_features` reads them."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaceform.data.formats.shards import Shards, whole_file

_NPZ_NAMES = {"file": "files"}
"""Columns whose array has another name."""


def write_npz(shards: Shards, path: Path) -> None:
    """`X`, `y` numbered over `classes`, `files`; and `split`, `groups`, `view` where there are any."""
    arrays: dict[str, NDArray[Any]] = {"X": shards.features()}
    for name in ("y", "file", "split", "groups", "view"):
        values = shards.column(name)
        if values is not None:
            arrays[_NPZ_NAMES.get(name, name)] = values.astype(str) if values.dtype == object else values
    if "y" in arrays:
        arrays["classes"] = np.array(shards.about.classes)
    with whole_file(path) as file:
        np.savez(file, allow_pickle=False, **arrays)


def write_parquet(shards: Shards, path: Path) -> None:
    """The same as columns, with one row group for each shard; `y` holds the names of the classes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = pa.array(shards.about.classes, pa.string())
    with whole_file(path) as file, contextlib.ExitStack() as stack:
        writer: Any = None
        for batch in _full(shards):
            table = pa.table({name: batch[name] for name in batch.schema.names})
            table = table.set_column(0, "X", batch["X"].cast(pa.list_(pa.float32())))
            if "y" in table.column_names:
                at = table.column_names.index("y")
                table = table.set_column(at, "y", names.take(batch["y"]))
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(file, table.schema))
            writer.write_table(table)


def _full(shards: Shards) -> Iterator[Any]:
    return (batch for batch in shards.batches() if batch.num_rows)
