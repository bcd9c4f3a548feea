"""The data sets known by name: where they lie, where they come from, how they are read.

A data set is looked for in the folder that ``SPACEFORM_DATA`` names, then in the user's cache, in its usual
layouts.
"""

import difflib
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, final

import torch

from spaceform.data.cars import load_cars
from spaceform.data.cifar import TRAIN_10, load_cifar10, load_cifar100
from spaceform.data.cub import load_cub
from spaceform.data.dataset import DataError, Dataset, Task
from spaceform.data.digits import load_digits
from spaceform.data.download import Progress, Remote, fetch, unpack
from spaceform.data.features import load_features
from spaceform.data.folder import load_folder
from spaceform.data.idx import FILES, load_idx
from spaceform.data.photos import decode
from spaceform.data.sop import load_sop

VARIABLE = "SPACEFORM_DATA"


@final
@dataclass(frozen=True)
class Entry:
    """A data set of the catalog.

    ``places`` are paths below a data folder where it is found, the first being where a download goes;
    ``signs`` are files one of which makes a place count. ``checksums`` (md5) are those of single files inside
    a place.
    """

    name: str
    summary: str
    task: Task
    items: int
    classes: int
    read: Callable[[Path], Dataset]
    places: tuple[str, ...] = ()
    signs: tuple[str, ...] = ()
    remotes: tuple[Remote, ...] = ()
    unpacked_into: str | None = None
    """Where below the data folder archives are unpacked; None where the files are read as they come."""
    checksums: tuple[tuple[str, str], ...] = ()
    by_hand: str = ""
    """Another way to get the data, for when the addresses fail."""


@final
@dataclass(frozen=True)
class Status:
    """A line of `spaceform data list`."""

    name: str
    summary: str
    task: Task
    items: int
    classes: int
    state: Literal["built in", "here", "archive here", "not here"]
    path: Path | None


@final
@dataclass(frozen=True)
class Check:
    """A line of `spaceform data check`."""

    what: str
    ok: bool
    detail: str


def _idx_remotes(checksums: tuple[str, str, str, str], *mirrors: str) -> tuple[Remote, ...]:
    return tuple(
        Remote(f"{stem}.gz", f"md5:{md5}", tuple(f"{mirror}{stem}.gz" for mirror in mirrors))
        for stem, md5 in zip(FILES, checksums, strict=True)
    )


_MNIST = (
    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "d53e105ee54ea40749a09fcbcd1e9432",
    "9fb629c4189551a2d022fa330f9573f3",
    "ec29112dd5afa0611ce80d1b7f02629c",
)
_FASHION = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
_GARMENTS = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
_IDX_SIGNS = tuple(name for stem in FILES for name in (stem, f"{stem}.gz"))

