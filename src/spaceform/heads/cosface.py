"""COSFACE: the softmax of scaled cosines with an additive margin on the target (Wang et al., 2018)."""

import math
from types import MappingProxyType
from typing import final

from jaxtyping import Float
from torch import Tensor

from spaceform.heads._kernels.margin import Margin
from spaceform.heads.class_weights import Init
from spaceform.heads.declaration import LogUniform, Start
from spaceform.heads.margins import MarginHead


@final
class CosFaceHead(MarginHead):
    """The objective is that of COSINE with cos θ_y − m for the target; prediction leaves the margin out.

    The margin is 0 for the first `warmup_epochs` epochs: call `start_epoch` at the start of each. What it is
    now, the buffer `margin`, is part of the state dict. The rest is as in `CosineHead`. Also known as
    AM-Softmax, and as the large margin cosine loss.
    """

    name, title = "cosface", "CosFace"
    compared = False
    searched = MappingProxyType({"margin": LogUniform(0.05, 0.2), "beta": LogUniform(8.0, 32.0)})
    defaults = MappingProxyType(
        {
            "features": Start(lr=0.15, weight_decay=5e-4, options={"margin": 0.2, "beta": 16.0}),
            "pixels": Start(
                lr=0.1, weight_decay=1e-4, options={"margin": 0.2, "warmup_epochs": 3, "beta": 8.0}
            ),
        }
    )

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 0.35,
        warmup_epochs: int = 0,
        beta: float = 16.0,
        learn_beta: bool = True,
        init: Init = "xavier",
        class_chunk: int | None = None,
    ) -> None:
        if not (math.isfinite(margin) and margin >= 0):
            raise ValueError(f"margin must be finite and at least 0, got {margin!r}")
        super().__init__(
            dim,
            num_classes,
            margin=margin,
            warmup_epochs=warmup_epochs,
            beta=beta,
            learn_beta=learn_beta,
            init=init,
            class_chunk=class_chunk,
        )

    def _target_margin(
        self,
        z: Float[Tensor, "batch dim"],  # noqa: ARG002 (one for all)
        norms: Float[Tensor, " batch"] | None = None,  # noqa: ARG002
    ) -> Margin:
        return Margin(shift=self.margin)
