"""Standard normal numbers that are made once, for the fixed draws of a reparametrised head."""

from typing import final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from spaceform.heads._kernels.exact_buffers import ExactBuffers, making_constants


@final
class FixedNoise(ExactBuffers):
    """Normal numbers of shape (draws, 1, size), always the same.

    Each column holds the quantiles at the midpoints of equal strata, in its own order. The second half of the
    draws is minus the first half.
    """

    noise: Float[Tensor, "draws 1 size"]

    def __init__(self, draws: int, size: int) -> None:
        super().__init__()
        self._add_constants(noise=_mirrored_quantiles(draws, size))


@making_constants()
def _mirrored_quantiles(draws: int, size: int) -> Float[Tensor, "draws 1 size"]:
    random = Generator().manual_seed(0)
    pairs = draws // 2
    levels = (torch.arange(pairs, dtype=torch.float64) + 0.5) / draws
    half = torch.special.ndtri(levels)[torch.rand(pairs, size, generator=random).argsort(0)]
    half = half * (torch.randint(2, (pairs, size), generator=random) * 2 - 1)
    return torch.cat([half, -half])[:, None]
