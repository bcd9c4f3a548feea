"""Tables that keep their digits, whatever type a head is cast to."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn


class ExactBuffers(nn.Module):
    """A module whose buffers, of 64 bits, follow `to(device)` but are not rounded by `half()` or `to(dtype)`.

    They are constants, made anew with the head: none is part of its state dict.
    """

    def _add_constants(self, **constants: Tensor) -> None:
        for name, value in constants.items():
            self.register_buffer(name, value.clone().to(torch.get_default_device()), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        # A cast leaves integers as they are.
        return super()._apply(lambda t: fn(t.view(torch.int64)).view(t.dtype), recurse)


@contextlib.contextmanager
def making_constants() -> Iterator[None]:
    """In this context new tensors are ordinary ones on the CPU, whatever modes the caller has set."""
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        yield
