"""What the runs of a study say of each goal: heads, seeds and items as arrays."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from spaceform.study.verdict import contributions
from spaceform.study.verdict.goals import CLASSIFICATION_GOALS, Goal
from spaceform.study.verdict.guessing import Guessing, guessing
from spaceform.study.verdict.item_outputs import ItemOutputs


class Missing(Enum):
    """Why a run has no value for a goal."""

    NO_MISTAKES = "no mistakes"
    """Every item is right, so no score can tell right from wrong items."""
    ALL_WRONG = "all wrong"
    NOTHING_RELEVANT = "nothing relevant"
    """No query has another item of its class."""
    NOT_MEASURED = "not measured"


@final
@dataclass(frozen=True, eq=False)
class Series:
    """One label's runs in one goal: a row for each seed."""

    seeds: tuple[int, ...]
    values: Float[NDArray[np.float64], "seeds items"]
    """What each item contributes; the mean over the items is the run's value. One column where the items
    are not known.
    """
    missing: Mapping[int, Missing] = field(default_factory=dict)
    """Seeds whose run has no value, and why."""
    doubt: float = 0.0
    """The least variance of the mean, however much the items agree, in the unit squared."""
    chance: float = -math.inf
    """Chance alone may give a value up to this: see `GoalVerdict.chance`."""

    @property
    def means(self) -> Float[NDArray[np.float64], " seeds"]:
        """The mean over the items, one for each seed."""
        return self.values.mean(1)


@final
@dataclass(frozen=True, eq=False)
class Evidence:
    """Everything that the verdict is based on."""

    labels: tuple[str, ...]
    """Heads that may be chosen, in the order of the study."""
    references: tuple[str, ...]
    """References, which may not be chosen: each was fitted once and has no seeds."""
    goals: tuple[Goal, ...]
    series: Mapping[str, Mapping[str, Series]]
    """By the goal's column, then by label. Values are in the goal's unit."""
    items: int = 0
    """How many test items there are; 0 where that is not known."""
    guessing: Guessing | None = None
    """Which labels are better than guessing; None where predictions of the items are not known."""

    def seeds(self, label: str) -> tuple[int, ...]:
        """All seeds that a label was run with."""
        found = {
            seed
            for by_label in self.series.values()
            if label in by_label
            for seed in (*by_label[label].seeds, *by_label[label].missing)
        }
        return tuple(sorted(found))

    def only(self, seeds: Mapping[str, Sequence[int]]) -> "Evidence":
        """The evidence with these seeds of each head alone; references stay as they are."""
        series = {
            column: {label: _only(s, seeds.get(label)) for label, s in by_label.items()}
            for column, by_label in self.series.items()
        }
        return replace(self, series=series)


def evidence_from(
    runs: Mapping[str, Mapping[int, ItemOutputs]],
    references: Mapping[str, ItemOutputs] | None = None,
    goals: Sequence[Goal] = CLASSIFICATION_GOALS,
) -> Evidence:
    """The evidence of runs by label and seed, and of reference rows by label.

    All must have been measured on the same items, in the same order. A goal is left out if no run has a value
    for it, or a reason why there is none.
    """
    references = dict(references or {})
    _require_same_items(runs, references)
    everything = {**runs, **{label: {0: outputs} for label, outputs in references.items()}}
    series: dict[str, dict[str, Series]] = {}
    for goal in goals:
        by_label = {label: _series(goal, by_seed) for label, by_seed in everything.items()}
        if all(
            reason is Missing.NOT_MEASURED or label in references
            for label, one in by_label.items()
            for reason in (*one.missing.values(), *(None for _ in one.seeds))
        ):
            continue
        series[goal.column] = _on_common_items(by_label)
    kept = tuple(goal for goal in goals if goal.column in series)
    items = max((_items(one) for by_seed in runs.values() for one in by_seed.values()), default=0)
    return Evidence(tuple(runs), tuple(references), kept, series, items, guessing(runs, references))


def _items(one: ItemOutputs) -> int:
    """How many test items a run had; 0 where that is not known."""
    return int(one.measured.get("items") or (0 if one.labels is None else len(one.labels)))


@final
@dataclass(frozen=True, eq=False)
class _Contributed:
    values: NDArray[np.float64]
    doubt: float = 0.0
    chance: float = -math.inf


