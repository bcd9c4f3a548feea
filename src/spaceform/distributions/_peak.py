"""The height and the divergence of von Mises–Fisher laws, free of the cancellation of log C_n(κ) and κ."""

from typing import Any

import torch
from torch import Tensor

from spaceform.special import exact
from spaceform.special._autograd import KeepingInputs
from spaceform.special.polynomial import horner
from spaceform.special.table import table


class LogPeak(KeepingInputs):
    """log C_n(κ) + κ: the log-density at the mean direction. Its derivative is 1 − A_n(κ)."""

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
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * Shortfall.apply(x, *ctx.constants), None


class Shortfall(KeepingInputs):
    """1 − A_n(κ) with its derivative −A_n′(κ)."""

    @staticmethod
    def forward(x: Tensor, order: float) -> Tensor:
        return exact.shortfall(x, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return -grad * exact.slope(x, *ctx.constants), None


class Bregman(KeepingInputs):
    """KL of two laws with one mean direction; its slopes are (κ₁ − κ₂) A_n′(κ₁) and A_n(κ₂) − A_n(κ₁)."""

    @staticmethod
    def forward(x: Tensor, other: Tensor, order: float) -> Tensor:
        return exact.bregman(x, other, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        (x, other), (order,) = ctx.saved_tensors, ctx.constants
        rise = Shortfall.apply(x, order) - Shortfall.apply(other, order)
        return grad * (x - other) * exact.slope(x, order), grad * rise, None
