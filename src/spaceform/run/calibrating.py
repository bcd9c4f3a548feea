"""The calibrators of a run: fitted on its validation split, one of them chosen, kept as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from spaceform.calibrators import CALIBRATORS, Calibrator, StructuredScaling
from spaceform.run import files
from spaceform.run.recipe import RecipeError

CALIBRATORS_FILE = "calibrators.json"


@final
@dataclass(frozen=True, eq=False)
class Calibration:
    """All calibrators, fitted, and the name of the one that predictions use."""

    chosen: str
    fitted: Mapping[str, Calibrator]

    @classmethod
    def fit(
        cls,
        logit_samples: Float[Tensor, "draws items classes"],
        y: Int64[Tensor, " items"],
        confidence: Float[Tensor, " items"],
    ) -> "Calibration":
        """Fit all of `CALIBRATORS`. Predictions use `StructuredScaling`, which checks its own parts."""
        fitted = {name: kind().fit(logit_samples, y, confidence) for name, kind in CALIBRATORS.items()}
        return cls(StructuredScaling.name, fitted)

    def to_json(self) -> dict[str, Any]:
        """The name of the chosen calibrator, and the state of each."""
        states = {
            name: {buffer: value.tolist() for buffer, value in calibrator.state_dict().items()}
            for name, calibrator in self.fitted.items()
        }
        return {"chosen": self.chosen, "calibrators": states}

    @classmethod
    def from_json(cls, value: Any, num_classes: int | None) -> "Calibration":
        """The inverse of `to_json`; a ValueError says what is wrong with any other value."""
        if not isinstance(value, dict) or set(value) != {"chosen", "calibrators"}:
            raise ValueError("it must be an object with the keys chosen and calibrators")
        chosen, states = value["chosen"], value["calibrators"]
        if not isinstance(states, dict) or chosen not in (list(states) or [None]):
            raise ValueError(f"the chosen calibrator {chosen!r} is not among its calibrators")
        return cls(chosen, {name: _calibrator(name, state, num_classes) for name, state in states.items()})


def read_calibration(folder: Path, num_classes: int | None) -> Calibration:
    """The calibration in a run's folder. `num_classes` is checked, unless it is None."""
    path = folder / CALIBRATORS_FILE
    remedy = f"`spaceform evaluate {folder}` writes it again"
    value = files.read_json(path, remedy=remedy)
    try:
        return Calibration.from_json(value, num_classes)
    except ValueError as error:
        raise RecipeError(f"{path} does not hold the calibrators of this run ({error}); {remedy}") from None


def _calibrator(name: str, state: Any, num_classes: int | None) -> Calibrator:
    if name not in CALIBRATORS:
        raise ValueError(f"unknown calibrator {name!r}; known are {', '.join(CALIBRATORS)}")
    calibrator = CALIBRATORS[name]()
    if not isinstance(state, dict) or set(state) != set(calibrator.shapes):
        raise ValueError(f"{name} must have {' and '.join(calibrator.shapes)}, and nothing else")
    calibrator.load_state_dict({buffer: _numbers(name, buffer, value) for buffer, value in state.items()})
    if num_classes is not None:
        calibrator(
            torch.zeros(1, 1, num_classes), torch.ones(1)
        )  # raises an error for another number of classes
    return calibrator.eval()


def _numbers(name: str, buffer: str, value: Any) -> Tensor:
    try:
        return torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, RecursionError, OverflowError):
        raise ValueError(f"{buffer} of {name} does not hold numbers") from None
