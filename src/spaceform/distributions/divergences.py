"""Kullback–Leibler divergences between the distributions on the sphere, where they are closed.

Importing this module registers them with torch.distributions.kl_divergence. From PowerSpherical and from
VonMisesFisher to PowerSpherical there is no closed form, and nothing is registered.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, kl_divergence, register_kl

from spaceform.distributions._arguments import broadcast_shapes
from spaceform.distributions._peak import Bregman
from spaceform.distributions._sphere import versine
from spaceform.distributions.power_spherical import POWER_SPHERICAL, PowerSpherical, digamma_difference
from spaceform.distributions.uniform import HypersphericalUniform, log_area
from spaceform.distributions.von_mises_fisher import VON_MISES_FISHER, VonMisesFisher
from spaceform.special import log_normalizer_difference

__all__ = ["kl_divergence"]


def _same_dim(p: Distribution, q: Distribution) -> int:
    n, m = p.event_shape[0], q.event_shape[0]
    if n != m:
        raise ValueError(f"p and q must live on one sphere, got {n} and {m} dimensions")
    return n


def _of_both_batches(kl: Float[Tensor, "..."], p: Distribution, q: Distribution) -> Float[Tensor, "..."]:
    return kl.expand(broadcast_shapes(p.batch_shape, q.batch_shape))


@register_kl(HypersphericalUniform, HypersphericalUniform)
def _uniform_uniform(p: HypersphericalUniform, q: HypersphericalUniform) -> Float[Tensor, "..."]:
    _same_dim(p, q)
    return torch.zeros_like(p.entropy() + q.entropy())


@register_kl(VonMisesFisher, VonMisesFisher)
def _vmf_vmf(p: VonMisesFisher, q: VonMisesFisher) -> Float[Tensor, "..."]:
    """D = log C(κ₁) − log C(κ₂) + A(κ₁) (κ₁ − κ₂ μ₁·μ₂)."""
    k1, k2 = torch.broadcast_tensors(p.concentration, q.concentration)
    turned = k2 * versine(p.loc, q.loc)
    return Bregman.apply(k1, k2, _same_dim(p, q) / 2 - 1) + p.mean_resultant_length * turned


@register_kl(VonMisesFisher, HypersphericalUniform)
def _vmf_uniform(p: VonMisesFisher, q: HypersphericalUniform) -> Float[Tensor, "..."]:
    """D = log C(κ) − log C(0) + κ A(κ)."""
    kl = VON_MISES_FISHER.divergence(p.concentration, _same_dim(p, q))
    return _of_both_batches(kl, p, q)


@register_kl(HypersphericalUniform, VonMisesFisher)
def _uniform_vmf(p: HypersphericalUniform, q: VonMisesFisher) -> Float[Tensor, "..."]:
    """D = log C(0) − log C(κ)."""
    n = _same_dim(p, q)
    k = q.concentration
    kl = log_normalizer_difference(torch.zeros_like(k), k, n)
    return _of_both_batches(kl, p, q)


@register_kl(PowerSpherical, HypersphericalUniform)
def _power_uniform(p: PowerSpherical, q: HypersphericalUniform) -> Float[Tensor, "..."]:
    kl = POWER_SPHERICAL.divergence(p.concentration, _same_dim(p, q))
    return _of_both_batches(kl, p, q)


@register_kl(HypersphericalUniform, PowerSpherical)
def _uniform_power(p: HypersphericalUniform, q: PowerSpherical) -> Float[Tensor, "..."]:
    """D = κ (ψ(n−1) − ψ((n−1)/2)) minus the log-density at the mode and the log-area."""
    n = _same_dim(p, q)
    half = torch.full_like(q.concentration, (n - 1) / 2)
    kl = q.concentration * digamma_difference(half, (n - 1) / 2) - q.log_height() - log_area(n)
    return _of_both_batches(kl, p, q)


@register_kl(PowerSpherical, VonMisesFisher)
def _power_vmf(p: PowerSpherical, q: VonMisesFisher) -> Float[Tensor, "..."]:
    """D = −H(p) − log C(κ₂) − κ₂ E_p[μ₁·z] μ₁·μ₂."""
    _same_dim(p, q)
    k, r = q.concentration, p.mean_resultant_length
    short = (p.dim - 1) / (p.concentration + (p.dim - 1))  # 1 − r
    return k * (short + r * versine(p.loc, q.loc)) - q.log_height() - p.entropy()
