"""Search a head's rates and options by Optuna, on the validation split alone, with equal effort for each."""

import json
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import optuna
from optuna.trial import Trial, TrialState

from spaceform import data
from spaceform.run import files
from spaceform.run.finished import read_json
from spaceform.run.recipe import Recipe, RecipeError, flatten, replace
from spaceform.study.folder import Job
from spaceform.study.processes import Event, Pool, default_workers

SamplerName: TypeAlias = Literal["tpe", "grid"]

GRID: dict[str, tuple[Any, ...]] = {
    "optim.lr": (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0),
    "optim.momentum": (0.8, 0.9, 0.99),
    "optim.nesterov": (False, True),
    "optim.weight_decay": (0.0, 5e-5, 1e-4, 5e-4),
    "optim.temperature_lr": (0.0001, 0.001, 0.01),
    "head.beta": (1.0, 16.0, 32.0),
    "head.margin": (0.3, 0.4, 0.5),
    "head.init_ratio": (0.4, 0.7),
    "head.curvature": (1e-5, 1e-3, 1e-1),
}
"""The values that occur in the paper's tables, and two more curvatures; visited in random order."""
_AROUND = {"optim.lr": 30.0, "optim.weight_decay": 30.0, "optim.temperature_lr": 30.0, "head.beta": 4.0}
_AROUND |= {"head.curvature": 100.0}
"""TPE looks this far above and below the value it starts from, in logarithms."""
_BETWEEN = {"head.init_ratio": (0.4, 0.99)}
"""TPE looks between these; at what is in neither table, in the grid."""
_OWN = {
    "standard": (),
    "hyperbolic": ("head.curvature",),
    "cosine": ("optim.temperature_lr", "head.beta"),
    "arcface": ("optim.temperature_lr", "head.beta", "head.margin"),
    "vmf": ("optim.temperature_lr", "head.beta", "head.init_ratio"),
    "power_spherical": ("optim.temperature_lr", "head.beta", "head.init_ratio"),
}
_COMMON = ("optim.lr", "optim.momentum", "optim.nesterov", "optim.weight_decay")


class SearchError(RuntimeError):
    """A search that cannot go on."""


def search(
    recipe: Recipe,
    folder: Path,
    *,
    trials: int,
    sampler: SamplerName = "tpe",
    storage: str | None = None,
    workers: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Recipe, str]:
    """The best recipe of `trials` trials around `recipe`, and a sentence about it; also written to HEAD.toml.

    A trial is a training run whose score is the best validation score; those that fall behind the median of
    the others at the same epoch are cut short, diverged ones count as 0. TPE begins with the recipe as it is.
    Trials are kept in `storage` (SQLite in the folder unless given): the same call goes on where it stopped,
    and several machines may share one, as long as the data are the same. The caller holds the folder's lock.
    """
    folder.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = _open(recipe, folder, sampler, storage)
    _require_same_data(study, recipe)
    _recover(study, folder)
    if sampler == "tpe" and not study.trials:
        study.enqueue_trial({key: flatten(recipe)[key] for key in _keys(recipe)})
    head = recipe.head.name
    live: dict[str, _Live] = {}
    with Pool(min(trials, workers or default_workers())) as pool:
        while True:
            while pool.room and _count(study) < trials:
                begun = _begin(study, recipe, folder, sampler)
                live[begun.job.name] = begun
                pool.submit(begun.job, begun.folder, measure=False)
            if not live:
                break
            for event in pool.events():
                _take(study, live, event, pool, say)
    best = _best(study, recipe)
    tried, cut = _count(study), sum(t.state == TrialState.PRUNED for t in study.trials)
    sentence = f"validation score {study.best_value:.4f}, the best of {tried} trials ({cut} cut short)"
    text = f"# {head}: {sentence}; sampler {sampler}\n{to_toml(best)}"
    files.write_bytes(folder / f"{head}.toml", text.encode())
    return best, sentence


def standing(folder: Path) -> list[str]:
    """Where the searches of a folder stand, a sentence each; none where their storage is elsewhere."""
    path = folder / "search.db"
    if not path.exists():
        return []
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = f"sqlite:///{path.resolve()}"
    said = []
    for name in optuna.get_all_study_names(url):
        study = optuna.load_study(study_name=name, storage=url)
        states = [trial.state for trial in study.get_trials(deepcopy=False)]
        whole, cut = states.count(TrialState.COMPLETE), states.count(TrialState.PRUNED)
        text = (
            f"{name}: {whole + cut} trials done ({cut} cut short), {states.count(TrialState.RUNNING)} begun"
        )
        said.append(text + (f"; best validation score {study.best_value:.4f}" if whole else ""))
    return said


def space(recipe: Recipe, sampler: SamplerName) -> dict[str, optuna.distributions.BaseDistribution]:
    """What is searched for this head, dotted key to distribution."""
    start = flatten(recipe)
    found: dict[str, optuna.distributions.BaseDistribution] = {}
    for key in _keys(recipe):
        value = start[key]
        if sampler == "tpe" and key in _AROUND and value > 0:
            low, high = value / _AROUND[key], value * _AROUND[key]
            found[key] = optuna.distributions.FloatDistribution(low, high, log=True)
        elif sampler == "tpe" and key in _BETWEEN:
            low, high = _BETWEEN[key]
            found[key] = optuna.distributions.FloatDistribution(min(low, value), max(high, value))
        else:
            choices = GRID[key] if sampler == "grid" or value in GRID[key] else (value, *GRID[key])
            found[key] = optuna.distributions.CategoricalDistribution(choices)
    return found


