"""The verdict of a study, from the files in the folders of its runs."""

import math
import shlex
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from spaceform.foundation.messages import capital
from spaceform.heads import HEADS, StochasticHead
from spaceform.run import timing
from spaceform.run.stored import read_metrics
from spaceform.study.folder import Job, RunStatus, StudyFolder, flat_metrics
from spaceform.study.references import KeptReference, read_references
from spaceform.study.sensitivity import Tried, tried, unequal
from spaceform.study.summary import Findings
from spaceform.study.verdict.amounts import Name
from spaceform.study.verdict.decide import Relation, Verdict, decide
from spaceform.study.verdict.evidence import Evidence, evidence_from
from spaceform.study.verdict.goal_words import sentences
from spaceform.study.verdict.goals import GOALS
from spaceform.study.verdict.item_outputs import ItemOutputs
from spaceform.study.verdict.overall import Cost, Recommendation, recommend
from spaceform.study.verdict.overall_words import against_references, no_choice, overall


@final
@dataclass(frozen=True, eq=False)
class Advice:
    """What to choose: over all goals, and for each of them."""

    evidence: Evidence
    verdict: Verdict
    recommendation: Recommendation | None
    """None where no goal counts."""
    costs: Mapping[str, Cost]
    runs: tuple["JudgedRun", ...] = ()
    references: tuple[KeptReference, ...] = ()
    searched: tuple[Tried, ...] = ()
    """What a search tried for each head."""

    @property
    def findings(self) -> Findings:
        """What a table needs of the advice: which heads to mark in each column, and the references.

        A single head is not marked: there was no choice.
        """
        judged = self.verdict.goals if len(self.verdict.labels) > 1 else ()
        return Findings(
            {one.goal.column: self.leading(one.goal.column) for one in judged},
            {one.title: one.measured for one in self.references},
        )

    @property
    def to_deploy(self) -> "JudgedRun | None":
        """Of the runs of the recommended head, the one with the best validation score."""
        if self.recommendation is None:
            return None
        own = [run for run in self.runs if run.label == self.recommendation.choice.label]
        return max(own, key=lambda run: (-math.inf if run.score is None else run.score, -run.seed))

    def leading(self, column: str) -> frozenset[str]:
        """The choice for a goal and the heads that are practically as good; empty without a verdict.

        The head that loses least on average leads with those equivalent to it, and so does a cheaper head
        that is chosen in its place, as `by_goal` says.
        """
        leads = (Relation.CHOSEN, Relation.EQUIVALENT)
        found = (one for one in self.verdict.goals if one.goal.column == column)
        led = {standing.label for one in found for standing in one.standings if standing.relation in leads}
        chosen = self.recommendation.goals.get(column) if self.recommendation is not None and led else None
        return frozenset(led if chosen is None else {*led, chosen.label})

    def overall(self, name: Name = str) -> list[str]:
        """The recommendation over all goals, in sentences; `name` turns a label into what people read."""
        if self.recommendation is None:
            return no_choice(self.verdict, name)
        said = overall(self.recommendation, self.verdict, name)
        beside = against_references(self.verdict, self.recommendation, name)
        return [*said[:1], *filter(None, [beside, unequal(self.searched, name)]), *said[1:]]

    def sentences(self, name: Name = str) -> list[str]:
        """All findings in sentences: first the choice over all goals, then each goal."""
        said = self.overall(name)
        titles = {one.goal.column: one.goal.purpose for one in self.verdict.goals}
        for column, found in self.by_goal(name).items():
            said.append(f"{capital(titles[column])}: {' '.join(found)}")
        return said

    def brief(self, name: Name = str) -> list[str]:
        """The choice over all goals, and the first sentence on each goal; or why there is no choice."""
        titles = {one.goal.column: one.goal.purpose for one in self.verdict.goals}
        by_goal = [f"{capital(titles[column])}: {said[0]}" for column, said in self.by_goal(name).items()]
        moot = self.recommendation is None and no_choice(self.verdict, name)
        return [*self.overall(name), *([] if moot else by_goal)]

    def by_goal(self, name: Name = str) -> dict[str, list[str]]:
        """The sentences on each goal that counts, by its column."""
        chosen = self.recommendation.goals if self.recommendation is not None else {}
        return {
            one.goal.column: sentences(one, chosen.get(one.goal.column), name)
            for one in self.verdict.goals
            if one.goal.weight > 0
        }


