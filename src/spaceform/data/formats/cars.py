"""Cars196: `cars_annos.mat` beside `car_ims/`, or the two halves and the `devkit/` that torchvision keeps."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spaceform.data.dataset import DataError, Dataset, Split
from spaceform.data.photos import present


def load_cars(folder: Path) -> Dataset:
    """All photos that are there, with the 196 classes in the official order."""
    paths, labels, test, classes = (
        _joined(folder) if (folder / "cars_annos.mat").is_file() else _halves(folder)
    )
    here = present(paths)
    if not any(here):
        raise DataError(
            f"{paths[0].parent} has none of the {len(paths):,} photos, only the annotations are here; "
            f"unpack car_ims.tgz into {folder}."
        )
    kept = np.flatnonzero(here)
    test = test[kept]
    return Dataset(
        name="cars196",
        task="retrieval",
        classes=classes,
        labels=torch.from_numpy(labels[kept]),
        inputs=tuple(paths[i] for i in kept),
        official=Split(torch.from_numpy(np.flatnonzero(~test)), test=torch.from_numpy(np.flatnonzero(test))),
        source=(folder,),
        note=f"{len(kept):,} of 16,185 photos" if len(kept) < 16_185 else "",
    )


_Cars = tuple[list[Path], NDArray[np.int64], NDArray[np.bool_], tuple[str, ...]]


def _joined(folder: Path) -> _Cars:
    path = folder / "cars_annos.mat"
    table, names = _field(path, "annotations"), _field(path, "class_names")
    photos = [folder / str(name) for name in _column(path, table, "relative_im_path")]
    labels = _column(path, table, "class").astype(np.int64) - 1
    return photos, labels, _column(path, table, "test").astype(bool), tuple(str(name) for name in names)


def _halves(folder: Path) -> _Cars:
    if not (folder / "devkit").is_dir():
        raise DataError(f"{folder} lacks cars_annos.mat; put the official annotations there.")
    halves = [
        (folder / "devkit" / "cars_train_annos.mat", folder / "cars_train"),
        (folder / "cars_test_annos_withlabels.mat", folder / "cars_test"),
    ]
    tables = [_field(path, "annotations") for path, _ in halves]
    photos = [
        photos / str(name)
        for (path, photos), table in zip(halves, tables, strict=True)
        for name in _column(path, table, "fname")
    ]
    labels = np.concatenate(
        [_column(path, table, "class") for (path, _), table in zip(halves, tables, strict=True)]
    )
    test = np.arange(len(labels)) >= len(tables[0])
    names = _field(folder / "devkit" / "cars_meta.mat", "class_names")
    return photos, labels.astype(np.int64) - 1, test, tuple(str(name) for name in names)


def _field(path: Path, name: str) -> NDArray[Any]:
    from scipy.io import loadmat

    try:
        content = loadmat(path, squeeze_me=True)
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; put the official annotations there.") from error
    except Exception as error:  # a damaged file raises whatever its bytes lead to
        raise DataError(f"{path} is cut short or damaged ({error}); fetch it again.") from error
    if name not in content:
        raise DataError(f"{path} has no {name!r}; use the official annotations of Cars196.")
    return np.atleast_1d(content[name])


def _column(path: Path, table: NDArray[Any], name: str) -> NDArray[Any]:
    if not table.dtype.names or name not in table.dtype.names:
        raise DataError(
            f"the annotations in {path} have no {name!r}; use the official annotations of Cars196."
        )
    return table[name]
