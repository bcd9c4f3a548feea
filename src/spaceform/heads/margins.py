"""The base of heads whose logits are scaled cosines with a margin on the target."""

from abc import abstractmethod

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.geometry import Sphere
from spaceform.heads._kernels.composed import cosine_logits
from spaceform.heads._kernels.cosine_softmax import plain_norms
from spaceform.heads._kernels.margin import Margin, with_margin
from spaceform.heads._kernels.sharded import sharded_cross_entropy
from spaceform.heads._kernels.softmax import cosine_cross_entropy
from spaceform.heads.base import DeterministicHead
from spaceform.heads.class_weights import Init, class_weights, start_class_weights
from spaceform.heads.soft_labels import TrainingLogits


class MarginHead(DeterministicHead):
    """p(y | z) ∝ exp(β cos θ_y), trained with βψ(cos θ_y) for the target; a leaf says what ψ is.

    The margin is 0 for the first `warmup_epochs` epochs: call `start_epoch` at the start of each. What it is
    now, the buffer `margin`, is part of the state dict. The rest is as in `CosineHead`.
    """

    geometry = Sphere()
    shardable = True
    finds_norms = True
    margin: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float,
        warmup_epochs: int,
        beta: float,
        learn_beta: bool,
        init: Init,
        class_chunk: int | None,
    ) -> None:
        super().__init__(dim, num_classes, class_chunk=class_chunk)
        if warmup_epochs < 0:
            raise ValueError(f"warmup_epochs must not be negative, got {warmup_epochs!r}")
        self.full_margin = margin
        self.warmup_epochs = warmup_epochs
        self.init = init
        self.weight = class_weights(num_classes, dim, init)
        self._add_temperature(beta, learn_beta)
        self.register_buffer("margin", torch.tensor(0.0))
        self.start_epoch(0)

    @abstractmethod
    def _target_margin(
        self, z: Float[Tensor, "batch dim"], norms: Float[Tensor, " batch"] | None = None
    ) -> Margin:
        """The margin of each example's target, from the current value of the buffer `margin`.

        `norms` are `plain_norms(z)`, if known.
        """

    def start_epoch(self, epoch: int) -> None:
        """Set no margin during the warm-up, and the full margin after it."""
        self.margin.fill_(self.full_margin if epoch >= self.warmup_epochs else 0.0)

    def numbers(self) -> dict[str, float]:
        """The base's numbers, and the margin after the warm-up."""
        return {**super().numbers(), "margin": self.full_margin}

    def extra_repr(self) -> str:
        """The base's text, and the margin with its warm-up."""
        return f"{super().extra_repr()}, margin={self.full_margin:g}, warmup_epochs={self.warmup_epochs}"

    def _start(self, weight: Tensor, num_classes: int) -> None:
        start_class_weights(weight, num_classes, self.init)

    def _logits(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        return cosine_logits(z, self._rows(z.dtype), self.tau)

    def _training_logits(self, z: Float[Tensor, "batch dim"]) -> TrainingLogits:
        beta, weight, margin = self.beta.to(z.dtype), self._rows(z.dtype), self._target_margin(z)

        def logits(share: Tensor, block: slice) -> Tensor:
            cos = cosine_logits(z, weight[..., block, :], self.tau) / beta
            return beta * with_margin(cos, margin.shared(share))[0]

        return logits

    def _loss(self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        weight, norms, chunk = self._rows(z.dtype), plain_norms(z), self.class_chunk
        margin = self._target_margin(z, norms)
        if self.shard is not None:
            return sharded_cross_entropy(z, weight, y, self.tau, margin, class_chunk=chunk, shard=self.shard)
        return cosine_cross_entropy(z, weight, y, self.tau, margin, norms=norms, class_chunk=chunk)


def check_angle(margin: float) -> None:
    """Refuse a margin that is no angle below π."""
    if not 0 <= margin < torch.pi:
        raise ValueError(f"margin must lie in [0, π), an angle in radians, got {margin!r}")
