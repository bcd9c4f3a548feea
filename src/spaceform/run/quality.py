"""Metrics of predictions that come block by block. One or two numbers of each item are kept."""

from collections import defaultdict
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from spaceform import metrics
from spaceform.metrics.inputs import top_label


@final
class Tally:
    """Metrics of predictions, which are added block by block; `quality` gives the metrics of all items."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._confidence: list[Float[Tensor, " block"]] = []
        self._right: list[Bool[Tensor, " block"]] = []
        self._top: list[Float[Tensor, " block"]] = []

    def add(self, log_probs: Float[Tensor, "block classes"], y: Int64[Tensor, " block"]) -> None:
        """Count a block."""
        probs = log_probs.exp()
        self._sums["accuracy"] += len(y) * float(metrics.accuracy(log_probs, y))
        self._sums["nll"] += len(y) * float(metrics.nll(log_probs, y))
        self._sums["brier"] += len(y) * float(metrics.brier(probs, y))
        confidence, right = top_label(probs, y)
        self._confidence.append(confidence)
        self._right.append(right)
        self._top.append(log_probs.amax(1).cpu())

    @property
    def right(self) -> Bool[Tensor, " items"]:
        """For each item, whether its most probable class is the true one."""
        return torch.cat(self._right)

    @property
    def top(self) -> Float[Tensor, " items"]:
        """For each item, the log-probability of its most probable class."""
        return torch.cat(self._top)

    @property
    def quality(self) -> dict[str, float | None]:
        """The metrics of all items."""
        right, confidence = self.right, torch.cat(self._confidence)
        means = {name: value_or_none(float, total / len(right)) for name, total in self._sums.items()}
        errors = {
            f"calibration_error_{norm}": value_or_none(metrics.top_label_error, confidence, right, norm=norm)
            for norm in ("l1", "l2")
        }
        return {**means, **errors}


def quality(log_probs: Float[Tensor, "items classes"], y: Int64[Tensor, " items"]) -> dict[str, float | None]:
    """The metrics of predictions, as trained or calibrated."""
    tally = Tally()
    tally.add(log_probs, y)
    return tally.quality


def value_or_none(metric: Any, *args: Any, **options: Any) -> float | None:
    """The value of a metric; None where it does not exist, such as the AUROC if all predictions are right."""
    value = float(metric(*args, **options))
    return value if np.isfinite(value) else None


def some_items(items: int, most: int) -> Bool[Tensor, " items"]:
    """The items whose predictions are kept: at most `most`, at random, the same for every run."""
    kept = torch.zeros(items, dtype=torch.bool)
    kept[torch.randperm(items, generator=torch.Generator().manual_seed(0))[:most]] = True
    return kept


def some_classes(
    index: Int64[Tensor, " part"], y: Int64[Tensor, " part"], most: int
) -> Int64[Tensor, " some"]:
    """At most `most` of these items: whole classes, chosen at random, the same for every run.

    At least two classes are kept.
    """
    if len(index) <= most:
        return index
    classes, of_item, sizes = y.unique(return_inverse=True, return_counts=True)
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(0))
    within = sizes[order].cumsum(0) <= most
    within[:2] = True
    kept = torch.zeros(len(classes), dtype=torch.bool)
    kept[order[within]] = True
    return index[kept[of_item]]
