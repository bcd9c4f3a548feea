"""Search heads on features: the engine tries the same nets and rates for each head, one head in a process.

`HEAD.jsonl` keeps a line for each trial, so that a search that was killed can go on, to the same result.
`HEAD.toml` is the best recipe.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, final

import pandas as pd
from typing_extensions import TypedDict

from spaceform.engine import SIZE, Columns, Held, NothingTrained, Trial, space
from spaceform.engine import search as search_candidates
from spaceform.foundation.messages import counted
from spaceform.heads import HEADS, StochasticHead
from spaceform.run import files
from spaceform.run.feature_run import affordable, candidates_with, engine_parts, rows_of, with_candidate
from spaceform.run.material import Fingerprint, Material, load_data, material
from spaceform.run.recipe import Recipe, RecipeError, load_recipe
from spaceform.study.folder import Job
from spaceform.study.optuna_search import SearchError, to_toml
from spaceform.study.place import Event
from spaceform.study.processes import Errand, Processes
from spaceform.study.settings import of_candidate

_HELD: dict[Held, str] = {"epochs": "optim.epochs", "lr": "optim.lr", "members": "net.members"}
"""What a search changes, with its key in a recipe. What `--set` fixes is not changed."""


class AboutSearch(TypedDict):
    """The first line of `HEAD.jsonl`: what was searched."""

    head: str
    candidates: int
    data: Fingerprint
    rows: NotRequired[int]
    of_rows: NotRequired[int]
    fixed: NotRequired[dict[str, Any]]


class TriedRecipe(TypedDict):
    """The parts of a recipe that a search chooses."""

    net: dict[str, Any]
    optim: dict[str, Any]
    head: dict[str, Any]


class KeptTrial(TypedDict):
    """Every other line: a trial, and the recipe of its candidate."""

    trial: Trial
    recipe: TriedRecipe


def search_features(
    found: Mapping[str, Recipe],
    folder: Path,
    *,
    trials: int,
    settings: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    on: Processes,
    beside: Sequence[Errand] = (),
    say: Callable[[str], None],
) -> tuple[dict[str, Recipe], dict[str, str]]:
    """The best recipe of each head, and a sentence about each; a head that never trained is left out.

    `settings` such as {"net.dim": 32} hold in all trials, and the rest is searched. `seconds` bounds the time
    of each head. The same processes do the errands in `beside`; if one of these fails, `say` is told. The
    caller holds the folder's lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    work = partial(search_one, trials=trials, settings=dict(settings or {}), seconds=seconds)
    slow: list[Errand] = []
    quick: list[Errand] = []
    for head, recipe in found.items():
        errand = Errand(Job(f"search-{head}", head, recipe), folder, work)
        (slow if issubclass(HEADS[recipe.head.name], StochasticHead) else quick).append(errand)
    searches = {errand.job.name for errand in (*slow, *quick)}
    said: dict[str, str] = {}
    for event in on.each([*slow, *beside, *quick]):  # the longest first: no process is left alone at the end
        if event.job.name in searches:
            said[event.job.label] = _ended(event, folder)
            say(f"{event.job.label}: {said[event.job.label]}")
        elif event.failure is not None:
            say(f"{event.job.label}: {event.error}")
    written = {head: folder / f"{head}.toml" for head in found}
    best = {head: load_recipe(path) for head, path in written.items() if path.exists()}
    if not best:
        raise SearchError("; ".join(said.values()))
    return best, {head: said[head] for head in found}


def _ended(event: Event, folder: Path) -> str:
    """The result of a search, in a sentence; if no candidate of the head trained, the other heads go on."""
    if event.failure is not None and event.failure.kind != NothingTrained.__name__:
        raise SearchError(event.error)
    if event.error:
        return event.error
    about, trials = Kept.read(folder / f"{event.job.label}.jsonl")
    return _said(trials, about)


