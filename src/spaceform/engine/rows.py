"""Rows of features, and how they are split: rows to train on, rows held out, folds that take turns."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.data.stored_rows import StoredRows
from spaceform.nets.features import Standardised

SMALLEST_HELD_OUT = 400
"""Fewer held-out rows say too little; then three folds take turns in being held out."""

_FOLDS = 3


@final
@dataclass(frozen=True)
class Rows:
    """Features, in memory or on the disk, labels from 0, and weights."""

    x: Float[Tensor, "n features"] | StoredRows
    y: Integer[Tensor, " n"]
    weight: Float[Tensor, " n"]

    @staticmethod
    def of(x: Any, y: Any, weight: Any = None) -> "Rows":
        """From arrays, tensors or stored rows; float64 features stay float64, all others become float32."""
        if not isinstance(x, StoredRows):
            x = torch.as_tensor(x)
            x = x if x.dtype == torch.float64 else x.float()
        ones = torch.ones(len(x), dtype=x.dtype, device=x.device)
        w = ones if weight is None else torch.as_tensor(weight).to(ones)
        return Rows(x, torch.as_tensor(y).long(), w)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor) -> "Rows":
        x = self.x.part(index) if isinstance(self.x, StoredRows) else self.x[index]
        return Rows(x, self.y[index], self.weight[index])

    def some(self, most: int) -> "Rows":
        """At most `most` rows, chosen at random, in their order."""
        if len(self) <= most:
            return self
        index = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))[:most]
        return self[index.sort().values.to(self.y.device)]

    @property
    def features(self) -> Float[Tensor, "n features"]:
        """The features as a tensor; those on the disk are read."""
        return self.x[:]

    @property
    def in_memory(self) -> "Rows":
        """The same rows in memory; those on the disk are read."""
        return Rows(self.features, self.y, self.weight)

    def seen_by(self, inputs: Standardised) -> "Rows":
        """The rows as a net gets them: standardised in their own type, then float32."""
        x = self.x.through(inputs) if isinstance(self.x, StoredRows) else inputs(self.x).float()
        return Rows(x, self.y, self.weight.float())

    def shuffled(self, batches: int, generator: torch.Generator) -> Iterator["LabelledBatch"]:
        """Every row once in random order, in this many batches of nearly equal size.

        Rows on the disk are mixed as `StoredRows.shuffled` does.
        """
        if isinstance(self.x, StoredRows):
            sizes = [len(part) for part in self.y.tensor_split(batches)]
            for index, x in self.x.shuffled(sizes, generator=generator):
                yield LabelledBatch(x, self.y[index], self.weight[index])
            return
        rows = self[torch.randperm(len(self), generator=generator, device=self.x.device)]
        assert isinstance(rows.x, Tensor)
        parts = (t.tensor_split(batches) for t in (rows.x, rows.y, rows.weight))
        yield from map(LabelledBatch, *parts)


class LabelledBatch(NamedTuple):
    """Some rows in memory, their labels and weights."""

    x: Float[Tensor, "batch features"]
    y: Integer[Tensor, " batch"]
    weight: Float[Tensor, " batch"]


class TrainingSplit(NamedTuple):
    """Rows to train on and rows held out, both standardised by `inputs`; those held out are in memory."""

    train: Rows
    held_out: Rows
    inputs: Standardised
    reach: Float[Tensor, " held_out"]
    """The reach of the rows held out, by `Standardised.reach`."""

    @staticmethod
    def of(train: Rows, held_out: Rows) -> "TrainingSplit":
        """Standardise both by the mean and the scale of `train`."""
        inputs, held = inputs_of(train), held_out.in_memory
        return TrainingSplit(
            train.seen_by(inputs), held.seen_by(inputs), inputs, inputs.reach(held.features).float()
        )


def inputs_of(rows: Rows) -> Standardised:
    """Standardisation by the mean and the scale of these rows."""
    return Standardised(rows.x.shape[1]).to(rows.x.device).fit(rows.x, rows.weight)


def parts_of(train: Rows, held_out: Rows | None, *, seed: int) -> list[TrainingSplit]:
    """One split; or three folds of all rows, where `held_out` is missing or has fewer than 400 rows."""
    return [TrainingSplit.of(*part) for part in parted(train, held_out, seed=seed)]


def parted(train: Rows, held_out: Rows | None, *, seed: int) -> list[tuple[Rows, Rows]]:
    """The same splits before they are standardised: rows to train on, and rows held out."""
    if held_out is not None and len(held_out) >= SMALLEST_HELD_OUT:
        return [(train, held_out)]
    rows = train if held_out is None else joined(train, held_out)
    fold = folds(rows, seed=seed)
    return [(rows[fold != i], rows[fold == i]) for i in range(_FOLDS)]


def joined(first: Rows, second: Rows) -> Rows:
    """The rows of both."""
    if isinstance(first.x, StoredRows) and isinstance(second.x, StoredRows):
        x: Tensor | StoredRows = first.x.joined(second.x)
    else:
        x = torch.cat([first.features, second.features])
    return Rows(
        x,
        torch.cat([first.y, second.y]),
        torch.cat([first.weight, second.weight]),
    )


def folds(rows: Rows, *, seed: int) -> torch.Tensor:
    """The fold of each row. The rows of a class go to the folds in turn: three rows are in three folds."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    order = order[rows.y.cpu()[order].argsort(stable=True)]
    fold = torch.empty(len(rows), dtype=torch.long)
    fold[order] = torch.arange(len(rows)) % _FOLDS
    return fold.to(rows.x.device)
