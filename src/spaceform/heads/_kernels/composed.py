"""Softmax cross entropy made of ordinary differentiable operations, for compilers and second derivatives."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.heads._kernels.margin import Margin, with_margin


def cosine_logits(
    z: Float[Tensor, "batch dim"], weight: Float[Tensor, "*centres classes dim"], log_beta: Float[Tensor, ""]
) -> Float[Tensor, "batch classes"]:
    """β cos θ_j, by ordinary differentiable operations."""
    w, beta = weight.flatten(0, -2), log_beta.exp().to(z.dtype)
    z = z / (1e-15 * z.detach().abs().amax(1, keepdim=True)).clamp_min(1)  # otherwise the gradient overflows
    logits = (z * (inverse_norm(z) * beta)) @ w.T * inverse_weight_norm(w)
    return logits if weight.ndim == 2 else logits.unflatten(1, weight.shape[:2]).amax(1)


def centres_of(weight: Tensor) -> int:
    return 1 if weight.ndim == 2 else weight.shape[0]


def inverse_norm(z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch 1"]:
    """1/‖z‖ over the whole range of z's type; 0 for a zero vector: no direction, no gradient."""
    # In float64 no square of a float32 overflows or vanishes; Apple's GPUs have no float64.
    wide = None if z.device.type == "mps" else torch.float64
    norm = torch.linalg.vector_norm(z, dim=1, keepdim=True, dtype=wide)
    return norm.masked_fill(norm < 4 * torch.finfo(z.dtype).tiny, torch.inf).reciprocal().to(z.dtype)


def inverse_weight_norm(weight: Float[Tensor, "classes dim"]) -> Float[Tensor, " classes"]:
    norm = torch.linalg.vector_norm(weight, dim=1)
    return norm.masked_fill(norm == 0, torch.inf).reciprocal()


def composed(
    z: Float[Tensor, "batch dim"],
    weight: Float[Tensor, "*centres classes dim"],
    y: Integer[Tensor, " batch"],
    log_beta: Float[Tensor, ""] | None,
    margin: Margin,
) -> Float[Tensor, " batch"]:
    """The cross entropy by ordinary operations: compilers can fuse them, and they have second derivatives."""
    if log_beta is None:
        return F.cross_entropy(F.linear(z, weight), y, reduction="none")
    logits = cosine_logits(z, weight, log_beta)
    if margin:
        beta, target = log_beta.exp().to(z.dtype), y[:, None]
        moved = beta * with_margin(logits.gather(1, target) / beta, margin.along(1))[0]
        logits = logits.scatter(1, target, moved)
    return F.cross_entropy(logits, y, reduction="none")


def differentiable_backward(
    g: Tensor,
    z: Tensor,
    weight: Tensor,
    y: Tensor,
    log_beta: Tensor | None,
    margin: Margin,
) -> list[Tensor | None]:
    """Gradients to z, weight and log_beta that can be differentiated again; the logits are materialised."""
    wanted = [x for x in (z, weight, log_beta) if x is not None and x.requires_grad]
    loss = composed(z, weight, y, log_beta, margin)
    found = iter(torch.autograd.grad(loss, wanted, g, create_graph=True))
    return [next(found) if x is not None and x.requires_grad else None for x in (z, weight, log_beta)]
