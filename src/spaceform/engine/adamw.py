"""AdamW for small nets: the fused kernel of torch alone.

`torch.optim.AdamW` gives the same steps (a test compares them). But its first use in a process imports
torch's compiler, which takes 2.5 s of the processor, and each of its steps takes 0.12 ms longer. For small
nets on features this would be a fifth of the time of a fit.
"""

from collections.abc import Sequence
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

_BETAS = 0.9, 0.999
_EPSILON = 1e-8


class RatedParameters(NamedTuple):
    """Parameters that share a rate and a decay."""

    parameters: Sequence[nn.Parameter]
    relative: float
    """The rate of these parameters is this times the rate of a step."""
    weight_decay: float
    """Decay per rate of a step: parameters with a large relative rate shrink no faster than others."""


@final
class FusedAdamW:
    """Loshchilov and Hutter 2019, with the rate as an argument of every step."""

    def __init__(self, groups: Sequence[RatedParameters]) -> None:
        self._groups = [_Moments(group) for group in groups if group.parameters]

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for group in self._groups:
            for parameter in group.parameters:
                parameter.grad = None

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step of all parameters."""
        for group in self._groups:
            group.step(rate)


@final
class _Moments:
    """The running moments of the gradients of a group."""

    def __init__(self, group: RatedParameters) -> None:
        self.parameters, self.relative = [*group.parameters], group.relative
        self.weight_decay = group.weight_decay / group.relative  # torch multiplies it by the whole rate
        self.first = [torch.zeros_like(p.detach()) for p in self.parameters]
        self.second = [torch.zeros_like(p.detach()) for p in self.parameters]
        self.steps = [torch.zeros((), device=p.device) for p in self.parameters]

    def step(self, rate: float) -> None:
        used = [i for i, p in enumerate(self.parameters) if p.grad is not None]
        steps = _at(self.steps, used)
        torch._foreach_add_(steps, 1)
        torch._fused_adamw_(
            _at(self.parameters, used),
            [p.grad for p in self.parameters if p.grad is not None],
            _at(self.first, used),
            _at(self.second, used),
            [],
            steps,
            lr=rate * self.relative,
            beta1=_BETAS[0],
            beta2=_BETAS[1],
            weight_decay=self.weight_decay,
            eps=_EPSILON,
            amsgrad=False,
            maximize=False,
        )


def _at(tensors: Sequence[Tensor], index: Sequence[int]) -> list[Tensor]:
    return [tensors[i] for i in index]
