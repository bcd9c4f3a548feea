"""Softmax cross entropy of z·w_j or β cos(z, w_j), the class axis kept or streamed.

Cosine logits are L = (u Wᵀ) σ with u = z/‖z‖ and σ_j = β/‖w_j‖: the weights are never normalised. With
G = softmax(L) − onehot(y), A = G σ and the upstream gradient g of each example, the backward pass is

    du = g A W,    dw = Aᵀ(g u), less its part along w,    dz = (du − (du·u) u)/‖z‖,    dτ = Σ du·u.

If the class axis is streamed, one number for each example is kept between the two passes; otherwise the
log-probabilities are (`cosine_softmax`).

With weights of shape (centres, classes, dim) a class has several centres: its logit is the largest of theirs,
and its gradient goes to the centre with this logit, in equal shares if there are several.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.heads._checks import check_finite
from spaceform.heads._kernels.composed import (
    centres_of,
    composed,
    differentiable_backward,
    inverse_norm,
    inverse_weight_norm,
)
from spaceform.heads._kernels.cosine_softmax import CosineCrossEntropy
from spaceform.heads._kernels.few_weights import are_few, few_cosine_cross_entropy, few_cross_entropy
from spaceform.heads._kernels.margin import NO_MARGIN, Margin, move_target
from spaceform.special._precision import no_autocast

# Up to 32 MiB (float32) of logits are kept for the backward pass; more are computed twice, 4 MiB at a time.
_KEPT = 2**23
_CHUNK = 2**20
_BLOCK = 2**17


def chunk_size(batch: int, num_classes: int, class_chunk: int | None) -> int:
    """How many classes are handled at once: `class_chunk`, or all of them unless their logits are large."""
    if class_chunk is not None:
        return min(class_chunk, num_classes)
    return num_classes if batch * num_classes <= _KEPT else max(1, _CHUNK // batch)


def cross_entropy(
    z: Float[Tensor, "batch dim"],
    weight: Float[Tensor, "classes dim"],
    y: Integer[Tensor, " batch"],
    *,
    class_chunk: int | None = None,
) -> Float[Tensor, " batch"]:
    """Minus log softmax(z·w_j)_y, eq. 1."""
    classes = weight.shape[0]
    chunk = chunk_size(z.shape[0], classes, class_chunk)
    if chunk == classes:
        if are_few(z, weight):
            return few_cross_entropy(z, weight, y)
        return F.cross_entropy(F.linear(z, weight), y, reduction="none")
    return _streamed(z, weight, y, None, *NO_MARGIN, chunk)[0][:, 0]


def cosine_cross_entropy(
    z: Float[Tensor, "batch dim"],
    weight: Float[Tensor, "*centres classes dim"],
    y: Integer[Tensor, " batch"],
    log_beta: Float[Tensor, ""],
    margin: Margin = NO_MARGIN,
    *,
    norms: Float[Tensor, " batch"] | None = None,
    class_chunk: int | None = None,
) -> Float[Tensor, " batch"]:
    """Minus log softmax(β cos θ_j)_y, eq. 3; with a margin, βψ(cos θ_y) for the target, eq. 4.

    A z that is not finite is refused, where values can be looked at. `norms` are `plain_norms(z)`, if known.
    """
    classes = weight.shape[-2]
    chunk = chunk_size(z.shape[0] * centres_of(weight), classes, class_chunk)
    if chunk < classes:
        check_finite(z)
        return _streamed(z, weight, y, log_beta, *margin, chunk)[0][:, 0]
    if torch.compiler.is_compiling():
        return composed(z, weight, y, log_beta, margin)
    if margin.angle is None and weight.ndim == 2 and are_few(z, weight):
        loss = few_cosine_cross_entropy(z, weight, y, log_beta, margin.shift)
        if loss is not None:
            return loss
    return CosineCrossEntropy.apply(z, weight, y, log_beta, *margin, norms)


# Custom operators, so that a compiler takes them as a whole and does not unroll the chunks.


@torch.library.custom_op("spaceform::streamed_cross_entropy", mutates_args=())
def _streamed(
    z: Tensor,
    weight: Tensor,
    y: Tensor,
    log_beta: Tensor | None,
    angle: Tensor | None,
    shift: Tensor | None,
    literal: bool,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Cross entropy of z·w_j, or of the cosine if there is a temperature, `chunk` classes at a time.

    Loss, log Σ exp L, and the target logit's slope and offset, each (batch, 1).
    """
    lse, target, slope, offset = log_sums(z, weight, y, log_beta, Margin(angle, shift, literal), chunk)
    return lse - target, lse, slope, offset


