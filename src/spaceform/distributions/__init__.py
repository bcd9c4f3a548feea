"""Distributions on the unit sphere, with the interface of torch.distributions."""

from spaceform.distributions.divergences import kl_divergence
from spaceform.distributions.power_spherical import (
    PowerSpherical,
    power_spherical_angle,
)
from spaceform.distributions.uniform import HypersphericalUniform
from spaceform.distributions.von_mises_fisher import (
    VonMisesFisher,
    von_mises_fisher_angle,
)

__all__ = [
    "HypersphericalUniform",
    "PowerSpherical",
    "VonMisesFisher",
    "kl_divergence",
    "power_spherical_angle",
    "von_mises_fisher_angle",
]
