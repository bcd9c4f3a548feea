"""Whether a score tells when the model is wrong: AUROC, risk against coverage, out-of-distribution detection.

Higher scores mean more confidence. For equal scores every value is the mean over all their orders, so it does
not depend on the order of the examples.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from spaceform.metrics.inputs import TensorOrArray, as_correct, as_counts, as_finite

__all__ = ["RiskCoverage", "aurc", "auroc", "ood_auroc", "ood_fpr", "risk_coverage"]


class RiskCoverage(NamedTuple):
    """To answer if score ≥ threshold answers a share `coverage`; a share `risk` of these answers is wrong."""

    coverage: Float[Tensor, " points"]
    risk: Float[Tensor, " points"]
    threshold: Float[Tensor, " points"]


def auroc(
    score: TensorOrArray, correct: TensorOrArray, *, counts: TensorOrArray | None = None
) -> Float[Tensor, "*draws"]:
    """Probability that a right example scores above a wrong one, ties half: the paper's Table 1 with score
    ‖z‖.

    NaN where all examples are right or all are wrong.
    """
    s, right = _scored(score, correct)
    n = as_counts(counts, len(s))
    g = Groups(s)
    positive, negative = g.sums(n * right), g.sums(n * ~right)
    below = negative.cumsum(-1) - negative / 2
    return (positive * below).sum(-1) / (positive.sum(-1) * negative.sum(-1))


def risk_coverage(score: TensorOrArray, correct: TensorOrArray) -> RiskCoverage:
    """The curve of selective prediction, one point per distinct score, from the strictest threshold down."""
    s, right = _scored(score, correct)
    g = Groups(s)
    ones = torch.ones(len(s))
    answered, wrong = (g.sums(v).flip(-1).cumsum(-1) for v in (ones, (~right).double()))
    return RiskCoverage(answered / len(s), wrong / answered, g.values.flip(-1).double())


def aurc(
    score: TensorOrArray, correct: TensorOrArray, *, counts: TensorOrArray | None = None
) -> Float[Tensor, "*draws"]:
    """Area under the risk-coverage curve: (1/N) Σₖ (share of errors among the k highest scores).

    Inside a run of m equal scores after s others, the expected errors among the first k are Eₛ + (k − s)
    e/m, and Σₖ of their share is e + (Eₛ − s e/m)(Hₛ₊ₘ − Hₛ) with H the harmonic numbers.
    """
    score_, right = _scored(score, correct)
    n = as_counts(counts, len(score_))
    g = Groups(-score_)
    m, e = g.sums(n), g.sums(n * ~right)
    end = m.cumsum(-1)
    s, before = end - m, e.cumsum(-1) - e
    harmonic = torch.cat(
        [torch.zeros(1).double(), (1 / torch.arange(1, int(end.max()) + 1).double()).cumsum(0)]
    )
    run = harmonic[end.long()] - harmonic[s.long()]
    area = e + (before - s * e / m.clamp_min(1)) * run
    return area.sum(-1) / end[..., -1]


def ood_auroc(inside: TensorOrArray, outside: TensorOrArray) -> Float[Tensor, ""]:
    """Probability that a score of a known example exceeds that of a foreign one, ties half."""
    a, b = _two_sets(inside, outside)
    known = torch.cat([torch.ones(len(a), dtype=torch.bool), torch.zeros(len(b), dtype=torch.bool)])
    return auroc(torch.cat([a, b]), known)


def ood_fpr(inside: TensorOrArray, outside: TensorOrArray, *, tpr: float = 0.95) -> Float[Tensor, ""]:
    """Share of foreign examples above the highest threshold that keeps a share `tpr` of known examples."""
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must lie in (0, 1], got {tpr!r}")
    a, b = _two_sets(inside, outside)
    # The least k with k/N ≥ tpr; the subtraction keeps 0.95 · 100 = 95.00000000000001 from becoming 96.
    kept = max(1, int(torch.tensor(tpr * len(a) - 1e-9 * len(a)).double().ceil()))
    threshold = a.sort(descending=True).values[kept - 1]
    return (b >= threshold).double().mean()


class Groups:
    """Runs of equal scores in increasing order."""

    def __init__(self, score: Float[Tensor, " batch"]) -> None:
        ordered, self.order = score.sort()
        self.values, sizes = torch.unique_consecutive(ordered, return_counts=True)
        self.last: Int[Tensor, " groups"] = sizes.cumsum(0) - 1

    def sums(self, per_example: Tensor) -> Float[Tensor, "*draws groups"]:
        """Sum of the values of each run."""
        running = per_example[..., self.order].double().cumsum(-1)[..., self.last]
        return running.diff(dim=-1, prepend=torch.zeros_like(running[..., :1]))


def _scored(
    score: TensorOrArray, correct: TensorOrArray
) -> tuple[Float[Tensor, " batch"], Bool[Tensor, " batch"]]:
    s = as_finite(score, "score", 1)
    return s.cpu(), as_correct(correct, len(s)).cpu()


def _two_sets(
    inside: TensorOrArray, outside: TensorOrArray
) -> tuple[Float[Tensor, " a"], Float[Tensor, " b"]]:
    a, b = as_finite(inside, "inside", 1).cpu(), as_finite(outside, "outside", 1).cpu()
    return a.double(), b.double()
