"""What the runs of a study say: which head to choose for which goal, how sure that is, and when to stop."""

from spaceform.study.verdict.decide import (
    Difference,
    GoalVerdict,
    Reference,
    Relation,
    Standing,
    Verdict,
    decide,
)
from spaceform.study.verdict.evidence import Evidence, Missing, Outputs, Series, evidence_from
from spaceform.study.verdict.goals import GOALS, Goal, Unit
from spaceform.study.verdict.posterior import Source
from spaceform.study.verdict.settle import Settlement

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
