"""COSINE: the softmax of scaled cosines, eq. 3."""

from types import MappingProxyType
from typing import final

from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.geometry import Sphere
from spaceform.heads._kernels.composed import cosine_logits
from spaceform.heads._kernels.sharded import sharded_cross_entropy
from spaceform.heads._kernels.softmax import cosine_cross_entropy
from spaceform.heads.base import DeterministicHead
from spaceform.heads.class_weights import Init, class_weights, start_class_weights
from spaceform.heads.declaration import LogUniform, Start
from spaceform.heads.soft_labels import TrainingLogits


@final
class CosineHead(DeterministicHead):
    """p(y | z) ∝ exp(β cos θ_y), θ_j the angle between z and w_j: norms do not count.

    β = exp(τ) starts at `beta` and is learned unless `learn_beta=False`. The paper starts it at 1 for a
    network with random weights, and at 16 or 32 for a pretrained network. `init` says how class weights
    start. A zero embedding has no direction: all its cosines are 0, and so is its gradient.
    """

    name, title = "cosine", "Cosine"
    geometry = Sphere()
    shardable = True
    finds_norms = True
    searched = MappingProxyType({"beta": LogUniform(8.0, 32.0)})
    defaults = MappingProxyType(
        {
            "features": Start(lr=0.1, weight_decay=5e-4, options={"beta": 12.0}),
            "pixels": Start(lr=0.1, weight_decay=1e-4, options={"beta": 8.0}),
        }
    )

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        beta: float = 16.0,
        learn_beta: bool = True,
        init: Init = "xavier",
        class_chunk: int | None = None,
    ) -> None:
        super().__init__(dim, num_classes, class_chunk=class_chunk)
        self.init = init
        self.weight = class_weights(num_classes, dim, init)
        self._add_temperature(beta, learn_beta)

    def _start(self, weight: Tensor, num_classes: int) -> None:
        start_class_weights(weight, num_classes, self.init)

    def _logits(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        return cosine_logits(z, self._rows(z.dtype), self.tau)

    def _training_logits(self, z: Float[Tensor, "batch dim"]) -> TrainingLogits:
        weight = self.weight.to(z.dtype)
        return lambda _share, block: cosine_logits(z, weight[block], self.tau)

    def _loss(self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        weight, tau = self._rows(z.dtype), self.tau
        if self.shard is not None:
            return sharded_cross_entropy(z, weight, y, tau, class_chunk=self.class_chunk, shard=self.shard)
        return cosine_cross_entropy(z, weight, y, tau, class_chunk=self.class_chunk)
