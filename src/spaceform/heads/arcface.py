"""ARCFACE: the softmax of scaled cosines with an additive angular margin on the target, eq. 4."""

from types import MappingProxyType
from typing import final

from jaxtyping import Float
from torch import Tensor

from spaceform.heads._kernels.margin import Margin
from spaceform.heads.class_weights import Init
from spaceform.heads.declaration import LogUniform, Start
from spaceform.heads.margins import MarginHead, check_angle


@final
class ArcFaceHead(MarginHead):
    """The objective is that of COSINE with cos(θ_y + m) for the target; prediction leaves the margin out.

    The margin is 0 for the first `warmup_epochs` epochs: call `start_epoch` at the start of each. What it is
    now, the buffer `margin`, is part of the state dict. Past θ_y + m = π, where the cosine would rise and
    reward a larger angle, the target goes on falling as −2 − cos(θ_y + m); `literal=True` lets it rise, as
    eq. 4 and the paper's code do. The rest is as in `CosineHead`.
    """

    name, title = "arcface", "ArcFace"
    searched = MappingProxyType({"margin": LogUniform(0.05, 0.2), "beta": LogUniform(8.0, 32.0)})
    defaults = MappingProxyType(
        {
            "features": Start(lr=0.15, weight_decay=5e-4, options={"margin": 0.3, "beta": 16.0}),
            "pixels": Start(
                lr=0.1, weight_decay=1e-4, options={"margin": 0.3, "warmup_epochs": 3, "beta": 8.0}
            ),
        }
    )

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
        check_angle(margin)
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
        self.literal = literal

    def extra_repr(self) -> str:
        """The base's text, and whether eq. 4 is taken literally."""
        return super().extra_repr() + (", literal=True" if self.literal else "")

    def _target_margin(
        self,
        z: Float[Tensor, "batch dim"],  # noqa: ARG002 (one for all)
        norms: Float[Tensor, " batch"] | None = None,  # noqa: ARG002
    ) -> Margin:
        return Margin(angle=self.margin, literal=self.literal)
