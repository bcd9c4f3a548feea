"""The tables of docs/board.md and of docs/which-loss.md that come from the board; `tables.py` writes them."""

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from board_figures import (
    ACCURACY,
    BASE,
    GEOMETRIES,
    NATS,
    NLL,
    POINTS,
    Board,
    GivenUp,
    board,
    geometry,
    share,
)
from over_sets import AVERAGE

from spaceform.heads import HEADS

Lines = list[list[str]]
_NOT = "—"
_L1, _L2 = "calibration_error_l1", "calibration_error_l2"
_SHORT = {"calibrated.chosen.nll": "NLL", "accuracy": "accuracy"}
_WAYS = {
    AVERAGE: "always the head that is best on average over the other sets",
    "the best on average for this kind of data": "the best on average over the other sets of the same kind",
    "that of the three most similar sets": "the best on the three sets with the most similar measures",
    "regression on what is measured": "ridge regression on the measures",
}


def _rule(leading: int, numbers: int) -> list[str]:
    return ["---"] * leading + ["---:"] * numbers


def _code(name: str) -> str:
    return f"`{name}`"


# The data -------------------------------------------------------------------------------------------------


def sets() -> Lines:
    """Every set of the board: what it is, where it comes from, and the digest of its features."""
    found = board()
    lines = [
        ["set", "kind", "rows", "columns", "classes", "items a class", "part", "source, licence", "SHA-256"],
        _rule(2, 4) + ["---"] * 3,
    ]
    for name, one in found.sets.items():
        tags = f" ({', '.join(one['tags'])})" if one["tags"] else ""
        sizes = f"{one['smallest_class']:,} to {one['largest_class']:,}"
        counts = [f"{one['rows']:,}", f"{one['columns']:,}", str(one["classes"]), sizes]
        about = [one["part"], f"{one['source']}; {one['licence']}", f"`{one['sha256'][:12]}`"]
        lines.append([f"{name}{tags}", one["kind"], *counts, *about])
    return lines


# Set by set -----------------------------------------------------------------------------------------------


def _by_set(metric: str, scale: float, digits: int) -> Lines:
    """Means over seeds; bold is the choice of the verdict and what is practically as good."""
    found = board()
    task = found.classification
    means, beside = scale * task.means(metric), scale * task.references(metric)
    lines = [["set", *map(_code, task.heads), "best reference"], _rule(1, len(task.heads)) + ["---"]]
    for name in task.names:
        bold = task.leaders(name, metric)
        cells = [f"{means.loc[name, head]:.{digits}f}" for head in task.heads]
        marked = [f"**{c}**" if head in bold else c for head, c in zip(task.heads, cells, strict=True)]
        lines.append([name, *marked, _reference(beside.loc[name], metric, digits)])
    return lines


def _reference(row: "pd.Series[float]", metric: str, digits: int) -> str:
    row = row.dropna()
    if not len(row):
        return _NOT
    best = row.idxmax() if metric == ACCURACY else row.idxmin()
    return f"{row[best]:.{digits}f} ({best})"


def verdicts() -> Lines:
    """What the verdict on all heads says of each set."""
    task = board().classification
    lines = [["set", "over all goals", "accuracy", "NLL after calibration", "commit"], ["---"] * 5]
    for name in task.names:
        said = task.verdicts[name]
        chosen = said["exhaustive"].get("choice", _NOT)
        goals = [choice(said["exhaustive"]["standings"][metric]) for metric in (ACCURACY, NLL)]
        lines.append([name, _code(chosen), *goals, str(said["commit"])])
    return lines


def choice(standings: Mapping[str, list[object]]) -> str:
    """The choice for one goal, and how the other heads stand to it."""
    relations = {head: found[2] for head, found in standings.items()}
    chosen = next(head for head, relation in relations.items() if relation == "chosen")
    counts = {kind: sum(relation == kind for relation in relations.values()) for kind in _RELATIONS}
    others = ", ".join(f"{count} {_RELATIONS[kind]}" for kind, count in counts.items() if count)
    return f"{_code(chosen)}; {others}"


_RELATIONS = {"equivalent": "as good", "open": "open", "worse": "worse"}


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
        _rule(2, 6),
    ]
    for i, head in enumerate(task.heads):
        line = [_code(head), geometry(head), *(f"{by_rank[metric].mean[i]:.1f}" for metric in by_rank)]
        for metric, digits in ((ACCURACY, 2), (NLL, 3)):
            line += [_NOT, _NOT] if head == BASE else _effect(found, metric, head, digits)
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
    lines = [["head", *(title for _, title, _, _ in shown)], _rule(1, len(shown))]
    columns = {metric: task.means(metric).dropna() for metric, *_ in shown}
    for head in task.heads:
        cells = [
            f"{scale * columns[metric][head].mean():.{digits}f}" if len(columns[metric]) else _NOT
            for metric, _, scale, digits in shown
        ]
        lines.append([_code(head), *cells])
    return lines


def geometries() -> Lines:
    """Where each geometry wins, by kind of data: the best of its heads, and one head of each."""
    found = board()
    kinds = np.array(found.kinds())
    one_each = {"euclidean": BASE, "hyperbolic": "lorentz", "spherical": "cosine"}
    lines = [
        ["kind", "sets", *(f"{kind} first" for kind in GEOMETRIES)],
        _rule(1, 1 + len(GEOMETRIES)),
    ]
    lines[0] += [f"{_code(one_each[k])} − `{BASE}`, points" for k in GEOMETRIES[1:]]
    lines[0] += [f"`{BASE}` − {_code(one_each[k])}, NLL" for k in GEOMETRIES[1:]]
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
        _rule(1, 4),
    ]
    for way, title in _WAYS.items():
        line = [title]
        for metric, digits in ((ACCURACY, 2), (NLL, 4)):
            one = found.foretold[metric]
            mean, low, high = one.gain(way, AVERAGE)
            less = _NOT if way == AVERAGE else f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"
            line += [f"{one.regrets[way].mean():.{digits}f}", less]
        lines.append(line)
    return lines


