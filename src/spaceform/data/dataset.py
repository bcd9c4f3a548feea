"""A data set: inputs, labels, class names, and the split of its authors."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from spaceform.data.errors import DataError as DataError
from spaceform.data.stored_rows import StoredRows
from spaceform.data.table_columns import TableFeature
from spaceform.data.text_items import Texts
from spaceform.foundation.messages import spelled

Task: TypeAlias = Literal["classification", "retrieval"]
InputKind: TypeAlias = Literal["pixels", "features", "photos", "texts"]

PARTS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""The names of the parts of a split. "eval" is not among them: for some it means validation, for others test.
"""

_NO_ITEMS = torch.empty(0, dtype=torch.int64)


def _written(names: Sequence[str]) -> tuple[str, ...]:
    """Names that every file can hold: bytes of a folder's name that are not UTF-8 become U+FFFD.

    If two names would become the same, such bytes are spelled out.
    """
    replaced = [name.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for name in names]
    return tuple(map(spelled, names)) if len(set(replaced)) < len(set(names)) else tuple(replaced)


@dataclass(frozen=True, eq=False)
class Split:
    """Indices of the items that train, validate and test."""

    train: Int64[Tensor, "train"]
    val: Int64[Tensor, "val"] = _NO_ITEMS
    test: Int64[Tensor, "test"] = _NO_ITEMS


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled items.

    ``inputs`` are small images held in memory (uint8), feature vectors (float32) in memory or on the disk,
    the paths of photos that are decoded when they are needed, or texts. ``official`` is the split that comes
    with the data, or None.
    """

    name: str
    classes: tuple[str, ...]
    labels: Int64[Tensor, "items"]
    inputs: (
        UInt8[Tensor, "items channels height width"]
        | Float[Tensor, "items dim"]
        | StoredRows
        | tuple[Path, ...]
        | Texts
    )
    task: Task = "classification"
    official: Split | None = None
    groups: Int64[Tensor, "items"] | None = None
    """Items of one group (one patient, one video) are always in the same part of a split."""
    views: Int64[Tensor, "items"] | None = None
    """0 for an item itself; 1, 2, … for augmented views of it, which are used for training alone."""
    source: tuple[Path, ...] = ()
    """The files and folders that were read."""
    note: str = field(default="")
    """What a reader of the results must know, such as that files were missing; empty when all is well."""
    columns: tuple[TableFeature, ...] = ()
    """What each feature is, if the file has names for them."""
    label: str | None = None
    """The column of a table that was asked for as labels."""
    text: str | None = None
    """The column of a table that holds the texts; ".txt" where they are files."""
    shrunk_from: str = ""
    """A digest of the photos, the texts or the folder of features that ``inputs`` were made from; or empty.
    """
    made_by: str = ""
    """A digest of the weights of the net that made the features of photos or texts; or empty."""
    files: tuple[Path | str, ...] = ()
    """The files of images or features that are held in memory; empty where nothing says what they are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _written([self.name])[0])
        object.__setattr__(self, "classes", _written(self.classes))
        where = f"{self.name} ({self.source[0]})" if self.source else self.name
        if len(self.inputs) != len(self.labels):
            raise DataError(
                f"{where} has {len(self.inputs):,} items and {len(self.labels):,} labels; give one each."
            )
        if not len(self.labels):
            raise DataError(f"{where} is empty; it needs at least two classes with two items each.")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= len(self.classes):
            raise DataError(
                f"{where} has a label {low if low < 0 else high}, but {len(self.classes)} classes, "
                f"numbered from 0; use the label file that belongs to these items."
            )
        if low == high:
            raise DataError(
                f"{where} has items of one class only ({self.classes[low]!r}); "
                "there is nothing to tell apart: add a second class."
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def kind(self) -> InputKind:
        """What an item is: "pixels", "features", "photos" or "texts"."""
        if isinstance(self.inputs, Texts):
            return "texts"
        if isinstance(self.inputs, tuple):
            return "photos"
        return "features" if self.inputs.ndim == 2 else "pixels"

    def item(self, row: int) -> str:
        """The name of an item, as `predict` writes it: its file, or its row from 0."""
        if isinstance(self.inputs, Texts):
            return self.inputs.items[row]
        files = self.inputs if isinstance(self.inputs, tuple) else self.files
        return spelled(str(files[row])) if files else str(row)

    @cached_property
    def content(self) -> str:
        """A digest of inputs, labels, names of classes, groups and the official split, wherever they lie.

        For inputs in memory it uses their values. For photos, shrunk or not, it uses their names, below the
        folder that they share, and their sizes: the files are not read. For features of a folder, in memory
        or not, it uses the files and some rows (`StoredRows.digest`).
        """
        official = self.official or Split(_NO_ITEMS)
        groups = _NO_ITEMS if self.groups is None else self.groups
        digest = hashlib.blake2b(repr(self.classes).encode())
        for part in (self.labels, groups, official.train, official.val, official.test):
            digest.update(_digest_of_values(part))
        digest.update(self.inputs_digest)
        return digest.hexdigest()

    @property
    def inputs_digest(self) -> bytes:
        """A digest of the inputs, or of what they were made of."""
        if self.shrunk_from:
            return self.shrunk_from.encode()
        if isinstance(self.inputs, tuple):
            return digest_of_photos(self.inputs).encode()
        if isinstance(self.inputs, Texts):
            return self.inputs.digest.encode()
        if isinstance(self.inputs, StoredRows):
            return self.inputs.digest.encode()
        return _digest_of_values(self.inputs)

    def to(self, device: torch.device) -> "Dataset":
        """The same data with inputs that are held in memory moved to a device; labels and indices stay."""
        return replace(self, inputs=self.inputs.to(device)) if isinstance(self.inputs, Tensor) else self

    def with_task(self, task: Task) -> "Dataset":
        """The same items for another task: "classification" or "retrieval"."""
        return replace(self, task=task)


def digest_of_photos(paths: Sequence[Path]) -> str:
    """Names, from the folder that all share, and sizes."""
    names = [os.path.abspath(path) for path in paths]
    shared = os.path.commonpath(names)
    digest = hashlib.blake2b()
    for name in names:
        try:
            size = os.path.getsize(name)
        except OSError as error:
            raise DataError(f"{name} cannot be read ({error.strerror}); put the photo back.") from None
        digest.update(os.fsencode(f"{name[len(shared) :].replace(os.sep, '/')} {size}\n"))
    return digest.hexdigest()


def _digest_of_values(values: Tensor) -> bytes:
    digest = hashlib.blake2b(f"{values.dtype} {tuple(values.shape)}".encode())
    digest.update(values.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
