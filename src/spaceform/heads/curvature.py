"""The curvature −c of a hyperbolic head: fixed, or learned as exp of a parameter."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spaceform.geometry.hyperbolic import check_curvature

_LOW, _HIGH = math.log(1e-8), math.log(1e3)


class Curvature(nn.Module):
    """c as a number that a recipe gives, or as exp(`log_curvature`), kept between 10⁻⁸ and 10³."""

    log_curvature: Tensor

    def __init__(self, curvature: float, learned: bool) -> None:
        super().__init__()
        check_curvature(curvature)
        self.given, self.learned = curvature, learned
        if learned:
            self.log_curvature = nn.Parameter(torch.tensor(math.log(curvature)))

    def forward(self, dtype: torch.dtype) -> Float[Tensor, ""]:
        """The curvature as a tensor, differentiable if it is learned."""
        if not self.learned:
            return torch.tensor(self.given, dtype=dtype)
        return self.log_curvature.to(dtype).clamp(_LOW, _HIGH).exp()

    @property
    def value(self) -> float:
        """The curvature now, as a number."""
        return self.given if not self.learned else float(self(torch.float64).detach())

    @property
    def description(self) -> str:
        """What the text of a head says about its curvature."""
        known = not (self.learned and self.log_curvature.is_meta)
        number = f"curvature={self.value:.4g}" if known else "curvature"
        return number + (", learn_curvature=True" if self.learned else "")

    def parameter_groups(self, *hyperplanes: nn.Parameter) -> list[dict[str, Any]]:
        """The parameter groups of a head with these hyperplanes, for which weight decay has no meaning.

        A learned curvature is one number that scales all logits, so it gets the rate of a temperature.
        """
        groups: list[dict[str, Any]] = [{"params": list(hyperplanes), "name": "hyperplanes"}]
        if self.learned:
            groups.append({"params": [self.log_curvature], "name": "temperature"})
        return groups
