"""Polynomials with constant coefficients, evaluated in place and differentiated in closed form."""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from spaceform.special._autograd import KeepingInputs

Coefficients = tuple[float, ...]


def horner(coefficients: Coefficients, t: Tensor) -> Tensor:
    """Σ c_k t^k, lowest power first, in one fresh tensor; not for autograd, see `polynomial`."""
    if len(coefficients) == 1:
        return torch.full_like(t, coefficients[0])
    if is_plain(t):
        return _horner_in_one_pass_a_power(coefficients, t)
    total = t * coefficients[-1]
    for c in coefficients[-2:0:-1]:
        total.add_(c).mul_(t)
    return total.add_(coefficients[0])


def is_plain(t: Tensor) -> bool:
    """Whether a result may be written into a tensor by `out=`: on the CPU, in no trace or transform."""
    plain = type(t) is Tensor and t.device.type == "cpu" and not torch.compiler.is_compiling()
    return plain and not torch._C._functorch.is_functorch_wrapped_tensor(t)


def _horner_in_one_pass_a_power(coefficients: Coefficients, t: Tensor) -> Tensor:
    *low, _ = numbers(coefficients, t.dtype)
    # With two single numbers among its operands, addcmul is not vectorised: so the first step is `add`.
    total = torch.add(low.pop(), t, alpha=coefficients[-1])
    for c in reversed(low):
        torch.addcmul(c, total, t, out=total)
    return total


@cache
def numbers(coefficients: Coefficients, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Each coefficient as a tensor without dimensions."""
    # Tensors that are kept between calls must not belong to a mode that is on during this call.
    with torch.inference_mode(False):
        return torch.tensor(coefficients, dtype=dtype, device="cpu").unbind()


def polynomial(coefficients: Coefficients, t: Tensor) -> Tensor:
    """Σ c_k t^k, differentiable any number of times."""
    return _Polynomial.apply(t, coefficients)


class _Polynomial(KeepingInputs):
    @staticmethod
    def forward(t: Tensor, coefficients: Coefficients) -> Tensor:
        return horner(coefficients, t)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (t,), (coefficients,) = ctx.saved_tensors, ctx.constants
        derivative = tuple(k * c for k, c in enumerate(coefficients))[1:] or (0.0,)
        return grad * polynomial(derivative, t), None
