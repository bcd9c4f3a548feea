"""Data for the benchmarks of decisions: python benchmarks/decisions_data.py SOURCES OUT [NAME ...]

SOURCES is a folder with copies of public repositories, each in a folder of its name, as for board_data.py;
Omniglot is brendenlake/omniglot (MIT): the characters of its two small sets of alphabets. OUT gets NAME.npz
with X, y (numbers), test (a mask) and, where a set has them, `unknown`: rows of no known class. What is there
already is not made again. `SPACEFORM_DATA` says where MNIST and the features of CUB and Cars are.
"""

import io
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import sklearn.datasets
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.model_selection import train_test_split

import board_data
from spaceform import data

Arrays: TypeAlias = dict[str, NDArray[Any]]
Make: TypeAlias = Callable[[Path, Path], Arrays]


def with_test(X: NDArray[Any], names: NDArray[Any], test: NDArray[np.bool_] | None = None) -> Arrays:
    """Classes get numbers; without test rows of the authors' a fifth of each class tests."""
    y = np.unique(names, return_inverse=True)[1]
    if test is None:
        rows = train_test_split(np.arange(len(y)), test_size=0.2, stratify=y, random_state=0)[1]
        test = np.isin(np.arange(len(y)), rows)
    return {"X": X.astype(np.float32), "y": y, "test": test}


def made(name: str, sources: Path, out: Path) -> Arrays:
    """Another set of this file; what is there already is not made again."""
    path = out / f"{name}.npz"
    if not path.exists():
        arrays = MAKERS[name](sources, out)
        np.savez(path, allow_pickle=False, **arrays)
        print(name, {key: value.shape for key, value in arrays.items()}, flush=True)
    with np.load(path) as found:
        return {key: found[key] for key in found.files}


def with_unknown(known: str, unknown: str, sources: Path, out: Path) -> Arrays:
    """The first set, and the rows of the second as unknown."""
    return made(known, sources, out) | {"unknown": made(unknown, sources, out)["X"]}


# Images and tables ----------------------------------------------------------------------------------------


def digits(sources: Path, out: Path) -> Arrays:  # noqa: ARG001
    """The 1,797 images of scikit-learn."""
    return with_test(*sklearn.datasets.load_digits(return_X_y=True))


def pixels(name: str, sources: Path, out: Path) -> Arrays:  # noqa: ARG001
    """10,000 training and 5,000 test images; each pixel is the mean of 2 x 2."""
    X, y, test = _of_catalog(name, 10_000, 5_000)
    return with_test((X.reshape(len(X), 14, 2, 14, 2).mean(axis=(2, 4)) / 255).reshape(len(X), -1), y, test)


def cifar10(sources: Path, out: Path) -> Arrays:  # noqa: ARG001
    """4,000 images of data_batch_1 and 2,000 test images, as the net for photos sees them."""
    X, y, test = _of_catalog("cifar10", 4_000, 2_000)
    return with_test(_seen(X, y, out / ".cifar10.npz"), y, test)


