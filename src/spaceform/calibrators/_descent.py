"""Descent for many parameters, where second derivatives are too many.

`torch.optim.LBFGS` would do, but its first use in a process imports torch's compiler, which takes seconds.
"""

from collections import deque
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

_REMEMBERED = 20
_SUFFICIENT = 1e-4
_HALVINGS = 30


def descend(
    evaluate: Callable[[Tensor], tuple[float, Tensor]],
    start: Float[Tensor, " p"],
    steps: int,
    *,
    slope: float = 1e-5,
    last: float = 1e-9,
) -> Float[Tensor, " p"]:
    """Minimise a smooth convex function, given its value and gradient, by L-BFGS; every step decreases it.

    Ends after so many steps, where no entry of the gradient is above `slope`, or where a step decreases the
    value by a share below `last`.
    """
    x = start.clone()
    value, gradient = evaluate(x)
    past: deque[tuple[Tensor, Tensor, float]] = deque(maxlen=_REMEMBERED)
    for _ in range(steps):
        if float(gradient.abs().max()) <= slope:
            break
        direction = -_times_inverse(gradient, past)
        promise = float(direction @ gradient)
        size = 1.0 if past else min(1.0, 1.0 / float(gradient.abs().sum()))
        for _ in range(_HALVINGS):
            there, its_gradient = evaluate(x + size * direction)
            if there <= value + _SUFFICIENT * size * promise:
                break
            size /= 2
        else:
            break
        step, change = size * direction, its_gradient - gradient
        bent = float(step @ change)
        if bent > 1e-12 * float(change @ change):
            past.append((step, change, bent))
        gained, x, value, gradient = value - there, x + step, there, its_gradient
        if gained <= last * abs(value):
            break
    return x


def _times_inverse(gradient: Tensor, past: deque[tuple[Tensor, Tensor, float]]) -> Tensor:
    """The inverse of the curvature, as the last steps showed it, times the gradient: two loops over them."""
    q, shares = gradient.clone(), []
    for step, change, bent in reversed(past):
        shares.append(float(step @ q) / bent)
        q -= shares[-1] * change
    if past:
        _, change, bent = past[-1]
        q *= bent / float(change @ change)
    for (step, change, bent), share in zip(past, reversed(shares), strict=True):
        q += (share - float(change @ q) / bent) * step
    return q
