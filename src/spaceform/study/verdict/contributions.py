"""What each test item contributes to a run's value, so that the value is the mean over the items.

Accuracy, NLL and the Brier score are such means. Calibration error, AUROC and mAP@R are not; there an item's
contribution is the value plus the item's influence on it (the derivative of the value with respect to the
item's weight). So the mean over the items is the value, and the spread of the contributions is that of the
value under resampled items, to first order. One analysis then serves every goal.
"""

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

Scores = Float[NDArray[np.floating], " items"]
Values = Float[NDArray[np.float64], " items"]
ItemProbabilities = Float[NDArray[np.floating], "items classes"]
Labels = Int[NDArray[np.integer], " items"]

_BINS = 15
_SMALLEST = 1e-38  # probabilities are stored as float32
BEYOND_CHANCE = (
    2.6  # standard errors: by chance one value in two hundred lies beyond, and a study has a few heads
)


def right(probabilities: ItemProbabilities, labels: Labels) -> Values:
    """1 where the first of the largest probabilities is that of the label."""
    return (probabilities.argmax(1) == labels).astype(np.float64)


def surprise(probabilities: ItemProbabilities, labels: Labels) -> Values:
    """−log p of the label."""
    own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return -np.log(np.maximum(own, _SMALLEST))


def to_brier(probabilities: ItemProbabilities, labels: Labels) -> Values:
    """‖p − e_y‖² = Σp² − 2p_y + 1."""
    own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return np.einsum("ij,ij->i", probabilities, probabilities, dtype=np.float64) - 2 * own + 1


def to_auroc(score: Scores, correct: Bool[NDArray[np.bool_], " items"]) -> Values | None:
    """Contributions to the AUROC of telling right from wrong items by the score; None where all are alike.

    A right item's influence is (V − T) n/n₁, where V is the share of wrong items below it and n₁ the number
    of right items; that of a wrong item is found in the same way (DeLong).
    """
    n, ones = len(score), int(correct.sum())
    if ones in (0, n):
        return None
    ordered_right, ordered_wrong = np.sort(score[correct]), np.sort(score[~correct])
    V = _share_below(ordered_wrong, score[correct])
    W = 1 - _share_below(ordered_right, score[~correct])
    T = float(V.mean())
    c = np.empty(n)
    c[correct] = (V - T) * n / ones
    c[~correct] = (W - T) * n / (n - ones)
    return T + c


def to_calibration_error(confidence: Scores, correct: Bool[NDArray[np.bool_], " items"]) -> Values:
    """Contributions to T = √(Σ π g²), the l2 error over 15 bins of equal mass; g = accuracy − confidence.

    The influence of an item with (right − confidence) = r in a bin of gap g on T² is 2gr − g² − T². Moving
    the edges of the bins does not change this: an item that leaves one bin enters the next.
    """
    order = np.argsort(confidence, kind="stable")
    x = confidence[order].astype(np.float64)
    r = correct[order].astype(np.float64) - x
    n, edges = len(x), _edges(x)
    sizes = np.diff(edges)
    gaps = np.add.reduceat(r, edges[:-1]) / sizes
    T = float(np.sqrt((sizes * gaps**2).sum() / n))
    out = np.zeros(n)
    if T > 0:
        g = np.repeat(gaps, sizes)
        out[order] = T + (2 * g * r - g**2 - T**2) / (2 * T)
    return out


def _edges(x: Values) -> NDArray[np.intp]:
    """Where the bins of ordered confidences begin and end."""
    n, k = len(x), np.arange(1, _BINS)
    first = k * (n // _BINS) + np.minimum(k, n % _BINS)
    starts = np.searchsorted(x, x[np.minimum(first, n - 1)])  # equal confidences are never in two bins
    return np.unique(np.concatenate([[0], np.where(first < n, starts, n), [n]]))


def chance_in_calibration_error(confidence: Scores) -> tuple[float, float]:
    """The calibration error of perfect probabilities: the level that it reaches by chance, and its variance.

    In a bin of mean variance v = p(1 − p), n g² is v χ²₁. So n T² = Σ v χ²₁, about c χ²_f with c = Σv²/Σv and
    f = (Σv)²/Σv²; its quantile by Wilson and Hilferty.
    """
    x = np.sort(confidence).astype(np.float64)
    n, edges = len(x), _edges(x)
    v = np.add.reduceat(x * (1 - x), edges[:-1]) / np.diff(edges)
    if not v.sum() > 0:
        return 0.0, 0.0
    c, f = (v**2).sum() / v.sum(), v.sum() ** 2 / (v**2).sum()
    high = f * max(0.0, 1 - 2 / (9 * f) + BEYOND_CHANCE * np.sqrt(2 / (9 * f))) ** 3
    return float(np.sqrt(c * high / n)), float((v**2).sum() / (2 * n * v.sum()))


def chance_in_auroc(correct: Bool[NDArray[np.bool_], " items"]) -> float:
    """The level that the AUROC of a score that knows nothing reaches by chance (Mann and Whitney)."""
    ones = int(correct.sum())
    zeros = len(correct) - ones
    return min(1.0, 0.5 + BEYOND_CHANCE * float(np.sqrt((ones + zeros + 1) / (12 * ones * zeros))))


def to_retrieval(
    average_precision: Float[NDArray[np.floating], " queries"],
) -> Float[NDArray[np.float64], " seen"]:
    """Contributions to mAP@R or Recall@1, from the value of each query (NaN if nothing is relevant).

    An item is a query once and belongs to the gallery of all other queries, so it counts about twice: the
    deviation of its own value from the mean is doubled. On trained embeddings of digits the exact influence
    (each item left out in turn) has 1.6 to 1.95 times the spread of the queries' own values.
    """
    seen = ~np.isnan(average_precision)
    own = average_precision[seen].astype(np.float64)
    return 2 * own - own.mean()


def _share_below(ordered: Float[NDArray[np.floating], " others"], values: Scores) -> Values:
    """Share of `ordered` below each value, ties half."""
    low, high = (np.searchsorted(ordered, values, side) for side in ("left", "right"))
    return (low + high) / (2.0 * len(ordered))


def doubt_of_share(items: int) -> float:
    """The least variance of a share, even where all items agree: that of half an item.

    Two heads that agree on all of 36 test items need not be equal: their difference keeps a standard error of
    one item.
    """
    return 0.5 / items**2


def doubt_of_auroc(area: float, correct: Bool[NDArray[np.bool_], " items"]) -> float:
    """The least variance of an AUROC: as if there were one more mistake and one more right item.

    The variance of an item's rank among the others is at most T(1 − T), and 1/12 for a score that knows
    nothing. With few mistakes even an area near 1 is uncertain.
    """
    ones = int(correct.sum())
    zeros = len(correct) - ones
    short = max(min(area, 1 - area), 1 / (4 * min(ones, zeros) ** 2))
    return min(short * (1 - short), 1 / 12) * (1 / ones**2 + 1 / zeros**2)
