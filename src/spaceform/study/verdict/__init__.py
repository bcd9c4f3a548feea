"""What the runs of a study say: which head to choose for which goal, how sure that is, and when to stop."""

from spaceform.study.verdict.decide import (
    Difference,
    Gap,
    GoalVerdict,
    Reference,
    Relation,
    Standing,
    Verdict,
    decide,
)
from spaceform.study.verdict.evidence import Evidence, Missing, Outputs, Series, evidence_from
from spaceform.study.verdict.goals import CLASSIFICATION, GOALS, RETRIEVAL, Goal, Unit
from spaceform.study.verdict.overall import Choice, Cost, Recommendation, Why, break_tie, recommend
from spaceform.study.verdict.posterior import Source
from spaceform.study.verdict.race import Decision, Question, Reason, race
from spaceform.study.verdict.records import record
from spaceform.study.verdict.settle import Settlement

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