def log_sums(
    z: Tensor, weight: Tensor, y: Tensor, log_beta: Tensor | None, margin: Margin, chunk: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The log Σ exp L, and the target's logit, slope and offset; 0, 1, 0 if the target is elsewhere."""
    u, beta, margin = z, None, margin.along(1)
    if log_beta is not None:
        u, beta = z * inverse_norm(z), log_beta.exp().to(z.dtype)
    target, slope, offset = z.new_zeros(len(z), 1), z.new_ones(len(z), 1), z.new_zeros(len(z), 1)
    parts = []
    for start in range(0, weight.shape[-2], chunk):
        w = weight[..., start : start + chunk, :].flatten(0, -2)
        logits = _of_classes(_chunk_logits(u, w, beta)[0], centres_of(weight))[0]
        column, inside = _locate(y, start, logits.shape[1])
        here = logits.gather(1, column)
        if margin and beta is not None:
            logit, slope_here, offset_here = move_target(here, beta, margin)
            slope, offset = torch.where(inside, slope_here, slope), torch.where(inside, offset_here, offset)
            here = torch.where(inside, logit, here)
            logits.scatter_(1, column, here)
        target = torch.where(inside, here, target)
        parts.append(_logsumexp(logits))
    return torch.cat(parts, 1).logsumexp(1, keepdim=True), target, slope, offset


@torch.library.custom_op("spaceform::streamed_cross_entropy_backward", mutates_args=())
def streamed_backward(
    g: Tensor,
    z: Tensor,
    weight: Tensor,
    y: Tensor,
    log_beta: Tensor | None,
    loss: Tensor,
    lse: Tensor,
    slope: Tensor,
    offset: Tensor,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to z, weight and log_beta."""
    u, beta, inverse = z, None, None
    if log_beta is not None:
        inverse, beta = inverse_norm(z), log_beta.exp().to(z.dtype)
        u = z * inverse
    gu, d = g * u, torch.expm1(-loss)
    du, dw = torch.zeros_like(u), torch.empty_like(weight)
    for start in range(0, weight.shape[-2], chunk):
        part, dw_part = (t[..., start : start + chunk, :] for t in (weight, dw))
        w = part.flatten(0, -2)
        dw_rows = dw_part if dw_part.ndim == 2 else torch.empty_like(w)
        each, s, sigma = _chunk_logits(u, w, beta)
        logits, nearest = _of_classes(each, centres_of(weight))
        column, inside = _locate(y, start, part.shape[-2])
        G = _exp(logits.sub_(lse))
        G.scatter_(1, column, torch.where(inside, d * slope, G.gather(1, column)))
        du += _chunk_backward(_ofcentres_of(G, nearest), w, gu, s, sigma, dw_rows)
        if dw_part.ndim == 3:  # several centres of a chunk of classes are not one block of memory
            dw_part.copy_(dw_rows.view_as(part))
    du *= g
    if inverse is None:
        return du, dw, z.new_empty(0)
    dz, dtau = _direction_backward(du, u, inverse)
    return dz, dw, dtau + (g * d * offset).sum()


def _chunk_logits(u: Tensor, w: Tensor, beta: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """L = (u Wᵀ) σ, and s = 1/‖w‖ and σ = β s if there is a temperature."""
    logits = torch.mm(u, w.T)
    if beta is None:
        return logits, None, None
    s = inverse_weight_norm(w)
    sigma = s * beta
    return logits.mul_(sigma), s, sigma


def _of_classes(each: Tensor, centres: int) -> tuple[Tensor, Tensor | None]:
    """The logits of classes from those of all their centres, and which centre has the largest."""
    if centres == 1:
        return each, None
    each = each.unflatten(1, (centres, -1))
    logits = each.amax(1)
    return logits, each == logits[:, None]


def _ofcentres_of(G: Tensor, nearest: Tensor | None) -> Tensor:
    """The gradient of the centres' logits from that of the classes'. Overwrites G."""
    if nearest is None:
        return G
    return (nearest * G.div_(nearest.sum(1, dtype=G.dtype))[:, None]).flatten(1)


def _chunk_backward(
    G: Tensor, w: Tensor, gu: Tensor, s: Tensor | None, sigma: Tensor | None, dw: Tensor
) -> Tensor:
    """Writes Aᵀ(g u), less its part along w, into `dw`; gives A W. Overwrites G."""
    if s is None or sigma is None:
        torch.mm(G.T, gu, out=dw)
    else:
        torch.mm(G.mul_(sigma).T, gu, out=dw)
        # In blocks that stay in the cache: a product as large as the weights would double the memory.
        rows = max(1, _BLOCK // w.shape[1])
        for dw_block, w_block, s_block in zip(dw.split(rows), w.split(rows), s.split(rows), strict=True):
            along = torch.linalg.vecdot(dw_block, w_block).mul_(s_block).mul_(s_block)
            dw_block.addcmul_(w_block, along[:, None], value=-1)
    return torch.mm(G, w)


def _direction_backward(du: Tensor, u: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients to z and τ from that to u = z/‖z‖. Overwrites du."""
    along = torch.linalg.vecdot(du, u)[:, None]
    return du.addcmul_(along, u, value=-1).mul_(inverse), along.sum()


def _locate(y: Tensor, start: int, size: int) -> tuple[Tensor, Tensor]:
    """The targets' columns within a chunk, and which lie in it; outside, the column is arbitrary."""
    column = y[:, None] - start
    inside = (column >= 0) & (column < size)
    return column.clamp_(0, size - 1), inside


def _exp(x: Tensor) -> Tensor:
    """The exponential, at least the smallest normal number: subnormal numbers are slow."""
    return x.clamp(min=math.log(torch.finfo(x.dtype).tiny) + 1e-2).exp_()


def _logsumexp(logits: Tensor) -> Tensor:
    largest = logits.amax(1, keepdim=True)
    return _exp(logits.sub_(largest)).sum(1, keepdim=True).log_().add_(largest)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.literal, ctx.chunk = inputs
    ctx.save_for_backward(*tensors, *output)


def _autograd(ctx: Any, g: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    z, weight, y, log_beta, angle, shift, *state = ctx.saved_tensors
    if torch.is_grad_enabled():
        margin = Margin(angle, shift, ctx.literal)
        dz, dw, dtau = differentiable_backward(g[:, 0], z, weight, y, log_beta, margin)
    else:
        with no_autocast(g):
            dz, dw, dtau = streamed_backward(g, z, weight, y, log_beta, *state, ctx.chunk)
    return dz, dw, None, dtau if log_beta is not None else None, None, None, None, None


_streamed.register_autograd(_autograd, setup_context=_setup_context)


@_streamed.register_fake
def _(z: Tensor, *_: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    column = z.new_empty(z.shape[0], 1)  # not len(z), which is a Python number and would fix the batch size
    return column, torch.empty_like(column), torch.empty_like(column), torch.empty_like(column)


@streamed_backward.register_fake
def _(
    _g: Tensor, z: Tensor, weight: Tensor, _y: Tensor, log_beta: Tensor | None, *_: object
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(z), torch.empty_like(weight), z.new_empty(0 if log_beta is None else ())
