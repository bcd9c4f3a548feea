"""The target's cosine with a margin: one function for ArcFace, CosFace and AdaFace."""

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.heads._checks import values_readable
from spaceform.special.polynomial import numbers


class Margin(NamedTuple):
    """ψ(cos θ) = cos(θ + angle) − shift in place of the target's cos θ.

    `angle` and `shift` are one number, or one number for each example; None is 0. An angle lies in (−π, π).
    Neither has a gradient. Outside [0, π] the cosine of θ + angle would rise again and reward the wrong
    direction. There it is continued by its reflection: −2 − cos(θ + angle) above π and 2 − cos(θ + angle)
    below 0. So ψ falls monotonically in θ, with a continuous derivative. `literal` leaves the cosine as it
    is.
    """

    angle: Tensor | None = None
    shift: Tensor | None = None
    literal: bool = False

    def shared(self, share: Float[Tensor, "batch classes"]) -> "Margin":
        """The part of the margin for a class that has this share of the label."""
        angle, shift = (None if size is None else size.to(share.dtype) * share for size in self.along(1)[:2])
        return Margin(angle, shift, self.literal)

    def along(self, axis: int) -> "Margin":
        """The margin of logits whose axis 0 or 1 has the classes; the other one has the examples."""
        if axis == 0:
            return self
        angle, shift = (size[:, None] if size is not None and size.ndim else size for size in self[:2])
        return Margin(angle, shift, self.literal)

    def __bool__(self) -> bool:
        return self.angle is not None or self.shift is not None


NO_MARGIN = Margin()


def with_margin(
    cos: Float[Tensor, "*batch"], margin: Margin
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """ψ(cos θ) and dψ/dcos θ.

    sin θ is kept above √(8 eps), which bounds the derivative. Within 1e-3 of θ = 0 and π (float32) it changes
    ψ by at most 1e-3 sin(angle). Without a margin ψ(c) = c.
    """
    c = cos.clamp(-1, 1)
    if margin.angle is None:
        psi, slope = c, torch.ones_like(c)
    else:
        psi, slope = _turned(c, margin.angle, margin.literal)
    if margin.shift is not None:
        psi = psi - _like(margin.shift, c)
    return psi, slope


def _turned(
    c: Float[Tensor, "*batch"], angle: Float[Tensor, "*#batch"], literal: bool
) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
    """cos(θ + angle) of c = cos θ, and its derivative in c, sin(θ + angle)/sin θ.

    The derivative is negative where θ + angle lies outside [0, π], and nowhere else.
    """
    cos_m, sin_m = _of_angle(angle, c)
    sin = _sine(c)
    value, slope = torch.addcmul(c * cos_m, sin, sin_m, value=-1), torch.addcmul(cos_m, c / sin, sin_m)
    if literal or (values_readable(slope) and slope.amin().item() >= 0):
        return value, slope
    turned = torch.sub(-value, sin_m.sign(), alpha=2)  # at the pole that θ passes by the angle
    return torch.where(slope.signbit(), turned, value), slope.abs()


def _sine(c: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """√(1 − c²), kept above √(8 eps)."""
    least = 8 * torch.finfo(c.dtype).eps
    if not values_readable(c):
        return (1 - c.square()).clamp_min(least).sqrt()
    (one,) = numbers((1.0,), c.dtype)  # 1 − c² as one operator, and no number to be wrapped
    return torch.addcmul(one, c, c, value=-1).clamp_min(least).sqrt()


def _of_angle(angle: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Its cosine and sine in the type of c."""
    if angle.ndim or not values_readable(c):
        return _like(angle.cos(), c), _like(angle.sin(), c)
    m = angle.item()
    cos_m, sin_m = numbers((math.cos(m), math.sin(m)), c.dtype)
    return cos_m, sin_m


def _like(x: Tensor, c: Tensor) -> Tensor:
    """In the type of c; `to` takes as long as an operator even where it does nothing."""
    return x if x.dtype == c.dtype else x.to(c.dtype)


def move_target(logit: Tensor, beta: Tensor | float, margin: Margin) -> tuple[Tensor, Tensor, Tensor]:
    """The target logit βψ(cos θ), its slope dψ/dcos θ, and the offset of its tangent slope · L + offset.

    The logit is proportional to β but not to L: the gradient to τ is Σ du·u plus a part from the offset.
    """
    psi, slope = with_margin(logit / beta, margin)
    moved = psi * beta
    return moved, slope, torch.addcmul(moved, slope, logit, value=-1)
