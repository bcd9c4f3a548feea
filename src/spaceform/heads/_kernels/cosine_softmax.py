"""Softmax cross entropy of β cos(z, w_j) as one autograd function that keeps the class axis.

Logits are L = (W zᵀ) σ/‖z‖ with σ_j = β/‖w_j‖: nothing is normalised. With the upstream gradient g of each
example, G = g (softmax(L) − onehot(y)) and A = G σ/‖z‖, the backward pass is

    dz = Aᵀ W − (Σ_j G L/‖z‖²) z,    dW = A z − (Σ_b G L/‖w‖²) w,    dτ = Σ G L.

Classes are the first axis. If there are few logits, those of different examples are neighbours in memory:
torch's softmax over a short last axis takes ten times as long as over the first axis. If there are many,
those of different classes are neighbours, L is computed again from the log-probabilities, and the backward
pass takes some classes at a time, which stay in the cache.

With weights of shape (centres, classes, dim) a class has several centres: its logit is the largest of theirs,
and its gradient goes to the centre with this logit, in equal shares if there are several.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Integer, Shaped
from torch import Tensor

from spaceform.heads._checks import check_finite, ends, values_readable
from spaceform.heads._kernels.composed import differentiable_backward, inverse_norm
from spaceform.heads._kernels.margin import Margin, move_target
from spaceform.special._autograd import known_signature
from spaceform.special._precision import no_autocast

# Up to this many logits (128 KiB in float32), those of different examples are neighbours in memory.
_FEW = 2**15
# With more logits, gradients are computed 256 KiB at a time: this fits into the cache of a core.
_PART = 2**16
# Squares of norms within these neither overflow nor vanish, in float32.
_SHORTEST, LONGEST = 1e-15, 1e15
# Up to this β no probability is a subnormal number; computing with these is slow.
_MILD = 32


class _State(NamedTuple):
    """What the backward pass needs beside the inputs, and consumes."""

    rows: Float[Tensor, "batch dim"]
    """z, or z/‖z‖."""
    inverse: Float[Tensor, " batch"]
    s: Float[Tensor, "rows 1"]
    scale: Float[Tensor, "rows _"]
    """σ/‖z‖ if `rows` is z, else σ."""
    logits: Float[Tensor, "rows batch"] | None
    """L of all centres without the margin; computed again if it is None."""
    log_p: Float[Tensor, "classes batch"]
    own: Float[Tensor, "1 batch"]
    """The target's log-probability, less than 0 by the loss."""
    target: Float[Tensor, "1 batch"]
    """The target's L without the margin."""
    moved: Float[Tensor, "1 batch"]
    """The target's L with the margin."""
    slope: Float[Tensor, "1 batch"] | None
    offset: Float[Tensor, "1 batch"] | None
    nearest: Shaped[Tensor, "centres classes batch"] | None
    """1 where the centre has the logit of its class, else 0. Numbers are multiplied faster than truth values,
    and take more memory: they are numbers if there are few logits.
    """
    harsh: bool
    """Whether probabilities may be subnormal numbers."""


@known_signature
class CosineCrossEntropy(torch.autograd.Function):
    """Minus log softmax(β cos θ_j)_y, with a margin on the target. A z that is not finite is refused."""

    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        weight: Tensor,
        y: Tensor,
        log_beta: Tensor,
        angle: Tensor | None,
        shift: Tensor | None,
        literal: bool,
        norms: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(z, weight, y, log_beta, angle, shift)
        ctx.literal = literal
        ctx.state = state = _state(z, weight, y, log_beta, Margin(angle, shift, literal), norms)
        return state.own.squeeze(0).neg()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        z, weight, y, log_beta, angle, shift = ctx.saved_tensors
        margin = Margin(angle, shift, ctx.literal)
        if torch.is_grad_enabled():
            dz, dw, dtau = differentiable_backward(g, z, weight, y, log_beta, margin)
        else:
            with no_autocast(g):
                # Consumed, so that no second array of logits is needed; a second pass computes it anew.
                state, ctx.state = ctx.state, None
                state = _state(z, weight, y, log_beta, margin, None) if state is None else state
                dz, dw, dtau = _gradients(g, weight, y, state)
        return dz, dw, None, dtau, None, None, None, None


