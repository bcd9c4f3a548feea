"""The data of a study: by name or path, a data set that is loaded already, or arrays."""

import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from spaceform.data import CATALOG, DataError, Dataset, Texts, load
from spaceform.run import files
from spaceform.run.recipe import RecipeError
from spaceform.study.folder import ARRAYS

AnyData: TypeAlias = "str | Path | Dataset | Sequence[Any]"
"""A name, a path, a loaded data set, or the arrays (X, y): features and labels, one row for each item."""


@final
@dataclass(frozen=True)
class StudyData:
    """Data, with the name that recipes have for them."""

    name: str
    dataset: Dataset
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    """The arrays that `keep` writes; empty for data that have their own place."""

    def keep(self) -> None:
        """Write the arrays into the study's folder, or check that they are there: runs read them again."""
        path = Path(self.name)
        if not self.arrays:
            return
        if path.exists():
            if load(path).content != self.dataset.content:
                raise RecipeError(f"{path} holds other arrays than the ones given; choose another out")
            return
        archive = io.BytesIO()
        np.savez(archive, allow_pickle=False, **self.arrays)
        files.write_bytes(path, archive.getvalue())


def study_data(
    data: AnyData,
    out: str | Path | None,
    ending: str = "",
    *,
    label: str | None = None,
    text: str | None = None,
) -> tuple[StudyData, Path]:
    """The data, and the folder of the study: the given one, or `spaceform-NAME` with an ending."""
    folder = None if out is None else Path(out)
    if isinstance(data, str | Path):
        source = StudyData(str(data), load(data, label=label, text=text))
    elif isinstance(data, Dataset) and (place := _place(data)) is not None:
        source = StudyData(place, data)
    else:
        folder = folder or Path(f"spaceform-arrays{ending}")
        arrays = _of_dataset(data) if isinstance(data, Dataset) else _of_pair(data)
        source = StudyData(str(folder / ARRAYS), _as_dataset(arrays), arrays)
    return source, folder or Path(f"spaceform-{source.dataset.name}{ending}")


def _place(dataset: Dataset) -> str | None:
    """The name or path from which the data set can be read again."""
    if dataset.name not in CATALOG and len(dataset.source) != 1:
        return None
    place = dataset.name if dataset.name in CATALOG else str(dataset.source[0])
    return place if load(place, label=dataset.label, text=dataset.text).content == dataset.content else None


def _of_dataset(dataset: Dataset) -> dict[str, NDArray[Any]]:
    if dataset.kind != "features":
        raise RecipeError(
            f"the {dataset.kind} of {dataset.name!r} cannot be kept in a study; "
            "give the name or the folder that they are loaded from"
        )
    assert not isinstance(dataset.inputs, tuple | Texts)
    arrays: dict[str, NDArray[Any]] = {
        "X": dataset.inputs[:].cpu().numpy(),
        "y": dataset.labels.numpy(),
        "classes": np.array(dataset.classes),
    }
    if dataset.groups is not None:
        arrays["groups"] = dataset.groups.numpy()
    if dataset.official is not None:
        split = np.full(len(dataset), "train", dtype="U5")
        split[dataset.official.val.numpy()] = "val"
        split[dataset.official.test.numpy()] = "test"
        arrays["split"] = split
    return arrays


def _of_pair(data: Sequence[Any]) -> dict[str, NDArray[Any]]:
    if len(data) != 2:
        raise RecipeError(f"data is a name, a path, a Dataset or the arrays (X, y); got {len(data)} things")
    X, y = (np.asarray(part) for part in data)
    return {"X": X, "y": y.astype(str) if y.dtype == object else y}


def _as_dataset(arrays: Mapping[str, NDArray[Any]]) -> Dataset:
    """The data set of these arrays, checked as if it were read from a file."""
    with tempfile.TemporaryDirectory(prefix="spaceform-") as place:
        path = Path(place) / ARRAYS
        try:
            np.savez(path, allow_pickle=False, **arrays)
            return load(path)
        except ValueError as error:
            if isinstance(error, DataError):
                raise DataError(str(error).replace(str(path), "the arrays")) from None
            raise DataError(f"X and y must be arrays of numbers or strings ({error})") from None
