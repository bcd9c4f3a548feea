"""Is a stated probability the frequency of being right? Calibration error and reliability bins.

Bins are half-open intervals of confidence, [a, b), the last one closed: confidence exactly 1 belongs to the
last bin, exactly 0 to the first.

`equal_width`: [k/B, (k+1)/B). `equal_mass`: the sorted confidences are cut into B runs whose sizes differ
by at most one, the larger ones first. Equal confidences are never in two bins: they belong to the bin of the
highest of them. So the result does not depend on the order of the examples. With many equal confidences (a
saturated float32 softmax) some bins are larger and some are empty. Empty bins have no mass.
"""

from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from spaceform.metrics.inputs import (
    TensorOrArray,
    as_correct,
    as_counts,
    as_finite,
    as_labels,
    as_probs,
    top_label,
)

__all__ = ["Reliability", "calibration_error", "reliability", "top_label_error"]

Binning = Literal["equal_mass", "equal_width"]
Norm = Literal["l1", "l2", "max"]


class Reliability(NamedTuple):
    """Non-empty bins in order of confidence; the error bars are Wilson's 95% interval of the accuracy."""

    lower: Float[Tensor, " bins"]
    upper: Float[Tensor, " bins"]
    size: Int[Tensor, " bins"]
    confidence: Float[Tensor, " bins"]
    accuracy: Float[Tensor, " bins"]
    accuracy_low: Float[Tensor, " bins"]
    accuracy_high: Float[Tensor, " bins"]


def calibration_error(
    probs: TensorOrArray,
    y: TensorOrArray,
    bins: int = 15,
    binning: Binning = "equal_mass",
    norm: Norm = "l2",
    *,
    classwise: bool = False,
    debias: bool = False,
    counts: TensorOrArray | None = None,
) -> Float[Tensor, "*draws"]:
    """How far accuracy lies from confidence; the paper's "ECE" is the default, 15 bins of equal mass and l2.

    With πᵦ the share of the examples in bin b: l1 is Σ πᵦ |accᵦ − confᵦ|, l2 is √(Σ πᵦ (accᵦ − confᵦ)²),
    max is maxᵦ |accᵦ − confᵦ|; l1 ≤ l2 ≤ max. Top-label: the confidence of the predicted class (the first
    of equal ones) against being right. `classwise`: pⱼ against [y = j] for each class, every class weighing
    the same: mean of l1, root mean square of l2, largest of max.

    `debias` (l2): Kumar et al. 2019, accᵦ(1 − accᵦ)/(nᵦ − 1), the sampling variance of accᵦ, is taken off
    each squared gap; a sum below 0 gives 0. The plain l2 is biased upwards by about √(Σ πᵦ accᵦ(1 −
    accᵦ)/nᵦ).
    """
    _check_options(bins, binning, norm, debias)
    p = as_probs(probs)
    labels = as_labels(y, "y", *p.shape)
    n = as_counts(counts, len(p))
    weights = None if counts is None else n.reshape(-1, len(p))
    if not classwise:
        confidence, right = top_label(p, labels)
        error = _norm([_gaps(_binned(confidence, right, bins, binning, weights))], norm, debias)
    else:
        p, labels = p.cpu(), labels.cpu()
        gaps = [
            _gaps(_binned(p[:, j].contiguous(), labels == j, bins, binning, weights))
            for j in range(p.shape[1])
        ]
        error = _norm(gaps, norm, debias)
    return error.reshape(n.shape[:-1])


def top_label_error(
    confidence: TensorOrArray,
    right: TensorOrArray,
    bins: int = 15,
    binning: Binning = "equal_mass",
    norm: Norm = "l2",
) -> Float[Tensor, ""]:
    """`calibration_error` from the probability of each predicted class and whether it is right.

    For predictions that are not kept whole, such as those of millions of examples.
    """
    _check_options(bins, binning, norm, False)
    p = as_finite(confidence, "confidence", 1)
    hit = as_correct(right, len(p))
    if not bool(((p >= 0) & (p <= 1 + 1e-4)).all()):
        raise ValueError(f"confidence must be probabilities, got values from {p.min():g} to {p.max():g}")
    return _norm([_gaps(_binned(p.cpu(), hit.cpu(), bins, binning, None))], norm, False).squeeze(0)


