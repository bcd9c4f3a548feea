"""Are these two the same? EER, minDCF, Cllr and its least value, the DET curve.

`score` is one number for each pair, higher for more alike; `same` says whether the pair shares a class. A
pair is accepted where score ≥ threshold. A false accept is an accepted pair of two classes, a false reject a
rejected pair of one class. Equal scores have one threshold, so no value depends on the order of the pairs.
"""

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from spaceform.metrics.confidence import Groups
from spaceform.metrics.inputs import TensorOrArray, as_correct, as_finite
from spaceform.metrics.monotone import pool_adjacent_violators
from spaceform.metrics.ranks import checked_share, items_needed, lowest_left_out

__all__ = ["DetCurve", "accept_threshold", "cllr", "det_curve", "eer", "min_cllr", "min_dcf"]


class DetCurve(NamedTuple):
    """The two error rates at every threshold, from the strictest down; at the first none is accepted."""

    false_accept: Float[Tensor, " points"]
    false_reject: Float[Tensor, " points"]
    threshold: Float[Tensor, " points"]


def det_curve(score: TensorOrArray, same: TensorOrArray) -> DetCurve:
    """Detection error trade-off: one point per distinct score, after one at an infinite threshold."""
    s, one = _pairs(score, same)
    g = Groups(s)
    accepted, right = (g.sums(v).flip(-1).cumsum(-1) for v in ((~one).double(), one.double()))
    nothing = torch.zeros(1, dtype=torch.float64)
    return DetCurve(
        torch.cat([nothing, accepted / accepted[-1]]),
        torch.cat([nothing + 1, (right[-1] - right) / right[-1]]),
        torch.cat([nothing + torch.inf, g.values.flip(-1).double()]),
    )


def eer(score: TensorOrArray, same: TensorOrArray) -> Float[Tensor, ""]:
    """Equal error rate: where false accepts and false rejects are equally frequent.

    The curve is a polygon: between two thresholds it is a straight line, since a random part of equal scores
    may be accepted.
    """
    accept, reject, _ = det_curve(score, same)
    gap = accept - reject  # rises from −1 to 1
    i = int((gap >= 0).nonzero()[0])
    share = -gap[i - 1] / (gap[i] - gap[i - 1])
    return accept[i - 1] + share * (accept[i] - accept[i - 1])


def min_dcf(
    score: TensorOrArray,
    same: TensorOrArray,
    *,
    prior: float = 0.01,
    false_accept_cost: float = 1.0,
    false_reject_cost: float = 1.0,
) -> Float[Tensor, ""]:
    """The least detection cost over all thresholds, as a share of the cost of never looking at the score.

    The cost is prior · false_reject_cost · P(false reject) + (1 − prior) · false_accept_cost · P(false
    accept), `prior` being the probability that a pair is the same. Accepting all or nothing costs the smaller
    of the two factors, by which it is divided: 1 is a useless score.
    """
    prior = checked_share(prior, "prior")
    costs = {"false_accept_cost": false_accept_cost, "false_reject_cost": false_reject_cost}
    for name, cost in costs.items():
        if not 0 < cost < math.inf:
            raise ValueError(f"{name} must be positive and finite, got {cost!r}")
    accept, reject, _ = det_curve(score, same)
    of_reject, of_accept = prior * false_reject_cost, (1 - prior) * false_accept_cost
    return (of_reject * reject + of_accept * accept).min() / min(of_reject, of_accept)


def cllr(log_ratio: TensorOrArray, same: TensorOrArray) -> Float[Tensor, ""]:
    """Cost of the log-likelihood ratio (Brümmer & du Preez 2006), in bits.

    It is ½ (mean of log₂(1 + e^−ℓ) over pairs of one class + mean of log₂(1 + e^ℓ) over the others). ℓ = 0
    everywhere, which says nothing, costs 1; a ratio that is wrong and certain costs without bound.
    """
    return _cllr(*_pairs(log_ratio, same))


def min_cllr(score: TensorOrArray, same: TensorOrArray) -> Float[Tensor, ""]:
    """The least Cllr that a non-decreasing function of the score has: what calibration could not improve.

    Pool adjacent violators gives the share of same pairs as a function of the score, and so the best ratio.
    `cllr` less this value is the loss by wrong calibration.
    """
    s, one = _pairs(score, same)
    p = torch.from_numpy(pool_adjacent_violators(s.numpy(), one.numpy()).values(s.numpy()))
    share = one.double().mean()
    return _cllr(torch.logit(p) - torch.logit(share), one)


def accept_threshold(different: TensorOrArray, false_accept: float) -> float:
    """The least threshold at which a new pair of two classes is accepted with at most this probability.

    `different` holds scores of n pairs of two classes. A further pair, exchangeable with them, exceeds the
    k-th highest of them with a probability of at most k/(n + 1). So a rate of α takes k = ⌊α(n + 1)⌋, and at
    least 1/α − 1 pairs.
    """
    s = as_finite(different, "different", 1).cpu()
    k = lowest_left_out(len(s), checked_share(false_accept, "false_accept"))
    if k == 0:
        needed = items_needed(false_accept)
        raise ValueError(
            f"false_accept {false_accept:g} needs at least {needed} pairs of two classes, "
            f"got {len(s)}; give more pairs or allow more false accepts"
        )
    kth = s.sort(descending=True).values[k - 1]
    return float(torch.nextafter(kth, torch.full_like(kth, torch.inf)))


def _cllr(ratio: Float[Tensor, " pairs"], same: Bool[Tensor, " pairs"]) -> Float[Tensor, ""]:
    softplus = torch.nn.functional.softplus
    surprise = softplus(-ratio[same]).mean() + softplus(ratio[~same]).mean()
    return surprise / (2 * math.log(2))


def _pairs(
    score: TensorOrArray, same: TensorOrArray
) -> tuple[Float[Tensor, " pairs"], Bool[Tensor, " pairs"]]:
    s = as_finite(score, "score", 1).cpu().double()
    one = as_correct(same, len(s), "same", "y[i] == y[j]").cpu()
    if bool(one.all()) or not bool(one.any()):
        missing = "two classes" if bool(one.all()) else "one class"
        raise ValueError(f"same holds no pair of {missing}; both kinds of pairs are needed")
    return s, one
