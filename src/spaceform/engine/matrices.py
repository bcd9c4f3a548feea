"""From matrices as people have them (sparse or dense, with repeated rows) to those of the engine."""

import os
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils.class_weight import compute_class_weight

_Array = NDArray[Any]

_BLOCK_ROWS = 1024
"""How many rows are made dense at a time."""

_FEW_KINDS, _REPEATED, _MOST_COPIES = 1_000, 3, 50_000
"""For `told_apart`: the most distinct rows, how often each comes at least (on average), and about the most
rows to make.
"""


def row_blocks(X: Any) -> Iterator[_Array]:
    """The rows of a matrix in dense blocks."""
    for i in range(0, X.shape[0], _BLOCK_ROWS):
        block = X[i : i + _BLOCK_ROWS]
        yield block.astype(np.float32).toarray() if issparse(X) else block


def dense_rows(X: Any) -> _Array:
    """The matrix in dense form; a sparse one in float32, refused if there is too little memory to fit it."""
    if not issparse(X):
        dense: _Array = X
        return dense
    needed, free = 4 * 4 * X.shape[0] * X.shape[1], _free_memory()  # the rows, and three times as much
    if needed > free:
        raise ValueError(
            f"sparse X of shape {X.shape} would take {needed / 1e9:.1f} GB to fit once it is dense, and "
            f"{free / 1e9:.1f} GB are free; reduce its columns first, e.g. with sklearn's TruncatedSVD(256)"
        )
    return np.concatenate([*row_blocks(X)])


def _free_memory() -> float:
    """Bytes of free memory; infinite where the system does not say."""
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")


def merged(X: _Array, labels: _Array, weight: _Array) -> tuple[_Array, _Array, _Array]:
    """Each distinct (x, y) of positive weight once, its weights added; their order depends on x, y alone."""
    rows: dict[bytes, list[int]] = {}
    for i in np.flatnonzero(weight > 0):
        # + 0.0: minus zero equals zero, but has other bytes
        key = blake2b((X[i] + 0.0).tobytes(), digest_size=16, salt=int(labels[i]).to_bytes(8)).digest()
        rows.setdefault(key, []).append(int(i))
    groups = [rows[key] for key in sorted(rows)]
    first = np.array([group[0] for group in groups], dtype=np.intp)
    return X[first], labels[first], np.array([weight[group].sum() for group in groups], dtype=weight.dtype)


def told_apart(X: _Array, labels: _Array, weight: _Array) -> tuple[_Array, _Array, _Array]:
    """Undo `merged` where distinct rows are few: repeat each of them as often as its weight says.

    In a table with a few columns of categories most rows are repeated. Then some copies of a row must train
    while others are held out: to hold out all copies would test on rows unlike any that the model will see.
    Weights that are all equal, or that are no whole numbers, do not come from repeated rows, and where many
    rows are distinct, some of them can be held out; then nothing changes.
    """
    repeated = weight.sum() >= _REPEATED * len(weight) and weight.min() < weight.max()
    if len(weight) > _FEW_KINDS or not repeated or not (weight == np.floor(weight)).all():
        return X, labels, weight
    copies = np.floor(weight * min(1.0, _MOST_COPIES / weight.sum()))
    copies = np.maximum(1, copies).astype(np.int64)
    index = np.repeat(np.arange(len(copies)), copies)
    return X[index], labels[index], (weight / copies)[index].astype(weight.dtype)


def weighed(
    weight: _Array, labels: _Array, classes: _Array, asked: Mapping[Any, float] | Literal["balanced"] | None
) -> _Array:
    """The weights of rows times those of their classes; "balanced" gives every class the same sum."""
    if asked is None:
        return weight
    if asked == "balanced":
        sums = np.bincount(labels, weight, minlength=len(classes))
        each = np.divide(weight.sum(), len(sums) * sums, out=np.zeros_like(sums), where=sums > 0)
    else:
        each = compute_class_weight(dict(asked), classes=classes, y=classes[labels])
    found: _Array = weight * each[labels]
    return found
