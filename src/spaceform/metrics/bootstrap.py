"""How sure a value is: bootstrap intervals of any metric over the examples."""

import inspect
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.metrics.inputs import TensorOrArray, as_tensor

__all__ = ["Interval", "bootstrap"]

IntervalMethod = Literal["percentile", "basic"]

_MOST_COUNTS = 1 << 21  # the most counts in memory at a time


class Interval(NamedTuple):
    """A value, its interval, and its standard error."""

    estimate: float
    low: float
    high: float
    standard_error: float


def bootstrap(
    metric: Callable[..., Any],
    *arrays: TensorOrArray,
    n: int = 1000,
    level: float = 0.95,
    method: IntervalMethod = "percentile",
    generator: torch.Generator | None = None,
) -> Interval:
    """Interval of `metric(*arrays)` from n resamples, with replacement, of the examples (the first axes).

    A metric with a `counts` argument, as those of this package have (pass options with functools.partial),
    is called on many resamples at once with the number of times each example was drawn: nothing is copied.
    Any other metric is called on each resample in turn. Resamples where it is undefined (NaN) are left out.

    `percentile` is the interval of the resampled values. `basic` reflects this interval in the estimate,
    which cancels the bias if resampling makes a metric larger, such as the calibration error. The standard
    error is the standard deviation over the resamples.
    """
    tensors = [as_tensor(a, f"array {i}") for i, a in enumerate(arrays)]
    if not tensors:
        raise ValueError("bootstrap needs at least one array after the metric")
    sizes = [len(t) if t.ndim else 0 for t in tensors]
    N = sizes[0]
    if N == 0 or len(set(sizes)) > 1:
        raise ValueError(f"the arrays must have one common, non-zero length, got {sizes}")
    if not isinstance(n, int) or n < 2:
        raise ValueError(f"n must be an integer of at least 2, got {n!r}")
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level!r}")
    if method not in get_args(IntervalMethod):
        raise ValueError(f"unknown method {method!r}; choose from {', '.join(get_args(IntervalMethod))}")

    estimate = float(metric(*tensors))
    block = max(1, _MOST_COUNTS // N)
    values: list[Tensor] = []
    for start in range(0, n, block):
        drawn = torch.randint(N, (min(block, n - start), N), generator=generator)
        if "counts" in inspect.signature(metric).parameters:
            values.append(torch.as_tensor(metric(*tensors, counts=_counts(drawn))).cpu().double())
        else:
            values += [_at(metric, tensors, rows) for rows in drawn]
    resampled = torch.cat([v.reshape(-1) for v in values])
    resampled = resampled[~resampled.isnan()]
    if len(resampled) < 2:
        return Interval(estimate, float("nan"), float("nan"), float("nan"))
    tail = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.quantile(resampled, tail).tolist()
    if method == "basic":
        low, high = 2 * estimate - high, 2 * estimate - low
    return Interval(estimate, low, high, resampled.std().item())


def _counts(drawn: Int[Tensor, "draws batch"]) -> Int[Tensor, "draws batch"]:
    """How often each example was drawn."""
    draws, N = drawn.shape
    flat = drawn + N * torch.arange(draws)[:, None]
    return torch.bincount(flat.flatten(), minlength=draws * N).reshape(draws, N)


def _at(metric: Callable[..., Any], tensors: list[Tensor], rows: Int[Tensor, " batch"]) -> Float[Tensor, ""]:
    return torch.as_tensor(float(metric(*(t[rows.to(t.device)] for t in tensors))), dtype=torch.float64)
