"""What the runs of a study say: which head to choose for which goal, how sure that is, and when to stop."""

from spaceform._verdict.decide import (
    Difference,
    Gap,
    GoalVerdict,
    Reference,
    Relation,
    Standing,
    Verdict,
    decide,
)
from spaceform._verdict.evidence import Evidence, Missing, Outputs, Series, evidence_from
from spaceform._verdict.goals import CLASSIFICATION, GOALS, RETRIEVAL, Goal, Unit
from spaceform._verdict.overall import Choice, Cost, Recommendation, Why, break_tie, recommend
from spaceform._verdict.posterior import Source
from spaceform._verdict.race import Decision, Question, Reason, race
from spaceform._verdict.records import record
from spaceform._verdict.settle import Settlement

__all__ = [
    "CLASSIFICATION",
    "GOALS",
    "RETRIEVAL",
    "Choice",
    "Cost",
    "Decision",
    "Difference",
    "Evidence",
    "Gap",
    "Goal",
    "GoalVerdict",
    "Missing",
    "Outputs",
    "Question",
    "Reason",
    "Recommendation",
    "Reference",
    "Relation",
    "Series",
    "Settlement",
    "Source",
    "Standing",
    "Unit",
    "Verdict",
    "Why",
    "break_tie",
    "decide",
    "evidence_from",
    "race",
    "recommend",
    "record",
]
