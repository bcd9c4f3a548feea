"""The commands of data sets: list, get, check. Arguments in, calls out."""

from typing import Annotated

import typer

app = typer.Typer(help="The data sets that are known by name.", no_args_is_help=True)


@app.command("list")
def data_list() -> None:
    """Which data sets there are, and which are here."""
    from spaceform.data import list_datasets

    for status in list_datasets():
        where = f"  {status.path}" if status.path is not None else ""
        typer.echo(
            f"{status.name:14} {status.state:13} {status.items:>7,} items {status.classes:>6,} classes  "
            f"{status.task:14} {status.summary}{where}"
        )


@app.command("get")
def data_get(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Names of data sets.")],
) -> None:
    """Find or download data sets, unpack them, and say where they are."""
    from spaceform.data import get

    for name in names:
        typer.echo(f"{name}: {get(name)}")


@app.command("check")
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
