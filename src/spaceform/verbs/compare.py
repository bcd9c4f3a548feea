"""Compare heads on data, repeat the paper, search rates. Each verb leaves a folder and returns a `Study`.

The commands of the same names call these. If a call was interrupted, the same call goes on.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

from spaceform.data import Dataset, load, split
from spaceform.data.dataset import Task
from spaceform.data.splits import scarce_classes
from spaceform.engine import SIZE
from spaceform.foundation.messages import capital
from spaceform.run.feature_run import is_for_features
from spaceform.run.recipe import PAPER, QUICK, Recipe, RecipeError, unknown
from spaceform.study import plan, published
from spaceform.study.choices import Length, Profile, Sampler
from spaceform.study.feature_search import search_features
from spaceform.study.folder import StudyFolder
from spaceform.study.lock import locked
from spaceform.study.place import Place
from spaceform.study.processes import Errand, Processes, lasting
from spaceform.study.references import reference_errands
from spaceform.study.seeds import Seeds
from spaceform.study.settings import COMPARED, REPRODUCED, SEARCHED, of_candidate, require_settable
from spaceform.study.warm_up import missing_margins, shortened_warm_ups
from spaceform.verbs.outcome import Study
from spaceform.verbs.photographs import Eyes, see
from spaceform.verbs.runs import Say, Watch, by_seeds, carry_out, run_errands, saying, silent
from spaceform.verbs.source import AnyData, study_data


def compare(
    data: AnyData,
    heads: str | Iterable[str] = "default",
    *,
    seeds: int | Literal["auto"] | None = None,
    out: str | Path | None = None,
    budget: Length | None = None,
    task: Task | None = None,
    label: str | None = None,
    text: str | None = None,
    net: str | None = None,
    weights: str | Path | None = None,
    finetune: bool = False,
    imbalance: float = 1.0,
    label_noise: float = 0.0,
    temperatures: Sequence[str | float] = (),
    recipes: Sequence[str | Path] = (),
    search: int | None = None,
    minutes: float | None = None,
    settings: Mapping[str, Any] | None = None,
    on: Place | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
    say: Say = silent,
) -> Study:
    """Train every head under the same conditions, on the same split, once for each seed.

    `data` is a name, a path, a `Dataset` or the arrays (X, y). `heads` are names, "all", "paper", or
    "default": the heads that declare `compared`, without close relatives of another head. The study is kept
    in the folder `out` (default `spaceform-NAME`). `budget` says how long to train (default "quick").
    `temperatures` ("learned", 16, ...) gives variants of heads that have a temperature. `recipes` are files
    to use instead of our starting values, and `settings` change every recipe ({"optim.lr": 0.1}).

    Photos are seen by the frozen features of a pretrained model of timm, `net`, with its `weights` from a
    file, a package or the hub; only the heads are trained. `finetune` trains the net, too. The other nets of
    `nets.NETS`, such as "small", are trained from scratch, on shrunk photos. `label` names the column of a
    table that holds the labels. `text` names a column that holds texts; `net` then names a net for texts.

    `search` is the number of candidates that are tried for each head on the validation split before the runs.
    On features of your own the default is 16 (0 turns it off), and there are also rows of references: what
    people would use instead of a head. `seeds` is the number of runs of each head, or "auto": three, then
    more, up to ten, for the heads that are still in question. "auto" is the default on features of your own;
    on other data it is three. `minutes` bounds the time of search and runs; the answer says how sure it is.

    The runs are carried out `on` local `Processes()`, or on `Ray(...)`; `workers` processes decode the photos
    of each run. With `say=print` you see what happens.
    """
    if recipes and (net or budget):
        option, key = ("--net", "net.name") if net else ("--budget", "budget.epochs")
        raise RecipeError(
            f"--recipes bring a net and a budget of their own; give --set {key}=... for {option}"
        )
    require_settable(settings, COMPARED)
    source, folder = study_data(data, out, label=label, text=text)
    eyes = Eyes(net, weights, finetune)
    seen = see(source, eyes, budget=budget, recipes=recipes, settings=settings, say=say)
    source, settings = seen.source, seen.settings
    conditions = plan.Conditions(budget or "quick", task, imbalance, label_noise, seen.net, settings)
    found = plan.recipes(source.name, plan.named_heads(heads), conditions, dataset=source.dataset)
    if recipes:
        found = plan.read_recipes(recipes, found, settings)
        plan.require_nets(found, source.dataset)
    found, warned = _with_margins(found, settings, recipes)
    variants = [str(value) for value in temperatures]
    engine = _by_engine(found)
    trials = (SIZE if engine and not recipes else 0) if search is None else search
    rule = Seeds.of(seeds, auto=engine, minutes=minutes)
    plan.jobs(found, range(1), variants)  # a wrong plan leaves no folder behind
    notes: dict[str, Any] = {"kind": "compare", "data": source.dataset.name, "budget": conditions.budget}
    warnings = _scarce_classes(source.dataset, next(iter(found.values())))
    for warning in (*warnings, *warned):
        say(f"note: {warning}")
    if warned:
        notes["shortened"] = _as_sentences(warned)
    if said := [one for one in (source.dataset.note, *warnings) if one]:
        notes["data_note"] = "; ".join(said)
    place = on or Processes()
    here = place if isinstance(place, Processes) else Processes()
    with locked(folder), lasting():
        source.keep()
        _begin(folder, found, notes)
        beside: list[Errand] = []
        if engine:
            first = next(iter(found.values()))
            beside = reference_errands(first, folder, trials=rule.reference_trials(max(1, trials)))
        if trials:
            limit = rule.searching(len(found), here.most)
            found, notes["searched"] = _search(
                found,
                folder / "search",
                trials,
                settings=settings,
                seconds=limit,
                beside=beside,
                on=here,
                workers=workers,
                say=say,
            )
            beside = []
        elif place is not here:
            run_errands(beside, here, say)
            beside = []
        notes["search"] = _searched(trials, found)
        runs = partial(plan.jobs, found, temperatures=variants)
        return by_seeds(rule, runs, folder, notes, place, workers, watch or saying(say), say, beside)


def reproduce(
    name: str,
    heads: str | Iterable[str] = "paper",
    *,
    profile: Profile = "paper",
    seeds: int = published.SEEDS,
    epochs: int | None = None,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    on: Place | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
    say: Say = silent,
) -> Study:
    """Run the paper's recipes on one of its data sets; `study.beside_paper` has the paper's cells and ours.

    `profile="authors"` follows the authors' code where it differs from the text of the paper. `epochs` is the
    most epochs that a run may take. The other options are those of `compare`.
    """
    require_settable(settings, REPRODUCED)
    paper_data([name])
    source, folder = study_data(name, out or Path("spaceform-reproduce") / name)
    changes = {**(settings or {}), **({} if epochs is None else {"budget.epochs": epochs})}
    conditions = plan.Conditions(profile, settings=changes)
    found = plan.recipes(name, plan.named_heads(heads), conditions, dataset=source.dataset)
    planned = plan.jobs(found, plan.seeds_from(seeds))
    limit = min(job.recipe.budget.epochs for job in planned)
    notes = {
        "kind": "reproduce",
        "data": name,
        "profile": profile,
        "shortened": f"{published.shortened(seeds, limit)} {_as_sentences(missing_margins(found))}".strip(),
        "data_note": source.dataset.note,
        "settings": dict(settings or {}),
    }
    return carry_out(folder, planned, notes=notes, on=on, workers=workers, watch=watch, say=say)


def paper_data(names: Sequence[str]) -> list[str]:
    """Data sets of the paper by name, or ["all"]; an error if one of them is missing."""
    chosen = list(published.DATA) if list(names) == ["all"] else list(names)
    for name in chosen:
        if name not in published.DATA:
            raise RecipeError(unknown("data set of the paper", name, [*published.DATA, "all"]))
        load(name)
    return chosen


def search(
    data: AnyData,
    heads: str | Iterable[str] = "default",
    *,
    trials: int = 50,
    sampler: Sampler = "tpe",
    storage: str | None = None,
    out: str | Path | None = None,
    budget: Length = "quick",
    task: Task | None = None,
    label: str | None = None,
    text: str | None = None,
    net: str | None = None,
    weights: str | Path | None = None,
    finetune: bool = False,
    imbalance: float = 1.0,
    label_noise: float = 0.0,
    settings: Mapping[str, Any] | None = None,
    on: Processes | None = None,
    workers: int | None = None,
    say: Say = silent,
) -> Study:
    """Search the rates and options of each head on the validation split, with equal effort for each.

    `study.trials` has a row for each trial, `study.recipes` the best recipe of each head. The folder `out`
    (default `spaceform-NAME-search`) has this recipe as HEAD.toml, which `compare` takes as one of its
    `recipes`.
    `storage` is any storage URL of Optuna, for many machines. The other options are those of `compare`.
    """
    require_settable(settings, SEARCHED)
    source, folder = study_data(data, out, "-search", label=label, text=text)
    seen = see(source, Eyes(net, weights, finetune), budget=budget, settings=settings, say=say)
    source = seen.source
    conditions = plan.Conditions(budget, task, imbalance, label_noise, seen.net, seen.settings)
    found = plan.recipes(source.name, plan.named_heads(heads), conditions, dataset=source.dataset)
    found, warned = _with_margins(found, settings)
    for warning in warned:
        say(f"note: {warning}")
    with locked(folder), lasting():
        source.keep()
        _, searched = _search(
            found,
            folder,
            trials,
            settings=settings,
            on=on or Processes(),
            workers=workers,
            say=say,
            sampler=sampler,
            storage=storage,
        )
    notes = {"kind": "search", "data": source.name, "searched": searched}
    return Study(StudyFolder(folder, (), notes))


def _begin(folder: Path, found: Mapping[str, Recipe], notes: Mapping[str, Any]) -> None:
    """Write a plan without runs, so that `status` recognises the folder while heads are searched.

    A plan that is there stays; a damaged plan is refused now, and not after the search.
    """
    if (folder / "study.json").exists():
        StudyFolder.open(folder)
    else:
        StudyFolder.plan(folder, (), {**notes, "heads": list(found)})


def _scarce_classes(dataset: Dataset, recipe: Recipe) -> list[str]:
    """Sentences on classes with too few items to train on, or without items to test on."""
    dataset = dataset if recipe.data.task is None else dataset.with_task(recipe.data.task)
    return scarce_classes(dataset, split(dataset, recipe.data.split_seed))


def _with_margins(
    found: Mapping[str, Recipe], settings: Mapping[str, Any] | None, given: Sequence[str | Path] = ()
) -> tuple[dict[str, Recipe], list[str]]:
    """Recipes whose margins come within the budget, and sentences on what was changed; `given` ones stay."""
    recipes, said = (dict(found), []) if given else shortened_warm_ups(found, settings or {})
    return recipes, [*said, *missing_margins(recipes)]


def _as_sentences(said: Sequence[str]) -> str:
    return " ".join(f"{capital(one)}." for one in said)


def _by_engine(found: Mapping[str, Recipe]) -> bool:
    return all(map(is_for_features, found.values()))


def _searched(trials: int, found: Mapping[str, Recipe]) -> str:
    if trials:
        return f"Rates and options: {trials} candidates for each head, on the validation split."
    if all(_shipped(head, recipe) for head, recipe in found.items()):
        return "Rates and options are those of the shipped recipes, which were searched before."
    return "Rates and options were not searched: a difference of a point or two may come from the rates."


def _shipped(head: str, recipe: Recipe) -> bool:
    """Whether rates and options are those of a recipe that comes with the package for these data."""
    row = f"{recipe.data.name}/{head}"
    return any(
        known[row].optim == recipe.optim and known[row].head == recipe.head
        for known in (QUICK, PAPER)
        if row in known
    )


def _search(
    found: Mapping[str, Recipe],
    folder: Path,
    trials: int,
    *,
    on: Processes,
    say: Say,
    settings: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    beside: Sequence[Errand] = (),
    **how: Any,
) -> tuple[dict[str, Recipe], dict[str, str]]:
    """The best recipe of each head, and a sentence about each; trials run in local processes.

    What `settings` fix is not searched. Heads on features are searched by the engine, for at most `seconds`
    each; other heads by Optuna.
    """
    if _by_engine(found):
        return search_features(
            found,
            folder,
            trials=trials,
            settings=settings,
            seconds=seconds,
            on=on,
            beside=beside,
            say=say,
        )
    from spaceform.study.optuna_search import search_head

    best, sentences, fixed = {}, {}, of_candidate(settings)
    for head, recipe in found.items():
        ended = search_head(recipe, folder, trials=trials, fixed=fixed, on=on, say=say, **how)
        best[head], sentences[head] = ended.recipe, ended.sentence
        say(f"{head}: {ended.sentence}")
    return best, sentences
