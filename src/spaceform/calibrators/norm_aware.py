"""A temperature that depends on the embedding's norm or concentration."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.calibrators._fit import (
    Curved,
    Examples,
    all_right,
    fit_inverse_temperature,
    last_decrease,
    loss,
    minimise,
)
from spaceform.calibrators.base import Calibrator, weighted_quantiles
from spaceform.heads.base import log_mean_softmax
from spaceform.metrics.inputs import TensorOrArray, as_finite

_EQUAL = 1e-3
"""Logarithms of norms that differ by less are equal: float32 would make noise of a slope between them."""


@final
class NormAwareTemperature(Calibrator):
    """softmax(β(κ) ℓ): the inverse temperature depends on the embedding's norm or concentration κ.

    Spherical losses do not use the norm, yet it says how sure the model is. β is a monotone function of log
    κ: linear between `knots` quantiles of the fitting data, constant outside them, and rising or falling,
    whichever has the lower loss. It is linear in its coefficients, so the fit is convex.

    If there is no error among the large norms, nothing in the data bounds their β. So each knot has a weak
    prior: the fit minimises the mean loss plus Σⱼ (βⱼ/β − 1)²/2N, where β is that of plain scaling. This term
    is 0 for plain scaling, so on the fitting data this calibrator is never worse than plain scaling; and with
    many examples the term hardly counts. If every example is right, the result is plain scaling.
    """

    name = "norm_aware_temperature"
    shapes = {"log_confidence": 1, "inverse_temperature": 1}  # noqa: RUF012
    log_confidence: Tensor
    inverse_temperature: Tensor

    def __init__(self, knots: int = 3) -> None:
        super().__init__()
        if not isinstance(knots, int) or knots < 2:
            raise ValueError(f"knots must be an integer of at least 2, got {knots!r}")
        self.knots = knots

    def temperature(self, confidence: TensorOrArray) -> Float[Tensor, " batch"]:
        """T(κ) = 1/β(κ)."""
        return 1 / self._β(as_finite(confidence, "confidence", 1))

    def _β(self, κ: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        β = self.inverse_temperature.to(κ)
        return β[0] + _ramps(κ, self.log_confidence.to(κ)) @ β.diff()

    def _fit(self, examples: Examples, confidence: Tensor | None) -> dict[str, Tensor]:
        κ = given(confidence).double()
        at, β = self._places(κ, examples.weight), fit_inverse_temperature(examples)
        best = loss(examples, torch.full_like(κ, β)).value, torch.full_like(at, β)
        for rises in (True, False) if len(at) > 1 and not all_right(examples) else ():
            found = _monotone_fit(examples, κ, at, β, rises)
            best = min(best, found, key=lambda value_and_β: value_and_β[0])
        # Beyond the last knot β is constant, so knots that repeat it there change nothing.
        more = torch.arange(1, 1 + self.knots - len(at)).to(at)
        return {
            "log_confidence": torch.cat([at, at[-1] + more]),
            "inverse_temperature": torch.cat([best[1], best[1][-1].expand(len(more))]),
        }

    def _places(self, κ: Float[Tensor, " batch"], weight: Float[Tensor, " batch"]) -> Float[Tensor, " knots"]:
        """The logarithm of κ at the knots: quantiles of the positive κ, each value once."""
        positive = κ > 0
        if not bool(positive.any()):
            return κ.new_zeros(1)
        levels = torch.linspace(0.05, 0.95, self.knots).to(κ)
        at = weighted_quantiles(κ[positive].log(), weight[positive], levels)
        kept = [0]
        for i in range(1, len(at)):
            kept += [i] if at[i] - at[kept[-1]] > _EQUAL else []
        return at[kept]

    def _log_probs(
        self, L: Float[Tensor, "draws batch classes"], confidence: Float[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch classes"]:
        return log_mean_softmax(L * self._β(given(confidence))[:, None])

    def _fault(self) -> str | None:
        at, β = self.log_confidence, self.inverse_temperature
        if at.shape != β.shape:
            return f"it has {len(at)} knots and {len(β)} inverse temperatures"
        if not bool((at.diff() > 0).all()):
            return "log_confidence does not increase"
        return None if bool((β > 0).all()) else f"inverse_temperature is {β.min().item():g}, not positive"


def given(confidence: Tensor | None) -> Float[Tensor, " batch"]:
    """The confidence; an error if it is missing."""
    if confidence is None:
        raise ValueError(
            "NormAwareTemperature needs confidence=, one number per example; pass head.confidence(z)"
        )
    return confidence


def _monotone_fit(
    examples: Examples,
    κ: Float[Tensor, " batch"],
    at: Float[Tensor, " knots"],
    β: float,
    rises: bool,
) -> tuple[float, Float[Tensor, " knots"]]:
    """The least loss with its prior, and β at the knots there. The argument β is that of plain scaling."""
    basis, knots = (_monotone(x, at, rises) for x in (κ, at.exp()))
    N = examples.total

    def evaluate(θ: Tensor) -> Curved:
        v = loss(examples, basis @ θ)
        doubt = knots @ θ / β - 1
        return Curved(
            v.value + float(doubt.square().sum()) / (2 * N),
            (basis.T @ v.slope + knots.T @ doubt / β) / N,
            (basis.T @ (basis * v.curvature[:, None]) + knots.T @ knots / β**2) / N,
        )

    start = torch.zeros_like(at)
    start[0] = β
    lower = torch.zeros_like(at)
    lower[0] = β / 1000
    θ, value = minimise(evaluate, start, lower, last=last_decrease(examples))
    return value, knots @ θ


def _ramps(κ: Float[Tensor, " batch"], at: Float[Tensor, " knots"]) -> Float[Tensor, "batch gaps"]:
    """How far log κ has come from each knot to the next, in [0, 1]."""
    x = κ.clamp_min(torch.finfo(κ.dtype).tiny).log()
    return ((x[:, None] - at[:-1]) / at.diff()).clamp(0, 1)


def _monotone(
    κ: Float[Tensor, " batch"], at: Float[Tensor, " knots"], rises: bool
) -> Float[Tensor, "batch knots"]:
    """Functions of κ whose sums with coefficients of at least 0 rise, or fall, between the knots."""
    way = _ramps(κ, at)
    return torch.cat([torch.ones_like(way[:, :1]), way if rises else 1 - way], -1)
