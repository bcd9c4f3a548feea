"""What a data set is: inputs, labels, class names, and the split its authors gave it."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

Task: TypeAlias = Literal["classification", "retrieval"]
Kind: TypeAlias = Literal["pixels", "features", "photos"]

_NO_ITEMS = torch.empty(0, dtype=torch.int64)


class DataError(ValueError):
    """A file or folder that cannot be used; the message names it and says what to do."""


@dataclass(frozen=True, eq=False)
class Split:
    """Indices of the items that train, validate and test."""

    train: Int64[Tensor, "train"]
    val: Int64[Tensor, "val"] = _NO_ITEMS
    test: Int64[Tensor, "test"] = _NO_ITEMS


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled items.

    ``inputs`` are small images held in memory (uint8), feature vectors (float32), or the paths of photos that
    are decoded when they are needed. ``official`` is the split that comes with the data, or None.
    """

    name: str
    classes: tuple[str, ...]
    labels: Int64[Tensor, "items"]
    inputs: UInt8[Tensor, "items channels height width"] | Float[Tensor, "items dim"] | tuple[Path, ...]
    task: Task = "classification"
    official: Split | None = None
    groups: Int64[Tensor, "items"] | None = None
    """Items of one group (one patient, one video) never stand on two sides of a split."""
    source: tuple[Path, ...] = ()
    """The files and folders that were read."""
    note: str = field(default="")
    """What a reader of the results must know, such as that files were missing; empty when all is well."""

    def __post_init__(self) -> None:
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
    def kind(self) -> Kind:
        """What an item is: "pixels", "features" or "photos"."""
        if not isinstance(self.inputs, Tensor):
            return "photos"
        return "features" if self.inputs.ndim == 2 else "pixels"

    def to(self, device: torch.device) -> "Dataset":
        """The same data with inputs that are held in memory moved to a device; labels and indices stay."""
        return replace(self, inputs=self.inputs.to(device)) if isinstance(self.inputs, Tensor) else self

    def with_task(self, task: Task) -> "Dataset":
        """The same items for another task: "classification" or "retrieval"."""
        return replace(self, task=task)
