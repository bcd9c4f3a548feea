"""The folder of a study: many runs, planned once, carried out anywhere, collected into one table.

`study.json` holds the plan, `runs/NAME/` the runs, `results.parquet` one row for each run. If the same study
is planned again, it goes on: finished runs stay, failed ones are tried again.
"""

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, cast, final

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from spaceform.foundation.messages import sentence
from spaceform.run import files, stored
from spaceform.run.environment import environment
from spaceform.run.material import load_key, load_named
from spaceform.run.recipe import Recipe, RecipeError, make

if TYPE_CHECKING:
    from pandas import DataFrame  # a process that trains a run has no table

Stage: TypeAlias = Literal["waiting", "running", "finished", "failed"]
EARLIER = "earlier"
"""The folder of runs whose recipe is no longer the best one: the search went on and found a better."""
ARRAYS = "data.npz"
"""The file of a study that was given arrays: with it, the study can go on in another process."""


@final
@dataclass(frozen=True)
class Job:
    """One run of a study."""

    name: str
    """For example `vmf-seed0`; it is also the name of the run's folder."""
    label: str
    """The name that all seeds of a head share in tables: `vmf`, or `vmf β=16`."""
    recipe: Recipe


@final
@dataclass(frozen=True)
class Failure:
    """Why a run failed, as data that can cross processes, machines and files."""

    kind: str
    """The name of the error's class, such as `Diverged`."""
    sentence: str

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """The class and the sentence of an error."""
        return cls(type(error).__name__, sentence(error))


@final
@dataclass(frozen=True)
class RunStatus:
    """How far a run is. It is read from the run's folder alone."""

    job: Job
    state: Stage
    epoch: int = 0
    score: float | None = None
    seconds: float = 0.0
    error: str = ""


class PlannedRun(TypedDict):
    """A run as `study.json` has it."""

    label: str
    recipe: dict[str, Any]


class AskedGoal(TypedDict):
    """A goal in a round of the race for seeds."""

    goal: str
    choice: str
    regret: float
    region: float
    settled: NotRequired[bool]
    few_items: NotRequired[bool]
    heads: NotRequired[list[str]]


class RaceRound(TypedDict):
    """What was decided after a round of runs."""

    reason: NotRequired[str]
    seeds: NotRequired[dict[str, int]]
    questions: NotRequired[list[AskedGoal]]


@with_config(ConfigDict(extra="allow"))
class Notes(TypedDict):
    """How a plan was made. Other notes are allowed, and are not checked."""

    kind: NotRequired[str]
    data: NotRequired[str]
    data_note: NotRequired[str]
    search: NotRequired[str]
    searched: NotRequired[dict[str, str]]
    race: NotRequired[list[RaceRound]]


class Plan(TypedDict):
    """`study.json`: what the study is to do, and what it was made with."""

    version: NotRequired[int]
    made_with: NotRequired[dict[str, Any]]
    notes: NotRequired[Notes]
    runs: dict[str, PlannedRun]


class _Ended(TypedDict):
    """What `result.json` says of how far a run came."""

    epochs: int
    score: float
    seconds: float


class _Failed(TypedDict):
    """`error.json` of a run that failed."""

    error: str


_PLAN_AGAIN = (
    "restore study.json from a copy, or remove it: the same command plans again, and keeps what is done"
)


_VERSION = 1
"""The version of `study.json`."""


def read_plan(folder: Path) -> Plan:
    """The plan of a study's folder."""
    path = folder / "study.json"
    plan = files.read_json(path, Plan, remedy=_PLAN_AGAIN)
    if (version := plan.get("version", _VERSION)) != _VERSION:
        raise RecipeError(
            f"{path} is of version {version}, and this spaceform reads version {_VERSION}: use the spaceform "
            "that wrote it, or choose another folder"
        )
    return plan


def planned_recipe(
    make_recipe: Callable[[Any, str], Recipe], folder: Path, name: str, run: PlannedRun
) -> Recipe:
    """The recipe of a run as `study.json` has it; a RecipeError names the run whose recipe is damaged."""
    try:
        return make_recipe(run["recipe"], f"{folder / 'study.json'}, run {name}")
    except RecipeError as error:
        raise RecipeError(f"{error}; {_PLAN_AGAIN}") from None


