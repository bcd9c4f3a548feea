"""The data of the board, as files of features: python benchmarks/board_data.py SOURCES OUT [NAME ...]

SOURCES is a folder with copies of the public repositories that `board_sets.toml` names (`git clone --depth 1
https://github.com/OWNER/NAME`, each in a folder NAME), and OUT gets NAME.npz for every set and `sets.json`:
what each is, where it comes from, its licence, which part of it was taken, counts, and the SHA-256 of the
file. Sets of the catalog (mnist, ...) are looked for where `SPACEFORM_DATA` says; `features/` there holds
the features of CUB-200-2011 and Cars196 by ResNet50. What is there already is not made again. Photos are
seen by the default net of `spaceform features`, EfficientNet-Lite0, and texts by its default, all-MiniLM-L6.

Parts are random with seed 0. A split of the authors' is kept; where there is none, `compare` makes its own.
"""

import argparse
import csv
import hashlib
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import sklearn.datasets
import torch
from numpy.typing import NDArray
from PIL import Image

import spaceform
from spaceform import data
from spaceform.data.dataset import Dataset, Split
from spectrograms import spectrogram

TRAINING, TEST = 3_000, 5_000
"""The most rows of a set: a comparison of all heads takes minutes on one core. Test rows cost little, and the
more of them there are, the less the best head on them is the luckiest.
"""
EVEN, TESTED = 30, 30
"""Training and test images of each class of CIFAR-100."""
LONG_TAIL = tuple(round(80 * 0.05 ** (c / 99)) for c in np.random.default_rng(0).permutation(100))
"""Training images where they are not even: from 80 down to 4, in a random order of the classes."""
SPOKEN = 50
"""Recordings of each digit by each speaker."""
Make: TypeAlias = Callable[[Path, Path], None]
"""Writes the file of the second path from the folder of the first."""


def listed() -> list[dict[str, Any]]:
    """What `board_sets.toml` says of each set."""
    found = tomllib.loads(Path(__file__).with_name("board_sets.toml").read_text("utf-8"))["sets"]
    return [{"tags": [], **one} for one in found]


# Parts and files ------------------------------------------------------------------------------------------


def some(count: int, most: int) -> NDArray[np.int64]:
    """Which rows are taken: all, or a random part in the order of the rows."""
    return np.sort(np.random.default_rng(0).permutation(count)[:most])


def in_each(labels: NDArray[Any], counts: Sequence[int]) -> NDArray[np.int64]:
    """A random part with so many rows of each class."""
    mixed = np.random.default_rng(0).permutation(len(labels))
    own = [mixed[labels[mixed] == c][:count] for c, count in enumerate(counts)]
    return np.sort(np.concatenate(own))


def capped(train: int, test: int) -> NDArray[np.int64]:
    """A random part of rows with the training rows first."""
    return np.concatenate([some(train, TRAINING), train + some(test, TEST)])


def save(out: Path, X: Any, y: Any, split: NDArray[np.str_] | None = None, **more: Any) -> None:
    """An .npz of features; labels may be names."""
    arrays = {"X": np.asarray(X, np.float32), "y": np.asarray(y), **more}
    np.savez(out, allow_pickle=False, **arrays, **({} if split is None else {"split": split}))


def parts(train: int, test: int) -> NDArray[np.str_]:
    """The split of rows with the training rows first."""
    return np.repeat(["train", "test"], [train, test])


def see(images: NDArray[np.uint8], labels: NDArray[Any], split: NDArray[np.str_], out: Path) -> None:
    """Features of small images by the net for photos; images are items x channels x height x width."""
    names, numbers = np.unique(labels, return_inverse=True)
    where = {part: torch.from_numpy(np.flatnonzero(split == part)) for part in ("train", "val", "test")}
    dataset = Dataset(
        out.stem,
        tuple(map(str, names)),
        torch.from_numpy(numbers.astype(np.int64)),
        torch.from_numpy(images),
        official=Split(**where),
    )
    spaceform.extract_features(dataset, out, workers=1)


