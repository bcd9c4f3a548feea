"""A scale and an offset for each class."""

from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.calibrators._fit import (
    Curved,
    Examples,
    all_right,
    fit_inverse_temperature,
    minimise,
    vector_loss,
)
from spaceform.calibrators.base import Calibrator, check_classes
from spaceform.heads.base import log_mean_softmax


@final
class VectorScaling(Calibrator):
    """softmax(w ∘ ℓ + b): a scale and an offset per class (Guo et al. 2017).

    The fit minimises the mean negative log-likelihood plus ridge/2 (‖T w − 1‖² + ‖b‖²), where T is the plain
    temperature. This is strictly convex, and finite also if a class has no example. Newton's method takes
    O(examples · classes²) for a step. If every example is right, the result is plain temperature scaling.
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
        start = torch.cat([torch.ones(K), torch.zeros(K)]).to(examples.weight)

        def evaluate(θ: Tensor) -> Curved:
            v = vector_loss(examples, β, θ)
            return Curved(
                v.value + self.ridge / 2 * float((θ - start).square().sum()),
                v.slope + self.ridge * (θ - start),
                v.curvature + self.ridge * torch.eye(2 * K).to(θ),
            )

        θ = start
        if not all_right(examples):
            θ, _ = minimise(evaluate, start, torch.full_like(start, -torch.inf))
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
