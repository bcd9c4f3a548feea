"""Read what studies and runs left in their folders; what is damaged or missing becomes a note."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, final, get_type_hints

import numpy as np

from spaceform.data import CATALOG
from spaceform.foundation.messages import sentence
from spaceform.geometry import Geometry
from spaceform.heads import HEADS
from spaceform.report.looks import display, geometry_of, in_order
from spaceform.report.outputs import Outputs, damages, read_outputs
from spaceform.report.readable import readable
from spaceform.run.files import read_json
from spaceform.run.recipe import PAPER, Recipe, RecipeError, make
from spaceform.run.stored import read_history, read_metrics
from spaceform.study.folder import (
    Job,
    Plan,
    RunStatus,
    StudyFolder,
    flat_metrics,
    planned_recipe,
    read_plan,
    run_status,
)


@final
@dataclass(frozen=True, eq=False)
class Record:
    """One run, from the files in its folder."""

    name: str
    label: str
    recipe: Recipe
    folder: Path
    status: RunStatus
    metrics: dict[str, Any]

    @property
    def head(self) -> str:
        return self.recipe.head.name

    @cached_property
    def geometry(self) -> Geometry | None:
        """The geometry of the head; None where the head is not registered here."""
        return geometry_of(self.head, self.recipe.head.options)

    def option(self, name: str) -> Any:
        """An option of the head, from the recipe or by default; None where the head has no such option."""
        options = self.recipe.head.options
        if name in options or self.head not in HEADS:
            return options.get(name)
        return HEADS[self.head].options().get(name)

    @property
    def finished(self) -> bool:
        return self.status.state == "finished"

    @cached_property
    def measured(self) -> dict[str, Any]:
        """Everything that was measured, by dotted name."""
        return flat_metrics(self.metrics)

    def number(self, column: str) -> float | None:
        """A measured number, such as `calibrated.temperature.nll`; None where there is none."""
        found = self.measured.get(column)
        return float(found) if isinstance(found, int | float) and np.isfinite(found) else None

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """One record for each epoch; empty where they cannot be read."""
        try:
            return read_history(self.folder, growing=True)
        except (OSError, ValueError):
            return []

    @cached_property
    def outputs(self) -> Outputs | None:
        """The outputs of the run; None where there are none or they cannot be read."""
        try:
            return read_outputs(self.folder)
        except RecipeError:
            return None


@final
@dataclass(frozen=True, eq=False)
class Shown:
    """The run that stands for a row in the figures that show single items."""

    record: Record
    outputs: Outputs

    @property
    def title(self) -> str:
        """The name of the row in figures and tables."""
        return display(self.record.label)


@final
@dataclass(frozen=True, eq=False)
class Group:
    """Runs that may be compared: the same data, task and split."""

    key: str
    title: str
    data: str
    task: str
    records: tuple[Record, ...]

    @cached_property
    def studies(self) -> tuple[Path, ...]:
        """The folders of the studies that the runs belong to; a single run belongs to none."""
        folders = dict.fromkeys(record.folder.parent.parent for record in self.records)
        return tuple(folder for folder in folders if (folder / "study.json").exists())

    @cached_property
    def published(self) -> str:
        """The data set's name in the paper; empty if the paper's numbers are of another net."""
        nets = {PAPER[row].net.name for row in PAPER if row.startswith(f"{self.data}/")}
        return self.data if {record.recipe.net.name for record in self.records} <= nets else ""

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Rows of the tables: heads in the order of `HEADS`, each followed by its variants."""
        return in_order({record.label: record.head for record in self.records})

    def of(self, label: str) -> list[Record]:
        """Finished runs of a row, by seed."""
        return sorted(
            (r for r in self.records if r.label == label and r.finished), key=lambda r: r.recipe.seed
        )

    @cached_property
    def shown(self) -> dict[str, Shown]:
        """For each row its first seed that has outputs."""
        found = {}
        for label in self.labels:
            for record in self.of(label):
                if record.outputs is not None:
                    found[label] = Shown(record, record.outputs)
                    break
        return found

    @cached_property
    def notes(self) -> list[str]:
        """What is missing, one sentence for each thing."""
        by_note: dict[str, list[str]] = {}
        for record in self.records:
            if record.status.state == "failed":
                by_note.setdefault(f"failed: {record.status.error}", []).append(record.name)
            elif not record.finished:
                by_note.setdefault(f"not finished ({record.status.state}).", []).append(record.name)
            elif record.outputs is None:
                note = "no outputs.npz that can be read; evaluate again for the figures of single items."
                by_note.setdefault(note, []).append(record.name)
        said = [f"{self._named(names)}: {note}" for note, names in by_note.items()]
        seeds = {label: len(self.of(label)) for label in self.labels}
        if none := [display(label) for label, count in seeds.items() if not count]:
            said.append(f"No finished run: {', '.join(none)}.")
        single = [display(label) for label, count in seeds.items() if count == 1]
        if single:
            said.append(f"One seed only, so no error bar: {', '.join(single)}.")
        return said

    def _named(self, names: Sequence[str]) -> str:
        """The names of the runs; if there are many, the first four and how many more there are."""
        if len(names) <= 6:
            return ", ".join(names)
        if len(names) == len(self.records):
            return f"All {len(names)} runs"
        return f"{', '.join(names[:4])} and {len(names) - 4} more runs"