def read(texts: Sequence[tuple[str, str, str]], out: Path) -> None:
    """Features of texts by the net for sentences; a text, its label and its part each."""
    table = out.with_suffix(".csv")
    with table.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([("text", "y", "split"), *texts])
    spaceform.extract_features(table, out, text="text")
    table.unlink()


# Images ---------------------------------------------------------------------------------------------------


def halved(name: str, sources: Path, out: Path) -> None:  # noqa: ARG001 (the catalog knows)
    """Pixels, each the mean of 2 x 2."""
    X, y, split = _part_of_catalog(name)
    small = X.reshape(len(X), 14, 2, 14, 2).mean(axis=(2, 4)) / 255
    save(out, small.reshape(len(X), -1), y, split)


def cifar10(sources: Path, out: Path) -> None:  # noqa: ARG001
    """As the net for photos sees them."""
    see(*_part_of_catalog("cifar10"), out)


def _part_of_catalog(name: str) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.str_]]:
    found = data.load(name, download=False)
    assert found.official is not None
    assert isinstance(found.inputs, torch.Tensor)
    own, other = found.official.train.numpy(), found.official.test.numpy()
    rows = np.concatenate([own[some(len(own), TRAINING)], other[some(len(other), TEST)]])
    return found.inputs[rows].numpy(), found.labels[rows].numpy(), parts(TRAINING, TEST)


def cifar100(train: Sequence[int], sources: Path, out: Path) -> None:
    """So many training images of each of the hundred classes, and `TESTED` test images of each."""
    files, split, pool = _cifar100_pool(sources, out.with_name(".cifar100-pool.npz"))
    labels = np.array([path.parent.name for path in files])
    numbers = np.unique(labels, return_inverse=True)[1]
    own = np.flatnonzero(split == "train")
    rows = np.concatenate([own[in_each(numbers[own], train)], np.flatnonzero(split == "test")])
    save(out, pool[rows], labels[rows], split[rows])


def _cifar100_pool(sources: Path, pool: Path) -> tuple[list[Path], NDArray[np.str_], NDArray[np.float32]]:
    """Files, parts and features of the images that some set takes; what is there is not made again."""
    chosen, split = [], []
    most = [max(count, EVEN) for count in LONG_TAIL]
    for part, counts in (("train", most), ("test", [TESTED] * 100)):
        files = sorted((sources / "CIFAR-100-dataset" / part).glob("*/*.png"))
        numbers = np.unique([path.parent.name for path in files], return_inverse=True)[1]
        taken = in_each(numbers, counts)
        chosen += [files[i] for i in taken]
        split += [part] * len(taken)
    if not pool.exists():
        images = [np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1) for path in chosen]
        see(np.stack(images), np.array([path.parent.name for path in chosen]), np.array(split), pool)
    with np.load(pool) as found:
        return chosen, np.array(split), found["X"]


def textures(sources: Path, out: Path) -> None:
    """Photos as the net sees them."""
    spaceform.extract_features(sources / "DeepTexture" / "images", out, workers=1)


def resnet50(name: str, first: int, each: int, sources: Path, out: Path) -> None:  # noqa: ARG001
    """Ready features of so many photos of each class, from the class `first` on."""
    with np.load(Path(os.environ["SPACEFORM_DATA"]) / "features" / f"{name}-resnet50.npz") as found:
        counts = [each * (c >= first) for c in range(len(found["classes"]))]
        rows = in_each(found["y"], counts)
        save(out, found["X"][rows], found["y"][rows] - first, classes=found["classes"][first:])


# Texts ----------------------------------------------------------------------------------------------------