CATALOG: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="digits",
            summary="handwritten digits, 8x8, from scikit-learn",
            task="classification",
            items=1_797,
            classes=10,
            read=lambda _: load_digits(),
        ),
        Entry(
            name="mnist",
            summary="handwritten digits, 28x28",
            task="classification",
            items=70_000,
            classes=10,
            read=partial(load_idx, name="mnist", classes=tuple("0123456789")),
            places=("mnist", "MNIST/raw", "mnist/raw", "MNIST"),
            signs=_IDX_SIGNS,
            remotes=_idx_remotes(
                _MNIST,
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            checksums=tuple((f"{stem}.gz", md5) for stem, md5 in zip(FILES, _MNIST, strict=True)),
        ),
        Entry(
            name="fashion-mnist",
            summary="garments, 28x28",
            task="classification",
            items=70_000,
            classes=10,
            read=partial(load_idx, name="fashion-mnist", classes=_GARMENTS),
            places=("fashion-mnist", "FashionMNIST/raw", "fashion_mnist", "FashionMNIST"),
            signs=_IDX_SIGNS,
            remotes=_idx_remotes(
                _FASHION,
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            ),
            checksums=tuple((f"{stem}.gz", md5) for stem, md5 in zip(FILES, _FASHION, strict=True)),
        ),
        Entry(
            name="cifar10",
            summary="small photos of 10 things, 32x32",
            task="classification",
            items=60_000,
            classes=10,
            read=load_cifar10,
            places=(
                "cifar-10-batches-py",
                "cifar10/cifar-10-batches-py",
                "cifar10",
                "CIFAR10/cifar-10-batches-py",
            ),
            signs=TRAIN_10,
            remotes=(
                Remote(
                    "cifar-10-python.tar.gz",
                    "md5:c58f30108f718f92721af3b95e74349a",
                    ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
                ),
            ),
            unpacked_into=".",
            checksums=(
                ("data_batch_1", "c99cafc152244af753f735de768cd75f"),
                ("data_batch_2", "d4bba439e000b95fd0a9bffe97cbabec"),
                ("data_batch_3", "54ebc095f3ab1f0389bbae665268c751"),
                ("data_batch_4", "634d18415352ddfa80567beed471001a"),
                ("data_batch_5", "482c414d41f54cd18b22e5b47cb7c3cb"),
                ("test_batch", "40351d587109b95175f43aff81a1287e"),
                ("batches.meta", "5ff9c542aee3614f3951f8cda6e48888"),
            ),
        ),
        Entry(
            name="cifar100",
            summary="small photos of 100 things, 32x32",
            task="classification",
            items=60_000,
            classes=100,
            read=load_cifar100,
            places=("cifar-100-python", "cifar100/cifar-100-python", "cifar100", "CIFAR100/cifar-100-python"),
            signs=("train",),
            remotes=(
                Remote(
                    "cifar-100-python.tar.gz",
                    "md5:eb9058c3a382ffc7106e4002c42a8d85",
                    ("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
                ),
            ),
            unpacked_into=".",
            checksums=(
                ("train", "16019d7e3df5f24257cddd939b257f8d"),
                ("test", "f0ef6b0ae62326f3e7ffdfab6717acfc"),
                ("meta", "7973b15100ade9c7d40fb424638fde48"),
            ),
        ),
        Entry(
            name="cars196",
            summary="photos of 196 models of cars",
            task="retrieval",
            items=16_185,
            classes=196,
            read=load_cars,
            places=("cars196", "CARS196", "cars196/CARS196", "stanford_cars", "Cars196"),
            signs=("cars_annos.mat", "devkit"),
            remotes=(
                Remote(
                    "cars_annos.mat",
                    "md5:b407c6086d669747186bd1d764ff9dbc",
                    ("http://ai.stanford.edu/~jkrause/car196/cars_annos.mat",),
                ),
                Remote(
                    "car_ims.tgz",
                    "md5:d5c8f0aa497503f355e17dc7886c3f14",
                    ("http://ai.stanford.edu/~jkrause/car196/car_ims.tgz",),
                ),
            ),
            unpacked_into="cars196",
            checksums=(("cars_annos.mat", "b407c6086d669747186bd1d764ff9dbc"),),
            by_hand="CARS196.zip of http://ftp.cs.stanford.edu/cs/cvgl/ holds both, unpacked",
        ),
        Entry(
            name="cub200",
            summary="photos of 200 species of birds",
            task="retrieval",
            items=11_788,
            classes=200,
            read=load_cub,
            places=("CUB_200_2011", "cub200/CUB_200_2011", "cub200", "CUB_200_2011_mini"),
            signs=("images.txt",),
            remotes=(
                Remote(
                    "CUB_200_2011.tgz",
                    "md5:97eceeb196236b17998738112f37df78",
                    (
                        "https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz",
                        "https://s3.amazonaws.com/fast-ai-imageclas/CUB_200_2011.tgz",
                    ),
                ),
            ),
            unpacked_into=".",
        ),
        Entry(
            name="sop",
            summary="photos of 22,634 products, Stanford Online Products",
            task="retrieval",
            items=120_053,
            classes=22_634,
            read=load_sop,
            places=("Stanford_Online_Products", "sop/Stanford_Online_Products", "sop"),
            signs=("Ebay_train.txt",),
            remotes=(
                Remote(
                    "Stanford_Online_Products.zip",
                    "md5:7f73d41a2f44250d4779881525aea32e",
                    ("http://ftp.cs.stanford.edu/cs/cvgl/Stanford_Online_Products.zip",),
                ),
            ),
            unpacked_into=".",
        ),
    )
}


def load(what: str | Path, *, task: Task | None = None, download: bool = True) -> Dataset:
    """A data set by name, or own data by path: a folder of images, an ``.npz`` or a ``.parquet`` file."""
    name = str(what)
    if name in CATALOG:
        dataset = _load_named(CATALOG[name], download)
    else:
        dataset = _load_path(Path(what).expanduser())
    return dataset if task is None else dataset.with_task(task)


def get(name: str, progress: Progress | None = None) -> Path:
    """Find or download a data set, unpack it, and say where it is."""
    entry = _entry(name)
    if not entry.remotes:
        raise DataError(f"{name} comes with scikit-learn; there is nothing to download.")
    place = find(entry)
    if place is not None and _complete(entry, place):
        return place
    target = _target()
    home = target / (entry.places[0] if entry.unpacked_into is None else entry.unpacked_into)
    try:
        for remote in entry.remotes:
            archive = _found(remote.name, entry)
            path = fetch(remote, home if archive is None else archive.parent, progress)
            if entry.unpacked_into is not None and path.suffix in {".tgz", ".gz", ".zip"}:
                unpack(path, home)
    except DataError as error:
        raise DataError(f"{str(error).rstrip('.')}; {_what_to_put_where(entry)}") from error
    place = find(entry)
    if place is None:
        raise DataError(f"{home} does not hold {name} after unpacking; {_what_to_put_where(entry)}")
    return place


