"""ARCFACE: the softmax of scaled cosines with an additive angular margin on the target, eq. 4."""

import math
from types import MappingProxyType
from typing import final

import torch
from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.geometry import Sphere
from spaceform.heads._kernels.softmax import cosine_cross_entropy, cosine_logits
from spaceform.heads.base import DeterministicHead
from spaceform.heads.class_weights import Init, class_weights
from spaceform.heads.declaration import LogUniform, Start, Uniform


@final
class ArcFaceHead(DeterministicHead):
    """The objective is that of COSINE with cos(θ_y + m) for the target; prediction leaves the margin out.

    The margin is 0 for the first `warmup_epochs` epochs: call `start_epoch` at the start of each. What it is
    now, the buffer `margin`, is part of the state dict. Past θ_y + m = π, where the cosine would rise and
    reward a larger angle, the target goes on falling as −2 − cos(θ_y + m); `literal=True` lets it rise, as
    eq. 4 and the paper's code do. The rest is as in `CosineHead`.
    """

    name, title = "arcface", "ArcFace"
    geometry = Sphere()
    searched = MappingProxyType({"margin": Uniform(0.0, 0.2), "beta": LogUniform(8.0, 32.0)})
    defaults = MappingProxyType(
        {
            "features": Start(lr=0.15, weight_decay=5e-4, options={"margin": 0.3, "beta": 16.0}),
            "pixels": Start(
                lr=0.1, weight_decay=1e-4, options={"margin": 0.3, "warmup_epochs": 3, "beta": 8.0}
            ),
        }
    )
    margin: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 0.5,
        warmup_epochs: int = 0,
        literal: bool = False,
        beta: float = 16.0,
        learn_beta: bool = True,
        init: Init = "xavier",
        class_chunk: int | None = None,
    ) -> None:
        super().__init__(dim, num_classes, class_chunk=class_chunk)
        if not 0 <= margin < math.pi:
            raise ValueError(f"margin must lie in [0, π), an angle in radians, got {margin!r}")
        if warmup_epochs < 0:
            raise ValueError(f"warmup_epochs must not be negative, got {warmup_epochs!r}")
        self.full_margin = margin
        self.warmup_epochs = warmup_epochs
        self.literal = literal
        self.weight = class_weights(num_classes, dim, init)
        self._add_temperature(beta, learn_beta)
        self.register_buffer("margin", torch.tensor(0.0))
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """No margin during the warm-up, the full one after."""
        self.margin.fill_(self.full_margin if epoch >= self.warmup_epochs else 0.0)

    def extra_repr(self) -> str:
        literal = ", literal=True" if self.literal else ""
        own = f"margin={self.full_margin:g}, warmup_epochs={self.warmup_epochs}{literal}"
        return f"{super().extra_repr()}, {own}"

    def _logits(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        return cosine_logits(z, self.weight.to(z.dtype), self.log_beta)

    def _loss(self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        return cosine_cross_entropy(
            z,
            self.weight.to(z.dtype),
            y,
            self.log_beta,
            self.margin,
            literal=self.literal,
            class_chunk=self.class_chunk,
        )
