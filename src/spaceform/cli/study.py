"""The commands of many runs: compare, reproduce, search, status, report. Arguments in, calls out."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from spaceform.cli import verbosity
from spaceform.cli.data import A_DATA_SET
from spaceform.cli.ray_options import Address
from spaceform.study.choices import Length, Profile, Sampler

if TYPE_CHECKING:
    from spaceform.cli.terminal import Board
    from spaceform.report import Written
    from spaceform.study.folder import RunStatus
    from spaceform.study.place import Place
    from spaceform.verbs.outcome import Study

DataArgument = Annotated[str, typer.Argument(metavar="DATA", help=A_DATA_SET)]
Label = Annotated[
    str | None, typer.Option(help="The column of labels; default: y, label, labels, target or class.")
]
Text = Annotated[
    str | None,
    typer.Option(help="The column of a table that holds texts; a pretrained net reads them."),
]
Heads = Annotated[
    str,
    typer.Option(
        help="Names with commas between; 'default' (without close relatives), 'paper' (its five) or 'all'."
    ),
]
RecipeSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a value of every recipe, such as budget.epochs=3; may be given several times.",
    ),
]
Count = Annotated[
    int | None,
    typer.Option("--processes", help="How many runs at a time, of one thread; default: one a core.", min=1),
]
StudyDecodeWorkers = Annotated[
    int | None,
    typer.Option(
        help="How many processes decode the photos of a run; default: one for each free core.", min=0
    ),
]
Where = Annotated[
    Literal["processes", "ray"],
    typer.Option("--on", help="Where runs are trained: in local processes, or on a running Ray cluster."),
]
Cpus = Annotated[float, typer.Option(help="CPUs that a run asks the cluster for.", min=0)]
Gpus = Annotated[float, typer.Option(help="GPUs that a run asks the cluster for.", min=0)]
Purpose = Annotated[
    Literal["classification", "retrieval"] | None,
    typer.Option(
        "--task",
        help="Tell known classes, or find neighbours among new classes; default: the task of the data.",
    ),
]
Imbalance = Annotated[
    float,
    typer.Option(help="Make the largest training class this many times as large as the smallest.", min=1),
]
Noise = Annotated[
    float,
    typer.Option("--label-noise", help="Make this share of the training labels wrong.", min=0, max=0.99),
]
NetName = Annotated[
    str | None,
    typer.Option(
        "--net",
        help="small, residual, projection, features, resnet50, or any model of timm; for texts, a model of "
        "sentence-transformers or a local folder.",
    ),
]
Weights = Annotated[
    Path | None, typer.Option(help="Weights of a pretrained --net: a .safetensors file, or .pth of tensors.")
]
Finetune = Annotated[
    bool,
    typer.Option("--finetune", help="Train the pretrained net too; without this, heads get its features."),
]


def compare(
    data: DataArgument,
    heads: Heads = "default",
    seeds: Annotated[
        str | None,
        typer.Option(
            help="Runs of each head: a number, or auto (three, then more for heads that need them)."
        ),
    ] = None,
    budget: Annotated[Length | None, typer.Option(help="How long to train; default: quick.")] = None,
    out: Annotated[Path | None, typer.Option(help="The study's folder; default: spaceform-DATA.")] = None,
    task: Purpose = None,
    label: Label = None,
    text: Text = None,
    imbalance: Imbalance = 1.0,
    label_noise: Noise = 0.0,
    temperature: Annotated[
        str, typer.Option(help="Train heads once for each inverse temperature, such as learned,16,32,64.")
    ] = "",
    net: NetName = None,
    weights: Weights = None,
    finetune: Finetune = False,
    recipes: Annotated[
        list[Path] | None,
        typer.Option(help="Recipe files, or folders of them, one for each head; --set changes all of them."),
    ] = None,
    search: Annotated[
        int | None,
        typer.Option(
            help="Nets and rates to try for each head; default: 16 on features of your own, otherwise 0.",
            min=0,
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Stop after about this many minutes, with the best answer so far.", min=0),
    ] = None,
    settings: RecipeSettings = None,
    processes: Count = None,
    workers: StudyDecodeWorkers = None,
    on: Where = "processes",
    address: Address = "auto",
    cpus: Cpus = 1.0,
    gpus: Gpus = 0.0,
) -> None:
    """Train every head under the same conditions, and say which one suits the data.

    Example: spaceform compare digits
    """
    import spaceform

    study = spaceform.compare(
        data,
        heads,
        seeds=_seeds(seeds),
        out=out,
        budget=budget,
        task=task,
        label=label,
        text=text,
        net=net,
        weights=weights,
        finetune=finetune,
        imbalance=imbalance,
        label_noise=label_noise,
        temperatures=[part.strip() for part in temperature.split(",") if part.strip()],
        recipes=recipes or (),
        search=search,
        minutes=minutes,
        settings=_changes(settings),
        on=_place(on, processes, address, cpus, gpus),
        workers=workers,
        watch=_board,
        say=_tell,
    )
    failed = _show(study)
    _close([study.folder], study.folder, failed)


def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets of the paper, or 'all'.")],
    heads: Heads = "paper",
    profile: Annotated[
        Profile,
        typer.Option(help="What to follow where they differ: the text of the paper, or the authors' code."),
    ] = "paper",
    seeds: Annotated[int, typer.Option(help="Runs of each head; the paper has 5.", min=1)] = 5,
    epochs: Annotated[
        int | None, typer.Option(help="At most this many epochs; the paper has 1000.", min=1)
    ] = None,
    out: Annotated[Path, typer.Option(help="A folder of studies, one for each data set.")] = Path(
        "spaceform-reproduce"
    ),
    settings: RecipeSettings = None,
    processes: Count = None,
    workers: StudyDecodeWorkers = None,
    on: Where = "processes",
    address: Address = "auto",
    cpus: Cpus = 1.0,
    gpus: Gpus = 0.0,
) -> None:
    """Run the paper's recipes, and print the paper's numbers and ours side by side.

    Example: spaceform reproduce mnist
    """
    import spaceform
    from spaceform.verbs.compare import paper_data

    place, changes, failed = _place(on, processes, address, cpus, gpus), _changes(settings), 0
    chosen = paper_data(names)  # check all data before the first run starts
    for name in chosen:
        study = spaceform.reproduce(
            name,
            heads,
            profile=profile,
            seeds=seeds,
            epochs=epochs,
            out=out / name,
            settings=changes,
            on=place,
            workers=workers,
            watch=_board,
            say=_tell,
        )
        _beside_paper(name, study, settings)
        failed += _show(study)
    folders = [out / name for name in chosen]
    _close(folders, folders[0] if len(folders) == 1 else out, failed)


def search(
    data: DataArgument,
    head: Annotated[
        str,
        typer.Option("--head", help="Names with commas between; each head gets the same number of trials."),
    ],
    trials: Annotated[int, typer.Option(help="Trials for each head.", min=1)] = 50,
    sampler: Annotated[
        Sampler, typer.Option(help="tpe learns from earlier trials; grid is what the paper did.")
    ] = "tpe",
    storage: Annotated[
        str | None,
        typer.Option(
            help="Where trials are kept, so that many machines can search: a storage URL of Optuna."
        ),
    ] = None,
    budget: Annotated[Length, typer.Option(help="How long to train.")] = "quick",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the search; default: spaceform-DATA-search.")
    ] = None,
    task: Purpose = None,
    label: Label = None,
    text: Text = None,
    imbalance: Imbalance = 1.0,
    label_noise: Noise = 0.0,
    net: NetName = None,
    weights: Weights = None,
    finetune: Finetune = False,
    settings: RecipeSettings = None,
    processes: Count = None,
    workers: StudyDecodeWorkers = None,
) -> None:
    """Search the rates and options of a head on the validation split, and write the best as a recipe.

    Example: spaceform search digits --head vmf --trials 20
    """
    import spaceform

    study = spaceform.search(
        data,
        head,
        trials=trials,
        sampler=sampler,
        storage=storage,
        out=out,
        budget=budget,
        task=task,
        label=label,
        text=text,
        net=net,
        weights=weights,
        finetune=finetune,
        imbalance=imbalance,
        label_noise=label_noise,
        settings=_changes(settings),
        on=spaceform.Processes(processes),
        workers=workers,
        say=_tell,
    )
    heads = list(study.notes["searched"])
    for name, sentence in study.notes["searched"].items():
        typer.echo(f"{name}: {sentence}")
    typer.echo(f"train one with `spaceform train {study.folder / heads[0]}.toml --out DIR`, or compare them:")
    typer.echo(f"spaceform compare {data} --heads {','.join(heads)} --recipes {study.folder}")


def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a study or a search.")],
) -> None:
    """Show how far the runs of a study or the trials of a search are, while it runs or after.

    Example: spaceform status spaceform-digits
    """
    import spaceform
    from spaceform.cli.terminal import print_status
    from spaceform.study.lock import at_work

    study = spaceform.Study.open(folder)
    for sentence in study.searches:
        typer.echo(sentence)
    if study.references:
        typer.echo(f"references: {', '.join(one.title for one in study.references)}")
    print_status(study.statuses, at_work(folder))


def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of studies or runs.", metavar="DIR")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; default: the folder report inside DIR.")
    ] = None,
) -> None:
    """Write tables, figures and report.html, one self-contained page, from saved results.

    Example: spaceform report runs/digits
    """
    from spaceform.report import write_report

    written = write_report(folders, out)
    typer.echo(f"written: {written.page}")
    if _tell_unread(written):
        raise typer.Exit(1)


def _seeds(text: str | None) -> "int | Literal['auto'] | None":
    if text is None or text == "auto":
        return "auto" if text else None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"--seeds takes a number or auto, got {text!r}") from None


def _place(on: str, processes: int | None, address: str, cpus: float, gpus: float) -> "Place":
    import spaceform

    return spaceform.Ray(address, cpus, gpus) if on == "ray" else spaceform.Processes(processes)


def _changes(settings: list[str] | None) -> dict[str, Any]:
    from spaceform.run.recipe import parse_setting

    return dict(map(parse_setting, settings or ()))


def _beside_paper(name: str, study: "Study", settings: list[str] | None) -> None:
    from spaceform.cli.terminal import print_beside

    changed = f"Changed: {', '.join(settings)}." if settings else ""
    told = [study.notes["shortened"], study.notes["data_note"], changed]
    typer.echo(f"\n{name}")
    print_beside(study.beside_paper, " ".join(filter(None, told)))


def _board(statuses: "Sequence[RunStatus]") -> "Board":
    from spaceform.cli.terminal import Board

    return Board(statuses, verbosity.progress_file(), every=verbosity.seconds_between(30.0))


def _show(study: "Study") -> int:
    """Print the tables, the advice, where the results are, and why runs failed; returns how many failed."""
    from spaceform.cli.terminal import failure_sentence, print_results

    typer.echo("")
    print_results(*study.shown())
    typer.echo(f"\nresults: {study.folder / 'results.parquet'}")
    failures = study.failures
    if failures:
        print(
            f"error: {failure_sentence(failures, len(study.jobs), study.folder)}", file=sys.stderr, flush=True
        )
    return sum(map(len, failures.values()))


def _close(folders: Sequence[Path], out: Path, failed: int) -> None:
    """Write the report; exits with 1 if runs failed."""
    from spaceform.report import write_report

    written = write_report(folders, out / "report")
    typer.echo(f"report:  {written.page}")
    if _tell_unread(written) or failed:
        raise typer.Exit(1)


def _tell_unread(written: "Written") -> bool:
    """Print which files could not be read; returns whether there are any."""
    if written.unread:
        print(f"error: files cannot be read: {'; '.join(written.unread)}", file=sys.stderr, flush=True)
    return bool(written.unread)


def _tell(text: str) -> None:
    """Print progress; nothing under --quiet."""
    print(text, file=verbosity.progress_file() or sys.stderr, flush=True)
