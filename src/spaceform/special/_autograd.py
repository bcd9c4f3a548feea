"""Backward passes by hand that are not to be differentiated again."""

import functools
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Backward = Callable[..., tuple[Any, ...]]


@final
class _Refusal(torch.autograd.Function):
    """A gradient as it is, with an edge to all that it depends on; no derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(gradient: Tensor, *_: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(*_: Any) -> None:
        """Nothing to keep; but `torch.func` asks for it."""

    @staticmethod
    def backward(*_: Any) -> Any:
        raise NotImplementedError("this function has no second derivative: leave out create_graph=True")


def first_order(backward: Backward) -> Backward:
    """`once_differentiable` that refuses a second derivative on every path.

    torch's own leaves no edge from a gradient to the saved tensors: what the second derivative owes to these
    would be missing without a word where the rest of it comes another way. `backward` returns a tuple.
    """
    once = once_differentiable(backward)

    @functools.wraps(backward)
    def refusing(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        found = once(ctx, *grads)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():  # without create_graph
            return found
        owed = [t for t in (*ctx.saved_tensors, *grads) if isinstance(t, Tensor) and t.requires_grad]
        return tuple(g if g is None else _Refusal.apply(g.detach(), *owed) for g in found)

    return refusing
