"""Features that were extracted before, under the user's cache: one folder of shards for each plan."""

import os
from collections.abc import Iterator
from pathlib import Path

from spaceform.data.dataset import DataError
from spaceform.data.formats.shards import ABOUT, Shards

CACHE_VARIABLE = "SPACEFORM_CACHE"


def folder() -> Path:
    """Where the features are kept: in the folder that ``SPACEFORM_CACHE`` names, or in the user's cache."""
    import pooch

    named = os.environ.get(CACHE_VARIABLE)
    return (Path(named).expanduser() if named else Path(pooch.os_cache("spaceform"))) / "features"


def place(plan: str) -> Path:
    """The folder of a plan, there or not."""
    return folder() / plan


def entries(plan: str | None = None) -> Iterator[Shards]:
    """The entries of the cache, finished or not; folders that this program did not write are ignored.

    A plan may be given by the start of its name.
    """
    if not folder().is_dir():
        return
    for path in sorted(folder().iterdir()):
        if path.is_symlink() or not (path / ABOUT).is_file():
            continue
        try:
            shards = Shards.open(path)
        except DataError:
            continue
        if shards.about.plan == path.name and path.name.startswith(plan or ""):
            yield shards


def clear(plan: str | None = None) -> tuple[int, int]:
    """Remove all entries, or those of one plan; returns how many entries and how many bytes were removed.

    Only files that this program wrote are removed. A plan may be given by the start of its name.
    """
    count = size = 0
    found = list(entries(plan))
    if plan is not None and len(found) != 1:
        known = ", ".join(shards.about.plan[:12] for shards in entries()) or "it is empty"
        wrong = "fits none" if not found else f"fits {len(found)}"
        raise DataError(f"{plan!r} {wrong} of the entries of the cache ({known}); give one of them.")
    for shards in found:
        count, size = count + 1, size + shards.size
        shards.remove()
    return count, size