def _series(goal: Goal, by_seed: Mapping[int, ItemOutputs]) -> Series:
    there: dict[int, _Contributed] = {}
    missing: dict[int, Missing] = {}
    for seed in sorted(by_seed):
        one = _with_value(goal.column, by_seed[seed])
        if isinstance(one, Missing):
            missing[seed] = one
        else:
            there[seed] = one
    if not there:
        return Series((), np.zeros((0, 1)), missing)
    values = [one.values for one in there.values()]
    if (
        len({len(v) for v in values}) > 1
    ):  # some runs kept no arrays: then all are judged by their values alone
        values = [v.mean(keepdims=True) for v in values]
    scale = goal.unit.scale
    doubt = scale**2 * float(np.mean([one.doubt for one in there.values()]))
    chance = scale * float(np.mean([one.chance for one in there.values()]))
    return Series(tuple(there), scale * np.stack(values), missing, doubt, chance)


def _with_value(column: str, outputs: ItemOutputs) -> _Contributed | Missing:
    """The contributions to a value, or the value alone, or the reason why there is none."""
    value = outputs.measured.get(column)
    items = _contributions(column, outputs)
    if isinstance(items, Missing):
        if items is not Missing.NOT_MEASURED or value is None or not np.isfinite(value):
            return items
        return _Contributed(np.array([value], dtype=np.float64))
    if value is None:
        return items
    return replace(items, values=items.values + (value - items.values.mean()))


def _contributions(column: str, outputs: ItemOutputs) -> _Contributed | Missing:
    y, p = outputs.labels, outputs.probabilities
    if column in ("retrieval.map_at_r", "map_at_r", "recall_at_1"):
        return _found(outputs.nearest_is_own if column == "recall_at_1" else outputs.average_precision)
    if column.startswith("calibrated."):
        _, calibrator, column = column.split(".")
        p = outputs.chosen if calibrator == "chosen" else outputs.scaled
    if y is None or p is None:
        return Missing.NOT_MEASURED
    if column == "nll":
        return _Contributed(contributions.surprise(p, y))
    if column == "brier":
        return _Contributed(contributions.to_brier(p, y))
    correct = contributions.right(p, y)
    share = contributions.doubt_of_share(len(y))
    if column == "accuracy":
        return _Contributed(correct, share)
    if column == "calibration_error_l2":
        chance, doubt = contributions.chance_in_calibration_error(p.max(1))
        error = contributions.to_calibration_error(p.max(1), correct > 0)
        return _Contributed(error, max(share, doubt), chance)
    score = {"auroc_confidence": outputs.confidence, "auroc_probability": p.max(1)}.get(column)
    if score is None:
        return Missing.NOT_MEASURED
    area = contributions.to_auroc(score, correct > 0)
    if area is None:
        return Missing.NO_MISTAKES if correct.all() else Missing.ALL_WRONG
    doubt = contributions.doubt_of_auroc(float(area.mean()), correct > 0)
    return _Contributed(area, doubt, contributions.chance_in_auroc(correct > 0))


def _found(own: NDArray[np.floating] | None) -> _Contributed | Missing:
    if own is None:
        return Missing.NOT_MEASURED
    if np.isnan(own).all():
        return Missing.NOTHING_RELEVANT
    values = contributions.to_retrieval(own)
    return _Contributed(values, contributions.doubt_of_share(len(values)))


def _on_common_items(by_label: Mapping[str, Series]) -> dict[str, Series]:
    """The series as they are; if the items of some label are not known, the values alone."""
    widths = {one.values.shape[1] for one in by_label.values() if one.seeds}
    if len(widths) <= 1:
        return dict(by_label)
    return {
        label: Series(one.seeds, one.means[:, None], one.missing, one.doubt, one.chance)
        for label, one in by_label.items()
    }


def _only(series: Series, seeds: Sequence[int] | None) -> Series:
    if seeds is None:
        return series
    wanted = set(seeds)
    rows = [i for i, seed in enumerate(series.seeds) if seed in wanted]
    return Series(
        tuple(series.seeds[i] for i in rows),
        series.values[rows],
        {seed: why for seed, why in series.missing.items() if seed in wanted},
        series.doubt,
        series.chance,
    )


def _require_same_items(
    runs: Mapping[str, Mapping[int, ItemOutputs]], references: Mapping[str, ItemOutputs]
) -> None:
    named = [(f"{label}, seed {seed}", one) for label, by in runs.items() for seed, one in by.items()]
    named += [*references.items()]
    labelled = [(name, one.labels) for name, one in named if one.labels is not None]
    for name, labels in labelled[1:]:
        if not np.array_equal(labels, labelled[0][1]):
            raise ValueError(
                f"{name} and {labelled[0][0]} were measured on different test items; "
                "compare runs of one study on one split"
            )
