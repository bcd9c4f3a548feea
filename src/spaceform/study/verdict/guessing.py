"""Whether anything was learnt: heads and references against guessing.

Guessing knows how frequent the classes are, and nothing about an item. It chooses the most frequent class,
and its probabilities are the shares of the classes. Both come from the test items themselves, which can only
make guessing look better: of all that is the same for every item, nothing has a lower NLL than these shares.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from spaceform.study.verdict import contributions
from spaceform.study.verdict.item_outputs import ItemOutputs


@final
@dataclass(frozen=True)
class Guessing:
    """What guessing gives, and which labels are shown to do better."""

    accuracy: float
    """The share of the most frequent class."""
    right: tuple[str, ...]
    """Labels that are right more often than guessing, by more than chance."""
    learnt: tuple[str, ...]
    """The labels in `right`, and those whose probabilities are better (NLL after calibration)."""
    judged: tuple[str, ...]
    """All labels whose predictions are known."""


def guessing(
    runs: Mapping[str, Mapping[int, ItemOutputs]], references: Mapping[str, ItemOutputs]
) -> Guessing | None:
    """What guessing gives on the test items, and which runs and references do better.

    None where predictions of the items are not known, or where all items have one class: to guess this class
    is always right.
    """
    everything = {**runs, **{label: {0: one} for label, one in references.items()}}
    known = {
        label: [
            (one.probabilities, one.probabilities if one.chosen is None else one.chosen)
            for one in by_seed.values()
            if one.labels is not None and one.probabilities is not None
        ]
        for label, by_seed in everything.items()
    }
    labels = [one.labels for by_seed in runs.values() for one in by_seed.values() if one.labels is not None]
    if not runs or not all(known[label] for label in runs) or (labels[0] == labels[0][:1]).all():
        return None
    y = labels[0]
    counts = np.bincount(y)
    usual = (y == counts.argmax()).astype(np.float64)
    surprise = -np.log(counts[y] / len(y))
    right, learnt = [], []
    for label, own in known.items():
        if not own:
            continue
        ahead = np.mean([contributions.right(p, y) for p, _ in own], axis=0) - usual
        better = _beyond_chance(ahead, contributions.doubt_of_share(len(y)))
        clearer = surprise - np.mean([contributions.surprise(p, y) for _, p in own], axis=0)
        right += [label] if better else []
        learnt += [label] if better or _beyond_chance(clearer, 0.0) else []
    judged = tuple(label for label, own in known.items() if own)
    return Guessing(float(usual.mean()), tuple(right), tuple(learnt), judged)


def _beyond_chance(ahead: NDArray[np.float64], doubt: float) -> bool:
    """Whether a mean over items is above 0 by more than chance: by more than 2.6 standard errors."""
    n = len(ahead)
    error = np.sqrt((ahead.var(ddof=1) if n > 1 else np.inf) / n + doubt)
    return bool(ahead.mean() > contributions.BEYOND_CHANCE * error)
