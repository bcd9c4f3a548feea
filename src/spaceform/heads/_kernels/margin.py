"""What a margin does to the target's cosine: one function for ArcFace, CosFace and AdaFace."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Margin(NamedTuple):
    """ψ(cos θ) = cos(θ + angle) − shift in the place of the target's cos θ.

    Each is one number, or a column with one for each example; None is 0. An angle lies in (−π, π). Neither
    has a gradient. Where θ + angle leaves [0, π], cos(θ + angle) would turn and reward the wrong direction;
    there it is continued by its reflection, −2 − cos(θ + angle) past π and 2 − cos(θ + angle) below 0:
    ψ falls monotonically in θ, with a continuous derivative. `literal` leaves the cosine as it is.
    """

    angle: Tensor | None = None
    shift: Tensor | None = None
    literal: bool = False

    def shared(self, share: Float[Tensor, "batch classes"]) -> "Margin":
        """The part of the margin that each class has if it has this share of the label."""
        angle, shift = (None if size is None else size.to(share.dtype) * share for size in self[:2])
        return Margin(angle, shift, self.literal)

    def __bool__(self) -> bool:
        return self.angle is not None or self.shift is not None


NO_MARGIN = Margin()


def with_margin(
    cos: Float[Tensor, "*batch"], margin: Margin
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """ψ(cos θ) and dψ/dcos θ.

    sin θ is kept above √(8 eps), which bounds the derivative and moves ψ by at most 1e-3 sin(angle), within
    1e-3 of θ = 0 and π (float32). ψ(c) = c where there is no margin.
    """
    c = cos.clamp(-1, 1)
    psi, slope = c, torch.ones_like(c)
    if margin.angle is not None:
        psi, slope = _turned(c, margin.angle, margin.literal)
    if margin.shift is not None:
        psi = psi - margin.shift.to(c.dtype)
    return psi, slope


def _turned(c: Tensor, angle: Tensor, literal: bool) -> tuple[Tensor, Tensor]:
    """cos(θ + angle) and its derivative in cos θ."""
    sin = ((1 - c) * (1 + c)).clamp_min(8 * torch.finfo(c.dtype).eps).sqrt()
    cos_m, sin_m = angle.cos().to(c.dtype), angle.sin().to(c.dtype)
    value, slope = c * cos_m - sin * sin_m, cos_m + c / sin * sin_m
    if literal:
        return value, slope
    side = torch.where(sin_m >= 0, -1.0, 1.0).to(c.dtype)  # which pole the angle moves θ past
    past = side * c > cos_m
    return torch.where(past, 2 * side - value, value), torch.where(past, -slope, slope)


def move_target(logit: Tensor, beta: Tensor, margin: Margin) -> tuple[Tensor, Tensor, Tensor]:
    """The target logit βψ(cos θ), its slope dψ/dcos θ, and the offset of its tangent slope L + offset.

    The logit is homogeneous in β, not in L: the offset is what the gradient to τ has beside Σ du·u.
    """
    psi, slope = with_margin(logit / beta, margin)
    moved = psi * beta
    return moved, slope, torch.addcmul(moved, slope, logit, value=-1)
