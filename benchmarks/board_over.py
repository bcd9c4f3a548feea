"""The tables of the board that come from all sets together, and its questions with their answers."""

import numpy as np
import pandas as pd

from board_values import (
    ACCURACY,
    BASE,
    ENOUGH,
    GEOMETRIES,
    NATS,
    NLL,
    NOT,
    POINTS,
    Board,
    GivenUp,
    Lines,
    board,
    code,
    geometry,
    rule,
    share,
)
from over_sets import AVERAGE, Ranks

_L1, _L2 = "calibration_error_l1", "calibration_error_l2"
_WAYS = {
    AVERAGE: "always the head that is best on average over the other sets",
    "the best on average for this kind of data": "the best on average over the other sets of the same kind",
    "that of the three most similar sets": "the best on the three sets with the most similar measures",
    "regression on what is measured": "ridge regression on the measures",
}


# Over sets ------------------------------------------------------------------------------------------------


def heads() -> Lines:
    """Mean ranks, and the gain over plain softmax by a model over sets."""
    found = board()
    task = found.classification
    by_rank = {metric: found.ranks(metric) for metric in (ACCURACY, NLL)}
    lines = [
        [
            "head",
            "geometry",
            "rank, accuracy",
            "rank, NLL",
            "accuracy over `standard`, points",
            "on a new set",
            "NLL less than `standard`'s",
            "on a new set",
        ],
        rule(2, 6),
    ]
    for i, head in enumerate(task.heads):
        line = [code(head), geometry(head), *(f"{by_rank[metric].mean[i]:.1f}" for metric in by_rank)]
        for metric, digits in ((ACCURACY, 2), (NLL, 3)):
            shown = head != BASE and found.enough
            line += _effect(found, metric, head, digits) if shown else [NOT, NOT]
        lines.append(line)
    return lines


def _effect(found: Board, metric: str, head: str, digits: int) -> list[str]:
    one = found.effect(metric, head)
    spans = ((one.low, one.high), (one.new_low, one.new_high))
    own, new = (f"{low:+.{digits}f} to {high:+.{digits}f}" for low, high in spans)
    return [f"{one.mean:+.{digits}f} ({own})", new]


def measures() -> Lines:
    """Every measure, averaged over sets."""
    task = board().classification
    shown: list[tuple[str, str, float, int]] = [
        ("accuracy", "accuracy, %", 100, 2),
        ("nll", "NLL", 1, 3),
        (NLL, "NLL, calibrated", 1, 3),
        (_L1, "l1, %", 100, 2),
        (f"calibrated.chosen.{_L1}", "l1, calibrated, %", 100, 2),
        (_L2, "l2, %", 100, 2),
        (f"calibrated.chosen.{_L2}", "l2, calibrated, %", 100, 2),
        ("aurc_probability", "AURC, %", 100, 2),
        ("auroc_confidence", "AUROC of the norm", 1, 3),
        ("unknown_energy", "unknown, AUROC", 1, 3),
        ("retrieval.map_at_r", "mAP@R, known classes, %", 100, 1),
    ]
    lines = [["head", *(title for _, title, _, _ in shown)], rule(1, len(shown))]
    columns = {metric: task.means(metric).dropna() for metric, *_ in shown}
    for head in task.heads:
        cells = [
            f"{scale * columns[metric][head].mean():.{digits}f}" if len(columns[metric]) else NOT
            for metric, _, scale, digits in shown
        ]
        lines.append([code(head), *cells])
    return lines


def geometries() -> Lines:
    """Where each geometry wins, by kind of data: the best of its heads, and one head of each."""
    found = board()
    kinds = np.array(found.kinds())
    one_each = {"euclidean": BASE, "hyperbolic": "lorentz", "spherical": "cosine"}
    lines = [
        ["kind", "sets", *(f"{kind} first" for kind in GEOMETRIES)],
        rule(1, 1 + len(GEOMETRIES)),
    ]
    lines[0] += [f"{code(one_each[k])} − `{BASE}`, points" for k in GEOMETRIES[1:]]
    lines[0] += [f"`{BASE}` − {code(one_each[k])}, NLL" for k in GEOMETRIES[1:]]
    lines[1] += ["---:"] * 4
    best = found.best_of_geometry(ACCURACY)
    first = best.eq(best.max(axis=1), axis=0)
    for kind in [*dict.fromkeys(found.kinds()), "all"]:
        own = kinds == kind if kind != "all" else np.ones(len(kinds), bool)
        won = [f"{(first[g].to_numpy() / first.sum(axis=1).to_numpy())[own].sum():.1f}" for g in GEOMETRIES]
        gains = [
            f"{found.classification.gain(metric, one_each[g])[0][own].mean():+.{digits}f}"
            for metric, digits in ((ACCURACY, 2), (NLL, 3))
            for g in GEOMETRIES[1:]
        ]
        lines.append([kind, str(int(own.sum())), *won, *gains])
    return lines


def foretold() -> Lines:
    """Whether the winner can be foretold: regret of ways to choose without training, each set left out."""
    found = board()
    lines = [
        [
            "way to choose",
            "gives up, points",
            "less than the first way",
            "gives up, NLL",
            "less than the first way",
        ],
        rule(1, 4),
    ]
    for way, title in _WAYS.items() if found.enough else ():
        line = [title]
        for metric, digits in ((ACCURACY, 2), (NLL, 4)):
            one = found.foretold[metric]
            mean, low, high = one.gain(way, AVERAGE)
            less = NOT if way == AVERAGE else f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"
            line += [f"{one.regrets[way].mean():.{digits}f}", less]
        lines.append(line)
    return lines


# In short -------------------------------------------------------------------------------------------------


