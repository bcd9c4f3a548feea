"""The command line: arguments in, calls out.

Exit codes: 0 all is well; 1 the work failed (training diverged, a check found damage); 2 bad input (an
unknown name, a file that cannot be used, a folder that cannot be written); 130 stopped by Ctrl-C.
"""

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO

import typer

from spaceform._version import __version__
from spaceform.cli import model as cli_model
from spaceform.cli import study as cli_study
from spaceform.cli import verbosity
from spaceform.messages import counted, exit_code, sentence

app = typer.Typer(
    name="spaceform",
    help="Train heads of every geometry under equal conditions, and see which one suits your data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="The data sets that are known by name.", no_args_is_help=True)
app.add_typer(data_app, name="data")
cli_study.register(app)
cli_model.register(app)

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a value of the recipe, such as optim.lr=0.1; repeatable."
    ),
]
Devices = Annotated[int, typer.Option(help="Processes, one a device.", min=1)]
Accelerator = Annotated[str, typer.Option(help="auto, cpu, gpu, mps.")]
Workers = Annotated[int, typer.Option(help="Processes that decode photos.", min=0)]


def _version(wanted: bool) -> bool:
    if wanted:
        typer.echo(f"spaceform {__version__}")
        raise typer.Exit
    return wanted


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Say nothing but errors and the result; anywhere in the line."),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Tell all progress, notes and times; anywhere in the line."),
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show where an error came from; anywhere in the line.")
    ] = False,
) -> None: ...


@app.command()
def train(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="A name (mnist/vmf, digits/cosine) or a .toml file.")
    ],
    out: Annotated[Path, typer.Option(help="The run's folder; the same command again goes on there.")],
    settings: Settings = None,
    devices: Devices = 1,
    nodes: Annotated[int, typer.Option(help="Machines.", min=1)] = 1,
    accelerator: Accelerator = "auto",
    workers: Workers = 0,
    log: Annotated[
        list[str] | None, typer.Option(help="Send curves to tensorboard, mlflow or wandb too; repeatable.")
    ] = None,
) -> None:
    """Train one run; killed at any moment, the same command goes on and ends at the same bits.

    Example: spaceform train digits/vmf --set seed=1 --out runs/vmf-1
    """
    from spaceform.run.progress import ProgressPrinter, duration
    from spaceform.run.recipe import load
    from spaceform.run.train import train as run_training

    finished = (out / "result.json").exists()
    with ProgressPrinter(verbosity.progress_file(), every=verbosity.seconds_between(5.0)) as printer:
        run = run_training(
            load(recipe, settings or ()),
            out,
            devices=devices,
            nodes=nodes,
            accelerator=accelerator,
            workers=workers,
            log=log or (),
            listener=printer,
        )
    result = run.result
    typer.echo(
        f"{out}: {'already finished' if finished else 'finished'} after {counted(result['epochs'], 'epoch')} "
        f"({duration(result['seconds'])}); "
        f"best validation score {result['score']:.4f} in epoch {result['best_epoch']}"
    )


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    accelerator: Annotated[str, typer.Option("--device", help="cpu, cuda, mps, ...")] = "cpu",
    workers: Workers = 0,
) -> None:
    """Measure a run on its test split; writes metrics.json and outputs.npz into its folder.

    Example: spaceform evaluate runs/vmf-1
    """
    from spaceform.run.evaluate import evaluate as measure

    found = measure(run, device=accelerator, workers=workers)
    for name, value in found.items():
        if isinstance(value, dict):
            for part, inner in value.items():
                typer.echo(f"{f'{name}.{part}':36} {_brief(inner)}")
        else:
            typer.echo(f"{name:36} {_brief(value)}")
    typer.echo(f"written: {run / 'metrics.json'}, {run / 'outputs.npz'}")


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders of studies or runs.", metavar="DIR")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; default: the folder report inside DIR.")
    ] = None,
) -> None:
    """Write tables, figures and report.html, one self-contained page, from saved results.

    Example: spaceform report runs/digits
    """
    from spaceform.report import write

    typer.echo(f"written: {write(folders, out)}")