def _state(
    z: Tensor, weight: Tensor, y: Tensor, log_beta: Tensor, margin: Margin, norms: Tensor | None
) -> _State:
    classes, batch = weight.shape[-2], z.shape[0]
    w = weight if weight.ndim == 2 else weight.flatten(0, 1)
    beta: Any = math.exp(log_beta.item()) if values_readable(z) else log_beta.exp().to(z.dtype)
    norms, few = plain_norms(z) if norms is None else norms, classes * batch <= _FEW
    # 0 for a zero weight: no direction, no gradient.
    s = torch.threshold_(torch.linalg.vector_norm(w, dim=1, keepdim=True), 0.0, math.inf).reciprocal_()
    if few and norms is not None:
        inverse, rows = norms.reciprocal(), z
        scale = (s * beta).mul(inverse)
    else:
        inverse = inverse_norm(z)[:, 0] if norms is None else norms.reciprocal()
        rows, scale = z * inverse[:, None], s * beta
    logits = (torch.mm(w, rows.T) if few else torch.mm(rows, w.T).T).mul_(scale)
    every, nearest, index = logits, None, y.unsqueeze(0)
    if weight.ndim == 3:
        each = every.unflatten(0, weight.shape[:2])
        logits = each.amax(0)
        nearest = torch.eq(each, logits, out=torch.empty_like(each) if few else None)
    target = moved = logits.gather(0, index)
    slope = offset = None
    if margin:
        moved, slope, offset = move_target(target, beta, margin.along(0))
        logits = (logits.scatter if few else logits.scatter_)(0, index, moved)
    log_p = logits.log_softmax(0) if few else logits.T.log_softmax(1).T
    own, harsh = log_p.gather(0, index), not (isinstance(beta, float) and beta <= _MILD)
    kept = every if few else None
    return _State(rows, inverse, s, scale, kept, log_p, own, target, moved, slope, offset, nearest, harsh)


