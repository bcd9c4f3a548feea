"""The root of the command line, with what all commands share.

Exit codes: 0 all is well; 1 the work failed (training diverged, a check found damage); 2 bad input (an
unknown name, a file that cannot be used, a folder that cannot be written); 130 stopped by Ctrl-C; 143 stopped
by SIGTERM.
"""

import os
import sys
import time
import warnings
from typing import Annotated, Any, NoReturn, TextIO

import typer

from spaceform import __version__
from spaceform.cli import data, features, interrupts, run, study, verbosity
from spaceform.foundation.messages import exit_code, sentence

app = typer.Typer(
    name="spaceform",
    help="Train heads of every geometry under equal conditions, and see which one suits your data.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS = (
    *(study.compare, study.reproduce, study.search, study.status, study.report),
    *(run.train, run.evaluate, run.predict, run.embed, run.match, run.suspects, run.export),
    features.features,
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(data.data_app, name="data")


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
        typer.Option(
            "--quiet", "-q", help="Print only errors and the result; may stand anywhere in the line."
        ),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Print all progress, notes and times; may stand anywhere in the line."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Show where an error came from; may stand anywhere in the line."),
    ] = False,
) -> None: ...


_ANYWHERE = {
    "--debug": "--debug",
    "--quiet": "--quiet",
    "-q": "--quiet",
    "--verbose": "--verbose",
    "-v": "--verbose",
}
"""Options of the program, not of a command. They may stand anywhere before a lone `--`."""


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
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if interrupts.received():  # a library was interrupted, and turned the interrupt into this error
            raise KeyboardInterrupt from error
        misuse = _usage(error)
        if misuse is not None:
            _fail(misuse, 2) if misuse else sys.exit(2)
        if debug:
            raise
        _fail(sentence(error), exit_code(error))
    if code == 130:  # typer turns an interrupt into this code, without a message
        raise KeyboardInterrupt
    if verbosity.level() == "verbose":
        took = time.perf_counter() - begun
        print(f"spaceform {__version__}: {took:.1f} s, exit {code}", file=sys.stderr)
    sys.exit(code)


def _usage(error: Any) -> str | None:
    """What typer did not understand, and the command that shows the usage.

    It is "" if typer has shown the usage, and None for any other error.
    """
    if not hasattr(error, "format_message"):  # the class of these errors is not part of typer's interface
        return None
    message = error.format_message().rstrip(".").replace(". Did you", "; did you")
    command = "spaceform" if error.ctx is None else error.ctx.command_path
    joint = "" if message.endswith("?") else ";"
    return message and f"{message[:1].lower()}{message[1:]}{joint} '{command} -h' shows its usage"


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,  # noqa: ARG001 (the signature of warnings.showwarning)
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Print a warning as one line; --verbose adds its place, --quiet drops it."""
    where = f" ({category.__name__}, {filename}:{lineno})" if verbosity.level() == "verbose" else ""
    print(f"note: {message}{where}", file=verbosity.progress_file() or sys.stderr)


def _fail(message: str, code: int) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)
