"""Softmax cross entropy of few class weights on the CPU, of torch's own differentiable operators.

There a step takes no longer than the calls that it is made of, and an autograd function in Python costs as
much as ten operators: this has none but for an angular margin. Torch's weight norm normalises rows by one
call forward and one backward. Below some sixty classes the logits are computed with the examples along
memory: torch's softmax over a short last axis takes ten times as long as over the first.

Measured against an autograd function of the same formulas: steps of COSINE are about a tenth shorter.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.heads._checks import ends, values_readable
from spaceform.heads._kernels.margin import Margin, move_target
from spaceform.special._precision import no_autocast

# Normalised weights of up to 1 MiB (float32) are made; of more, a pass over them costs more than the calls.
_FEW = 2**18
_NARROW = 64
# Squares of norms within these neither overflow nor vanish, in float32.
_SHORTEST, _LONGEST = 1e-15, 1e15


def are_few(z: Tensor, weight: Tensor) -> bool:
    """Whether the functions here are the faster ones, and can be used."""
    return weight.numel() <= _FEW and values_readable(z)


def few_cross_entropy(
    z: Float[Tensor, "batch dim"], weight: Float[Tensor, "classes dim"], y: Integer[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """Minus log softmax(z·w_j)_y."""
    axis = _class_axis(weight)
    return _nll(_products(z, weight, axis), y, axis)


def few_cosine_cross_entropy(
    z: Float[Tensor, "batch dim"],
    weight: Float[Tensor, "*centres classes dim"],
    y: Integer[Tensor, " batch"],
    log_beta: Float[Tensor, ""],
    margin: Margin,
) -> Float[Tensor, " batch"] | None:
    """Minus log softmax(β cos θ_j)_y with a margin; None if a norm is too small or large for this way."""
    beta, each = log_beta.exp().to(z.dtype), weight if weight.ndim == 2 else weight.flatten(0, 1)
    u = _as_long_as(z.new_ones(len(z), 1), z)
    w = None if u is None else _as_long_as(beta.expand(len(each), 1), each)
    if u is None or w is None:
        return None
    axis = _class_axis(weight)
    logits = _products(u, w, axis)
    if weight.ndim == 3:
        logits = logits.unflatten(axis, weight.shape[:2]).amax(axis)
    if margin:
        index, margin = y.unsqueeze(axis), margin.along(axis)
        if margin.angle is not None:
            logits = _Turned.apply(logits, index, log_beta, axis, *margin)
        elif margin.shift is not None:
            logits = logits.scatter_add(axis, index, (-beta * margin.shift.to(z.dtype)).expand_as(index))
    return _nll(logits, y, axis)


def _class_axis(weight: Tensor) -> int:
    """The axis of the logits along which the classes lie."""
    return 0 if weight.shape[-2] < _NARROW else 1


def _products(z: Tensor, weight: Tensor, axis: int) -> Tensor:
    if _within_autocast():
        return _Products.apply(z, weight, axis)
    return F.linear(z, weight) if axis else torch.mm(weight, z.T)


def _within_autocast() -> bool:
    """Whether a `torch.autocast` is entered, off or on: it would round products of the backward pass."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0


class _Products(torch.autograd.Function):
    """The same products, with gradients of the same precision."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, axis: int) -> Tensor:
        ctx.save_for_backward(z, weight)
        ctx.axis = axis
        return F.linear(z, weight) if axis else torch.mm(weight, z.T)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor, None]:
        z, weight = ctx.saved_tensors
        with no_autocast(d):
            by_row = d if ctx.axis else d.T
            return by_row @ weight, by_row.T @ z, None


def _nll(logits: Tensor, y: Tensor, axis: int) -> Tensor:
    if axis:
        return F.cross_entropy(logits, y, reduction="none")
    return F.nll_loss(logits.log_softmax(0).T, y, reduction="none")


def _as_long_as(
    length: Float[Tensor, "rows 1"], x: Float[Tensor, "rows dim"]
) -> Float[Tensor, "rows dim"] | None:
    """The rows of x made as long as these, or None where a norm is too small or large for it."""
    # The operator reads memory that is not its own unless all is contiguous.
    x, length = x.contiguous(), length.contiguous()
    rows, norm = torch._weight_norm_interface(x, length, 0)
    least, most = ends(norm)
    if not (least >= _SHORTEST and most <= _LONGEST):  # NaN neither
        return None
    if rows.grad_fn is not None:
        rows.grad_fn.register_hook(_Differentiable(x, length))
    return rows


class _Differentiable:
    """Replaces the gradients of a weight norm where they are to be differentiated again.

    Torch's own take the norm for a constant there (2.13), and second derivatives would be wrong.
    """

    def __init__(self, x: Tensor, length: Tensor) -> None:
        self.x, self.length = x, length

    def __call__(self, found: tuple[Tensor | None, ...], grads: tuple[Tensor | None, ...]) -> Any:
        d = grads[0]
        if d is None or not torch.is_grad_enabled():
            return None
        norm = torch.linalg.vector_norm(self.x, dim=1, keepdim=True)
        u = self.x / norm
        along = torch.linalg.vecdot(d, u)[:, None]
        right = (d - along * u) * (self.length / norm), along
        return tuple(None if old is None else new for old, new in zip(found, right, strict=True))


class _Turned(torch.autograd.Function):
    """Logits with β(cos(θ + angle) − shift) for the target's."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        index: Tensor,
        log_beta: Tensor,
        axis: int,
        angle: Tensor,
        shift: Tensor | None,
        literal: bool,
    ) -> Tensor:
        ctx.axis, ctx.literal = axis, literal
        margin, beta = Margin(angle, shift, literal), math.exp(log_beta.item())
        logit, slope, offset = move_target(logits.gather(axis, index), beta, margin)
        ctx.save_for_backward(logits, index, log_beta, slope, offset, angle, shift)
        return logits.scatter(axis, index, logit)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        logits, index, log_beta, slope, offset, angle, shift = ctx.saved_tensors
        with no_autocast(d):
            here = d.gather(ctx.axis, index)
            if torch.is_grad_enabled():  # to be differentiated again
                logit, beta = logits.gather(ctx.axis, index), log_beta.exp().to(logits.dtype)
                _, slope, offset = move_target(logit, beta, Margin(angle, shift, ctx.literal))
            moved = d.scatter(ctx.axis, index, here * slope)
            d_tau = (here * offset).sum().to(log_beta.dtype)
        return moved, None, d_tau, None, None, None, None
