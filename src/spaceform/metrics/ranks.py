"""The order statistic on which every guarantee rests, and how many items it needs."""

import math
from numbers import Real
from typing import Any

import numpy as np
from torch import Tensor

__all__ = ["checked_share", "items_needed", "lowest_left_out"]

_ROUNDING = 1e-9
"""0.1 · 10 may be just below 1; no sample is large enough for this to matter."""


def checked_share(value: float, name: str) -> float:
    """A share strictly between 0 and 1; it may be a tensor or array with one number and no axis."""
    plain: Any = value
    if isinstance(plain, Tensor | np.ndarray) and plain.ndim == 0:
        plain = plain.item()
    if isinstance(plain, bool) or not isinstance(plain, Real):
        raise TypeError(f"{name} must be a number between 0 and 1, such as 0.1, got {value!r}")
    if not 0 < float(plain) < 1:
        raise ValueError(f"{name} must lie between 0 and 1, both excluded, got {value!r}")
    return float(plain)


def lowest_left_out(items: int, share: float) -> int:
    """The k for which a further item lies below the k-th lowest of `items` with a probability of at most
    `share`: ⌊share · (items + 1)⌋, and 0 where there are too few items.
    """
    return min(items, math.floor(share * (items + 1) + _ROUNDING))


def items_needed(share: float) -> int:
    """The least number of items for which `lowest_left_out` is not 0."""
    return math.ceil((1 - _ROUNDING) / share) - 1
