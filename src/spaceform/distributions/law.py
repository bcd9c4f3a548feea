"""A law on the sphere as a value, with the functions that distributions and heads need."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, final, runtime_checkable

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from spaceform.distributions._arguments import parameters
from spaceform.distributions._sphere import place
from spaceform.distributions.uniform import Shape


@runtime_checkable
class AngleQuantile(Protocol):
    """From levels, concentrations and n to (cos θ, sin θ), by a table `refine` times as fine as usual."""

    def __call__(
        self, uniform: Tensor, concentration: Tensor, dim: int, *, refine: int = 1
    ) -> tuple[Tensor, Tensor]: ...


class Peak(NamedTuple):
    """Where the density of y = artanh cos θ is highest, y*; all as functions of κ."""

    T: Tensor
    """tanh y*, from 0 to 1 as κ goes from 0 to ∞."""
    e2y: Tensor
    """e^{2y*} = (1 + T)/(1 − T)."""
    rate: Tensor
    """dy*/dκ."""


@final
@dataclass(frozen=True)
class AngularLaw:
    """A family of laws on the unit sphere of Rⁿ that are symmetric about a mean direction.

    Such a law is given by the law of the angle θ to the mean direction; the direction around it is uniform.
    All functions take concentrations κ ≥ 0 and n; κ = 0 is the uniform law.
    """

    angle: AngleQuantile
    """(cos θ, sin θ) at quantile levels, whose shape ends in that of κ; θ rises with the level."""
    mean_length: Callable[[Tensor, int], Tensor]
    """E[cos θ]: the length of the mean."""
    divergence: Callable[[Tensor, int], Tensor]
    """KL(law ‖ uniform law)."""
    peak: Callable[[Tensor, int], Peak]
    """The mode of artanh cos θ."""
    concentration: Callable[[Tensor, int], Tensor]
    """The κ with this T, which is near E[cos θ]."""

    def sample(
        self,
        loc: Float[Tensor, "*#batch dim"],
        concentration: Float[Tensor, "*#batch"] | float | int,
        sample_shape: Shape = (),
        *,
        generator: Generator | None = None,
    ) -> Float[Tensor, "*draws dim"]:
        """Draws of shape sample_shape + batch + (dim,), differentiable in both parameters.

        `loc` must have length 1 and `concentration` must not be negative: this is not checked.
        """
        loc, concentration = parameters(loc, concentration)
        shape = (*sample_shape, *concentration.shape)
        u = torch.rand(shape, dtype=loc.dtype, device=loc.device, generator=generator)
        cos, sin = self.angle(u, concentration, loc.shape[-1])
        return place(loc, cos, sin, generator=generator)
