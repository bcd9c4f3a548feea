"""STANDARD: the dot-product softmax, eq. 1."""

from types import MappingProxyType
from typing import final

from jaxtyping import Float, Integer
from torch import Tensor

from spaceform.geometry import Euclidean
from spaceform.heads._kernels.sharded import sharded_cross_entropy
from spaceform.heads._kernels.softmax import cross_entropy
from spaceform.heads.base import DeterministicHead
from spaceform.heads.class_weights import Init, class_weights, start_class_weights
from spaceform.heads.declaration import Start
from spaceform.heads.soft_labels import TrainingLogits


@final
class StandardHead(DeterministicHead):
    """p(y | z) ∝ exp(w_y·z), without bias and temperature. `init` says how class weights start.

    A coordinate beyond ±10¹⁵ counts as ±10¹⁵ and has no gradient, so that no product and no later step of
    training overflows.
    """

    name, title = "standard", "Standard"
    geometry = Euclidean()
    largest = 1e15
    shardable = True
    defaults = MappingProxyType(
        {"features": Start(lr=0.03, weight_decay=5e-3), "pixels": Start(lr=0.05, weight_decay=1e-4)}
    )

    def __init__(
        self, dim: int, num_classes: int, *, init: Init = "xavier", class_chunk: int | None = None
    ) -> None:
        super().__init__(dim, num_classes, class_chunk=class_chunk)
        self.init = init
        self.weight = class_weights(num_classes, dim, init)

    def _start(self, weight: Tensor, num_classes: int) -> None:
        start_class_weights(weight, num_classes, self.init)

    def _logits(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        return z @ self._rows(z.dtype).T

    def _training_logits(self, z: Float[Tensor, "batch dim"]) -> TrainingLogits:
        weight = self.weight.to(z.dtype)
        return lambda _share, block: z @ weight[block].T

    def _loss(self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        weight = self._rows(z.dtype)
        if self.shard is not None:
            return sharded_cross_entropy(z, weight, y, None, class_chunk=self.class_chunk, shard=self.shard)
        return cross_entropy(z, weight, y, class_chunk=self.class_chunk)
