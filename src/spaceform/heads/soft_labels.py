"""Labels that are probabilities, smoothed or weighted: for all classes, or block by block."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor
from torch.utils.checkpoint import checkpoint

TrainingLogits: TypeAlias = Callable[[Tensor, slice], Tensor]
"""A function from the label's shares of a block of classes, and the block, to the logits of these classes."""


@final
@dataclass(frozen=True)
class SoftLabels:
    """Integer labels or probabilities of all classes, smoothed over all classes, times class weights."""

    labels: Integer[Tensor, " batch"] | Float[Tensor, "batch classes"]
    num_classes: int
    dtype: torch.dtype
    smoothing: float = 0.0
    class_weight: Float[Tensor, " classes"] | None = None

    @property
    def every_class(self) -> slice:
        """The block that has all classes."""
        return slice(0, self.num_classes)

    def blocks(self, chunk: int) -> list[slice]:
        """All classes, `chunk` at a time."""
        starts = range(0, self.num_classes, chunk)
        return [slice(start, min(start + chunk, self.num_classes)) for start in starts]

    def share(self, block: slice) -> Float[Tensor, "batch block"]:
        """The labels as probabilities of these classes, without smoothing and weights."""
        if self.labels.is_floating_point():
            return self.labels[:, block]
        classes = torch.arange(block.start, block.stop, device=self.labels.device)
        return (self.labels[:, None] == classes).to(self.dtype)

    def target(self, block: slice) -> Float[Tensor, "batch block"]:
        """The same, smoothed and weighted: the factors of these classes' objectives."""
        target = self.share(block)
        if self.smoothing:
            target = target * (1 - self.smoothing) + self.smoothing / self.num_classes
        return target if self.class_weight is None else target * self.class_weight[block]


def soft_cross_entropy(logits: TrainingLogits, labels: SoftLabels, chunk: int) -> Float[Tensor, " batch"]:
    """−Σ_c target_c log softmax(logits)_c, `chunk` classes at a time.

    With several chunks, the backward pass computes the logits of each again; nothing of the size
    (batch, classes) is kept. A compiled graph has one chunk.
    """
    if chunk >= labels.num_classes or torch.compiler.is_compiling():
        block = labels.every_class
        return F.cross_entropy(logits(labels.share(block), block), labels.target(block), reduction="none")
    parts = over_blocks(lambda block: _part(logits, labels, block), labels.blocks(chunk))
    lse, dot, total = (torch.stack(part) for part in zip(*parts, strict=True))
    return (total * (lse.logsumexp(0) - lse) - dot).sum(0)


def over_blocks(part: Callable[[slice], tuple[Tensor, ...]], blocks: list[slice]) -> list[tuple[Tensor, ...]]:
    """The values of `part` for every block of classes; the backward pass computes each again."""
    return [checkpoint(part, block, use_reentrant=False, preserve_rng_state=False) for block in blocks]


def _part(logits: TrainingLogits, labels: SoftLabels, block: slice) -> tuple[Tensor, Tensor, Tensor]:
    """For a block of classes: log Σ exp, Σ target log softmax within the block, Σ target."""
    found, target = logits(labels.share(block), block), labels.target(block)
    lse = found.logsumexp(1)
    return lse, (target * (found - lse[:, None])).sum(1), target.sum(1)
