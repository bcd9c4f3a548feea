"""The commands of many runs: compare, reproduce, search, status. Arguments in, calls out."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spaceform.cli import verbosity

if TYPE_CHECKING:
    from spaceform.run.recipe import Recipe
    from spaceform.study.folder import Job, Study


class Budget(StrEnum):
    """How long to train."""

    quick = "quick"
    full = "full"
    paper = "paper"


class Task(StrEnum):
    """What for."""

    classification = "classification"
    retrieval = "retrieval"


class Sampler(StrEnum):
    """How a search goes about."""

    tpe = "tpe"
    grid = "grid"


class Where(StrEnum):
    """What carries out the runs."""

    processes = "processes"
    ray = "ray"


DataArgument = Annotated[
    str, typer.Argument(metavar="DATA", help="A name, a folder of images, an .npz, .parquet or .csv file.")
]
Heads = Annotated[str, typer.Option(help="Comma-separated names, or 'paper' for the paper's five, or 'all'.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value of every recipe; repeatable."),
]
Processes = Annotated[
    int | None, typer.Option("--workers", help="Processes of one thread each; default: one a core.", min=1)
]
On = Annotated[Where, typer.Option("--on", help="Local processes, or a running Ray cluster.")]
Address = Annotated[str, typer.Option(help="Of the Ray cluster.")]
Cpus = Annotated[float, typer.Option(help="CPUs that a run asks the cluster for.", min=0)]
Gpus = Annotated[float, typer.Option(help="GPUs that a run asks the cluster for.", min=0)]
TaskOption = Annotated[
    Task | None, typer.Option(help="Retrieval holds classes out; default: what the data are for.")
]
Imbalance = Annotated[float, typer.Option(help="Largest over smallest training class.", min=1)]
Noise = Annotated[
    float, typer.Option("--label-noise", help="Share of wrong training labels.", min=0, max=0.99)
]
NetOption = Annotated[
    str | None, typer.Option("--net", help="small, residual, projection, resnet50, or any model of timm.")
]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (compare, reproduce, search, status):
        app.command()(command)


def compare(
    data: DataArgument,
    heads: Heads = "all",
    seeds: Annotated[int, typer.Option(help="Replications.", min=1)] = 3,
    budget: Annotated[Budget | None, typer.Option(help="How long to train; default: quick.")] = None,
    out: Annotated[Path | None, typer.Option(help="The study's folder; default: spaceform-DATA.")] = None,
    task: TaskOption = None,
    imbalance: Imbalance = 1.0,
    label_noise: Noise = 0.0,
    temperature: Annotated[
        str, typer.Option(help="Variants of spherical heads, such as learned,16,32,64.")
    ] = "",
    net: NetOption = None,
    recipes: Annotated[
        list[Path] | None,
        typer.Option(help="Recipe files, or folders of them, one for each head; --set changes them all."),
    ] = None,
    search: Annotated[int, typer.Option(help="Search every head first, with this many trials.", min=0)] = 0,
    settings: Settings = None,
    workers: Processes = None,
    on: On = Where.processes,
    address: Address = "auto",
    cpus: Cpus = 1.0,
    gpus: Gpus = 0.0,
) -> None:
    """Train every head under the same conditions, and say which one suits the data.

    Example: spaceform compare digits
    """
    from spaceform.data import load
    from spaceform.run.recipe import RecipeError, parse_setting
    from spaceform.study.folder import locked
    from spaceform.study.plan import Conditions, jobs, read_recipes, seeds_from
    from spaceform.study.plan import recipes as plan

    if recipes and (net or budget):
        option, key = ("--net", "net.name") if net else ("--budget", "budget.epochs")
        raise RecipeError(
            f"--recipes bring a net and a budget of their own; give --set {key}=... for {option}"
        )
    length = budget or Budget.quick
    dataset = load(data)
    conditions = Conditions(
        length.value,
        task.value if task else None,
        imbalance,
        label_noise,
        net,
        dict(map(parse_setting, settings or ())),
    )
    found = plan(data, _heads(heads), conditions, dataset=dataset)
    if recipes:
        found = read_recipes(recipes, found, conditions.settings)
    temperatures = [part.strip() for part in temperature.split(",") if part.strip()]
    planned = jobs(found, seeds_from(seeds), temperatures)  # a wrong plan leaves no folder behind
    folder = out or Path(f"spaceform-{dataset.name}")
    notes: dict[str, Any] = {"kind": "compare", "data": dataset.name, "budget": length.value}
    notes |= {"data_note": dataset.note} if dataset.note else {}
    with locked(folder):
        if search:
            found = _search(found, folder / "search", search, Sampler.tpe, None, workers)
            notes["search"] = f"{search} trials for each head, on the validation split"
            planned = jobs(found, seeds_from(seeds), temperatures)
        study = _carry_out(folder, planned, notes, workers, on, address, cpus, gpus)
    _close([folder], folder, _show(study))


def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets of the paper, or 'all'.")],
    heads: Heads = "paper",
    seeds: Annotated[int, typer.Option(help="Replications; the paper has 5.", min=1)] = 5,
    epochs: Annotated[
        int | None, typer.Option(help="At most this many epochs; the paper has 1000.", min=1)
    ] = None,
    out: Annotated[Path, typer.Option(help="A folder of studies, one a data set.")] = Path(
        "spaceform-reproduce"
    ),
    settings: Settings = None,
    workers: Processes = None,
    on: On = Where.processes,
    address: Address = "auto",
    cpus: Cpus = 1.0,
    gpus: Gpus = 0.0,
) -> None:
    """Run the paper's recipes, and print the paper's figures and ours side by side.

    Example: spaceform reproduce mnist
    """
    from spaceform.cli.terminal import print_beside
    from spaceform.data import load
    from spaceform.run.recipe import RecipeError, parse_setting, unknown
    from spaceform.study import published
    from spaceform.study.folder import locked
    from spaceform.study.plan import Conditions, jobs, seeds_from
    from spaceform.study.plan import recipes as plan

    chosen = list(published.DATA) if names == ["all"] else names
    for name in chosen:
        if name not in published.DATA:
            raise RecipeError(unknown("data set of the paper", name, [*published.DATA, "all"]))
    changes = dict(map(parse_setting, settings or ()))
    changes |= {} if epochs is None else {"budget.epochs": epochs}
    plans = {}
    for name in chosen:  # all data are looked at before the first run starts
        dataset = load(name)
        recipes = plan(name, _heads(heads), Conditions("paper", settings=changes), dataset=dataset)
        plans[name] = jobs(recipes, seeds_from(seeds)), dataset.note
    failed = 0
    for name, (planned, data_note) in plans.items():
        limit = min(job.recipe.budget.epochs for job in planned)
        shortened = published.shortened(seeds, limit)
        notes = {"kind": "reproduce", "data": name, "shortened": shortened, "data_note": data_note}
        with locked(out / name) as folder:
            study = _carry_out(folder, planned, notes, workers, on, address, cpus, gpus)
        table = study.results()
        note = " ".join(part for part in (shortened, data_note, _changed(settings)) if part)
        typer.echo(f"\n{name}")
        print_beside(published.beside(table, name), note)
        failed += _show(study)
    folders = [out / name for name in chosen]
    _close(folders, folders[0] if len(folders) == 1 else out, failed)


def search(
    data: DataArgument,
    head: Annotated[str, typer.Option("--head", help="Comma-separated names; each gets as many trials.")],
    trials: Annotated[int, typer.Option(help="Trials for each head.", min=1)] = 50,
    sampler: Annotated[
        Sampler, typer.Option(help="tpe learns as it goes; grid is the paper's way.")
    ] = Sampler.tpe,
    storage: Annotated[
        str | None, typer.Option(help="Any storage URL of Optuna, for many machines; default: SQLite.")
    ] = None,
    budget: Annotated[Budget, typer.Option(help="How long to train.")] = Budget.quick,
    out: Annotated[Path | None, typer.Option(help="Its folder; default: spaceform-DATA-search.")] = None,
    task: TaskOption = None,
    imbalance: Imbalance = 1.0,
    label_noise: Noise = 0.0,
    net: NetOption = None,
    settings: Settings = None,
    workers: Processes = None,
) -> None:
    """Search the rates and options of a head on the validation split, and write the best as a recipe.

    Example: spaceform search digits --head vmf --trials 20
    """
    from spaceform.data import load
    from spaceform.run.recipe import parse_setting
    from spaceform.study.folder import locked
    from spaceform.study.plan import Conditions
    from spaceform.study.plan import recipes as plan

    dataset = load(data)
    changes = dict(map(parse_setting, settings or ()))
    conditions = Conditions(budget.value, task.value if task else None, imbalance, label_noise, net, changes)
    found = plan(data, _heads(head), conditions, dataset=dataset)
    with locked(out or Path(f"spaceform-{dataset.name}-search")) as folder:
        _search(found, folder, trials, sampler, storage, workers)
    typer.echo(
        f"train one with `spaceform train {folder / next(iter(found))}.toml --out DIR`, or compare them:"
    )
    typer.echo(f"spaceform compare {data} --heads {','.join(found)} --recipes {folder}")


def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study or a search.")],
) -> None:
    """Show where the runs of a study or the trials of a search stand, while it runs or after.

    Example: spaceform status spaceform-digits
    """
    from spaceform.cli.terminal import print_status
    from spaceform.study.folder import Study, at_work

    searches = [place for place in (folder, folder / "search") if (place / "search.db").exists()]
    if searches:
        from spaceform.study.search import standing

        for sentence in standing(searches[0]):
            typer.echo(sentence)
        if not (folder / "study.json").exists():
            typer.echo(
                "a process is at work"
                if at_work(folder)
                else "no process is at work; the same command goes on"
            )
            return
    study = Study.open(folder)
    print_status([study.status(job) for job in study.jobs], at_work(folder))


def _carry_out(
    folder: Path,
    planned: "Sequence[Job]",
    notes: dict[str, Any],
    workers: int | None,
    on: Where,
    address: str,
    cpus: float,
    gpus: float,
) -> "Study":
    from spaceform.cli.terminal import Board
    from spaceform.study.folder import Study
    from spaceform.study.processes import in_processes

    study = Study.plan(folder, planned, notes)
    try:
        statuses = [study.status(job) for job in planned]
        every = verbosity.seconds_between(30.0)
        with Board(statuses, verbosity.progress_file(), every=every) as board:
            if on is Where.ray:
                from spaceform.study.ray import on_cluster

                on_cluster(study, board, address=address, cpus=cpus, gpus=gpus)
            else:
                in_processes(study, workers, board)
    finally:
        study.collect()
    return study


def _search(
    found: "dict[str, Recipe]",
    folder: Path,
    trials: int,
    sampler: Sampler,
    storage: str | None,
    workers: int | None,
) -> "dict[str, Recipe]":
    from spaceform.study.search import search as run_search

    best = {}
    for head, recipe in found.items():
        best[head], sentence = run_search(
            recipe, folder, trials=trials, sampler=sampler.value, storage=storage, workers=workers, say=_tell
        )
        typer.echo(f"{head}: {sentence}")
    return best


def _show(study: "Study") -> int:
    """The tables, the advice, and where they are; returns how many runs failed."""
    from spaceform.cli.terminal import print_results

    table = study.collect()
    typer.echo("")
    print_results(table)
    typer.echo(f"\nresults: {study.folder / 'results.parquet'}")
    failed = int((table["state"] == "failed").sum())
    if failed:
        _say(
            f"error: {failed} of {len(table)} runs failed; `spaceform status {study.folder}` says why, "
            "and the same command tries them again"
        )
    return failed


def _close(folders: Sequence[Path], out: Path, failed: int) -> None:
    """The report; exits 1 where runs failed."""
    from spaceform.report import write

    typer.echo(f"report:  {write(folders, out / 'report')}")
    if failed:
        raise typer.Exit(1)


def _heads(text: str) -> list[str]:
    from spaceform.heads import HEADS
    from spaceform.run.recipe import RecipeError
    from spaceform.study.published import HEADS as PAPER_HEADS

    if text == "all":
        return list(HEADS)
    if text == "paper":
        return list(PAPER_HEADS)
    named = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not named:
        raise RecipeError(f"no head is named; choose from {', '.join(HEADS)}, or 'all'")
    return named


def _changed(settings: list[str] | None) -> str:
    return f"Changed: {', '.join(settings)}." if settings else ""


def _tell(text: str) -> None:
    """Progress: nothing under --quiet."""
    print(text, file=verbosity.progress_file() or sys.stderr, flush=True)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
