"""The uniform distribution on the unit sphere."""

from math import lgamma, log, pi
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, constraints

from spaceform.distributions._arguments import (
    broadcast_shapes,
    check_dim,
    check_directions,
    check_unit,
    unit_vector,
)
from spaceform.distributions._sphere import uniform_direction

Shape = torch.Size | tuple[int, ...] | list[int]


def log_area(dim: int) -> float:
    """Logarithm of the area of the unit sphere in `dim` dimensions, 2 π^(n/2) / Γ(n/2)."""
    return log(2) + dim / 2 * log(pi) - lgamma(dim / 2)


@final
class HypersphericalUniform(Distribution):
    """Unit vectors without a preferred direction, in `dim` dimensions."""

    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012 (the base class asks for a dict)
    support = unit_vector
    has_rsample = True

    def __init__(
        self,
        dim: int,
        batch_shape: Shape = (),
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        validate_args: bool | None = None,
    ) -> None:
        check_dim(dim)
        self.dim = dim
        self._like = torch.empty(0, dtype=dtype, device=device)
        super().__init__(torch.Size(batch_shape), torch.Size([dim]), validate_args)

    def expand(self, batch_shape: Shape, _instance: Any = None) -> "HypersphericalUniform":
        """The same distribution with another batch shape."""
        new = self._get_checked_instance(HypersphericalUniform, _instance)
        new.dim, new._like = self.dim, self._like
        super(HypersphericalUniform, new).__init__(torch.Size(batch_shape), self.event_shape, False)
        new._validate_args = self._validate_args
        return new

    def _full(self, shape: torch.Size, value: float) -> Tensor:
        return torch.full(shape, value, dtype=self._like.dtype, device=self._like.device)

    @property
    def mean(self) -> Float[Tensor, "*batch dim"]:
        """The centre of the ball: 0."""
        return self._full(self._extended_shape(), 0.0)

    @property
    def mode(self) -> Float[Tensor, "*batch dim"]:
        """NaN: every point is as likely as every other, as for torch's Uniform."""
        return self._full(self._extended_shape(), torch.nan)

    @property
    def variance(self) -> Float[Tensor, "*batch dim"]:
        """Variance of each coordinate, 1/n."""
        return self._full(self._extended_shape(), 1 / self.dim)

    @property
    def covariance_matrix(self) -> Float[Tensor, "*batch dim dim"]:
        """I/n."""
        return torch.diag_embed(self.variance)

    def rsample(
        self, sample_shape: Shape = (), generator: torch.Generator | None = None
    ) -> Float[Tensor, "*draws dim"]:
        """Draws of shape sample_shape + batch_shape + (dim,)."""
        shape = self._extended_shape(torch.Size(sample_shape))
        return uniform_direction(
            shape[:-1], self.dim, dtype=self._like.dtype, device=self._like.device, generator=generator
        )

    def sample(
        self, sample_shape: Shape = (), generator: torch.Generator | None = None
    ) -> Float[Tensor, "*draws dim"]:
        """Draws of shape sample_shape + batch_shape + (dim,), without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator)

    def log_prob(self, value: Float[Tensor, "*draws dim"]) -> Float[Tensor, "..."]:
        """Minus the logarithm of the area of the sphere."""
        if self._validate_args:
            check_value(value, self)
        shape = broadcast_shapes(value.shape[:-1], self.batch_shape)
        return torch.full(shape, -log_area(self.dim), dtype=value.dtype, device=value.device)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The logarithm of the area of the sphere."""
        return self._full(self.batch_shape, log_area(self.dim))


def check_value(value: Tensor, distribution: Distribution) -> None:
    """Refuse values that are not unit vectors of the distribution's dimension and batch."""
    check_directions("value", value)
    try:
        broadcast_shapes(value.shape[:-1], distribution.batch_shape)
        fits = value.shape[-1] == distribution.event_shape[0]
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"value must broadcast against the shape {tuple(distribution._extended_shape())}, "
            f"got the shape {tuple(value.shape)}"
        )
    check_unit("value", value)
