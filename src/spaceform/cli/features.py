"""The command that makes features of photos and texts. Arguments in, a call out."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from spaceform.cli import verbosity
from spaceform.cli.ray_options import ActorCpus, ActorGpus, Address, Near, cluster

if TYPE_CHECKING:
    from spaceform.run.progress import Pace


def features(
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A name, a folder of photos, a folder of .txt files, or a table with a column of texts.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="An .npz or .parquet file, or a folder for Arrow shards.")
    ],
    net: Annotated[
        str | None,
        typer.Option(help="A model of timm; for texts a name or folder of sentence-transformers."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights of the net: a .safetensors file, or .pth of tensors.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="The column of a table that holds the texts.")] = None,
    label: Annotated[
        str | None,
        typer.Option(help="The column that holds their labels; default: y, label, labels, target or class."),
    ] = None,
    views: Annotated[
        int,
        typer.Option(help="Also write so many augmented views of each training photo, one row each.", min=0),
    ] = 0,
    batch: Annotated[int, typer.Option(help="How many items go through the net at a time.", min=1)] = 32,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps, ...")] = "cpu",
    workers: Annotated[
        int | None,
        typer.Option(help="How many threads decode photos; default: one for each core, at most 8.", min=0),
    ] = None,
    skip_broken: Annotated[
        bool, typer.Option("--skip-broken", help="Leave out and count what cannot be read.")
    ] = False,
    on: Near = "here",
    address: Address = "auto",
    cpus: ActorCpus = 1.0,
    gpus: ActorGpus = 0.0,
) -> None:
    """Write the features of photos or texts by a pretrained net. If stopped, the same command continues.

    Example: spaceform features photos/ -o photos.npz
    """
    import spaceform
    from spaceform.cli.endings import extracted

    with PaceLine() as line:
        found = spaceform.extract_features(
            data,
            out,
            net=net,
            weights=weights,
            text=text,
            label=label,
            views=views,
            batch=batch,
            device=device,
            workers=workers,
            skip_broken=skip_broken,
            on=cluster(on, address, cpus, gpus),
            listener=line,
        )
    for name in found.about.broken[:10]:
        typer.echo(f"left out: {name}", err=True)
    typer.echo(extracted(found))


@final
class PaceLine:
    """A listener of an extraction: a live bar in a terminal, otherwise a plain line now and then."""

    def __init__(self) -> None:
        import sys
        import time

        self._file = verbosity.progress_file() or sys.stderr
        self._every, self._clock = verbosity.seconds_between(5.0), time.monotonic
        self._told = self._clock()
        self._bar: Any = None

    def __enter__(self) -> "PaceLine":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, pace: "Pace") -> None:
        if self._file.isatty():
            self._show(pace)
        elif self._clock() - self._told >= self._every:
            self._told = self._clock()
            print(pace, file=self._file, flush=True)

    def _show(self, pace: "Pace") -> None:
        import rich.progress
        from rich.console import Console

        if self._bar is None:
            columns = rich.progress.BarColumn(bar_width=20), rich.progress.TextColumn("{task.description}")
            self._bar = rich.progress.Progress(*columns, console=Console(file=self._file), transient=True)
            self._bar.start()
            self._bar.add_task("", total=pace.total)
        self._bar.update(0, completed=pace.done, description=str(pace))
