"""The base of distributions that are symmetric about a mean direction: all but the law of the angle."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, constraints

from spaceform.distributions._arguments import check_concentration, check_unit, parameters, unit_vector
from spaceform.distributions._sphere import covariance, variance
from spaceform.distributions.law import AngularLaw
from spaceform.distributions.uniform import Shape

Same = TypeVar("Same", bound="SymmetricDistribution")


class SymmetricDistribution(Distribution, ABC):
    """Unit vectors about the mean direction `loc`: the larger `concentration` ≥ 0, the closer to it."""

    arg_constraints = {"loc": unit_vector, "concentration": constraints.nonnegative}  # noqa: RUF012
    support = unit_vector
    has_rsample = True

    def __init__(
        self,
        loc: Float[Tensor, "*#batch dim"],
        concentration: Float[Tensor, "*#batch"] | float | int,
        validate_args: bool | None = None,
    ) -> None:
        self.loc, self.concentration = parameters(loc, concentration)
        super().__init__(self.concentration.shape, self.loc.shape[-1:], validate_args=False)
        self._validate_args = Distribution._validate_args if validate_args is None else validate_args
        if self._validate_args:
            check_unit("loc", self.loc)
            check_concentration(self.concentration)

    # What a leaf gives, besides log_prob and entropy.

    law: ClassVar[AngularLaw]

    @abstractmethod
    def log_height(self) -> Float[Tensor, "*batch"]:
        """The log-density at the mode."""

    @abstractmethod
    def _variances(self) -> tuple[Tensor, Tensor]:
        """The variances of z along μ, and along any tangent direction."""

    # What follows.

    def rsample(
        self, sample_shape: Shape = (), generator: torch.Generator | None = None
    ) -> Float[Tensor, "*draws dim"]:
        """Draws of shape sample_shape + loc.shape, differentiable in both parameters."""
        return self.law.sample(self.loc, self.concentration, tuple(sample_shape), generator=generator)

    @property
    def mean_resultant_length(self) -> Float[Tensor, "*batch"]:
        """E[μ·z]."""
        return self.law.mean_length(self.concentration, self.dim)

    def expand(self: Same, batch_shape: Shape, _instance: Any = None) -> Same:
        """The same distribution with its parameters expanded to another batch shape."""
        new = self._get_checked_instance(type(self), _instance)
        new.loc = self.loc.expand(*batch_shape, -1)
        new.concentration = self.concentration.expand(*batch_shape)
        Distribution.__init__(new, torch.Size(batch_shape), self.event_shape, False)
        new._validate_args = self._validate_args
        return new

    @property
    def dim(self) -> int:
        """The number of coordinates, n."""
        return self.loc.shape[-1]

    @property
    def mean(self) -> Float[Tensor, "*batch dim"]:
        """E[z] = E[μ·z] μ."""
        return self.mean_resultant_length[..., None] * self.loc

    @property
    def mode(self) -> Float[Tensor, "*batch dim"]:
        """The mean direction."""
        return self.loc

    @property
    def variance(self) -> Float[Tensor, "*batch dim"]:
        """Variance of each coordinate: the diagonal of the covariance matrix."""
        return variance(self.loc, *self._variances())

    @property
    def covariance_matrix(self) -> Float[Tensor, "*batch dim dim"]:
        """Var(μ·z) μμᵀ plus the tangent variance times I − μμᵀ."""
        return covariance(self.loc, *self._variances())

    def sample(
        self, sample_shape: Shape = (), generator: torch.Generator | None = None
    ) -> Float[Tensor, "*draws dim"]:
        """Draws of shape sample_shape + loc.shape, without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape, generator)