def list_datasets() -> list[Status]:
    """Every data set of the catalog, and whether it is here."""
    return [Status(e.name, e.summary, e.task, e.items, e.classes, *_state(e)) for e in CATALOG.values()]


def check(what: str | Path, *, photos: bool = False) -> list[Check]:
    """Verify checksums and counts of a data set that is here; with ``photos``, decode each of them too."""
    entry = CATALOG.get(str(what))
    checks: list[Check] = []
    if entry is not None and entry.remotes:
        place = find(entry)
        if place is None:
            return [Check(entry.name, False, f"not here; {_what_to_put_where(entry)}")]
        checks += list(_check_files(entry, place))
    try:
        dataset = load(what, download=False)
    except DataError as error:
        return [*checks, Check(str(what), False, str(error))]
    items, classes = len(dataset), len(dataset.labels.unique())
    counted = f"{items:,} items, {classes:,} classes"
    if entry is None:
        checks.append(Check("counts", True, counted))
    else:
        right = (items, classes) == (entry.items, entry.classes)
        detail = counted if right else f"{counted}; all of it is {entry.items:,} and {entry.classes:,}"
        checks.append(Check("counts", right, f"{detail} ({dataset.note})" if dataset.note else detail))
    if photos and not isinstance(dataset.inputs, torch.Tensor):
        checks += list(_check_photos(dataset.inputs))
    return checks


def data_folders() -> list[Path]:
    """Where data sets are looked for, first to last."""
    import pooch

    named = os.environ.get(VARIABLE)
    return [*([Path(named).expanduser()] if named else []), Path(pooch.os_cache("spaceform"))]


def find(entry: Entry) -> Path | None:
    """The first place that holds a data set, or None."""
    for root in data_folders():
        for place in entry.places:
            if any((root / place / sign).exists() for sign in entry.signs):
                return root / place
    return None


def _load_named(entry: Entry, download: bool) -> Dataset:
    if not entry.remotes:
        return entry.read(Path())
    place = find(entry)
    if place is None:
        if not download:
            raise DataError(f"{entry.name} is not here; {_what_to_put_where(entry)}")
        place = get(entry.name)
    return entry.read(place)


def _load_path(path: Path) -> Dataset:
    if path.suffix in {".npz", ".parquet"}:
        return load_features(path)
    if path.is_dir():
        return load_folder(path)
    near = difflib.get_close_matches(path.name, CATALOG, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise DataError(
        f"there is no data {str(path)!r}; {hint}give one of {', '.join(CATALOG)}, "
        "a folder of images, or an .npz or .parquet file of features."
    )


def _entry(name: str) -> Entry:
    if name not in CATALOG:
        near = difflib.get_close_matches(name, CATALOG, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise DataError(f"unknown data set {name!r}; {hint}choose from {', '.join(CATALOG)}.")
    return CATALOG[name]


def _state(entry: Entry) -> tuple[Literal["built in", "here", "archive here", "not here"], Path | None]:
    if not entry.remotes:
        return "built in", None
    place = find(entry)
    if place is not None:
        return "here", place
    archive = _found(entry.remotes[-1].name, entry)
    return ("archive here", archive) if archive is not None else ("not here", None)


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
        f"none of {', '.join(map(str, folders))} can be written to; set {VARIABLE} to a folder that can."
    )


def _what_to_put_where(entry: Entry) -> str:
    root = data_folders()[0]
    names = ", ".join(remote.name for remote in entry.remotes)
    also = f" ({entry.by_hand})" if entry.by_hand else ""
    if entry.unpacked_into is None:
        return f"put {names} into {root / entry.places[0]}{also}."
    return f"put {names} into {root / entry.unpacked_into}{also} and run `spaceform data get {entry.name}`."


def _check_files(entry: Entry, place: Path) -> Iterator[Check]:
    for name, expected in entry.checksums:
        path = place / name
        plain = path.with_suffix("") if path.suffix == ".gz" else path
        if path.is_file():
            actual = _md5(path)
            right = actual == expected
            yield Check(
                name, right, "checksum is right" if right else f"{path} has md5 {actual}, not {expected}"
            )
        elif plain.is_file():
            yield Check(plain.name, True, "unzipped; its checksum is not known")
        else:
            yield Check(name, False, f"{path} is missing")


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
