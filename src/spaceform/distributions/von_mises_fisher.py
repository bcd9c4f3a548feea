"""The von Mises–Fisher distribution on the unit sphere."""

from dataclasses import replace
from math import pi
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.distributions._arguments import check_directions, check_floating, check_unit
from spaceform.distributions._inversion import (
    AngleDensity,
    Points,
    _Rows,
    angle_quantile,
    check_levels,
    inside,
    widest,
)
from spaceform.distributions._peak import LogPeak, Shortfall
from spaceform.distributions._sphere import versine
from spaceform.distributions._symmetric import SymmetricDistribution
from spaceform.distributions.law import AngularLaw, Peak
from spaceform.distributions.uniform import check_value
from spaceform.special import (
    concentration_from_mean_resultant_length,
    divergence_from_uniform,
    exact,
)
from spaceform.special.functions import MeanResultantLength

_LARGEST = 1e8
"""The largest concentration that is supported."""


@final
class _VonMisesFisherAngle(AngleDensity):
    """θ with density ∝ sinⁿ⁻²θ exp(κ cos θ); the coordinate is θ/2."""

    def __init__(self, concentration: _Rows, dim: int) -> None:
        k = concentration
        a = torch.full_like(k, dim - 2)
        self.k, self.dim, self.a = k, dim, a
        if dim == 2:
            self.q, self.cos, self.sin = k, torch.ones_like(k), a
        else:
            self.q = (a + torch.hypot(2 * k, a)) / 2  # q = a + κ cos θ*
            self.cos, self.sin = k / self.q, (a / self.q).sqrt()
            self.twice_cot = 2 * self.cos / self.sin
            self.pull, self.push = 2 * a / self.sin, 2 * k * self.sin
        self.mode = torch.atan2(self.sin, self.cos) / 2

    def reach(self, drop: float) -> tuple[_Rows, _Rows]:
        far = torch.asin((drop / (2 * self.q)).sqrt().clamp(max=1))  # 2q sin²δ = drop
        return -torch.minimum(self.mode, far), torch.minimum(pi / 2 - self.mode, far)

    def log_density(self, delta: Points) -> tuple[Points, Points]:
        """ℓ = −2q sin²δ + a (log(1+w) − w), 1 + w = sin θ / sin θ*: the linear terms cancel exactly."""
        s, c = delta.sin(), delta.cos()
        s2, sc = s * s, s * c
        if self.dim == 2:
            return -2 * self.q * s2, -4 * self.q * sc
        w = (sc * self.twice_cot).sub(s2, alpha=2).clamp(min=-1)
        ratio = w.add(1).clamp(min=torch.finfo(s.dtype).tiny ** 0.5)
        cos = self.cos.addcmul(self.cos, s2, value=-2).addcmul(self.sin, sc, value=-2)
        return (
            torch.addcmul(self.a * (w.log1p() - w), self.q, s2, value=-2),
            (cos / ratio * self.pull).addcmul(ratio, self.push, value=-1),  # 2 (a cot θ − κ sin θ)
        )

    def statistic(self, delta: Points) -> Points:
        """T = cos θ − cos θ*."""
        s = delta.sin()
        return -2 * s * (self.cos * s + self.sin * delta.cos())

    def angle(self, delta: Points) -> tuple[Points, Points, float]:
        twice = delta + delta
        s, c = twice.sin(), twice.cos()
        return self.cos * c - self.sin * s, (self.sin * c + self.cos * s).clamp(min=0), 2.0


def von_mises_fisher_angle(
    uniform: Float[Tensor, "*draws"], concentration: Float[Tensor, "*batch"], dim: int, *, refine: int = 1
) -> tuple[Float[Tensor, "*draws"], Float[Tensor, "*draws"]]:
    """(cos θ, sin θ) of the angle to the mean direction at the quantiles `uniform`.

    The shape of `uniform` ends in the shape of `concentration`. θ increases with `uniform`, so that 1 − u is
    the antithetic draw and stratified uniforms give stratified angles. Differentiable in both arguments.
    |F(θ(u)) − u| is at most 1e-5 in float32 and 2e-8 in float64 for n ≤ 2048; n = 3 is exact. `refine` makes
    the table from which it is found so many times finer.
    """
    if dim == 3:
        return _angle_in_three_dimensions(uniform, concentration)
    return angle_quantile(_VonMisesFisherAngle, uniform, concentration, dim, refine)


def _angle_in_three_dimensions(
    uniform: Float[Tensor, "*draws"], concentration: Float[Tensor, "*batch"]
) -> tuple[Float[Tensor, "*draws"], Float[Tensor, "*draws"]]:
    """1 − cos θ = −log(1 − u (1 − e^{−2κ}))/κ; in float64, as the derivative by a small κ cancels."""
    check_levels(uniform, concentration, 3)
    k, u = widest(concentration), widest(inside(uniform))
    k = k.clamp_min(torch.finfo(k.dtype).eps ** 0.5)
    rest = torch.log1p(u * torch.expm1(-2 * k)) / -k
    sine = (rest * (2 - rest)).clamp_min(torch.finfo(rest.dtype).tiny).sqrt()
    return (1 - rest).to(uniform.dtype), sine.to(uniform.dtype)


