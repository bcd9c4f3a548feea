"""Studies made up for the tests of verdicts."""

import numpy as np

from spaceform.study.verdict.evidence import Evidence, Series
from spaceform.study.verdict.goals import CLASSIFICATION_GOALS

ACCURACY = next(goal for goal in CLASSIFICATION_GOALS if goal.column == "accuracy")
NLL = next(goal for goal in CLASSIFICATION_GOALS if goal.column == "nll")


def series(level, seeds, items, rng, *, seed_deviation=0.1, item=None, run_item=5.0, own_item=2.0):
    """Contributions around a level, in points: items shared, items of the head, seeds, and both together."""
    shared = np.zeros(items) if item is None else item
    values = (
        level
        + shared
        + own_item * rng.standard_normal(items)
        + seed_deviation * rng.standard_normal((seeds, 1))
        + run_item * rng.standard_normal((seeds, items))
    )
    return Series(tuple(range(seeds)), values)


def study(levels, seeds=3, items=2_000, seed=0, references=None, goal=ACCURACY, **options):
    """Evidence of one goal, from the true level of each label."""
    rng = np.random.default_rng(seed)
    item = 20.0 * rng.standard_normal(items)
    rows = {label: series(level, seeds, items, rng, item=item, **options) for label, level in levels.items()}
    for label, level in (references or {}).items():
        one = series(level, 1, items, rng, item=item, **options | {"seed_deviation": 0.0})
        rows[label] = one
    return Evidence(tuple(levels), tuple(references or {}), (goal,), {goal.column: rows})