def banking77(sources: Path, out: Path) -> None:
    """Questions to a bank."""
    folder = sources / "task-specific-datasets" / "banking_data"
    rows = {}
    for part in ("train", "test"):
        with (folder / f"{part}.csv").open(encoding="utf-8", newline="") as file:
            rows[part] = [(row["text"], row["category"], part) for row in csv.DictReader(file)]
    read(_capped(rows["train"], rows["test"]), out)


def clinc150(sources: Path, out: Path) -> None:
    """Questions to an assistant; those out of scope are left out."""
    found = json.loads((sources / "oos-eval" / "data" / "data_small.json").read_text("utf-8"))
    train = [(text, label, part) for part in ("train", "val") for text, label in found[part]]
    read(_capped(train, [(text, label, "test") for text, label in found["test"]]), out)


def hwu64(sources: Path, out: Path) -> None:
    """Commands to a device at home."""
    rows = {}
    for part, name in (("train", "train"), ("val", "valid"), ("test", "test")):
        folder = sources / "Few-Shot-Intent-Detection" / "Datasets" / "HWU64" / name
        texts, labels = (
            (folder / file).read_text("utf-8").strip().split("\n") for file in ("seq.in", "label")
        )
        rows[part] = [(text.strip(), label.strip(), part) for text, label in zip(texts, labels, strict=True)]
    read(rows["val"] + _capped(rows["train"], rows["test"]), out)


def trec6(sources: Path, out: Path) -> None:
    """Questions, by what is asked for."""
    rows: dict[str, list[tuple[str, str, str]]] = {"train": [], "test": []}
    for part, own in rows.items():
        lines = (sources / "few-shot-learning" / "data" / "trec" / f"{part}.txt").read_text("utf-8")
        for line in filter(str.strip, lines.splitlines()):
            label, text = line.split(" ", 1)
            own.append((text, label.split(":")[0], part))
    read(_capped(rows["train"], rows["test"]), out)


def _capped(
    train: list[tuple[str, str, str]], test: list[tuple[str, str, str]]
) -> list[tuple[str, str, str]]:
    both = train + test
    return [both[i] for i in capped(len(train), len(test))]


# Sounds ---------------------------------------------------------------------------------------------------


def esc50(sources: Path, out: Path) -> None:
    """Spectrograms; clips of a source share a fold, so folds 1 to 3 train, 4 validates and 5 tests."""
    with (sources / "ESC-50" / "meta" / "esc50.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    images = np.stack([spectrogram(sources / "ESC-50" / "audio" / row["filename"])[None] for row in rows])
    split = np.array([{"4": "val", "5": "test"}.get(row["fold"], "train") for row in rows])
    see(images, np.array([row["category"] for row in rows]), split, out)


def spoken(what: int, sources: Path, out: Path) -> None:
    """Spectrograms of DIGIT_SPEAKER_NUMBER.wav, by the digit (0) or the speaker (1); numbers 0 to 4 test."""
    files = sorted((sources / "free-spoken-digit-dataset" / "recordings").glob("*.wav"))
    files = [path for path in files if int(path.stem.split("_")[2]) < SPOKEN]
    names = np.array([path.stem.split("_") for path in files])
    other = out.with_name("spoken-digits.npz" if what else "spoken-speakers.npz")
    split = np.where(names[:, 2].astype(int) < 5, "test", "train")
    if other.exists():  # the features are the same
        with np.load(other) as found:
            save(out, found["X"], names[:, what], split)
    else:
        see(np.stack([spectrogram(path)[None] for path in files]), names[:, what], split, out)


# Tables ---------------------------------------------------------------------------------------------------


def built_in(load: Callable[..., Any], sources: Path, out: Path) -> None:  # noqa: ARG001
    """A table of scikit-learn."""
    save(out, *load(return_X_y=True))


def table(file: str, target: str, left_out: Sequence[str], sources: Path, out: Path) -> None:
    """Columns of numbers; the rows of one file, or a part of them."""
    with (sources / file).open(encoding="utf-8-sig", newline=None) as lines:
        rows = list(csv.DictReader(lines))
    columns = [name for name in rows[0] if name not in (target, *left_out)]
    rows = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[: TRAINING + TEST]]
    split = parts(TRAINING, len(rows) - TRAINING) if len(rows) > TRAINING else None
    save(out, [[float(row[name]) for name in columns] for row in rows], [row[target] for row in rows], split)