@final
@dataclass(frozen=True)
class JudgedRun:
    """What the verdict reads of a finished run."""

    label: str
    head: str
    seed: int
    folder: Path
    metrics: Mapping[str, Any]
    seconds: float
    """The time of the fit."""
    score: float | None = None
    """The score on the validation split; more is better."""
    predict_seconds: float | None = None
    """The time to predict the test split; None where it was not measured."""

    @classmethod
    def of(cls, job: Job, folder: Path, metrics: Mapping[str, Any], status: RunStatus) -> "JudgedRun":
        """From the files of a finished run."""
        recipe = job.recipe
        return cls(
            job.label,
            recipe.head.name,
            recipe.seed,
            folder,
            metrics,
            status.seconds,
            status.score,
            timing.read(folder),
        )


def judge(
    study: StudyFolder,
    *,
    regions: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Advice | None:
    """What the finished runs of a study say; None where there is none.

    `regions` are differences that do not matter, and `weights` say how much a goal counts; both by column.
    """
    beside, searched = read_references(study.folder), tried(study.folder)
    return judge_runs(finished(study), beside, searched, regions=regions, weights=weights)


def judge_runs(
    runs: Sequence[JudgedRun],
    references: Sequence[KeptReference] = (),
    searched: Sequence[Tried] = (),
    *,
    regions: Mapping[str, float] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Advice | None:
    """What any runs on one split say; their order does not matter."""
    place = {name: i for i, name in enumerate(HEADS)}
    runs = sorted(runs, key=lambda run: (place[run.head], run.label, run.seed))  # draws follow the order
    found = evidence(runs, references)
    if found is None:
        return None
    verdict, costs = decide(found, regions=regions), _costs(runs)
    recommendation = recommend(found, verdict, weights, costs)
    compared = {run.head for run in runs}
    own = tuple(one for one in searched if one.head in compared)
    return Advice(found, verdict, recommendation, costs, tuple(runs), tuple(references), own)


def finished(study: StudyFolder) -> list[JudgedRun]:
    """The runs of a study that have ended well."""
    return [
        JudgedRun.of(job, study.path(job), read_metrics(study.path(job)), status)
        for job in study.jobs
        if (status := study.status(job)).state == "finished"
    ]


def evidence(runs: Sequence[JudgedRun], references: Sequence[KeptReference] = ()) -> Evidence | None:
    """The evidence of runs and references; None where there is no run."""
    by_label: dict[str, dict[int, ItemOutputs]] = {}
    for run in runs:
        by_label.setdefault(run.label, {})[run.seed] = _outputs(run)
    if not runs:
        return None
    beside = {one.title: one.outputs for one in references}
    return evidence_from(by_label, beside, GOALS[runs[0].metrics["task"]])


def _costs(runs: Sequence[JudgedRun]) -> dict[str, Cost]:
    """The cost of each label: the mean seconds of fit and prediction, and how complex the head is."""
    by_label: dict[str, list[JudgedRun]] = {}
    for run in runs:
        by_label.setdefault(run.label, []).append(run)
    return {
        label: Cost(
            float(np.mean([run.seconds for run in own])),
            float(np.mean([run.predict_seconds or 0.0 for run in own])),
            _complexity(own[0].head),
        )
        for label, own in by_label.items()
    }


def _complexity(name: str) -> int:
    """How many options the head has; twice that if its embeddings are random."""
    head = HEADS[name]
    return (1 + len(head.searched)) * (2 if issubclass(head, StochasticHead) else 1)


def _outputs(run: JudgedRun) -> ItemOutputs:
    measured = {
        name: None if value is None else float(value)
        for name, value in flat_metrics(run.metrics).items()
        if value is None or isinstance(value, int | float)
    }
    try:
        path = run.folder / "outputs.npz"
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        return ItemOutputs.of(found, str(run.metrics.get("calibrator", "")), measured)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return ItemOutputs(measured=measured)  # without arrays the means alone count


def next_step(advice: Advice) -> list[str]:
    """Which run to deploy, and the command that exports it; empty where there is no recommendation."""
    run = advice.to_deploy
    if run is None:
        return []
    others = sum(other.label == run.label for other in advice.runs) - 1
    why = f", the best of {others + 1} seeds on the validation split" if others else ""
    return [
        f"To deploy: the run {run.folder.name}{why}.",
        f"Next: {export_command(run)}",
    ]


def export_command(run: JudgedRun) -> str:
    """The command that writes a run as one file, which any ONNX runtime can load."""
    return f"spaceform export {shlex.quote(str(run.folder))} model.onnx"
