"""Slow, obvious loops for the metrics: one example at a time, plain floats."""

import math
from collections.abc import Callable, Sequence

Pairs = Sequence[tuple[float, bool]]


def top_label(probs: Sequence[Sequence[float]], y: Sequence[int]) -> list[tuple[float, bool]]:
    pairs = []
    for row, label in zip(probs, y, strict=True):
        best = 0
        for j in range(len(row)):
            if row[j] > row[best]:
                best = j
        pairs.append((row[best], best == label))
    return pairs


def equal_width_bins(pairs: Pairs, bins: int, edges: Sequence[float]) -> list[list[tuple[float, bool]]]:
    out: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for p in pairs:
        b = 0
        while b + 1 < bins and p[0] >= edges[b + 1]:
            b += 1
        out[b].append(p)
    return out


def equal_mass_bins(pairs: Pairs, bins: int) -> list[list[tuple[float, bool]]]:
    """Cut the sorted list into runs, then give every value to the run of its last copy."""
    ordered = sorted(pairs)
    N = len(ordered)
    sizes = [N // bins + (1 if b < N % bins else 0) for b in range(bins)]
    run_of_rank = [b for b in range(bins) for _ in range(sizes[b])]
    out: list[list[tuple[float, bool]]] = [[] for _ in range(bins)]
    for value, hit in ordered:
        last = max(i for i in range(N) if ordered[i][0] == value)
        out[run_of_rank[last]].append((value, hit))
    return out


def binned_error(binned: list[list[tuple[float, bool]]], norm: str, debias: bool = False) -> float:
    N = sum(len(b) for b in binned)
    total, worst = 0.0, 0.0
    for b in binned:
        if not b:
            continue
        n = len(b)
        acc = math.fsum(h for _, h in b) / n
        gap = abs(acc - math.fsum(c for c, _ in b) / n)
        worst = max(worst, gap)
        if norm == "l1":
            total += n / N * gap
        else:
            total += n / N * (gap**2 - (acc * (1 - acc) / (n - 1) if debias and n > 1 else 0))
    if norm == "max":
        return worst
    return total if norm == "l1" else math.sqrt(max(total, 0))


def auroc(score: Sequence[float], correct: Sequence[bool]) -> float:
    wins, pairs = 0.0, 0
    for s, c in zip(score, correct, strict=True):
        for t, d in zip(score, correct, strict=True):
            if c and not d:
                pairs += 1
                wins += 1 if s > t else 0.5 if s == t else 0
    return wins / pairs if pairs else math.nan


def aurc(score: Sequence[float], correct: Sequence[bool]) -> float:
    """Mean selective risk; inside a run of ties errors come at their average rate."""
    N = len(score)
    ordered = sorted(range(N), key=lambda i: -score[i])
    expected = []
    for i in ordered:
        tied = [j for j in range(N) if score[j] == score[i]]
        expected.append(sum(not correct[j] for j in tied) / len(tied))
    return sum(sum(expected[:k]) / k for k in range(1, N + 1)) / N


def retrieval(
    similarity: Callable[[int, int], float],
    y: Sequence[int],
    asked: Sequence[int],
    own: bool,
    k: Sequence[int],
    worst: bool = True,
) -> tuple[float, float, dict[int, float]]:
    """Sort the gallery for each query, ties against the query (or for it); mAP@R, R-precision, Recall@k."""
    aps, precisions, firsts = [], [], []
    for q, label in enumerate(asked):
        others = [g for g in range(len(y)) if not (own and g == q)]
        R = sum(y[g] == label for g in others)
        if R == 0:
            continue
        key = [(-similarity(q, g), (y[g] == label) == worst) for g in others]
        ranked = [others[i] for i in sorted(range(len(others)), key=lambda i: key[i])]
        right = [y[g] == label for g in ranked]
        aps.append(sum(sum(right[: i + 1]) / (i + 1) for i in range(R) if right[i]) / R)
        precisions.append(sum(right[:R]) / R)
        firsts.append(right.index(True) + 1)
    n = len(aps)
    return sum(aps) / n, sum(precisions) / n, {i: sum(f <= i for f in firsts) / n for i in k}


def error_rates(score: Sequence[float], same: Sequence[bool]) -> list[tuple[float, float, float]]:
    """False accepts, false rejects and the threshold, for every threshold from the strictest down."""
    ones = [s for s, c in zip(score, same, strict=True) if c]
    others = [s for s, c in zip(score, same, strict=True) if not c]
    return [
        (sum(s >= t for s in others) / len(others), sum(s < t for s in ones) / len(ones), t)
        for t in [math.inf, *sorted(set(score), reverse=True)]
    ]


def eer(score: Sequence[float], same: Sequence[bool]) -> float:
    """Halve the interval of mixtures of neighbouring thresholds until both errors agree."""
    points = error_rates(score, same)
    low, high = 0.0, float(len(points) - 1)
    for _ in range(80):
        middle = (low + high) / 2
        i = min(int(middle), len(points) - 2)
        a, b = ((1 - middle + i) * points[i][k] + (middle - i) * points[i + 1][k] for k in (0, 1))
        low, high = (low, middle) if a >= b else (middle, high)
    return b


def min_dcf(
    score: Sequence[float], same: Sequence[bool], prior: float, accept_cost: float, reject_cost: float
) -> float:
    costs = [prior * reject_cost * r + (1 - prior) * accept_cost * a for a, r, _ in error_rates(score, same)]
    return min(costs) / min(prior * reject_cost, (1 - prior) * accept_cost)


def cllr(ratio: Sequence[float], same: Sequence[bool]) -> float:
    ones = [math.log2(1 + math.exp(-s)) for s, c in zip(ratio, same, strict=True) if c]
    others = [math.log2(1 + math.exp(s)) for s, c in zip(ratio, same, strict=True) if not c]
    return (sum(ones) / len(ones) + sum(others) / len(others)) / 2


def min_cllr(score: Sequence[float], same: Sequence[bool]) -> float:
    """The best non-decreasing function by its min-max formula: max over a ≤ s of min over b ≥ s of the share
    of same pairs with a score in [a, b].
    """
    values = sorted(set(score))

    def share(a: float, b: float) -> float:
        inside = [c for s, c in zip(score, same, strict=True) if a <= s <= b]
        return sum(inside) / len(inside)

    ones, others = sum(same), len(same) - sum(same)
    total = 0.0
    for s, c in zip(score, same, strict=True):
        p = max(min(share(a, b) for b in values if b >= s) for a in values if a <= s)
        # 1 + e^∓ℓ with ℓ = log(p/(1 − p)) − log(ones/others)
        ratio = (1 - p) / p * ones / others if c else p / (1 - p) * others / ones
        total += math.log2(1 + ratio) / (ones if c else others)
    return total / 2
