"""Search a head's rates and options by Optuna, on the validation split alone, with equal effort for each."""

import shutil
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import optuna
import pandas as pd
import tomli_w
from optuna.trial import Trial, TrialState

from spaceform.foundation.messages import counted, first_line
from spaceform.run import files, stored
from spaceform.run.failures import Diverged
from spaceform.run.files import read_json
from spaceform.run.material import load_named
from spaceform.run.recipe import Recipe, RecipeError, replace
from spaceform.study.choices import Sampler
from spaceform.study.folder import Job
from spaceform.study.optuna_space import grid_of, ranges_of, starting_point
from spaceform.study.place import Event, perform
from spaceform.study.processes import Processes


class SearchError(RuntimeError):
    """A search that cannot go on."""


@final
@dataclass(frozen=True)
class Best:
    """The result of the search of one head."""

    recipe: Recipe
    score: float
    """The best score on the validation split."""
    trials: int
    cut_short: int

    @property
    def sentence(self) -> str:
        """`validation score 0.9870, the best of 20 trials (11 cut short)`."""
        counts = f"{counted(self.trials, 'trial')} ({self.cut_short} cut short)"
        return f"validation score {self.score:.4f}, the best of {counts}"


def search_head(
    recipe: Recipe,
    folder: Path,
    *,
    trials: int,
    fixed: Collection[str] = (),
    sampler: Sampler = "tpe",
    storage: str | None = None,
    on: Processes = Processes(),  # noqa: B008 (a frozen value)
    workers: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Best:
    """The best recipe of `trials` trials around `recipe`; also written to HEAD.toml in the folder.

    Keys in `fixed`, such as "optim.lr", keep in every trial the value that they have in `recipe`. A trial is
    a training run; its score is the best validation score. Trials that fall behind the median of the others
    at the same epoch are cut short; the score of those that diverge is 0. TPE begins with `recipe`. Trials
    are kept in `storage` (SQLite in the folder unless given): the same call goes on where it stopped, and
    several machines may share a storage, as long as the data are the same. The caller holds the folder's
    lock.
    """
    if not starting_point(recipe, fixed):
        raise RecipeError(
            f"all that a search of {recipe.head.name} varies is set ({', '.join(sorted(fixed))}); leave out "
            "the search, or one of the settings"
        )
    folder.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = _open(recipe, folder, sampler, storage, fixed)
    _require_same_data(study, recipe)
    _recover(study, folder)
    if sampler == "tpe" and not study.trials:
        study.enqueue_trial(starting_point(recipe, fixed))
    live: dict[str, _Live] = {}
    with on.pool(trials, workers) as pool:
        while True:
            while pool.room and _count(study) < trials:
                begun = _begin(study, recipe, folder, ranges_of(recipe, sampler, fixed))
                live[begun.job.name] = begun
                pool.submit(begun.job, begun.folder, partial(perform, measure=False))
            if not live:
                break
            for event in pool.events():
                _take(study, live, event, pool.stop, say)
    best = _best(study, recipe)
    text = f"# {recipe.head.name}: {best.sentence}; sampler {sampler}\n{to_toml(best.recipe)}"
    files.write_bytes(folder / f"{recipe.head.name}.toml", text.encode())
    return best


def trials_of(folder: Path) -> pd.DataFrame:
    """Every trial of the searches of a folder, one row each; empty where their storage is elsewhere."""
    rows = [
        {
            "search": study.study_name,
            "head": study.user_attrs.get("head"),
            "trial": trial.number,
            "state": trial.state.name.lower(),
            "score": trial.value,
            "diverged": bool(trial.user_attrs.get("diverged")),
            **trial.params,
        }
        for study in _kept(folder)
        for trial in study.get_trials(deepcopy=False)
        if not trial.user_attrs.get("lost")
    ]
    return pd.DataFrame(rows)


def standing(folder: Path, heads: Sequence[str] = ()) -> list[str]:
    """How far the searches of a folder are, a sentence each; none where their storage is elsewhere.

    `heads` are those that will be searched.
    """
    said, begun_with = [], {study.user_attrs.get("head") for study in _kept(folder)}
    for study in _kept(folder):
        states = [trial.state for trial in study.get_trials(deepcopy=False)]
        whole, cut = states.count(TrialState.COMPLETE), states.count(TrialState.PRUNED)
        begun = states.count(TrialState.RUNNING)
        text = f"{study.study_name}: {whole + cut} trials done ({cut} cut short), {begun} begun"
        said.append(text + (f"; best validation score {study.best_value:.4f}" if whole else ""))
    return [*said, *(f"{head}: the search has not begun" for head in heads if head not in begun_with)]


def _kept(folder: Path) -> list[optuna.Study]:
    path = folder / "search.db"
    if not path.exists():
        return []
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    url = f"sqlite:///{path.resolve()}"
    return [optuna.load_study(study_name=name, storage=url) for name in optuna.get_all_study_names(url)]


def to_toml(recipe: Recipe) -> str:
    """The recipe as TOML that `spaceform train` takes; what is unset is left out."""
    return tomli_w.dumps(_set(recipe.model_dump(mode="json")))


def _set(values: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _set(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if value is not None
    }


@final
@dataclass(frozen=True)
class _Live:
    trial: Trial
    job: Job
    folder: Path


def _open(
    recipe: Recipe, folder: Path, sampler: Sampler, storage: str | None, fixed: Collection[str] = ()
) -> optuna.Study:
    url = storage or f"sqlite:///{(folder / 'search.db').resolve()}"
    name = f"{Path(recipe.data.name).name}-{recipe.head.name}-{sampler}-{recipe.digest[:12]}"
    name += "".join(f"-{key}" for key in sorted(fixed))  # with other fixed keys it is another search
    how: optuna.samplers.BaseSampler
    if sampler == "grid":
        grid = {key: list(grid_of(recipe, key)) for key in starting_point(recipe, fixed)}
        how = optuna.samplers.GridSampler(grid, seed=recipe.seed)
    else:
        how = optuna.samplers.TPESampler()
    # neither the first epochs nor a median of fewer than five trials say much
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
        why = first_line(error)
        raise RecipeError(f"the storage {url!r} cannot be used ({why}); give another --storage") from error


def _require_same_data(study: optuna.Study, recipe: Recipe) -> None:
    """Scores on other data are not comparable."""
    content = load_named(recipe).content
    if study.user_attrs.get("data", content) != content:
        raise RecipeError(
            f"the data {recipe.data.name!r} is not what the search {study.study_name} began with: "
            "bring it back, or choose another --out"
        )
    study.set_user_attr("data", content)
    study.set_user_attr("head", recipe.head.name)


def _recover(study: optuna.Study, folder: Path) -> None:
    """Queue the trials again that a killed process of this folder left; they go on from their checkpoints."""
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


def _begin(
    study: optuna.Study,
    recipe: Recipe,
    folder: Path,
    searched: dict[str, optuna.distributions.BaseDistribution],
) -> _Live:
    trial = study.ask(searched)
    name = f"{recipe.head.name}-{trial.number}"
    place = str(trial.user_attrs.get("folder", name))
    trial.set_user_attr("where", _where(folder))
    trial.set_user_attr("folder", place)
    job = Job(name, recipe.head.name, replace(recipe, trial.params))
    return _Live(trial, job, folder / "trials" / place)


def _take(
    study: optuna.Study,
    live: dict[str, _Live],
    event: Event,
    stop: Callable[[Job], None],
    say: Callable[[str], None],
) -> None:
    one = live[event.job.name]
    if event.kind == "progress":
        seen = event.progress
        if seen is not None and seen.done and seen.best_score is not None:
            one.trial.report(seen.best_score, seen.epoch)
            if one.trial.should_prune():
                stop(one.job)
        return
    if event.kind not in ("finished", "stopped", "failed"):
        return
    del live[event.job.name]
    if event.kind == "stopped":
        study.tell(one.trial, state=TrialState.PRUNED)
        said = "cut short"
    elif event.kind == "finished":
        score = read_json(one.folder / "result.json", stored.Result)["score"]
        study.tell(one.trial, score)
        said = f"validation score {score:.4f}"
    elif event.failure is not None and event.failure.kind == Diverged.__name__:
        one.trial.set_user_attr("diverged", True)
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


def _best(study: optuna.Study, recipe: Recipe) -> Best:
    cut = sum(trial.state == TrialState.PRUNED for trial in study.trials)
    try:
        return Best(replace(recipe, study.best_params), study.best_value, _count(study), cut)
    except ValueError:
        raise SearchError(f"no trial of {recipe.head.name} came to its end; give more --trials") from None