def answers() -> Lines:
    """The questions of the board, each with its answer in numbers."""
    found = board()
    task = found.classification
    lines = [["question", "answer"], ["---", "---"]]
    lines.append(["How many sets are in?", _count(found)])
    wanted = ((ACCURACY, "accuracy"), (NLL, "NLL after calibration")) if found.enough else ()
    for metric, what in wanted:
        tested = found.ranks(metric)
        order = np.argsort(tested.mean, kind="stable")
        best, last = (f"{code(task.heads[i])} ({tested.mean[i]:.1f})" for i in (order[0], order[-1]))
        lines.append(
            [f"Which head is first in {what}, by mean rank?", f"{best}; last is {last}. {_friedman(tested)}"]
        )
    lines.append(["How large are the differences in practice?", _spread(found)])
    if found.enough:
        lines.append(["Is a head of another geometry better than plain softmax?", _better(found)])
        lines.append(["Can the winner be predicted?", _foretold(found)])
    else:
        lines.append(["What holds over all sets?", f"{ENOUGH} sets are needed to say it"])
    lines.append(["What does the quick answer give up?", _quick(found.given_up)])
    return lines


def _count(found: Board) -> str:
    kinds = pd.Series(found.kinds()).value_counts(sort=False)
    said = ", ".join(f"{count} of kind {kind}" for kind, count in kinds.items())
    late = f" Not in yet: {', '.join(found.unfinished)}." if found.unfinished else ""
    return f"{len(found.classification.names)} with all heads and three to five seeds: {said}.{late}"


def _friedman(tested: Ranks) -> str:
    gap = f"{tested.critical:.1f}"
    return f"Friedman p = {tested.p:.2g}; mean ranks that differ by less than {gap} are not told apart"


def _spread(found: Board) -> str:
    spans = []
    for metric, digits, unit in ((ACCURACY, 1, " points"), (NLL, 3, " NLL")):
        gaps = np.ptp(found.worth[metric], axis=1)
        ahead = found.worth[metric].max(1) - np.median(found.worth[metric], axis=1)
        spans.append(
            f"best to worst head {np.median(gaps):.{digits}f}{unit} in the median set, best to middle head "
            f"{np.median(ahead):.{digits}f}{unit}"
        )
    return "; ".join(spans)


def _better(found: Board) -> str:
    """Heads whose interval of the mean gain over `BASE` lies on one side of nothing."""
    said = []
    for metric, what in ((ACCURACY, "accuracy"), (NLL, "NLL")):
        effects = {head: found.effect(metric, head) for head in found.classification.heads if head != BASE}
        better = [code(head) for head, one in effects.items() if one.low > 0]
        worse = [code(head) for head, one in effects.items() if one.high < 0]
        said.append(
            f"{what}: better on average {', '.join(better) or 'none'}; worse {', '.join(worse) or 'none'}"
        )
    return ". ".join(said)


def _foretold(found: Board) -> str:
    said = []
    for metric, what, digits in ((ACCURACY, "points", 2), (NLL, "NLL", 4)):
        one = found.foretold[metric]
        ways = [way for way in one.regrets if way != AVERAGE]
        best = max(ways, key=lambda way: one.gain(way, AVERAGE)[0])
        mean, low, high = one.gain(best, AVERAGE)
        word = "Yes" if low > 0 else "No"
        said.append(
            f"{word}, in {what}: {_WAYS[best]} gains {mean:+.{digits}f} "
            f"({low:+.{digits}f} to {high:+.{digits}f}) over always taking the best on average"
        )
    return ". ".join(said)


def _quick(given: list[GivenUp]) -> str:
    within = [one.within for one in given]
    points, nats = [one.points for one in given], [one.nats for one in given]
    told = [bool(one.worse) for one in given]
    return (
        f"At most {POINTS} points and {NATS} NLL on {share(within)} sets ({100 * np.mean(within):.0f} %); "
        f"in the median {np.median(points):.2f} points and {np.median(nats):.4f} NLL; the full study tells "
        f"that it is worse on {share(told)}"
    )


def advice() -> Lines:
    """What to take for what, in numbers."""
    found = board()
    task = found.classification
    lines = [
        ["you want", "sets", "best on average", "its mean", "`standard`", "worst"],
        rule(1, 1) + ["---"] + ["---:"] * 3,
    ]
    wanted: list[tuple[str, str, float, int, bool]] = [
        ("accuracy, %", ACCURACY, 100, 2, True),
        ("good probabilities as trained (NLL)", "nll", 1, 3, False),
        ("good probabilities with a validation split (NLL)", NLL, 1, 3, False),
        ("calibration error as trained (l2), %", _L2, 100, 2, False),
        ("calibration error, calibrated (l2), %", f"calibrated.chosen.{_L2}", 100, 2, False),
        ("to leave out what is likely wrong (AURC, %)", "aurc_probability", 100, 2, False),
        ("the norm to say what is likely wrong (AUROC)", "auroc_confidence", 1, 3, True),
        ("to find what is of no known class (AUROC)", "unknown_energy", 1, 3, True),
        ("similar items of known classes (mAP@R, %)", "retrieval.map_at_r", 100, 1, True),
    ]
    rows = [(title, task.means(metric), *rest) for title, metric, *rest in wanted]
    rows.append(
        ("similar items of new classes (mAP@R, %)", board().retrieval.means("map_at_r"), 100, 1, True)
    )
    for title, means, scale, digits, higher in rows:
        mean = scale * means.dropna().mean()
        if mean.isna().all():
            continue
        order = mean.sort_values(ascending=not higher)
        best, worst = order.index[0], order.index[-1]
        cells = [f"{order[head]:.{digits}f}" for head in (best, BASE)]
        last = f"{order[worst]:.{digits}f} ({code(worst)})"
        lines.append([title, str(len(means.dropna())), code(best), *cells, last])
    return lines
