"""The commands of data sets: list, get, check, cache. Arguments in, calls out."""

from typing import Annotated

import typer

A_DATA_SET = "A name; a folder of images, texts or features; an .npz, .parquet or .csv file."
"""The help of DATA, in every command that takes it."""

data_app = typer.Typer(
    help="The data sets that are known by name, and cached features.", no_args_is_help=True
)


@data_app.command("list")
def data_list() -> None:
    """List the data sets that have a name, and say which are on this machine."""
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
        typer.Argument(
            metavar="DATA",
            help=A_DATA_SET,
        ),
    ],
    label: Annotated[str | None, typer.Option(help="The column of a table that holds the labels.")] = None,
    text: Annotated[str | None, typer.Option(help="The column of a table that holds texts.")] = None,
    photos: Annotated[bool, typer.Option("--photos", help="Also decode every photo.")] = False,
) -> None:
    """Check files, counts and whether `compare` takes the data; the exit code is 1 if something is wrong."""
    from spaceform.verbs.check import check_data

    checks = check_data(what, label=label, text=text, photos=photos)
    for found in checks:
        typer.echo(f"{'ok   ' if found.ok else 'WRONG'} {found.what}: {found.detail}")
    if not all(found.ok for found in checks):
        raise typer.Exit(1)


@data_app.command("cache")
def data_cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove the listed features.")] = False,
    entry: Annotated[
        str | None, typer.Argument(metavar="ENTRY", help="Only the entry whose name starts with this.")
    ] = None,
) -> None:
    """List the features that were extracted before, or remove them.

    Example: spaceform data cache --clear
    """
    from spaceform.cli.endings import cached
    from spaceform.data import cache
    from spaceform.foundation.messages import counted

    if clear:
        count, size = cache.clear(entry)
        typer.echo(f"removed {counted(count, 'entry', 'entries')}, {size / 2**20:.1f} MiB: {cache.folder()}")
        return
    found = list(cache.entries(entry))
    for one in found:
        typer.echo(cached(one))
    typer.echo(f"{counted(len(found), 'entry', 'entries')} in {cache.folder()}")
