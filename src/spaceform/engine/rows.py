"""Rows of features, and how they are parted: rows that train, rows held out, folds that take turns."""

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.nets.features import Standardised

SMALLEST_HELD_OUT = 400
"""Fewer held-out rows say too little; then three parts take turns in being held out."""

_FOLDS = 3


@final
@dataclass(frozen=True)
class Rows:
    """Features, labels from 0, and weights."""

    x: Float[Tensor, "n features"]
    y: Integer[Tensor, " n"]
    weight: Float[Tensor, " n"]

    @staticmethod
    def of(x: Any, y: Any, weight: Any = None) -> "Rows":
        """From arrays or tensors; features in float64 stay so, all others are float32."""
        x = torch.as_tensor(x)
        x = x if x.dtype == torch.float64 else x.float()
        ones = torch.ones(len(x), dtype=x.dtype, device=x.device)
        return Rows(x, torch.as_tensor(y).long(), ones if weight is None else torch.as_tensor(weight).to(x))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: Tensor) -> "Rows":
        return Rows(self.x[index], self.y[index], self.weight[index])

    def seen_by(self, inputs: Standardised) -> "Rows":
        """As a net gets them: standardised in the type in which they came, then float32."""
        return Rows(inputs(self.x).float(), self.y, self.weight.float())


class TrainingSplit(NamedTuple):
    """Rows to train on and rows held out, both as `inputs` leaves them."""

    train: Rows
    held_out: Rows
    inputs: Standardised

    @staticmethod
    def of(train: Rows, held_out: Rows) -> "TrainingSplit":
        """Standardise both as the first of them asks for."""
        inputs = inputs_of(train)
        return TrainingSplit(train.seen_by(inputs), held_out.seen_by(inputs), inputs)


def inputs_of(rows: Rows) -> Standardised:
    """The standardisation that these rows ask for."""
    return Standardised(rows.x.shape[1]).to(rows.x.device).fit(rows.x, rows.weight)


def parts_of(train: Rows, held_out: Rows | None, *, seed: int) -> list[TrainingSplit]:
    """One part; or three folds of all rows, where `held_out` is missing or has fewer than 400."""
    if held_out is not None and len(held_out) >= SMALLEST_HELD_OUT:
        return [TrainingSplit.of(train, held_out)]
    rows = train if held_out is None else joined(train, held_out)
    fold = folds(rows, seed=seed)
    return [TrainingSplit.of(rows[fold != i], rows[fold == i]) for i in range(_FOLDS)]


def joined(first: Rows, second: Rows) -> Rows:
    """The rows of both."""
    return Rows(
        torch.cat([first.x, second.x]),
        torch.cat([first.y, second.y]),
        torch.cat([first.weight, second.weight]),
    )


def folds(rows: Rows, *, seed: int) -> torch.Tensor:
    """The fold of each row, every class dealt out in turn; so a class of three rows is in every fold."""
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    order = order[rows.y.cpu()[order].argsort(stable=True)]
    fold = torch.empty(len(rows), dtype=torch.long)
    fold[order] = torch.arange(len(rows)) % _FOLDS
    return fold.to(rows.x.device)
