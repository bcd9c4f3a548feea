"""Polynomials with constant coefficients, evaluated in place and differentiated in closed form."""

from typing import Any

import torch
from torch import Tensor

Coefficients = tuple[float, ...]


def horner(coefficients: Coefficients, t: Tensor) -> Tensor:
    """Σ c_k t^k, lowest power first, in one fresh tensor; not for autograd, see `polynomial`."""
    if len(coefficients) == 1:
        return torch.full_like(t, coefficients[0])
    total = t * coefficients[-1]
    for c in coefficients[-2:0:-1]:
        total.add_(c).mul_(t)
    return total.add_(coefficients[0])


def polynomial(coefficients: Coefficients, t: Tensor) -> Tensor:
    """Σ c_k t^k, differentiable any number of times."""
    return _Polynomial.apply(t, coefficients)


class _Polynomial(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(t: Tensor, coefficients: Coefficients) -> Tensor:
        return horner(coefficients, t)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Coefficients], output: Tensor) -> None:  # noqa: ARG004
        t, ctx.coefficients = inputs
        ctx.save_for_backward(t)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (t,) = ctx.saved_tensors
        derivative = tuple(k * c for k, c in enumerate(ctx.coefficients))[1:] or (0.0,)
        return grad * polynomial(derivative, t), None
