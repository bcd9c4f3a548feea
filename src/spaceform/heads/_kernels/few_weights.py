"""Softmax cross entropy of few class weights on the CPU, made of torch's own differentiable operators.

With few weights a step takes little more time than its calls need, and an autograd function in Python costs
as much as ten operators; so there is none here. Torch's weight norm normalises rows by one call forward and
one backward. Below about sixty classes, logits of different examples are neighbours in memory: torch's
softmax over a short last axis takes ten times as long as over the first axis.

Compared with an autograd function of the same formulas, steps of COSINE take about a tenth less time.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.heads._checks import ends, values_readable
from spaceform.special._precision import no_autocast

# Up to 1 MiB (float32) of normalised weights; with more, a pass over them costs more than the calls.
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
    weight: Float[Tensor, "classes dim"],
    y: Integer[Tensor, " batch"],
    log_beta: Float[Tensor, ""],
    shift: Float[Tensor, ""] | None,
) -> Float[Tensor, " batch"] | None:
    """Minus log softmax(β cos θ_j)_y, with β (cos θ_y − shift); None if a norm is too small or large."""
    # A column at once: a number that is expanded, and then copied, takes two nodes more.
    beta = log_beta.expand(weight.shape[0], 1).exp().to(z.dtype)
    u = _as_long_as(z.new_ones(z.shape[0], 1), z)
    w = None if u is None else _as_long_as(beta, weight)
    if u is None or w is None:
        return None
    axis = _class_axis(weight)
    logits = _products(u, w, axis)
    if shift is not None:
        index = y.unsqueeze(axis)
        logits = logits.scatter_add(axis, index, (beta[0] * -shift.to(z.dtype)).expand_as(index))
    loss = _nll(logits, y, axis)
    if loss.grad_fn is not None:
        loss.grad_fn.register_prehook(_MaybeDifferentiable(u, z, w, weight, beta))
    return loss


def _class_axis(weight: Tensor) -> int:
    """The axis of the logits that has the classes."""
    return 0 if weight.shape[0] < _NARROW else 1


def _products(z: Tensor, weight: Tensor, axis: int) -> Tensor:
    if _within_autocast():
        return _Products.apply(z, weight, axis)
    return F.linear(z, weight) if axis else torch.mm(weight, z.T)


def _within_autocast() -> bool:
    """Whether there is a `torch.autocast`, on or off: it would round products of the backward pass."""
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting() > 0


class _Products(torch.autograd.Function):
    """Matrix products whose gradients have the same precision as the products."""

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
    """The rows of x scaled to these lengths; None if a norm is too small or too large."""
    # The operator reads wrong memory unless all tensors are contiguous.
    x, length = x.contiguous(), length.contiguous()
    rows, norm = torch._weight_norm_interface(x, length, 0)
    least, most = ends(norm)
    if not (least >= _SHORTEST and most <= _LONGEST):  # also true for NaN
        return None
    return rows


class _MaybeDifferentiable:
    """Watches a backward pass begin; one that is to be differentiated again gets `_Differentiable` norms.

    A hook takes as long as two operators, in every backward pass: so there is one, and two where needed.
    """

    def __init__(self, u: Tensor, z: Tensor, w: Tensor, weight: Tensor, beta: Tensor) -> None:
        self.of_z, self.z, self.of_weight, self.weight, self.beta = u.grad_fn, z, w.grad_fn, weight, beta

    def __call__(self, _grads: tuple[Tensor | None, ...]) -> None:
        if not torch.is_grad_enabled():
            return
        one = self.z.new_ones(self.z.shape[0], 1)
        for node, x, length in ((self.of_z, self.z, one), (self.of_weight, self.weight, self.beta)):
            if node is not None:
                node.register_hook(_Differentiable(x, length))


class _Differentiable:
    """Replaces the gradients of a weight norm if they are to be differentiated again.

    Torch's own gradients (2.13) treat the norm as a constant, so second derivatives would be wrong.
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
