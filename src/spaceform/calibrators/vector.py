"""A scale and an offset for each class."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.calibrators._descent import descend
from spaceform.calibrators._fit import (
    Examples,
    all_right,
    fit_inverse_temperature,
    vector_curvature,
    vector_loss,
)
from spaceform.calibrators.base import Calibrator, check_classes
from spaceform.heads.base import log_mean_softmax

_STEPS = 200
_LEAST_BEND = 1e-6
"""What the curvature is in no direction below: without a ridge it may be nothing."""


@final
class VectorScaling(Calibrator):
    """softmax(w ∘ ℓ + b): a scale and an offset per class (Guo et al. 2017).

    The fit minimises the mean negative log-likelihood plus ridge/2 (‖T w − 1‖² + ‖b‖²), where T is the plain
    temperature. This is strictly convex, and finite also if a class has no example. The fit is a descent, in
    units of the curvature of the averaged draws. If every example is right, the result is plain temperature
    scaling.
    """

    name = "vector"
    shapes = {"scale": 1, "offset": 1}  # noqa: RUF012
    scale: Tensor
    offset: Tensor

    def __init__(self, ridge: float = 1e-4) -> None:
        super().__init__()
        if not 0 <= ridge < float("inf"):
            raise ValueError(f"ridge must not be negative, got {ridge!r}")
        self.ridge = ridge

    def _fit(self, examples: Examples, confidence: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002
        β, K = fit_inverse_temperature(examples), examples.logits.shape[-1]
        plain = torch.cat([torch.ones(K), torch.zeros(K)]).to(examples.weight)
        if all_right(examples):
            return {"scale": plain[:K] * β, "offset": plain[K:]}
        # In these units the loss is bent by about the same in every direction, and few steps lead down.
        H = vector_curvature(examples, β)
        units = torch.linalg.cholesky(H + max(self.ridge, _LEAST_BEND) * torch.eye(2 * K).to(H))

        def evaluate(t: Tensor) -> tuple[Tensor, Tensor]:
            step = torch.linalg.solve_triangular(units.T, t.T, upper=True)[:, 0]
            value, slope = vector_loss(examples, β, plain + step)
            slope = torch.linalg.solve_triangular(units, (slope + self.ridge * step)[:, None], upper=False)
            return (value + self.ridge / 2 * (step @ step))[None], slope.T

        start = torch.zeros_like(plain)[None]
        last = 1e-14 if examples.logits.dtype == torch.float64 else 1e-8  # less drowns in rounding
        t, _ = descend(evaluate, start, _STEPS, slope=1e-9, last=last)
        θ = plain + torch.linalg.solve_triangular(units.T, t.T, upper=True)[:, 0]
        return {"scale": θ[:K] * β, "offset": θ[K:]}

    def _log_probs(
        self,
        L: Float[Tensor, "draws batch classes"],
        confidence: Float[Tensor, " batch"] | None,  # noqa: ARG002
    ) -> Float[Tensor, "batch classes"]:
        check_classes(L, len(self.scale))
        return log_mean_softmax(self.scale.to(L) * L + self.offset.to(L))

    def _fault(self) -> str | None:
        w, b = self.scale, self.offset
        return None if w.shape == b.shape else f"it has {len(w)} scales and {len(b)} offsets"
