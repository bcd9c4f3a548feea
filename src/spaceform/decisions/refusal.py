"""Where "unknown" begins: a threshold that refuses a stated share of known items."""

from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from spaceform.metrics.inputs import TensorOrArray, as_finite, finite_on_cpu, on_cpu
from spaceform.metrics.ranks import checked_share, items_needed, lowest_left_out


@final
class Refusal(nn.Module):
    """Says "unknown" of at most a share of known items, by any score that is higher for known items.

    The threshold is the k-th lowest score of n held-out items of known classes, k = ⌊share (n + 1)⌋. A new
    known item, exchangeable with them, lies below it with a probability of at most the share. The module is
    one comparison with a buffer, so any graph takes it.
    """

    threshold: Float[Tensor, ""]

    def __init__(self, share: float = 0.05) -> None:
        super().__init__()
        self.share = checked_share(share, "share")
        self.register_buffer("threshold", torch.tensor(torch.nan, dtype=torch.float64))

    def fit(self, scores: TensorOrArray) -> "Refusal":
        """Find the threshold on scores of held-out items of known classes."""
        s = as_finite(scores, "scores", 1)
        k = lowest_left_out(len(s), self.share)
        if k == 0:
            needed = items_needed(self.share)
            raise ValueError(
                f"refusing a share of {self.share:g} needs at least {needed} held-out items, "
                f"got {len(s)}; hold out more or refuse more"
            )
        self.threshold = s.sort().values[k - 1].double().cpu()
        return self

    def forward(self, scores: TensorOrArray) -> Bool[Tensor, " batch"]:
        """Which items are unknown."""
        if torch.compiler.is_compiling():
            assert isinstance(scores, Tensor)
            return scores < self.threshold.to(scores)
        if on_cpu(self.threshold) and bool(self.threshold.isnan()):
            raise ValueError("the refusal has not been fitted; call fit(scores), or load a state")
        s = finite_on_cpu(scores, "scores", 1)
        return s < self.threshold.to(s)

    def extra_repr(self) -> str:
        return f"share={self.share:g}"
