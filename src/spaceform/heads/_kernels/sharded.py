"""Softmax cross entropy of z·w_j or β cos(z, w_j) whose classes are split over the ranks of a group."""

from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.heads._checks import check_finite
from spaceform.heads._kernels.class_shard import ClassShard
from spaceform.heads._kernels.composed import centres_of
from spaceform.heads._kernels.margin import NO_MARGIN, Margin
from spaceform.heads._kernels.softmax import chunk_size, log_sums, streamed_backward
from spaceform.special._autograd import first_order
from spaceform.special._precision import no_autocast


def sharded_cross_entropy(
    z: Float[Tensor, "batch dim"],
    weight: Float[Tensor, "*centres rows dim"],
    y: Integer[Tensor, " batch"],
    log_beta: Float[Tensor, ""] | None,
    margin: Margin = NO_MARGIN,
    *,
    class_chunk: int | None = None,
    shard: ClassShard,
) -> Float[Tensor, " batch"]:
    """Minus log softmax(L)_y over the classes of all ranks, from the weights of this rank's classes.

    L is z·w_j without a temperature, and β cos θ_j with one. Gradients are the part from this rank's classes.
    """
    check_finite(z)
    weight, y = shard.classes(weight, y)
    chunk = chunk_size(len(z) * centres_of(weight), weight.shape[-2], class_chunk)
    return _Sharded.apply(z, weight, y, log_beta, *margin, chunk, shard)


class _Sharded(torch.autograd.Function):
    """Cross entropy over the classes of all ranks; gradients are the part from this rank's classes.

    With log Σ exp L of all ranks, the backward pass is that of one chunk among others.
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        weight: Tensor,
        y: Tensor,
        log_beta: Tensor | None,
        angle: Tensor | None,
        shift: Tensor | None,
        literal: bool,
        chunk: int,
        shard: ClassShard,
    ) -> Tensor:
        margin = Margin(angle, shift, literal)
        lse, target, slope, offset = log_sums(z, weight, y, log_beta, margin, chunk)
        lse, target = shard.reduced(lse, target)
        loss = lse - target
        ctx.save_for_backward(z, weight, y, log_beta, loss, lse, slope, offset)
        ctx.chunk = chunk
        return loss[:, 0]

    @staticmethod
    @first_order
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        z, weight, y, log_beta, *state = ctx.saved_tensors
        with no_autocast(g):
            dz, dw, dtau = streamed_backward(g[:, None], z, weight, y, log_beta, *state, ctx.chunk)
        return dz, dw, None, None if log_beta is None else dtau, None, None, None, None, None
