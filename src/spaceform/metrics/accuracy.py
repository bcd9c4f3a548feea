"""How often predictions are right, and how good their probabilities are: accuracy, NLL, Brier score.

Every metric takes `counts`, of shape (*draws, batch): how often each example occurs. The result is then that
of data in which each example is repeated as often, one value for each draw; `bootstrap` is built on this.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.metrics.inputs import (
    TensorOrArray,
    as_counts,
    as_finite,
    as_floats,
    as_labels,
    as_probs,
    predicted_class,
)

__all__ = ["accuracy", "brier", "mean", "nll"]


def mean(values: TensorOrArray, *, counts: TensorOrArray | None = None) -> Float[Tensor, "*draws"]:
    """Mean of one number per example, in float64."""
    v = as_floats(values, "values", 1).cpu().double()
    n = as_counts(counts, len(v)).double()
    return n @ v / n.sum(-1)


def accuracy(
    scores: TensorOrArray, y: TensorOrArray, *, counts: TensorOrArray | None = None
) -> Float[Tensor, "*draws"]:
    """Share of examples whose largest score is that of their class; of equal scores the first counts."""
    s = as_finite(scores, "scores", 2)
    right = predicted_class(s) == as_labels(y, "y", *s.shape).to(s.device)
    return mean(right.double(), counts=counts)


def nll(
    log_probs: TensorOrArray, y: TensorOrArray, *, counts: TensorOrArray | None = None
) -> Float[Tensor, "*draws"]:
    """−log p(y), mean over examples: infinite if the true class of an example has the probability 0."""
    lp = as_floats(log_probs, "log_probs", 2)
    labels = as_labels(y, "y", *lp.shape).to(lp.device)
    total = torch.logsumexp(lp, -1)
    if not bool((total.abs() <= 1e-3).all()):  # NaN compares false
        row = int((~(total.abs() <= 1e-3)).nonzero()[0])
        raise ValueError(
            f"log_probs must be normalised, but row {row} has a logsumexp of {total[row].item():.4g}; "
            "pass log_softmax(logits)"
        )
    surprise = -lp.gather(-1, labels[:, None]).squeeze(-1).cpu().double()
    if counts is None:
        return surprise.mean()
    n = as_counts(counts, len(surprise)).double()
    return torch.where(n > 0, n * surprise, 0).sum(-1) / n.sum(-1)  # 0 × ∞ is 0: the example is not there


def brier(
    probs: TensorOrArray, y: TensorOrArray, *, counts: TensorOrArray | None = None
) -> Float[Tensor, "*draws"]:
    """Σⱼ (pⱼ − [y = j])², mean over examples: between 0 and 2."""
    p = as_probs(probs)
    labels = as_labels(y, "y", *p.shape).to(p.device)
    p_y = p.gather(-1, labels[:, None]).squeeze(-1).double()
    others = p.scatter(-1, labels[:, None], 0).square().sum(-1, dtype=torch.float64)
    return mean(others + (1 - p_y).square(), counts=counts)
