"""What our autograd functions share: what they keep for the backward pass, how they refuse a derivative."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Backward = Callable[..., tuple[Any, ...]]
_SECOND = "this function has no second derivative: leave out create_graph=True"


def known_signature(function: Any) -> Any:
    """The same autograd.Function with a stored signature: torch asks for that of `forward` at every call.

    To find it takes a third of the time of a call on a hundred numbers.
    """
    function.forward.__signature__ = inspect.signature(function.forward)
    return function


class KeepingInputs(torch.autograd.Function):
    """Keeps the tensors among its arguments for the backward pass, and the others as `ctx.constants`."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.save_for_backward(*[a for a in inputs if isinstance(a, Tensor)])
        ctx.constants = [a for a in inputs if not isinstance(a, Tensor)]


@final
class _Refusal(torch.autograd.Function):
    """The same value, with an edge to everything that it depends on, and without a derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(value: Tensor, _sentence: str, *_: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # noqa: ARG004
        ctx.sentence = inputs[1]

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(ctx.sentence)


def refuse_gradient(value: Tensor, sentence: str, *sources: Tensor) -> Tensor:
    """The same value without a derivative: to ask for one raises an error with `sentence`."""
    owed = [t for t in sources if t.requires_grad]
    if not owed or torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return value
    return _Refusal.apply(value.detach(), sentence, *owed)


def first_order(backward: Backward) -> Backward:
    """`once_differentiable` that refuses a second derivative on every path.

    torch's own version leaves no edge from a gradient to the saved tensors. If a second derivative also comes
    by another way, the part from these tensors would be missing without an error. `backward` returns a tuple.
    """
    once = once_differentiable(backward)

    @functools.wraps(backward)
    def refusing(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        found = once(ctx, *grads)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():  # without create_graph
            return found
        owed = [t for t in (*ctx.saved_tensors, *grads) if isinstance(t, Tensor)]
        return tuple(g if g is None else refuse_gradient(g.detach(), _SECOND, *owed) for g in found)

    return refusing
