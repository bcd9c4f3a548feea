"""Minimise functions of too many parameters for second derivatives, several functions at a time.

`torch.optim.LBFGS` would do, but its first use in a process imports torch's compiler, which takes seconds.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

_REMEMBERED = 20
_SUFFICIENT = 1e-4
_HALVINGS = 30


class _Move(NamedTuple):
    """A step, the change of the gradient, the product of both, and this product over the change's square."""

    step: Float[Tensor, "b p"]
    change: Float[Tensor, "b p"]
    bent: Float[Tensor, " b"]
    length: Float[Tensor, " b"]


PastMoves: TypeAlias = deque[_Move]
"""The last steps, which show the curvature."""


def descend(
    evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
    start: Float[Tensor, "b p"],
    steps: int,
    past: PastMoves | None = None,
    *,
    slope: float = 1e-5,
    last: float = 1e-6,
) -> tuple[Float[Tensor, "b p"], PastMoves]:
    """Minimise b smooth convex functions, given their values and gradients, by L-BFGS; all steps go down.

    Each ends after `steps` steps, or when no entry of its gradient is above `slope`, or when a step decreases
    its value by a share of at most `last`. Returns the minima and the last moves; as `past`, these save the
    descent of similar functions its first steps.
    """
    x = start.clone()
    value, gradient = evaluate(x)
    going = torch.ones_like(value) > 0
    past = deque(past or (), maxlen=_REMEMBERED)
    for _ in range(steps):
        going &= gradient.abs().amax(1) > slope
        if not bool(going.any()):
            break
        direction = -_times_inverse(gradient, past)
        promise = torch.linalg.vecdot(direction, gradient)
        size = torch.ones_like(value) if past else (1 / gradient.abs().sum(1)).clamp_max(1)
        size = torch.where(going, size, 0)
        for halvings in range(_HALVINGS + 1):
            step = size[:, None] * direction
            there, its_gradient = evaluate(x + step)
            low = there <= value + _SUFFICIENT * size * promise
            if bool(low.all()):
                break
            size = torch.where(low, size, size / 2 if halvings < _HALVINGS - 1 else 0)
        past.append(_move(step, its_gradient - gradient))
        going &= value - there > last * there.abs()
        x, value, gradient = x + step, there, its_gradient
    return x, past


def _move(step: Float[Tensor, "b p"], change: Float[Tensor, "b p"]) -> _Move:
    """A move; if rounding hides the curvature, a move without effect."""
    bent, square = torch.linalg.vecdot(step, change), torch.linalg.vecdot(change, change)
    said = bent > 1e-12 * square
    one = torch.ones_like(bent)
    return _Move(
        step * said[:, None],
        change * said[:, None],
        torch.where(said, bent, one),
        torch.where(said, bent / square, one),
    )


def _times_inverse(gradient: Float[Tensor, "b p"], past: PastMoves) -> Float[Tensor, "b p"]:
    """The inverse of the curvature, as the last steps show it, times the gradient, by two loops."""
    q, shares = gradient.clone(), []
    for move in reversed(past):
        shares.append((torch.linalg.vecdot(move.step, q) / move.bent)[:, None])
        q.addcmul_(shares[-1], move.change, value=-1)
    if past:
        q *= past[-1].length[:, None]
    for move, share in zip(past, reversed(shares), strict=True):
        q.addcmul_(share - (torch.linalg.vecdot(move.change, q) / move.bent)[:, None], move.step)
    return q