@final
@dataclass(frozen=True, eq=False)
class Collection:
    """Everything that a report is about."""

    groups: tuple[Group, ...]
    studies: tuple[StudyFolder, ...]
    plans: tuple[dict[str, Any], ...]
    """The `study.json` of each study."""
    notes: tuple[str, ...] = field(default=())

    def notes_of(self, group: Group) -> dict[str, Any]:
        """The notes of the first study of a group; empty where it has none."""
        plans = {study.folder: plan for study, plan in zip(self.studies, self.plans, strict=True)}
        found = [plans[folder].get("notes") for folder in group.studies if folder in plans]
        return found[0] if found and isinstance(found[0], dict) else {}

    @property
    def records(self) -> list[Record]:
        return [record for group in self.groups for record in group.records]


def collect(folders: Iterable[str | Path]) -> Collection:
    """Read studies and single runs; a RecipeError where there is nothing at all to report."""
    paths = [Path(folder) for folder in folders]
    if not paths:
        raise RecipeError("give the folder of a study or of a run to report on")
    studies: list[StudyFolder] = []
    plans: list[dict[str, Any]] = []
    notes: list[str] = []
    found: list[tuple[str, Record]] = []
    for path in paths:
        if not path.is_dir():
            raise RecipeError(f"there is no folder {str(path)!r}; give that of a study or of a run")
        if (path / "study.json").exists():
            try:
                plan = read_plan(path)
                study = _study(path, plan)
            except RecipeError as error:
                notes.append(str(error))
                continue
            studies.append(study)
            plans.append(readable(plan))
            found += [(path.resolve().name, _record(job, study.path(job), notes)) for job in study.jobs]
        elif (recipe := _recipe_of_run(path, notes)) is not None:
            job = Job(path.name, recipe.head.name, recipe)
            found.append(("", _record(job, path, notes)))
        elif not notes:
            raise RecipeError(f"{path} holds neither a study (study.json) nor a run (recipe.json)")
    if not found:
        raise RecipeError("; ".join(notes))
    return Collection(_groups(found), tuple(studies), tuple(plans), tuple(map(readable, notes)))


def _study(folder: Path, plan: Plan) -> StudyFolder:
    """The study of a folder, as `StudyFolder.open`, but with runs of heads that are not registered here."""
    jobs = [
        Job(name, run["label"], planned_recipe(_recipe, folder, name, run))
        for name, run in plan["runs"].items()
    ]
    return StudyFolder(folder, tuple(jobs))


def _recipe_of_run(folder: Path, notes: list[str]) -> Recipe | None:
    path = folder / "recipe.json"
    try:
        return _recipe(read_json(path), str(path)) if path.exists() else None
    except RecipeError as error:
        notes.append(str(error))
        return None


def _recipe(values: Any, source: str) -> Recipe:
    """A recipe; the options of a head that is not registered here are taken unchecked."""
    match values:
        case {"head": {"name": str(name)} as head} if name not in HEADS:
            values = {**values, "head": get_type_hints(Recipe)["head"].model_construct(**head)}
    return make(values, source=source)


def _record(job: Job, folder: Path, notes: list[str]) -> Record:
    try:
        status = run_status(job, folder)
        metrics = read_metrics(folder) if status.state == "finished" else {}
    except (ValueError, KeyError, TypeError) as error:
        status, metrics = RunStatus(job, "failed", error=f"its files cannot be read ({sentence(error)})"), {}
        notes.append(f"{job.name}: {status.error}")
    if status.state == "finished":
        notes += damages(folder)
    status = replace(status, error=readable(status.error))
    return Record(readable(job.name), readable(job.label), job.recipe, folder, status, metrics)


def _groups(found: Sequence[tuple[str, Record]]) -> tuple[Group, ...]:
    parts: dict[tuple[Any, ...], list[Record]] = {}
    for study, record in found:
        about = record.recipe.data
        task = record.metrics.get("task") or about.task or "classification"
        if (
            not record.finished and about.task is None
        ):  # the task follows from the data: take it from a finished run on them
            task = next(
                (
                    other.metrics["task"]
                    for where, other in found
                    if where == study and other.recipe.data == about and other.finished
                ),
                task,
            )
        key = (study, about.name, task, about.split_seed, about.imbalance, about.label_noise)
        parts.setdefault(key, []).append(record)
    titles = [readable(_title(*key[1:])) for key in parts]
    if len(set(titles)) < len(titles):
        titles = [
            f"{title} · {readable(key[0])}" if key[0] else title
            for title, key in zip(titles, parts, strict=True)
        ]
    return tuple(
        Group(slug, title, key[1], key[2], tuple(records))
        for slug, title, (key, records) in zip(_slugs(titles), titles, parts.items(), strict=True)
    )


def _slugs(titles: Sequence[str]) -> list[str]:
    """Names for files and anchors: letters, digits and hyphens, all different."""
    slugs: list[str] = []
    for title in titles:
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "data"
        again = sum(slug == re.sub(r"--\d+$", "", other) for other in slugs)
        slugs.append(f"{slug}--{again + 1}" if again else slug)
    return slugs


def _title(name: str, task: str, split_seed: int, imbalance: float, label_noise: float) -> str:
    entry = CATALOG.get(name)
    title = (Path(name).stem or name) if entry is None else entry.title
    extras = []
    if task == "retrieval" and (entry is None or entry.task != task):
        extras.append("retrieval")
    if imbalance > 1:
        extras.append(f"imbalance {imbalance:g}")
    if label_noise > 0:
        extras.append(f"label noise {label_noise:g}")
    if split_seed:
        extras.append(f"split {split_seed}")
    return f"{title} ({', '.join(extras)})" if extras else title