@final
@dataclass(frozen=True)
class StudyFolder:
    """The folder of a study: its plan, and the folder of every run."""

    folder: Path
    jobs: tuple[Job, ...]
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What readers of the results must know: how the plan was made, what was shortened."""

    @classmethod
    def open(cls, folder: str | Path) -> "StudyFolder":
        """Read the study of a folder."""
        folder = Path(folder)
        path = folder / "study.json"
        if not path.exists():
            raise RecipeError(f"{folder} holds no study; `spaceform compare DATA --out {folder}` makes one")
        plan = read_plan(folder)
        jobs = [
            Job(name, run["label"], planned_recipe(_made, folder, name, run))
            for name, run in plan["runs"].items()
        ]
        return cls(folder, tuple(jobs), dict(plan.get("notes", {})))

    @classmethod
    def plan(
        cls,
        folder: str | Path,
        jobs: Iterable[Job],
        notes: Mapping[str, Any] | None = None,
        *,
        say: Callable[[str], None] = lambda _: None,
    ) -> "StudyFolder":
        """Write a plan into a folder that is `locked`, or join it to the plan that is there.

        If a run is there with another recipe, or was trained on data that have changed since, the plan is
        refused: results never mix. There is one exception. If a search in this folder found the recipe, went
        on, and chose another one, the runs of its earlier choice are moved to `earlier/`, and `say` is told.
        """
        folder, wanted = Path(folder), tuple(jobs)
        before = cls.open(folder) if (folder / "study.json").exists() else cls(folder, ())
        there = {job.name: job for job in before.jobs}
        chosen = before._chosen_otherwise(wanted, notes or {})
        for job in wanted:
            if job.name in there and job.label not in chosen and there[job.name].recipe != job.recipe:
                difference = _first_difference(there[job.name].recipe, job.recipe)
                raise RecipeError(
                    f"{folder} holds {job.name} with other settings already ({difference}); "
                    "choose another --out"
                )
        for label, difference in chosen.items():
            own = [job for job in before.jobs if job.label == label]
            say(
                f"{label}: the search went on and found a better candidate ({difference}), which is trained "
                f"now; what was trained of the earlier one is kept in {folder / EARLIER}"
            )
            for job in own:
                before._set_aside(job)
                del there[job.name]
        union = tuple({**there, **{job.name: job for job in wanted}}.values())
        study = cls(folder, union, dict(notes or {}))
        study._require_same_data({job.recipe.data.name for job in wanted})
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(folder / "study.json", study._as_json())
        return cls(folder, wanted, study.notes)

    def _chosen_otherwise(self, wanted: Iterable[Job], notes: Mapping[str, Any]) -> dict[str, str]:
        """Labels for which a search in this folder now chooses another recipe than before, and what differs.

        A search chooses net, rates and options; data and budget must be the same.
        """
        before, now = (set(found.get("searched", ())) for found in (self.notes, notes))
        new = {job.label: job for job in reversed([*wanted])}
        found = {}
        for job in self.jobs:
            other = new.get(job.label)
            if other is None or not {job.recipe.head.name} <= before & now:
                continue
            kept = job.recipe.model_copy(update={"seed": other.recipe.seed})
            same = {part: getattr(other.recipe, part) for part in ("net", "optim", "head")}
            if kept != other.recipe and kept.model_copy(update=same) == other.recipe:
                found[job.label] = _first_difference(kept, other.recipe)
        return found

    def _set_aside(self, job: Job) -> None:
        """Move a run to `earlier/`, before the plan changes: a kill in between leaves no mixture."""
        if self.path(job).exists():
            aside = self.folder / EARLIER / job.name
            shutil.rmtree(aside, ignore_errors=True)
            aside.parent.mkdir(exist_ok=True)
            self.path(job).rename(aside)

    def path(self, job: Job) -> Path:
        """The folder of a run."""
        return self.folder / "runs" / job.name

    def status(self, job: Job) -> RunStatus:
        """How far a run is."""
        return run_status(job, self.path(job))

    def unfinished(self) -> list[Job]:
        """Runs that are still to do, also those that failed."""
        return [job for job in self.jobs if self.status(job).state != "finished"]

    def clear_failure(self, job: Job) -> None:
        """Remove the reason why a run failed, so that the run is tried again from its last good state."""
        (self.path(job) / "error.json").unlink(missing_ok=True)

    def record_failure(self, job: Job, failure: Failure) -> None:
        """Keep the reason of a failure beside the run."""
        self.path(job).mkdir(parents=True, exist_ok=True)
        files.write_json(self.path(job) / "error.json", {"kind": failure.kind, "error": failure.sentence})

    def adopt(self, job: Job, files: Mapping[str, bytes]) -> None:
        """Take over a run that another machine has finished: all of its files, or none."""
        target = self.path(job)
        part = target.with_name(f".{job.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for name, content in files.items():
            if Path(name).name != name:
                raise RecipeError(f"{job.name} came back with a file {name!r}, which is no plain name")
            (part / name).write_bytes(content)
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)

    def table(self) -> "DataFrame":
        """One row for each run: its recipe, how it ended, what was measured."""
        import pandas as pd

        rows = []
        for job in self.jobs:
            status = self.status(job)
            row: dict[str, Any] = {
                "run": job.name,
                "label": job.label,
                "head": job.recipe.head.name,
                "seed": job.recipe.seed,
                "data": job.recipe.data.name,
                "dim": job.recipe.net.dim,
                "state": status.state,
                "error": status.error,
                "epochs": status.epoch,
                "seconds": status.seconds,
            }
            if status.state == "finished":
                found = flat_metrics(stored.read_metrics(self.path(job)))
                row |= {name: value for name, value in found.items() if name not in row}
            rows.append(row)
        return pd.DataFrame(rows)

    def collect(self) -> "DataFrame":
        """The table, also written to `results.parquet`."""
        table = self.table()
        part = self.folder / ".results.parquet.part"
        table.to_parquet(part)
        os.replace(part, self.folder / "results.parquet")
        return table

    def _require_same_data(self, names: Collection[str]) -> None:
        """Load the data of these runs and compare them with what all finished runs kept of them."""
        kept = [
            (job, fingerprint)
            for job in self.jobs
            if job.recipe.data.name in names
            and (path := self.path(job) / "result.json").exists()
            and (fingerprint := files.read_json(path, stored.Result, remedy=_train_again(path))["data"])
        ]
        named = {load_key(job.recipe): job.recipe for job, _ in kept}
        contents = {key: load_named(recipe).content for key, recipe in named.items()}
        for job, fingerprint in kept:
            if fingerprint["content"] != contents[load_key(job.recipe)]:
                raise RecipeError(
                    f"the data {job.recipe.data.name!r} is not what {job.name} in {self.folder} was trained "
                    "on: bring it back, or choose another --out"
                )

    def _as_json(self) -> Plan:
        return {
            "version": _VERSION,
            "made_with": environment(),
            "notes": cast(Notes, dict(self.notes)),
            "runs": {
                job.name: {"label": job.label, "recipe": job.recipe.model_dump(mode="json")}
                for job in self.jobs
            },
        }


def _made(values: Any, source: str) -> Recipe:
    return make(values, source=source)


def _train_again(result: Path) -> str:
    return f"restore it from a copy, or remove {result.parent}: the same command trains it again"


def run_status(job: Job, folder: Path) -> RunStatus:
    """How far the run in a folder is."""
    if (folder / "metrics.json").exists():
        stored.read_metrics(folder)
        path = folder / "result.json"
        result = files.read_json(path, _Ended, remedy=_train_again(path))
        return RunStatus(job, "finished", result["epochs"], result["score"], result["seconds"])
    if (folder / "error.json").exists():
        failed = files.read_json(folder / "error.json", _Failed, remedy="remove it: the run is tried again")
        return RunStatus(job, "failed", error=failed["error"])
    history = stored.read_history(folder, growing=True)
    if not history:
        return RunStatus(job, "running" if (folder / "recipe.json").exists() else "waiting")
    seconds = sum(float(record["seconds"]) for record in history)
    return RunStatus(job, "running", history[-1]["epoch"] + 1, max(r["score"] for r in history), seconds)


def flat_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """What was measured, with dotted names. Under `calibrated.chosen` is what the chosen calibrator gives."""
    calibrated = metrics.get("calibrated", {})
    chosen = calibrated.get(metrics.get("calibrator"))
    return _flat({**metrics, "calibrated": {**calibrated, **({"chosen": chosen} if chosen else {})}})


def _first_difference(one: Recipe, other: Recipe) -> str:
    a, b = _flat(one.model_dump(mode="json")), _flat(other.model_dump(mode="json"))
    key = next(key for key in {**a, **b} if a.get(key) != b.get(key))
    return f"{key} was {a.get(key)!r} and is now {b.get(key)!r}"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