@data_app.command("list")
def data_list() -> None:
    """Which data sets there are, and which are here."""
    from spaceform.data import list_datasets

    for status in list_datasets():
        where = f"  {status.path}" if status.path is not None else ""
        typer.echo(
            f"{status.name:14} {status.state:13} {status.items:>7,} items {status.classes:>6,} classes  "
            f"{status.task:14} {status.summary}{where}"
        )


@data_app.command("get")
def data_get(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of data sets.")],
) -> None:
    """Find or download data sets, unpack them, and say where they are."""
    from spaceform.data import get

    for name in names:
        typer.echo(f"{name}: {get(name)}")


@data_app.command("check")
def data_check(
    what: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A name, a folder of images, or an .npz, .parquet or .csv file."),
    ],
    photos: Annotated[bool, typer.Option(help="Decode every photo too.")] = False,
) -> None:
    """Verify checksums and counts; exits 1 where something is wrong."""
    from spaceform.data import check

    checks = check(what, photos=photos)
    for found in checks:
        typer.echo(f"{'ok   ' if found.ok else 'WRONG'} {found.what}: {found.detail}")
    if not all(found.ok for found in checks):
        raise typer.Exit(1)


def _brief(value: object) -> str:
    if isinstance(value, dict):
        return "  ".join(f"{name} {_brief(inner)}" for name, inner in value.items())
    return f"{value:.4f}" if isinstance(value, float) else str(value)


_STOPPED = "stopped; the same command goes on from the last checkpoint"


_ANYWHERE = {
    "--debug": "--debug",
    "--quiet": "--quiet",
    "-q": "--quiet",
    "--verbose": "--verbose",
    "-v": "--verbose",
}
"""Options of the program, not of a command: they are found anywhere before a lone `--`."""


def main() -> NoReturn:
    """Run a command; an error is one sentence on stderr, with its traceback only under --debug."""
    begun = time.perf_counter()
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    said = {_ANYWHERE[argument] for argument in sys.argv[1:end] if argument in _ANYWHERE}
    arguments = [argument for argument in sys.argv[1:end] if argument not in _ANYWHERE] + sys.argv[end:]
    debug = "--debug" in said or bool(os.environ.get("SPACEFORM_DEBUG"))
    if {"--quiet", "--verbose"} <= said:
        _fail("--quiet and --verbose contradict each other; give one of them", 2)
    verbosity.set_level("quiet" if "--quiet" in said else "verbose" if "--verbose" in said else "normal")
    if not debug:
        warnings.showwarning = _note
    try:
        code = app(arguments, prog_name="spaceform", standalone_mode=False) or 0
    except KeyboardInterrupt:
        _fail(_STOPPED, 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        misuse = _usage(error)
        if misuse is not None:
            _fail(misuse, 2) if misuse else sys.exit(2)
        if debug:
            raise
        _fail(sentence(error), exit_code(error))
    if code == 130:  # typer turns an interrupt into this, without a word
        _fail(_STOPPED, 130)
    if verbosity.level() == "verbose":
        took = time.perf_counter() - begun
        print(f"spaceform {__version__}: {took:.1f} s, exit {code}", file=sys.stderr)
    sys.exit(code)


def _usage(error: Any) -> str | None:
    """What typer did not understand and where to read how it goes; "" if it showed that, else None."""
    if not hasattr(error, "format_message"):  # the class of these errors is not part of typer's interface
        return None
    message = error.format_message().rstrip(".").replace(". Did you", "; did you")
    command = "spaceform" if error.ctx is None else error.ctx.command_path
    joint = "" if message.endswith("?") else ";"
    return message and f"{message[:1].lower()}{message[1:]}{joint} '{command} -h' shows how it goes"


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001 (the signature of warnings.showwarning)
    line: str | None = None,  # noqa: ARG001
) -> None:
    """A warning as one line; its place too under --verbose, nothing under --quiet."""
    where = f" ({category.__name__}, {filename}:{lineno})" if verbosity.level() == "verbose" else ""
    print(f"note: {message}{where}", file=verbosity.progress_file() or sys.stderr)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