def _of_catalog(
    name: str, train: int, test: int
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    found = data.load(name, download=False)
    assert found.official is not None
    assert isinstance(found.inputs, torch.Tensor)
    own, other = found.official.train.numpy(), found.official.test.numpy()
    rows = np.concatenate([own[board_data.some(len(own), train)], other[board_data.some(len(other), test)]])
    return found.inputs[rows].numpy(), found.labels[rows].numpy(), np.arange(len(rows)) >= train


def _seen(images: NDArray[np.uint8], y: NDArray[Any], path: Path) -> NDArray[np.float32]:
    """Features of small images."""
    if not path.exists():
        board_data.see(images, y, np.repeat("train", len(y)), path)
    with np.load(path) as found:
        return found["X"]


def textures(sources: Path, out: Path) -> Arrays:
    """1,200 photos as the net for photos sees them."""
    path = out / ".textures.npz"
    if not path.exists():
        board_data.textures(sources, path)
    with np.load(path) as found:
        return with_test(found["X"], found["y"])


def ready(name: str, first: int, last: int, sources: Path, out: Path) -> Arrays:  # noqa: ARG001
    """Features by ResNet50 of the classes from `first` to before `last`; the classes after are unknown."""
    with np.load(Path(os.environ["SPACEFORM_DATA"]) / "features" / f"{name}-resnet50.npz") as found:
        X, y = found["X"], found["y"]
    known = (y >= first) & (y < last)
    return with_test(X[known], y[known]) | ({"unknown": X[y >= last]} if (y >= last).any() else {})


def table(file: str, target: str, left_out: Sequence[str], sources: Path, out: Path) -> Arrays:  # noqa: ARG001
    """All rows of a file with columns of numbers."""
    found = pd.read_csv(sources / file, encoding="utf-8-sig")
    return with_test(found.drop(columns=[target, *left_out]).to_numpy(float), found[target].to_numpy())


# Texts and drawings ---------------------------------------------------------------------------------------


def clinc150(sources: Path, out: Path) -> Arrays:
    """All questions of data_full, and those out of scope of its test part as unknown."""
    found = json.loads((sources / "oos-eval" / "data" / "data_full.json").read_text("utf-8"))
    parts = ("train", "val", "test", "oos_test")
    split = np.array([part for part in parts for _ in found[part]])
    rows = [row for part in parts for row in found[part]]
    X = _read(rows, out / ".clinc150.npz")
    names, known = np.array([label for _, label in rows]), split != "oos_test"
    return with_test(X[known], names[known], split[known] == "test") | {"unknown": X[~known]}


def clinc150_small(sources: Path, out: Path) -> Arrays:
    """The training questions of data_small: 50 of each class and not 100."""
    found = json.loads((sources / "oos-eval" / "data" / "data_small.json").read_text("utf-8"))
    kept = {text for part in ("train", "val") for text, _ in found[part]}
    whole = json.loads((sources / "oos-eval" / "data" / "data_full.json").read_text("utf-8"))
    texts = [text for part in ("train", "val", "test") for text, _ in whole[part]]
    arrays = made("clinc150", sources, out)
    rows = arrays["test"] | np.isin(texts, list(kept))
    return {key: arrays[key][rows] for key in ("X", "y", "test")}


def banking77(sources: Path, out: Path) -> Arrays:
    """Questions to a bank."""
    folder = sources / "task-specific-datasets" / "banking_data"
    train, test = (pd.read_csv(folder / f"{part}.csv") for part in ("train", "test"))
    rows = [*zip(train.text, train.category, strict=True), *zip(test.text, test.category, strict=True)]
    X = _read(rows, out / ".banking77.npz")
    return with_test(X, np.array([label for _, label in rows]), np.arange(len(rows)) >= len(train))


def _read(rows: Sequence[tuple[str, str]], path: Path) -> NDArray[np.float32]:
    """Features of texts, as the net for sentences sees them."""
    if not path.exists():
        board_data.read([(text, label, "train") for text, label in rows], path)
    with np.load(path) as found:
        return found["X"]


def omniglot(sources: Path, out: Path) -> Arrays:
    """Every character is a class; 20 drawings of each, as the net for photos sees them."""
    images: dict[str, NDArray[np.uint8]] = {}
    for part in ("small1", "small2"):
        with zipfile.ZipFile(sources / "omniglot" / "python" / f"images_background_{part}.zip") as packed:
            for name in sorted(n for n in packed.namelist() if n.endswith(".png") and "__MACOSX" not in n):
                key = "/".join(name.split("/")[1:])  # some alphabets are in both
                if key not in images:
                    images[key] = np.asarray(Image.open(io.BytesIO(packed.read(name))).convert("L"))[None]
    labels = np.array([key.rsplit("/", 1)[0] for key in images])
    return with_test(_seen(np.stack(list(images.values())), labels, out / ".omniglot.npz"), labels)


_OPENML = ("target", ("name", "is_train", "prediction"))
_UCI = "adversarial_attacks_detection/data"
_BEANS = "Automated-classification-of-dry-bean-varieties/data/Dry_Bean_Dataset.csv"
MAKERS: Mapping[str, Make] = {
    "digits": digits,
    "mnist": partial(pixels, "mnist"),
    "fashion-mnist": partial(pixels, "fashion-mnist"),
    "cifar10": cifar10,
    "textures": textures,
    "cub-first-half": partial(ready, "cub200", 0, 100),
    "cub-second-half": partial(ready, "cub200", 100, 200),
    "cars-first-half": partial(ready, "cars196", 0, 98),
    "cars-second-half": partial(ready, "cars196", 98, 196),
    "dry_bean": partial(table, _BEANS, "Class", ()),
    "pendigits": partial(table, f"{_UCI}/pendigits.csv", *_OPENML),
    "satimage": partial(table, f"{_UCI}/satimage.csv", *_OPENML),
    "clinc150": clinc150,
    "clinc150-small": clinc150_small,
    "banking77": banking77,
    "omniglot": omniglot,
    "fashion-mnist-or-mnist": partial(with_unknown, "fashion-mnist", "mnist"),
    "cifar10-or-textures": partial(with_unknown, "cifar10", "textures"),
}


def main() -> None:
    """Make what is missing."""
    asked = board_data.asked_for(__doc__)
    for name in asked.names or MAKERS:
        made(name, asked.sources, asked.out)


if __name__ == "__main__":
    main()
