"""The non-decreasing step function nearest to given values: pool adjacent violators."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Blocks", "pool_adjacent_violators"]

_Numbers = NDArray[np.float64]


class Blocks(NamedTuple):
    """A step function of the distinct values `at`: block i begins at at[start[i]], its value is mean[i]."""

    at: NDArray[np.floating]
    start: NDArray[np.int64]
    mean: _Numbers

    def values(self, x: NDArray[np.floating]) -> _Numbers:
        """The value at each x, which must be one of `at`."""
        return self.mean[np.searchsorted(self.at[self.start], x, side="right") - 1]


def pool_adjacent_violators(
    x: NDArray[np.floating], target: NDArray[np.bool_], weight: _Numbers | None = None
) -> Blocks:
    """The non-decreasing step function of x nearest to `target` in weighted squares.

    As long as a block's mean is not below the next one's, both are one block; here all such neighbours join
    at once.
    """
    at, group = np.unique(x, return_inverse=True)
    weight = np.ones(len(x)) if weight is None else weight
    counts = np.bincount(group, weight)
    sums = np.bincount(group, weight * target)
    start = np.arange(len(at))
    while not (rises := np.diff(sums / counts) > 0).all():
        first = np.flatnonzero(np.concatenate([[True], rises]))
        start, sums, counts = start[first], np.add.reduceat(sums, first), np.add.reduceat(counts, first)
    return Blocks(at, start, sums / counts)