def plain_norms(z: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"] | None:
    """‖z‖ without a gradient; None if a square overflows or vanishes, or if values cannot be read at once.

    A z that is not finite is refused, if values can be read.
    """
    if not values_readable(z):
        return None
    norms = torch.linalg.vector_norm(z.detach(), dim=1)
    least, most = ends(norms)
    if least >= _SHORTEST and most <= LONGEST:
        return norms
    check_finite(z)
    return None


def _gradients(g: Tensor, weight: Tensor, y: Tensor, state: _State) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients to z, weight and log_beta; overwrites the state."""
    d, inverse = state.own.expm1(), state.inverse
    at_target, index = d if state.slope is None else d * state.slope, y.unsqueeze(0)
    if state.logits is None:
        dz, dw, along = _in_parts(g, at_target, weight, index, state)
    else:
        dz, dw, along = _at_once(g, at_target, weight, index, state.logits, state)
    dtau = along.sum()
    if state.offset is not None:
        dtau += (g * d * state.offset).sum()
    if state.scale.shape[1] == 1:  # the gradient of z/‖z‖
        dz.addcmul_(state.rows, along.unsqueeze(1), value=-1).mul_(inverse.unsqueeze(1))
    else:
        dz.addcmul_(state.rows, along.mul_(inverse).mul_(inverse).unsqueeze(1), value=-1)
    return dz, dw, dtau


def _at_once(
    g: Tensor, at_target: Tensor, weight: Tensor, index: Tensor, L: Tensor, state: _State
) -> tuple[Tensor, Tensor, Tensor]:
    """The products Aᵀ W, the gradient to the weights, and Σ_j G L."""
    w, G = weight, _exp_(state.log_p, state.harsh).scatter_(0, index, at_target).mul_(g)
    if state.nearest is not None:
        G, w = (_shared(G, state.nearest) * state.nearest).flatten(0, 1), weight.flatten(0, 1)
    GL = L.mul_(G)
    along, along_w = GL.sum(0), GL.sum(1, keepdim=True).mul_(state.s).mul_(state.s)
    G.mul_(state.scale)
    dw = torch.mm(G, state.rows).addcmul_(w, along_w, value=-1)
    return torch.mm(G.T, w), dw.view(weight.shape), along


def _in_parts(
    g: Tensor, at_target: Tensor, weight: Tensor, index: Tensor, state: _State
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, some classes at a time."""
    classes, dw = state.log_p.shape[0], torch.empty_like(weight, memory_format=torch.contiguous_format)
    dz, along, log_sum = torch.zeros_like(state.rows), torch.zeros_like(g), state.moved - state.own
    at_target = at_target * g
    size = max(1, _PART // max(1, len(g)))
    centres = weight.shape[0] if weight.ndim == 3 else 1
    weights, dws = weight.reshape(centres, classes, -1), dw.view(centres, classes, -1)
    ss, scales = state.s.view(centres, classes, 1), state.scale.view(centres, classes, 1)
    for start in range(0, classes, size):
        part = slice(start, start + size)
        log_p = state.log_p[part]
        L, G = log_p + log_sum, _exp_(log_p, state.harsh).mul_(g)
        column, inside = _located(index, start, len(G))
        _put(G, column, inside, at_target)
        if state.slope is not None:
            _put(L, column, inside, state.target)
        for i, G_i in enumerate(_of_centres(G, state.nearest, part)):
            GL = L.mul_(G_i) if state.nearest is None else L * G_i
            along += GL.sum(0)
            along_w = GL.sum(1, keepdim=True).mul_(ss[i, part]).mul_(ss[i, part])
            G_i.mul_(scales[i, part])
            torch.mm(G_i, state.rows, out=dws[i, part]).addcmul_(weights[i, part], along_w, value=-1)
            dz.addmm_(G_i.T, weights[i, part])
    return dz, dw, along


def _shared(G: Tensor, nearest: Tensor) -> Tensor:
    """The gradient of the classes' logits, for each of the centres that have it. Overwrites G."""
    # To look how many there are is cheaper than the sum, if no wait is needed. There is at least one for each
    # number in G; a sum so large that it is rounded is larger all the same.
    count = nearest.sum if nearest.is_floating_point() else nearest.count_nonzero
    if not values_readable(nearest) or count().item() > G.numel():
        G.div_(nearest.sum(0, dtype=G.dtype))
    return G


def _of_centres(G: Tensor, nearest: Tensor | None, part: slice) -> Iterable[Tensor]:
    """The gradient of each centre's logits of some classes from that of the classes'. Overwrites G."""
    if nearest is None:
        return (G,)
    nearest = nearest[:, part]
    G = _shared(G, nearest)
    return (G * one for one in nearest)


def _located(
    index: Integer[Tensor, "1 batch"], start: int, size: int
) -> tuple[Integer[Tensor, "1 batch"], Bool[Tensor, "1 batch"]]:
    """The targets' rows within a part, and which lie in it; the row of a target outside is arbitrary."""
    row = index - start
    inside = (row >= 0) & (row < size)
    return row.clamp_(0, size - 1), inside


def _put(x: Tensor, row: Tensor, inside: Tensor, value: Tensor) -> None:
    x.scatter_(0, row, torch.where(inside, value, x.gather(0, row)))


def _exp_(x: Tensor, harsh: bool) -> Tensor:
    """The exponential in place. If `harsh`, results are at least the smallest normal number."""
    return (x.clamp_(min=math.log(torch.finfo(x.dtype).tiny) + 1e-2) if harsh else x).exp_()
