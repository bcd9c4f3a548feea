"""One temperature for all examples."""

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.calibrators._fit import Examples, fit_inverse_temperature
from spaceform.calibrators.base import Calibrator
from spaceform.heads.base import log_mean_softmax


@final
class TemperatureScaling(Calibrator):
    """softmax(ℓ/T) with one T (Guo et al. 2017).

    T is the minimiser to 1e-7 (float64 logits) or 1e-5 (float32), relatively, sought within a factor 1000 of
    the spread of the logits.

    If every example is right, the loss falls without end as T → 0. But N right answers do not prove
    certainty: by Laplace's rule of succession the next answer is wrong with a probability of 1/(N + 2). So T
    is lowered only until the mean probability of the wrong classes has this value. If it is already smaller,
    T stays 1.

    With `prior_spread` s, log T has the prior N(0, s²) instead: the fit minimises the summed loss plus (log
    T)²/2s². Then few examples cannot move T far from 1.
    """

    name = "temperature"
    shapes = {"inverse_temperature": 0}  # noqa: RUF012
    inverse_temperature: Tensor

    def __init__(self, temperature: float | None = None, *, prior_spread: float | None = None) -> None:
        super().__init__()
        for option, value in {"temperature": temperature, "prior_spread": prior_spread}.items():
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{option} must be positive and finite, got {value!r}")
        self.prior_spread = prior_spread
        if temperature is not None:
            self.inverse_temperature = torch.tensor(1 / temperature, dtype=torch.float64)

    @property
    def temperature(self) -> float:
        """T; it exists once the calibrator is fitted."""
        return 1 / self.inverse_temperature.item()

    def _fit(self, examples: Examples, confidence: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        β = fit_inverse_temperature(examples, self.prior_spread)
        return {"inverse_temperature": torch.tensor(β, dtype=torch.float64)}

    def _log_probs(
        self,
        L: Float[Tensor, "draws batch classes"],
        confidence: Float[Tensor, " batch"] | None,  # noqa: ARG002
    ) -> Float[Tensor, "batch classes"]:
        return log_mean_softmax(L * self.inverse_temperature.to(L))

    def _fault(self) -> str | None:
        positive = bool(self.inverse_temperature > 0)
        return (
            None if positive else f"inverse_temperature is {self.inverse_temperature.item():g}, not positive"
        )
