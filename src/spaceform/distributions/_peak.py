"""The height and the divergence of von Mises–Fisher laws, free of the cancellation of log C_n(κ) and κ."""

from typing import Any

import torch
from torch import Tensor

from spaceform.special import exact
from spaceform.special.polynomial import horner
from spaceform.special.table import table


class LogPeak(torch.autograd.Function):
    """log C_n(κ) + κ: the log-density at the mean direction. Its derivative is 1 − A_n(κ)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, order: float) -> Tensor:
        tb = table(order, x.dtype)
        a = tb.a
        s = (x * x + a**2).sqrt()
        d = x * x / (s + a)
        x_minus_d = x * (a + a**2 / (s + x)) / (s + a)
        rest = d * horner(tb.h, 2 * a / s - 1) / s
        return x_minus_d - rest + (order + 0.5) * torch.log1p(d / (2 * a)) + tb.log_c0

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        x, ctx.order = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * Shortfall.apply(x, ctx.order), None


class Shortfall(torch.autograd.Function):
    """1 − A_n(κ) with its derivative −A_n′(κ)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, order: float) -> Tensor:
        return exact.shortfall(x, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        x, ctx.order = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return -grad * exact.slope(x, ctx.order), None


class Bregman(torch.autograd.Function):
    """KL of two laws with one mean direction; its slopes are (κ₁ − κ₂) A_n′(κ₁) and A_n(κ₂) − A_n(κ₁)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, other: Tensor, order: float) -> Tensor:
        return exact.bregman(x, other, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:  # noqa: ARG004
        x, other, ctx.order = inputs
        ctx.save_for_backward(x, other)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, other = ctx.saved_tensors
        rise = Shortfall.apply(x, ctx.order) - Shortfall.apply(other, ctx.order)
        return grad * (x - other) * exact.slope(x, ctx.order), grad * rise, None
