"""What the runs of a study say: which head to choose for which goal, how sure that is, and when to stop."""

from spaceform._verdict.decide import (
    Difference,
    GoalVerdict,
    Reference,
    Relation,
    Standing,
    Verdict,
    decide,
)
from spaceform._verdict.evidence import Evidence, Missing, Outputs, Series, evidence_from
from spaceform._verdict.goals import GOALS, Goal, Unit
from spaceform._verdict.posterior import Source
from spaceform._verdict.settle import Settlement

__all__ = [
    "GOALS",
    "Difference",
    "Evidence",
    "Goal",
    "GoalVerdict",
    "Missing",
    "Outputs",
    "Reference",
    "Relation",
    "Series",
    "Settlement",
    "Source",
    "Standing",
    "Unit",
    "Verdict",
    "decide",
    "evidence_from",
]
