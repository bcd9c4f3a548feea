"""The verdict of a study, from what its runs left in their folders."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from spaceform.heads import HEADS, StochasticHead
from spaceform.run.finished import read_json
from spaceform.study.folder import Job, StudyFolder, flat_metrics
from spaceform.study.references import read_references
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


def judge(
    study: StudyFolder,
    *,
    regions: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Advice | None:
    """What the finished runs say; None where there is none.

    `regions` are differences that do not matter, and `weights` say how much a goal counts; both by column.
    """
    found = evidence(study)
    if found is None:
        return None
    verdict, costs = decide(found, regions=regions), costs_of(study)
    return Advice(found, verdict, recommend(found, verdict.goals, weights, costs), costs)


def evidence(study: StudyFolder) -> Evidence | None:
    """The evidence of the finished runs and of the references; None where no run is finished."""
    runs: dict[str, dict[int, Outputs]] = {}
    task = ""
    for job in _finished(study):
        metrics = read_json(study.path(job) / "metrics.json")
        task = task or metrics["task"]
        outputs = _outputs(study.path(job), metrics)
        runs.setdefault(job.label, {})[job.recipe.seed] = outputs
    if not runs:
        return None
    references = {one.title: one.outputs for one in read_references(study.folder)}
    return evidence_from(runs, references, GOALS[task])


def costs_of(study: StudyFolder) -> dict[str, Cost]:
    """The mean seconds of a fit of each label, and how much there is to a head of its kind."""
    seconds: dict[str, list[float]] = {}
    heads = {}
    for job in _finished(study):
        seconds.setdefault(job.label, []).append(study.status(job).seconds)
        heads[job.label] = job.recipe.head.name
    return {
        label: Cost(float(np.mean(each)), complexity=_complexity(heads[label]))
        for label, each in seconds.items()
    }


def _complexity(name: str) -> int:
    """Options to choose, and twice as many where embeddings are random."""
    head = HEADS[name]
    return (1 + len(head.searched)) * (2 if issubclass(head, StochasticHead) else 1)


def _finished(study: StudyFolder) -> list[Job]:
    return [job for job in study.jobs if study.status(job).state == "finished"]


def _outputs(folder: Path, metrics: Mapping[str, Any]) -> Outputs:
    figures = {
        name: value
        for name, value in flat_metrics(metrics).items()
        if value is None or isinstance(value, int | float)
    }
    path = folder / "outputs.npz"
    if not path.exists():
        return Outputs(figures=figures)
    with np.load(path, allow_pickle=False) as arrays:
        return Outputs.of(
            {name: arrays[name] for name in arrays.files}, metrics.get("calibrator", ""), figures
        )