def search_one(
    job: Job,
    folder: Path,
    listener: object,  # noqa: ARG001 (a search has no epochs to tell of)
    datasets: dict[Any, Any],
    *,
    trials: int,
    settings: Mapping[str, Any],
    seconds: float | None,
    workers: int = 0,  # noqa: ARG001 (there is nothing to decode)
) -> None:
    """Search one head: a line of HEAD.jsonl for each trial, then HEAD.toml."""
    recipe, head = job.recipe, job.recipe.head.name
    key = recipe.data.key
    if key not in datasets:
        datasets[key] = load_data(recipe)
    parts = material(recipe, datasets[key])
    features, classes, most = parts.input_shape[0], len(parts.classes), affordable(parts)
    recipe_of = partial(with_candidate, recipe, features=features, classes=classes)
    fixed = of_candidate(settings)
    size = max(trials, SIZE) if fixed else trials  # some candidates may not be able to have the settings
    columns = Columns.of(rows_of(parts)[0])
    candidates = space(head, features, classes, len(parts.split.train), columns=columns, size=size)
    candidates = candidates_with(recipe, candidates, fixed, features, classes)[:trials]
    hold: list[Held] = [part for part, key in _HELD.items() if key in fixed]
    kept = Kept(folder / f"{head}.jsonl", _about(recipe, parts, len(candidates), most, fixed))
    outcome = search_candidates(
        head,
        candidates,
        engine_parts(parts, most),
        classes=classes,
        seed=0,
        seconds=seconds,
        hold=hold,
        finished=kept.trials,
        on_trial=lambda trial: kept.add(trial, recipe_of(candidates[trial.candidate])),
    )
    text = f"# {head}: {_said(outcome.trials, kept.about)}\n{to_toml(recipe_of(outcome.candidate))}"
    files.write_bytes(folder / f"{head}.toml", text.encode())


def standing(folder: Path, heads: Sequence[str] = ()) -> list[str]:
    """How far the searches of a folder are, a sentence each; `heads` are those that will be searched."""
    names = [*heads, *sorted({path.stem for path in folder.glob("*.jsonl")} - {*heads})]
    return [f"{head}: {_so_far(folder, head)}" for head in names]


def _so_far(folder: Path, head: str) -> str:
    about, trials = Kept.read(folder / f"{head}.jsonl")
    if not trials:
        return "the first candidate is on trial" if about else "the search has not begun"
    if (folder / f"{head}.toml").exists():
        return _said(trials, about)
    tried = len({trial.candidate for trial in trials})
    stage = (
        f"{tried} of {counted(about['candidates'], 'candidate')} tried so far"
        if tried < about["candidates"]
        else f"all {tried} candidates tried, the best of them again for longer"
    )
    if all(trial.error is not None for trial in trials):
        return f"{stage}; all diverged"
    best = min(trials, key=lambda trial: trial.score)
    return f"{stage}; best validation NLL {best.calibrated_nll:.4f}"


def trials_of(folder: Path) -> pd.DataFrame:
    """Every trial of the searches of a folder, one row each."""
    rows = [
        {"search": path.stem, "planned": about["candidates"], **asdict(record["trial"]), **record["recipe"]}
        for path in sorted(folder.glob("*.jsonl"))
        for about, *records in [_lines(path) or [{}]]
        for record in records
    ]
    return pd.DataFrame(rows)


@final
class Kept:
    """The trials of one head in a file. If its last line was cut short, that trial runs again."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        self.path, self.about = path, about
        there, self.trials = self.read(path)
        if there and there != about:
            raise RecipeError(
                f"{path} holds a search of other data or settings; choose another --out, or remove it"
            )
        whole = path.read_bytes().splitlines()[: 1 + len(self.trials)] if there else []
        lines = whole or [json.dumps(about).encode()]
        files.write_bytes(path, b"".join(line + b"\n" for line in lines))

    @staticmethod
    def read(path: Path) -> tuple[Mapping[str, Any], list[Trial]]:
        """What is searched, and the trials so far; both empty where the search has not begun."""
        about, *records = _lines(path) or [{}]
        return about, [record["trial"] for record in records]

    def add(self, trial: Trial, recipe: Recipe) -> None:
        """Keep one more trial."""
        tried = {"net": recipe.net.model_dump(mode="json"), "optim": recipe.optim.model_dump(mode="json")}
        record = {"trial": trial.to_dict(), "recipe": {**tried, "head": recipe.head.model_dump(mode="json")}}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    return files.read_lines(
        path,
        growing=True,
        first=AboutSearch,
        schema=KeptTrial,
        remedy="restore it from a copy, or remove it: the same command searches this head again",
    )


def _about(
    recipe: Recipe, parts: Material, candidates: int, most: int | None, fixed: Mapping[str, Any]
) -> dict[str, Any]:
    about = {"head": recipe.head.name, "candidates": candidates, "data": parts.fingerprint}
    about |= {} if most is None else {"rows": most, "of_rows": len(parts.split.train)}
    return about | ({"fixed": dict(fixed)} if fixed else {})


def _said(trials: Sequence[Trial], about: Mapping[str, Any]) -> str:
    best, tried = min(trials, key=lambda trial: trial.score), len({trial.candidate for trial in trials})
    diverged = sum(trial.error is not None for trial in trials)
    return (
        f"validation NLL {best.calibrated_nll:.4f}, accuracy {100 * best.accuracy:.2f} %, the best of "
        f"{counted(tried, 'candidate')}"
        + (f" ({counted(diverged, 'trial')} diverged)" if diverged else "")
        + (f", on {about['rows']:,} of {about['of_rows']:,} training rows" if "rows" in about else "")
    )
