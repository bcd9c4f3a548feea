"""The von Mises–Fisher distribution on the unit sphere."""

from __future__ import annotations

from math import pi
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.distributions._marginal import Marginal, Points, Rows, angle_quantile
from spaceform.distributions._sphere import place


@final
class _AngleMarginal(Marginal):
    """θ with density ∝ sinⁿ⁻²θ exp(κ cos θ); the coordinate is θ itself."""

    def __init__(self, concentration: Rows, dim: int) -> None:
        k = concentration
        self.a = a = dim - 2
        if a == 0:
            self.q, self.cos, self.sin = k, torch.ones_like(k), torch.zeros_like(k)
        else:
            self.q = (a + torch.hypot(2 * k, torch.full_like(k, a))) / 2  # q = a + κ cos θ*
            self.cos, self.sin = k / self.q, (a / self.q).sqrt()
            self.cot = self.cos / self.sin
        self.mode = torch.atan2(self.sin, self.cos)

    def reach(self, drop: float) -> tuple[Rows, Rows]:
        far = 2 * torch.asin((drop / (2 * self.q)).sqrt().clamp(max=1))  # 2q sin²(δ/2) = drop
        return -torch.minimum(self.mode, far), torch.minimum(pi - self.mode, far)

    def log_density(self, delta: Points) -> Points:
        """ℓ = −2q sin²(δ/2) + a (log(1+w) − w), 1 + w = sin θ / sin θ*: the linear terms cancel exactly."""
        half = delta / 2
        s = half.sin()
        log_f = -2 * self.q * (s * s)
        if self.a > 0:
            w = (2 * s * (self.cot * half.cos() - s)).clamp(min=-1)
            log_f = log_f + self.a * (w.log1p() - w)
        return log_f

    def statistic(self, delta: Points) -> Points:
        """T = cos θ − cos θ*."""
        half = delta / 2
        s = half.sin()
        return -2 * s * (self.cos * s + self.sin * half.cos())

    def angle(self, delta: Points) -> tuple[Points, Points, Points]:
        s, c = delta.sin(), delta.cos()
        sin = (self.sin * c + self.cos * s).clamp(min=0)
        return self.cos * c - self.sin * s, sin, torch.ones_like(delta)


def von_mises_fisher_angle(
    uniform: Float[Tensor, "*draws"], concentration: Float[Tensor, "*batch"], dim: int
) -> tuple[Float[Tensor, "*draws"], Float[Tensor, "*draws"]]:
    """(cos θ, sin θ) of the angle to the mean direction at the quantiles `uniform`.

    The shape of `uniform` ends in the shape of `concentration`. θ increases with `uniform`, so that 1 − u is
    the antithetic draw and stratified uniforms give stratified angles. Differentiable in both arguments.
    """
    return angle_quantile(_AngleMarginal, uniform, concentration, dim)


def sample_von_mises_fisher(
    loc: Float[Tensor, "*batch dim"],
    concentration: Float[Tensor, "*batch"],
    sample_shape: tuple[int, ...] = (),
    *,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "*draws dim"]:
    """Draws of shape sample_shape + loc.shape, differentiable in `loc` and `concentration`."""
    shape = (*sample_shape, *concentration.shape)
    u = torch.rand(shape, dtype=loc.dtype, device=loc.device, generator=generator)
    cos, sin = von_mises_fisher_angle(u, concentration, loc.shape[-1])
    return place(loc, cos, sin, generator=generator)