def _peak(concentration: Tensor, dim: int) -> Peak:
    """In y = artanh cos θ the density is sechⁿ⁻¹y exp(κ tanh y): y* = ½ arsinh(2κ/(n−1))."""
    u = 2 * concentration / (dim - 1)
    root = (1 + u * u).sqrt()
    return Peak(u / (1 + root), u + root, 1 / ((dim - 1) * root))


def _concentration(T: Tensor, dim: int) -> Tensor:
    return (dim - 1) * T / (1 - T * T)


def _mean_length(concentration: Tensor, dim: int) -> Tensor:
    return MeanResultantLength.apply(concentration, dim / 2 - 1, "exact")


def _bound_of_mean_length(concentration: Tensor, dim: int) -> Tensor:
    return MeanResultantLength.apply(concentration, dim / 2 - 1, "bounds")


def _bound_of_divergence(concentration: Tensor, dim: int) -> Tensor:
    return divergence_from_uniform(concentration, dim, method="bounds")


VON_MISES_FISHER = AngularLaw(
    angle=von_mises_fisher_angle,
    mean_length=_mean_length,
    divergence=divergence_from_uniform,
    peak=_peak,
    concentration=_concentration,
)
"""The law, with exact functions."""
VON_MISES_FISHER_BOUNDS = replace(
    VON_MISES_FISHER, mean_length=_bound_of_mean_length, divergence=_bound_of_divergence
)
"""The law, with A and log C by the paper's bounds (eq. 9 to 12)."""


@final
class VonMisesFisher(SymmetricDistribution):
    """Density C_n(κ) exp(κ μ·z) on the unit vectors.

    `loc` is the mean direction μ, of length 1 on its last dimension; `concentration` is κ ≥ 0. Dimensions
    from 2 to 65,536 and concentrations from 0 to 1e8 are supported; draws are tested against the law up to
    n = 2,048 and κ = 1e6.
    """

    law = VON_MISES_FISHER

    @classmethod
    def fit(
        cls,
        value: Float[Tensor, "samples *batch dim"],
        weights: Float[Tensor, "samples *batch"] | None = None,
    ) -> "VonMisesFisher":
        """Maximum likelihood from unit vectors on the first dimension, optionally weighted.

        Exact: the mean direction, and the κ with A_n(κ) = length of the mean. Sums are taken in float64.
        Directions that agree have an infinite κ: more than 1e8, the largest supported, is an error.
        """
        check_directions("value", value)
        if value.ndim < 2 or value.shape[0] == 0:
            raise ValueError(
                f"value must have samples on its first dimension, got the shape {tuple(value.shape)}"
            )
        check_unit("value", value)
        z = torch.nn.functional.normalize(value.double(), dim=-1)
        if weights is None:
            mean = z.mean(0)
        else:
            check_floating("weights", weights)
            if weights.shape != value.shape[:-1]:
                raise ValueError(
                    f"weights must have the shape {tuple(value.shape[:-1])} of the samples, "
                    f"got the shape {tuple(weights.shape)}"
                )
            if not (weights.detach() >= 0).all() or not (weights.detach().sum(0) > 0).all():
                raise ValueError(
                    f"weights must be at least 0 with a positive sum, got a smallest of {weights.min():g}"
                )
            w = weights.double()
            mean = ((w / w.sum(0))[..., None] * z).sum(0)
        length = torch.linalg.vector_norm(mean, dim=-1)
        # without a preferred direction, any direction can be the mean
        first = torch.nn.functional.one_hot(torch.zeros_like(length, dtype=torch.long), mean.shape[-1])
        none = (length == 0)[..., None]
        loc = torch.where(
            none, first.to(mean.dtype), mean / torch.where(none[..., 0], 1.0, length)[..., None]
        )
        concentration = concentration_from_mean_resultant_length(length.clamp(max=1), mean.shape[-1])
        if not (concentration.detach() <= _LARGEST).all():
            raise ValueError(
                f"value must hold directions that differ: their concentration exceeds {_LARGEST:g}, the "
                "largest supported; give more samples, or choose one yourself, "
                f"VonMisesFisher(loc, {_LARGEST:g})"
            )
        return cls(loc.to(value.dtype), concentration.to(value.dtype))

    def _variances(self) -> tuple[Tensor, Tensor]:
        """Of z along μ, A_n′(κ), and along any tangent direction, A_n(κ)/κ."""
        k, order = self.concentration, self.dim / 2 - 1
        return exact.slope(k, order), exact.weight(k * k, order)

    def log_height(self) -> Float[Tensor, "*batch"]:
        """The log-density at the mode, log C_n(κ) + κ."""
        return LogPeak.apply(self.concentration, self.dim / 2 - 1)

    def log_prob(self, value: Float[Tensor, "*draws dim"]) -> Float[Tensor, "..."]:
        """Log-density log C_n(κ) + κ μ·z, as its height at the mode less κ (1 − μ·z)."""
        if self._validate_args:
            check_value(value, self)
        return self.log_height() - self.concentration * versine(self.loc, value)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """Differential entropy with respect to the area of the sphere, −log C_n(κ) − κ A_n(κ)."""
        k, order = self.concentration, self.dim / 2 - 1
        return k * Shortfall.apply(k, order) - self.log_height()
