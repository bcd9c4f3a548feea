"""Data by name: find it, fetch it, read it, check it. Own data by path are read by `formats`.

A data set is looked for in the folder that ``SPACEFORM_DATA`` names, then in the user's cache, in its usual
layouts.
"""

import difflib
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, final

from spaceform.data.dataset import DataError, Dataset, Task
from spaceform.data.download import DownloadListener, bar, fetch, unpack
from spaceform.data.entries import CATALOG, Entry
from spaceform.data.formats import load_path
from spaceform.data.photos import decode
from spaceform.data.splits import scarce_classes, split
from spaceform.foundation.messages import counted

DATA_VARIABLE = "SPACEFORM_DATA"


@final
@dataclass(frozen=True)
class Status:
    """A line of `spaceform data list`."""

    name: str
    summary: str
    task: Task
    items: int
    classes: int
    """How many classes can be read here; if the data set is not here, or packed, how many it has."""
    state: Literal["built in", "here", "in part", "damaged", "archive here", "not here"]
    path: Path | None


@final
@dataclass(frozen=True)
class Check:
    """A line of `spaceform data check`."""

    what: str
    ok: bool
    detail: str


def load(
    what: str | Path,
    *,
    task: Task | None = None,
    label: str | None = None,
    text: str | None = None,
    download: bool = True,
) -> Dataset:
    """A data set by name, or own data by path.

    A path is a folder of images or of texts, a file of features (`formats.FILE_FORMATS`), or a folder of
    features: Arrow shards, or ``X*.npy`` and ``y*.npy``. Features of a folder that take more than a quarter
    of the memory (`guard.memory`) stay on the disk. ``label`` names the column of a table that holds the
    labels, ``text`` one that holds texts.
    """
    name = str(what)
    if name in CATALOG:
        dataset = _load_named(CATALOG[name], download)
    else:
        dataset = load_path(Path(what).expanduser(), label, text, CATALOG)
    return dataset if task is None else dataset.with_task(task)


def get(name: str, progress: DownloadListener | None = None) -> Path:
    """Find or download a data set, unpack it, and return its place.

    If a part is here, the rest is fetched. ``progress`` is called as bytes arrive; without it a bar is shown.
    """
    entry = _entry(name)
    if not entry.places:
        raise DataError(f"{name} comes with a package; there is nothing to download.")
    place = find(entry)
    if place is not None and (not entry.remotes or _complete(entry, place)):
        return place
    if not entry.remotes:
        raise DataError(f"{name} has no address to download it from; {_what_to_put_where(entry)}")
    target = _target()
    home = target / (entry.places[0] if entry.unpacked_into is None else entry.unpacked_into)
    try:
        with bar() if progress is None else nullcontext(progress) as report:
            for remote in entry.remotes:
                found = _found(remote.name, entry)
                path = fetch(remote, home if found is None else found.parent, report)
                if entry.unpacked_into is None:
                    continue
                if path.suffix in {".tgz", ".gz", ".zip"}:
                    unpack(path, home)
                elif path.parent != home:  # annotations must lie beside their photos
                    home.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, home / path.name)
    except DataError as error:
        raise DataError(f"{str(error).rstrip('.')}; {_what_to_put_where(entry)}") from error
    place = find(entry)
    if place is None:
        raise DataError(f"{home} does not hold {name} after unpacking; {_what_to_put_where(entry)}")
    return place


def list_datasets() -> list[Status]:
    """Every data set of the catalog, and whether it is here."""
    return [_status(entry) for entry in CATALOG.values()]


def check(
    what: str | Path, *, label: str | None = None, text: str | None = None, photos: bool = True
) -> list[Check]:
    """Verify data: checksums, counts, whether they can be split; with ``photos``, decode every photo, too."""
    entry = CATALOG.get(str(what))
    checks: list[Check] = []
    if entry is not None and entry.places:
        place = find(entry)
        if place is None:
            return [Check(entry.name, False, f"not here; {_what_to_put_where(entry)}")]
        checks += list(_check_files(entry, place))
    try:
        dataset = load(what, label=label, text=text, download=False)
    except DataError as error:
        return [*checks, Check(str(what), False, str(error))]
    items, classes = len(dataset), len(dataset.labels.unique())
    found = f"{counted(items, 'item')}, {counted(classes, 'class', 'classes')}"
    if entry is None:
        right = True
    else:
        right = (items, classes) == (entry.items, entry.classes)
        found += "" if right else f"; all of it is {entry.items:,} and {entry.classes:,}"
    checks.append(Check("counts", right, f"{found} ({dataset.note})" if dataset.note else found))
    checks.append(_check_split(dataset))
    if photos and isinstance(dataset.inputs, tuple):
        checks += list(_check_photos(dataset.inputs))
    return checks