def to_toml(recipe: Recipe) -> str:
    """The recipe as TOML that `spaceform train` takes; what is unset is left out."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else repr(value)

    values = recipe.model_dump(mode="json")
    plain = [f"{k} = {text(v)}" for k, v in values.items() if not isinstance(v, Mapping) and v is not None]
    tables = [
        "\n".join([f"[{name}]", *(f"{k} = {text(v)}" for k, v in table.items() if v is not None)])
        for name, table in values.items()
        if isinstance(table, Mapping)
    ]
    return "\n\n".join(["\n".join(plain), *tables]) + "\n"


@final
@dataclass(frozen=True)
class _Live:
    trial: Trial
    job: Job
    folder: Path


def _keys(recipe: Recipe) -> tuple[str, ...]:
    """What is searched; a head's options as far as the recipe gives them."""
    given = flatten(recipe)
    own = _OWN.get(recipe.head.name, ())
    if given.get("head.learn_beta") is False:
        own = tuple(key for key in own if key != "optim.temperature_lr")
    return (*_COMMON, *(key for key in own if key in given))


def _open(recipe: Recipe, folder: Path, sampler: SamplerName, storage: str | None) -> optuna.Study:
    url = storage or f"sqlite:///{(folder / 'search.db').resolve()}"
    name = f"{Path(recipe.data.name).name}-{recipe.head.name}-{sampler}-{recipe.digest[:12]}"
    grid = {key: list(GRID[key]) for key in _keys(recipe)}
    how: optuna.samplers.BaseSampler
    if sampler == "grid":
        how = optuna.samplers.GridSampler(grid, seed=recipe.seed)
    else:
        how = optuna.samplers.TPESampler()
    # the first epochs say little; a median of fewer than five says less
    pruner = optuna.pruners.MedianPruner(
        n_startup_trials=5, n_warmup_steps=max(2, recipe.budget.epochs // 10)
    )
    try:
        return optuna.create_study(
            storage=url,
            study_name=name,
            sampler=how,
            pruner=pruner,
            direction="maximize",
            load_if_exists=True,
        )
    except ModuleNotFoundError:
        raise
    except Exception as error:
        first = str(error).splitlines()[0]
        raise RecipeError(f"the storage {url!r} cannot be used ({first}); give another --storage") from error


def _require_same_data(study: optuna.Study, recipe: Recipe) -> None:
    """Scores on other data are not comparable."""
    content = data.load(recipe.data.name).content
    if study.user_attrs.get("data", content) != content:
        raise RecipeError(
            f"the data {recipe.data.name!r} is not what the search {study.study_name} began with: "
            "bring it back, or choose another --out"
        )
    study.set_user_attr("data", content)


def _recover(study: optuna.Study, folder: Path) -> None:
    """Queue again what a killed process of this folder left behind, with what it had trained."""
    here = _where(folder)
    for frozen in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if frozen.user_attrs.get("where") != here:
            continue
        Trial(study, frozen._trial_id).set_user_attr("lost", True)
        study.tell(frozen.number, state=TrialState.FAIL)
        study.enqueue_trial(frozen.params, user_attrs={"folder": frozen.user_attrs["folder"]})


def _where(folder: Path) -> str:
    return f"{socket.gethostname()}:{folder.resolve()}"


def _count(study: optuna.Study) -> int:
    """Trials that count: finished, cut short, diverged or under way, here or elsewhere."""
    return sum(
        t.state != TrialState.WAITING and not t.user_attrs.get("lost")
        for t in study.get_trials(deepcopy=False)
    )


def _begin(study: optuna.Study, recipe: Recipe, folder: Path, sampler: SamplerName) -> _Live:
    trial = study.ask(space(recipe, sampler))
    name = f"{recipe.head.name}-{trial.number}"
    place = str(trial.user_attrs.get("folder", name))
    trial.set_user_attr("where", _where(folder))
    trial.set_user_attr("folder", place)
    job = Job(name, recipe.head.name, replace(recipe, trial.params))
    return _Live(trial, job, folder / "trials" / place)


def _take(
    study: optuna.Study, live: dict[str, _Live], event: Event, pool: Pool, say: Callable[[str], None]
) -> None:
    one = live[event.job.name]
    if event.kind == "progress":
        seen = event.progress
        if seen is not None and seen.done and seen.best_score is not None:
            one.trial.report(seen.best_score, seen.epoch)
            if one.trial.should_prune():
                pool.stop(one.job)
        return
    if event.kind not in ("finished", "stopped", "failed"):
        return
    del live[event.job.name]
    if event.kind == "stopped":
        study.tell(one.trial, state=TrialState.PRUNED)
        said = "cut short"
    elif event.kind == "finished":
        score = float(read_json(one.folder / "result.json")["score"])
        study.tell(one.trial, score)
        said = f"validation score {score:.4f}"
    elif "not finite" in event.error:
        study.tell(one.trial, 0.0)
        said = "diverged"
    else:
        study.tell(one.trial, state=TrialState.FAIL)
        raise SearchError(f"trial {event.job.name} failed: {event.error}")
    shutil.rmtree(one.folder, ignore_errors=True)
    values = ", ".join(f"{key}={_brief(value)}" for key, value in one.trial.params.items())
    say(f"{event.job.name}: {said} ({values})")


def _brief(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower()


def _best(study: optuna.Study, recipe: Recipe) -> Recipe:
    try:
        return replace(recipe, study.best_params)
    except ValueError:
        raise SearchError(f"no trial of {recipe.head.name} came to its end; give more --trials") from None
