"""The verdict of a study, from what its runs left in their folders."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from spaceform.heads import HEADS, StochasticHead
from spaceform.run.files import read_json
from spaceform.study.folder import StudyFolder, flat_metrics
from spaceform.study.references import KeptReference, read_references
from spaceform.study.verdict.decide import Relation, Verdict, decide
from spaceform.study.verdict.evidence import Evidence, Outputs, evidence_from
from spaceform.study.verdict.goals import GOALS
from spaceform.study.verdict.overall import Cost, Recommendation, recommend
from spaceform.study.verdict.words import Name, overall, sentences


@final
@dataclass(frozen=True, eq=False)
class Advice:
    """What to choose: over all goals, and for each of them."""

    evidence: Evidence
    verdict: Verdict
    recommendation: Recommendation | None
    """None where no goal counts."""
    costs: Mapping[str, Cost]

    def leading(self, column: str) -> frozenset[str]:
        """The choice for a goal and the heads that are practically as good; empty without a verdict."""
        leads = (Relation.CHOSEN, Relation.EQUIVALENT)
        found = (one for one in self.verdict.goals if one.goal.column == column)
        return frozenset(
            standing.label for one in found for standing in one.standings if standing.relation in leads
        )

    def overall(self, name: Name = str) -> list[str]:
        """The recommendation over all goals, in sentences; `name` turns a label into what people read."""
        if self.recommendation is None:
            return []
        return overall(self.recommendation, [one.goal for one in self.verdict.goals], name)

    def sentences(self, name: Name = str) -> list[str]:
        """Everything there is to say, a sentence each: the choice over all goals first."""
        said = self.overall(name)
        titles = {one.goal.column: one.goal.purpose for one in self.verdict.goals}
        for column, found in self.by_goal(name).items():
            said.append(f"{titles[column][:1].upper()}{titles[column][1:]}: {' '.join(found)}")
        return said

    def by_goal(self, name: Name = str) -> dict[str, list[str]]:
        """What there is to say of each goal that counts, by its column."""
        chosen = self.recommendation.goals if self.recommendation is not None else {}
        return {
            one.goal.column: sentences(one, chosen.get(one.goal.column), name)
            for one in self.verdict.goals
            if one.goal.weight > 0
        }


@final
@dataclass(frozen=True)
class JudgedRun:
    """What is read of a finished run."""

    label: str
    head: str
    seed: int
    folder: Path
    metrics: Mapping[str, Any]
    seconds: float


def judge(
    study: StudyFolder,
    *,
    regions: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Advice | None:
    """What the finished runs of a study say; None where there is none.

    `regions` are differences that do not matter, and `weights` say how much a goal counts; both by column.
    """
    return judge_runs(finished(study), read_references(study.folder), regions=regions, weights=weights)


def judge_runs(
    runs: Sequence[JudgedRun],
    references: Sequence[KeptReference] = (),
    *,
    regions: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Advice | None:
    """The same of any runs on one split."""
    found = evidence(runs, references)
    if found is None:
        return None
    verdict, costs = decide(found, regions=regions), _costs(runs)
    return Advice(found, verdict, recommend(found, verdict, weights, costs), costs)


def finished(study: StudyFolder) -> list[JudgedRun]:
    """The runs of a study that have ended well."""
    found = []
    for job in study.jobs:
        status = study.status(job)
        if status.state == "finished":
            metrics = read_json(study.path(job) / "metrics.json")
            recipe = job.recipe
            found.append(
                JudgedRun(job.label, recipe.head.name, recipe.seed, study.path(job), metrics, status.seconds)
            )
    return found


def evidence(runs: Sequence[JudgedRun], references: Sequence[KeptReference] = ()) -> Evidence | None:
    """The evidence of runs and references; None where there is no run."""
    by_label: dict[str, dict[int, Outputs]] = {}
    for run in runs:
        by_label.setdefault(run.label, {})[run.seed] = _outputs(run)
    if not runs:
        return None
    beside = {one.title: one.outputs for one in references}
    return evidence_from(by_label, beside, GOALS[runs[0].metrics["task"]])


def _costs(runs: Sequence[JudgedRun]) -> dict[str, Cost]:
    """The mean seconds of a fit of each label, and how much there is to a head of its kind."""
    seconds: dict[str, list[float]] = {}
    for run in runs:
        seconds.setdefault(run.label, []).append(run.seconds)
    heads = {run.label: run.head for run in runs}
    return {
        label: Cost(float(np.mean(each)), complexity=_complexity(heads[label]))
        for label, each in seconds.items()
    }


def _complexity(name: str) -> int:
    """Options to choose, and twice as many where embeddings are random."""
    head = HEADS[name]
    return (1 + len(head.searched)) * (2 if issubclass(head, StochasticHead) else 1)


def _outputs(run: JudgedRun) -> Outputs:
    figures = {
        name: None if value is None else float(value)
        for name, value in flat_metrics(run.metrics).items()
        if value is None or isinstance(value, int | float)
    }
    try:
        with np.load(run.folder / "outputs.npz", allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile):
        return Outputs(figures=figures)  # without them the figures alone count
    return Outputs.of(found, str(run.metrics.get("calibrator", "")), figures)