def data_folders() -> list[Path]:
    """Where data sets are looked for, first to last."""
    import pooch

    named = os.environ.get(DATA_VARIABLE)
    return [*([Path(named).expanduser()] if named else []), Path(pooch.os_cache("spaceform"))]


def find(entry: Entry) -> Path | None:
    """The first place that holds all of a data set, or the first that holds a part of it, or None."""
    places = [
        root / place
        for root in data_folders()
        for place in entry.places
        if any((root / place / sign).exists() for sign in entry.signs)
    ]
    return next((place for place in places if _whole(entry, place)), places[0] if places else None)


def _whole(entry: Entry, place: Path) -> bool:
    files = all(_variant(place / name) is not None for name, _ in entry.checksums)
    return (files or (place / "devkit").is_dir()) and (
        not entry.photos or any((place / photos).is_dir() for photos in entry.photos)
    )


def _variant(path: Path) -> Path | None:
    """The file, gzipped or not, or None."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return next((p for p in (path, plain) if p.is_file()), None)


def _load_named(entry: Entry, download: bool) -> Dataset:
    if not entry.places:
        return entry.read(Path())
    place = find(entry)
    if place is None:
        if not download or not entry.remotes:
            raise DataError(f"{entry.name} is not here; {_what_to_put_where(entry)}")
        place = get(entry.name)
    return entry.read(place)


def _entry(name: str) -> Entry:
    if name not in CATALOG:
        near = difflib.get_close_matches(name, CATALOG, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DataError(f"unknown data set {name!r}; {hint}choose from {', '.join(CATALOG)}.")
    return CATALOG[name]


def _status(entry: Entry) -> Status:
    known = partial(Status, entry.name, entry.summary, entry.task)
    if not entry.places:
        return known(entry.items, entry.classes, "built in", None)
    place = find(entry)
    if place is None:
        archive = _found(entry.remotes[-1].name, entry) if entry.remotes else None
        return known(entry.items, entry.classes, "not here" if archive is None else "archive here", archive)
    try:
        dataset = entry.read(place)
    except DataError:  # the files there cannot be used
        return known(0, 0, "damaged" if _whole(entry, place) else "in part", place)
    items, classes = len(dataset), len(dataset.labels.unique())
    return known(items, classes, "here" if items == entry.items else "in part", place)


def _check_split(dataset: Dataset) -> Check:
    try:
        parts = split(dataset)
    except DataError as error:
        return Check("split", False, str(error))
    sizes = ((len(parts.train), "train"), (len(parts.val), "validate"), (len(parts.test), "test"))
    said = ", ".join(f"{size:,} {what}" for size, what in sizes)
    return Check("split", True, "; ".join([said, *scarce_classes(dataset, parts)]))


def _complete(entry: Entry, place: Path) -> bool:
    try:
        dataset = entry.read(place)
    except DataError:
        return False
    return not dataset.note


def _found(name: str, entry: Entry) -> Path | None:
    """A downloaded file that lies in a data folder or in one of the data set's places."""
    for root in data_folders():
        for folder in (root, *(root / place for place in entry.places)):
            if (folder / name).is_file():
                return folder / name
    return None


def _target() -> Path:
    """Where downloads go: the first data folder that can be written to."""
    folders = data_folders()
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise DataError(
        f"none of {', '.join(map(str, folders))} can be written to; set {DATA_VARIABLE} to a folder that can."
    )


def _what_to_put_where(entry: Entry) -> str:
    root = data_folders()[0]
    names = ", ".join(remote.name for remote in entry.remotes)
    also = f" ({entry.by_hand})" if entry.by_hand else ""
    if not entry.remotes:
        return f"put it into {root / entry.places[0]}{also}."
    if entry.unpacked_into is None:
        return f"put {names} into {root / entry.places[0]}{also}."
    return f"put {names} into {root / entry.unpacked_into}{also} and run `spaceform data get {entry.name}`."


def _check_files(entry: Entry, place: Path) -> Iterator[Check]:
    for name, expected in entry.checksums:
        path = _variant(place / name)
        if path is None:
            yield Check(name, False, f"{place / name} is missing")
        elif path.name != name:
            yield Check(path.name, True, "unzipped; only the checksum of the .gz is known")
        else:
            actual = _md5(path)
            right = actual == expected
            yield Check(
                name, right, "checksum is right" if right else f"{path} has md5 {actual}, not {expected}"
            )


def _check_photos(paths: tuple[Path, ...]) -> Iterator[Check]:
    broken = 0
    for path in paths:
        try:
            decode(path)
        except DataError as error:
            broken += 1
            yield Check(path.name, False, str(error))
    yield Check("photos", not broken, f"{len(paths) - broken:,} of {len(paths):,} decode")


def _md5(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
