"""What a comparison can be about: each goal with its value, its unit, and the difference that matters."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final


@final
@dataclass(frozen=True)
class Unit:
    """How a value is written: `scale` times the stored value, with this many digits."""

    name: str
    """What follows a difference: `points`; empty where a value has no unit."""
    sign: str
    """What follows a value: `%`, or nothing."""
    scale: float
    digits: int


POINTS = Unit("points", "%", 100.0, 1)
NATS = Unit("NLL", "", 1.0, 3)
AREA = Unit("AUROC", "", 1.0, 3)
SCORE = Unit("Brier", "", 1.0, 3)
REGIONS = Unit("of a difference that matters", "", 1.0, 2)
"""The unit of the overall goal, a weighted mean: 1 is the smallest difference that matters."""


@final
@dataclass(frozen=True)
class Goal:
    """A column of the results, how to read it, and which difference is too small to matter."""

    column: str
    title: str
    purpose: str
    """What someone wants who looks at this column."""
    unit: Unit
    higher: bool
    region: float
    """Differences up to this do not matter in practice. In the goal's unit."""
    typical_seed_deviation: float
    """The standard deviation over seeds, in the goal's unit, to assume where a study cannot tell it: about
    the middle of what the published studies show (MNIST, FashionMNIST, CIFAR-10, digits, CUB-200-2011).
    """
    most: float
    """The largest possible value, in the goal's unit."""
    weight: float = 0.0
    """The weight in the overall recommendation; 0 leaves the goal out."""
    least: float = 0.0

    @property
    def sign(self) -> float:
        """1 where more is better, −1 where less is."""
        return 1.0 if self.higher else -1.0


_BESIDE = 0.1
"""The weight of a goal that a classifier is not trained for. In such goals heads differ by many regions
(mAP@R by 15 points where accuracy differs by 0.3). With a weight of 1 these goals would decide alone: on
SNIPS the choice was then 0.5 points of accuracy and 0.019 NLL behind. `GoalVerdict.counted` bounds them too.
"""

CLASSIFICATION_GOALS: tuple[Goal, ...] = (
    Goal("accuracy", "accuracy", "accuracy", POINTS, True, 0.5, 0.5, 100.0, weight=4.0),
    Goal("nll", "NLL", "good probabilities as trained", NATS, False, 0.01, 0.03, math.inf),
    Goal(
        "calibrated.chosen.nll",
        "NLL after calibration",
        "good probabilities",
        NATS,
        False,
        0.01,
        0.02,
        math.inf,
        weight=3.0,
    ),
    Goal("brier", "Brier score", "probabilities by the Brier score", SCORE, False, 0.005, 0.005, 2.0),
    Goal(
        "calibration_error_l2",
        "calibration error",
        "probabilities that can be believed as trained",
        POINTS,
        False,
        0.5,
        1.0,
        100.0,
    ),
    Goal(
        "calibrated.chosen.calibration_error_l2",
        "calibration error after calibration",
        "probabilities that can be believed",
        POINTS,
        False,
        0.5,
        0.5,
        100.0,
        weight=1.0,
    ),
    Goal(
        "calibrated.temperature.calibration_error_l2",
        "calibration error after temperature scaling",
        "probabilities that can be believed after temperature scaling",
        POINTS,
        False,
        0.5,
        0.5,
        100.0,
    ),
    Goal(
        "auroc_confidence",
        "AUROC of the norm",
        "telling right from wrong by the norm",
        AREA,
        True,
        0.01,
        0.02,
        1.0,
        weight=_BESIDE,
    ),
    Goal(
        "auroc_probability",
        "AUROC of the top probability",
        "telling right from wrong by the top probability",
        AREA,
        True,
        0.01,
        0.01,
        1.0,
    ),
    Goal("retrieval.map_at_r", "mAP@R", "retrieval", POINTS, True, 0.5, 1.0, 100.0, weight=_BESIDE),
)
RETRIEVAL_GOALS: tuple[Goal, ...] = (
    Goal("map_at_r", "mAP@R", "retrieval of new classes", POINTS, True, 0.5, 0.5, 100.0, weight=1.0),
    Goal("cosine.map_at_r", "mAP@R by cosine", "retrieval by the cosine", POINTS, True, 0.5, 0.5, 100.0),
    Goal("recall_at_1", "Recall@1", "the nearest neighbour", POINTS, True, 0.5, 0.5, 100.0),
)
GOALS: Mapping[str, tuple[Goal, ...]] = {"classification": CLASSIFICATION_GOALS, "retrieval": RETRIEVAL_GOALS}
"""The goals for each task of a study."""


def with_regions(goals: tuple[Goal, ...], regions: Mapping[str, float]) -> tuple[Goal, ...]:
    """The goals with other regions of equivalence, each in its goal's unit (0.5 is half a point)."""
    unknown = [column for column in regions if column not in {goal.column for goal in goals}]
    if unknown:
        known = ", ".join(goal.column for goal in goals)
        raise ValueError(f"there is no goal {unknown[0]!r} to set a region for; choose from {known}")
    for column, region in regions.items():
        if not region > 0:
            raise ValueError(f"the region of {column} must be positive, got {region!r}")
    return tuple(replace(goal, region=regions.get(goal.column, goal.region)) for goal in goals)
