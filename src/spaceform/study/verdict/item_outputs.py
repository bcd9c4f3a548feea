"""What one run left on the test items, as arrays. All evidence is made of these."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

_BY_ITEM = {"labels": (1, "iu"), "index": (1, "iu"), "confidence": (1, "f"), "embeddings": (2, "f")}
_BY_QUERY = {"average_precision": (1, "f"), "nearest_is_own": (1, "f")}
"""Axes and kind of the arrays of a run."""


@final
@dataclass(frozen=True, eq=False)
class ItemOutputs:
    """What one run left on the test split. None stands for what was not measured."""

    labels: Int[NDArray[np.integer], " items"] | None = None
    probabilities: Float[NDArray[np.floating], "items classes"] | None = None
    chosen: Float[NDArray[np.floating], "items classes"] | None = None
    """Probabilities with the chosen calibrator."""
    scaled: Float[NDArray[np.floating], "items classes"] | None = None
    """Probabilities after plain temperature scaling."""
    confidence: Float[NDArray[np.floating], " items"] | None = None
    average_precision: Float[NDArray[np.floating], " queries"] | None = None
    """AP@R of each query; NaN where nothing is relevant."""
    nearest_is_own: Float[NDArray[np.floating], " queries"] | None = None
    """Recall@1 of each query; NaN where nothing is relevant."""
    measured: Mapping[str, float | None] = field(default_factory=dict)
    """Values as the tables show them, by column. Contributions are shifted so that they have this mean.

    A value without arrays counts too; then nothing is known about the items.
    """

    @classmethod
    def of(
        cls,
        arrays: Mapping[str, Any],
        calibrator: str = "",
        measured: Mapping[str, float | None] | None = None,
    ) -> "ItemOutputs":
        """From the arrays of a run's `outputs.npz`; `calibrator` is the name of the chosen calibrator.

        Arrays that do not belong together raise a ValueError.
        """
        there = set(arrays)

        def read(name: str) -> Any:
            return arrays[name] if name in there else None

        require_whole({name: arrays[name] for name in there})
        return cls(
            labels=read("labels"),
            probabilities=read("probabilities"),
            chosen=read(f"probabilities_{calibrator}") if calibrator else None,
            scaled=read("probabilities_temperature"),
            confidence=read("confidence"),
            average_precision=read("average_precision"),
            nearest_is_own=read("nearest_is_own"),
            measured=dict(measured or {}),
        )


def require_whole(arrays: Mapping[str, Any]) -> None:
    """Raise a ValueError if the arrays have other shapes or types than a run writes."""
    wide = {name: (2, "f") for name in arrays if name.startswith("probabilities")}
    for name, (axes, kinds) in {**_BY_ITEM, **_BY_QUERY, **wide}.items():
        array = arrays.get(name)
        if array is not None and (array.ndim != axes or array.dtype.kind not in kinds):
            raise ValueError(f"{name} has shape {array.shape} and type {array.dtype}")
    y = arrays.get("labels")
    for name in {**_BY_ITEM, **wide}:
        array = arrays.get(name)
        if y is None or array is None:
            continue
        if len(array) != len(y):
            raise ValueError(f"there are {len(y):,} labels, and {len(array):,} rows of {name}")
        if name in wide and len(y) and not 0 <= int(y.min()) <= int(y.max()) < array.shape[1]:
            raise ValueError(f"labels go up to {y.max()}, and {name} has {array.shape[1]} columns")
