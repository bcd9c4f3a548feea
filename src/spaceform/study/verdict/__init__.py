"""What the runs of a study say: which head to choose for which goal, how sure that is, and when to stop."""

from spaceform.study.verdict.decide import (
    Difference,
    Gap,
    GoalVerdict,
    ReferenceStanding,
    Relation,
    Standing,
    Verdict,
    decide,
)
from spaceform.study.verdict.evidence import Evidence, Missing, Series, evidence_from
from spaceform.study.verdict.goals import CLASSIFICATION_GOALS, GOALS, RETRIEVAL_GOALS, Goal, Unit
from spaceform.study.verdict.item_outputs import ItemOutputs
from spaceform.study.verdict.overall import Cost, GoalChoice, Recommendation, Why, break_tie, recommend
from spaceform.study.verdict.plain_values import record
from spaceform.study.verdict.posterior import VarianceSource
from spaceform.study.verdict.race import Decision, Question, Reason, race
from spaceform.study.verdict.settle import Settlement

__all__ = [
    "CLASSIFICATION_GOALS",
    "GOALS",
    "RETRIEVAL_GOALS",
    "Cost",
    "Decision",
    "Difference",
    "Evidence",
    "Gap",
    "Goal",
    "GoalChoice",
    "GoalVerdict",
    "ItemOutputs",
    "Missing",
    "Question",
    "Reason",
    "Recommendation",
    "ReferenceStanding",
    "Relation",
    "Series",
    "Settlement",
    "Standing",
    "Unit",
    "VarianceSource",
    "Verdict",
    "Why",
    "break_tie",
    "decide",
    "evidence_from",
    "race",
    "recommend",
    "record",
]