# The quick answer -----------------------------------------------------------------------------------------


def quick() -> Lines:
    """The answer of a comparison with defaults, and what it gives up against the best of all heads."""
    lines = [
        [
            "set",
            "quick answer",
            "runs",
            "most accurate",
            "gives up, points",
            "least NLL",
            "gives up, NLL",
            "told",
        ],
        ["---", "---", "---:", "---", "---:", "---", "---:", "---"],
    ]
    for one in board().given_up:
        points, nats = f"{one.points:.2f}", f"{one.nats:.4f}"
        told = f"worse in {' and '.join(_SHORT[goal] for goal in one.worse)}" if one.worse else "not worse"
        lines.append(
            [
                one.name,
                _code(one.choice),
                str(one.seeds),
                _code(one.most_accurate),
                points if one.points <= POINTS else f"**{points}**",
                _code(one.least_loss),
                nats if one.nats <= NATS else f"**{nats}**",
                told,
            ]
        )
    return lines


# Retrieval ------------------------------------------------------------------------------------------------


def retrieval() -> Lines:
    """Classes that were never trained on."""
    task = board().retrieval
    shown = [("map_at_r", 100, 1), ("cosine.map_at_r", 100, 1), ("recall_at_1", 100, 1)]
    titles = [
        "mAP@R, %",
        "by the cosine, %",
        "Recall@1, %",
        "R-AUROC",
        "pairs, equal error rate, %",
        "5-shot, %",
    ]
    shown += [("r_auroc", 1, 3), ("verification.eer", 100, 1), ("few_shot.accuracy_5", 100, 1)]
    lines = [["set", "head", *titles], _rule(2, len(titles))]
    means = {metric: task.means(metric) for metric, *_ in shown}
    for name in task.names:
        first, bold = name, task.leaders(name, "map_at_r")
        for head in task.heads:
            cells = [
                _NOT if np.isnan(value := means[m].loc[name, head]) else f"{scale * value:.{digits}f}"
                for m, scale, digits in shown
            ]
            cells[0] = f"**{cells[0]}**" if head in bold else cells[0]
            lines.append([first, _code(head), *cells])
            first = ""
    return lines


# In short -------------------------------------------------------------------------------------------------


def answers() -> Lines:
    """The questions of the board, each with its answer in figures."""
    found = board()
    task = found.classification
    lines = [["question", "answer"], ["---", "---"]]
    lines.append(["How many sets are in?", _count(found)])
    for metric, what in ((ACCURACY, "accuracy"), (NLL, "NLL after calibration")):
        tested = found.ranks(metric)
        order = np.argsort(tested.mean, kind="stable")
        best, last = (f"{_code(task.heads[i])} ({tested.mean[i]:.1f})" for i in (order[0], order[-1]))
        lines.append(
            [f"Which head is first in {what}, by mean rank?", f"{best}; last is {last}. {_friedman(tested)}"]
        )
    lines.append(["How large are the differences in practice?", _spread(found)])
    lines.append(["Is a head of another geometry better than plain softmax?", _better(found)])
    lines.append(["Can the winner be foretold?", _foretold(found)])
    lines.append(["What does the quick answer give up?", _quick(found.given_up)])
    return lines


def _count(found: Board) -> str:
    kinds = pd.Series(found.kinds()).value_counts(sort=False)
    said = ", ".join(f"{count} of kind {kind}" for kind, count in kinds.items())
    late = f" Not finished: {', '.join(found.unfinished)}." if found.unfinished else ""
    return f"{len(found.classification.names)} with all heads and seeds: {said}.{late}"


def _friedman(tested: object) -> str:
    p, critical = getattr(tested, "p"), getattr(tested, "critical")  # noqa: B009
    return f"Friedman p = {p:.2g}; ranks that differ by less than {critical:.1f} are not told apart"


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
        better = [_code(head) for head, one in effects.items() if one.low > 0]
        worse = [_code(head) for head, one in effects.items() if one.high < 0]
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
            f"{word}, in {what}: {_WAYS[best]} gains {mean:+.{digits}f} over always taking the best on average "
            f"({low:+.{digits}f} to {high:+.{digits}f})"
        )
    return ". ".join(said)


def _quick(given: list[GivenUp]) -> str:
    within = [one.within for one in given]
    points, nats = [one.points for one in given], [one.nats for one in given]
    told = [bool(one.worse) for one in given]
    return (
        f"At most {POINTS} points and {NATS} NLL on {share(within)} sets ({100 * np.mean(within):.0f} %); in the median "
        f"{np.median(points):.2f} points and {np.median(nats):.4f} NLL; told to be worse on {share(told)}"
    )


def advice() -> Lines:
    """What to take for what, in figures."""
    found = board()
    task = found.classification
    lines = [["you want", "best on average", "its mean over sets", "`standard`", "worst"], _rule(2, 3)]
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
        lines.append([title, _code(best), *cells, f"{order[worst]:.{digits}f} ({_code(worst)})"])
    return lines


TABLES: Mapping[str, Callable[[], Lines]] = {
    "board answers": answers,
    "board advice": advice,
    "board heads": heads,
    "board measures": measures,
    "board geometries": geometries,
    "board foretold": foretold,
    "board quick": quick,
    "board verdicts": verdicts,
    "board accuracy": lambda: _by_set(ACCURACY, 100, 2),
    "board nll": lambda: _by_set(NLL, 1, 3),
    "board retrieval": retrieval,
    "board sets": sets,
}
assert BASE in HEADS