_OPENML = ("target", ("name", "is_train", "prediction"))
_UCI = "adversarial_attacks_detection/data"
_BEANS = "Automated-classification-of-dry-bean-varieties/data/Dry_Bean_Dataset.csv"
MAKERS: Mapping[str, Make] = {
    "digits": partial(built_in, sklearn.datasets.load_digits),
    "mnist": partial(halved, "mnist"),
    "fashion-mnist": partial(halved, "fashion-mnist"),
    "cifar10": cifar10,
    "cifar100": partial(cifar100, [EVEN] * 100),
    "cifar100-lt": partial(cifar100, LONG_TAIL),
    "textures": textures,
    "cub200": partial(resnet50, "cub200", 0, 25),
    "cars-second-half": partial(resnet50, "cars196", 98, 50),
    "banking77": banking77,
    "clinc150": clinc150,
    "hwu64": hwu64,
    "trec6": trec6,
    "esc50": esc50,
    "spoken-digits": partial(spoken, 0),
    "spoken-speakers": partial(spoken, 1),
    "wine": partial(built_in, sklearn.datasets.load_wine),
    "breast_cancer": partial(built_in, sklearn.datasets.load_breast_cancer),
    "pendigits": partial(table, f"{_UCI}/pendigits.csv", *_OPENML),
    "satimage": partial(table, f"{_UCI}/satimage.csv", *_OPENML),
    "robot": partial(table, f"{_UCI}/wall-robot-navigation.csv", *_OPENML),
    "magic": partial(table, "MAGIC-Gamma-Classification/magic04.data", "class", ()),
    "dry_bean": partial(table, _BEANS, "Class", ()),
    "blood-stages": partial(table, "PoincareMaps/datasets/Moignard2015.csv", "labels", ()),
    "blood-kinds": partial(table, "PoincareMaps/datasets/Olsson.csv", "labels", ()),
}
"""By the names of `board_sets.toml`."""


# The folder -----------------------------------------------------------------------------------------------


def described(one: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """A row of the page's table of data."""
    found = data.load(path)
    assert isinstance(found.inputs, torch.Tensor)
    counts = torch.bincount(found.labels)
    return {
        **one,
        "rows": len(found),
        "columns": found.inputs.shape[1],
        "classes": len(found.classes),
        "smallest_class": int(counts.min()),
        "largest_class": int(counts.max()),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def asked_for(description: str | None) -> argparse.Namespace:
    """Where sources are, the folder to write to (made), and the names of sets."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    return asked


def main() -> None:
    """Make what is missing, and describe what is there."""
    asked = asked_for(__doc__)
    known = {one["name"]: one for one in listed()}
    paths = {name: asked.out / f"{name}.npz" for name in known}
    there = {name: described(known[name], path) for name, path in paths.items() if path.exists()}
    keep(there.values(), asked.out)
    for name in asked.names or known:
        if name not in there:
            MAKERS[name](asked.sources, paths[name])
            there[name] = described(known[name], paths[name])
            keep([there[one] for one in known if one in there], asked.out)
    for row in there.values():
        shape = f"{row['rows']:,} x {row['columns']:,}, {row['classes']} classes"
        print(f"{row['name']:17} {row['kind']:6} {shape}")


def keep(rows: Iterable[Mapping[str, Any]], out: Path) -> None:
    """Write what is there: runs may begin before all of it is made."""
    partial_file = out / ".sets.json"
    partial_file.write_text(json.dumps(list(rows), indent=1) + "\n", "utf-8")
    partial_file.replace(out / "sets.json")


if __name__ == "__main__":
    main()