def reliability(
    probs: TensorOrArray, y: TensorOrArray, bins: int = 15, binning: Binning = "equal_mass"
) -> Reliability:
    """The bins behind `calibration_error`, for plots.

    `lower` and `upper` are the ends of the interval (equal width) or the least and the largest confidence
    in the bin (equal mass).
    """
    _check_options(bins, binning, "l1", False)
    p = as_probs(probs)
    confidence, right = top_label(p, as_labels(y, "y", *p.shape))
    b = _binned(confidence, right, bins, binning, None)
    keep = b.mass[0] > 0
    n, hits = b.mass[0][keep], b.hits[0][keep]
    if binning == "equal_width":
        k = keep.nonzero().squeeze(-1)
        lower, upper = k / bins, (k + 1) / bins
    else:
        ends = b.ends[0]
        lower = b.ordered[ends[:-1][keep]].double()
        upper = b.ordered[ends[1:][keep] - 1].double()
    z2 = 1.959963984540054**2
    centre = (hits + z2 / 2) / (n + z2)
    half = (z2 * (hits * (n - hits) / n + z2 / 4)).sqrt() / (n + z2)
    return Reliability(
        lower.double(),
        upper.double(),
        n.long(),
        b.total[0][keep] / n,
        hits / n,
        (centre - half).clamp(0, 1),
        (centre + half).clamp(0, 1),
    )


class _Binned(NamedTuple):
    """For each draw and bin: mass, sum of confidences, number of hits, end of the bin in sorted order."""

    mass: Float[Tensor, "draws bins"]
    total: Float[Tensor, "draws bins"]
    hits: Float[Tensor, "draws bins"]
    ends: Int[Tensor, "draws edges"]
    ordered: Float[Tensor, " batch"]


def _binned(
    confidence: Float[Tensor, " batch"],
    hit: Bool[Tensor, " batch"],
    bins: int,
    binning: str,
    counts: Int[Tensor, "draws batch"] | None,
) -> _Binned:
    """Sort once; a bin is then a run, and its sums are differences of running sums."""
    order = torch.from_numpy(np.argsort(confidence.numpy()))
    x, a = confidence[order], hit[order].double()
    w = None if counts is None else counts[:, order]
    N, draws = len(x), 1 if w is None else len(w)
    running = None if w is None else w.cumsum(-1)
    if binning == "equal_width":
        edges = torch.linspace(0, 1, bins + 1, dtype=x.dtype)[1:-1]
        cuts = torch.searchsorted(x, edges).expand(draws, -1)
    else:
        size = torch.tensor([[N]]) if running is None else running[:, -1:]
        k = torch.arange(1, bins)
        first = k * (size // bins) + torch.minimum(k, size % bins)  # the rank each bin would start at
        if running is not None:  # the example that holds that rank
            first = torch.searchsorted(running, first, right=True)
        ties_start = torch.searchsorted(x, x[first.clamp_max(N - 1)])  # and the first of its equals
        cuts = torch.where(first < N, ties_start, N)
    ends = torch.cat([cuts.new_zeros(draws, 1), cuts, cuts.new_full((draws, 1), N)], -1)
    mass = ends.diff().double() if running is None else _runs(running, ends)
    if w is None:
        return _Binned(mass, _runs(x.double().cumsum(0)[None], ends), _runs(a.cumsum(0)[None], ends), ends, x)
    total, hits = (_runs((w * v).cumsum_(-1), ends) for v in (x.double(), a))
    return _Binned(mass, total, hits, ends, x)


def _runs(
    running: Shaped[Tensor, "draws batch"], ends: Int[Tensor, "draws edges"]
) -> Float[Tensor, "draws bins"]:
    """Sums over [endsₖ, endsₖ₊₁) from running sums."""
    at = running.gather(-1, (ends - 1).clamp_min(0))
    return torch.where(ends > 0, at, 0).diff().double()


class _Gaps(NamedTuple):
    share: Float[Tensor, "draws bins"]
    gap: Float[Tensor, "draws bins"]
    variance: Float[Tensor, "draws bins"]


def _gaps(b: _Binned) -> _Gaps:
    n = b.mass.clamp_min(1)
    acc = b.hits / n
    return _Gaps(
        b.mass / b.mass.sum(-1, keepdim=True),
        (acc - b.total / n).abs(),
        acc * (1 - acc) / (n - 1).clamp_min(1),
    )


def _norm(parts: list[_Gaps], norm: str, debias: bool) -> Float[Tensor, " draws"]:
    """L^p norm over bins and classes, each class with the mass 1/len(parts)."""
    share, gap, variance = (torch.cat(x, -1) for x in zip(*parts, strict=True))
    if norm == "max":
        return gap.amax(-1)
    share = share / len(parts)
    if norm == "l1":
        return (share * gap).sum(-1)
    squares = gap.square() - variance if debias else gap.square()
    return (share * squares).sum(-1).clamp_min(0).sqrt()


def _check_options(bins: int, binning: str, norm: str, debias: bool) -> None:
    if not isinstance(bins, int) or bins < 1:
        raise ValueError(f"bins must be a positive integer, got {bins!r}")
    for name, value, choices in (("binning", binning, get_args(Binning)), ("norm", norm, get_args(Norm))):
        if value not in choices:
            raise ValueError(f"unknown {name} {value!r}; choose from {', '.join(choices)}")
    if debias and norm != "l2":
        raise ValueError(f"debias is defined for norm='l2', got norm={norm!r}")
