"""SUB-CENTRE ARCFACE: several centres for each class, for labels that may be wrong (Deng et al., 2020)."""

import math
from types import MappingProxyType
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor, nn

from spaceform.heads._checks import checked_labels, is_positive_integer
from spaceform.heads._kernels.margin import Margin
from spaceform.heads.class_weights import Init, class_weights
from spaceform.heads.declaration import Choice, LogUniform, Start
from spaceform.heads.margins import MarginHead, check_angle
from spaceform.special._precision import no_autocast

SUSPECT = math.radians(75)
"""Examples farther than this from the dominant centre of their label are suspect (Deng et al., 2020)."""


@final
class SubCentreArcFaceHead(MarginHead):
    """ArcFace with `centres` weights for each class; cos θ_j is the cosine with the nearest of them.

    `weight` has the shape (centres, classes, dim). Most examples of a class gather at one centre, the
    dominant centre; examples with a wrong label tend to go to another centre. After training,
    `dominant_centres` gives the dominant centre of each class, and `suspects` lists examples that lie far
    from it: their labels should be checked. `spaceform suspects RUN` does this for a run. Margin, warm-up and
    prediction are those of `ArcFaceHead`; with one centre the whole head is.
    """

    name, title = "subcentre_arcface", "Sub-centre ArcFace"
    compared = False
    searched = MappingProxyType(
        {"margin": LogUniform(0.05, 0.2), "beta": LogUniform(8.0, 32.0), "centres": Choice((3, 2))}
    )
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
        centres: int = 3,
        margin: float = 0.5,
        warmup_epochs: int = 0,
        literal: bool = False,
        beta: float = 16.0,
        learn_beta: bool = True,
        init: Init = "xavier",
        class_chunk: int | None = None,
    ) -> None:
        check_angle(margin)
        if not is_positive_integer(centres):
            raise ValueError(f"centres must be a positive integer, got {centres!r}")
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
        self.centres = centres
        self.literal = literal
        with torch.no_grad():
            others = [class_weights(num_classes, dim, init) for _ in range(centres - 1)]
            self.weight = nn.Parameter(torch.stack([self.weight, *others]))

    def numbers(self) -> dict[str, float]:
        """The base's numbers, and how many centres a class has."""
        return {**super().numbers(), "centres": self.centres}

    def extra_repr(self) -> str:
        """The base's text, and the number of centres."""
        literal = ", literal=True" if self.literal else ""
        return f"{super().extra_repr()}, centres={self.centres}{literal}"

    def _target_margin(
        self,
        z: Float[Tensor, "batch dim"],  # noqa: ARG002 (one for all)
        norms: Float[Tensor, " batch"] | None = None,  # noqa: ARG002
    ) -> Margin:
        return Margin(angle=self.margin, literal=self.literal)

    @torch.no_grad()
    def dominant_centres(
        self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"]
    ) -> Integer[Tensor, " classes"]:
        """For each class, the centre nearest to most of its examples; 0 for a class without examples."""
        return self._dominant(self._own_cosines(z, y), y)

    @torch.no_grad()
    def angles(
        self,
        z: Float[Tensor, "batch dim"],
        y: Integer[Tensor, " batch"],
        *,
        centres: Integer[Tensor, " classes"] | None = None,
    ) -> Float[Tensor, " batch"]:
        """The angle, in radians, between each embedding and a centre of its label.

        `centres` names one centre of each class; None takes the dominant centres of these examples.
        """
        return self._cosines(z, y, centres).clamp(-1, 1).arccos()

    @torch.no_grad()
    def suspects(
        self,
        z: Float[Tensor, "batch dim"],
        y: Integer[Tensor, " batch"],
        *,
        angle: float = SUSPECT,
        centres: Integer[Tensor, " classes"] | None = None,
    ) -> Integer[Tensor, " suspects"]:
        """Rows farther than `angle`, in radians, from the dominant centre of their label, farthest first.

        `centres` as in `angles`: give those of the training examples to judge others.
        """
        if not 0 <= angle <= math.pi:
            raise ValueError(f"angle must lie in [0, π], in radians, got {angle!r}")
        cos = self._cosines(z, y, centres)
        order = cos.argsort()
        return order[cos[order] < math.cos(angle)]

    def _cosines(
        self,
        z: Float[Tensor, "batch dim"],
        y: Integer[Tensor, " batch"],
        centres: Integer[Tensor, " classes"] | None,
    ) -> Float[Tensor, " batch"]:
        """The cosine of each embedding with the centre of its own label."""
        cos = self._own_cosines(z, y)
        centres = self._dominant(cos, y) if centres is None else centres
        return cos.gather(1, centres[y.long()][:, None])[:, 0]

    def _own_cosines(
        self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"]
    ) -> Float[Tensor, "batch centres"]:
        """The cosine of each embedding with every centre of its own label."""
        z, y = self._checked(z), checked_labels(y, z, self.num_classes)
        with no_autocast(z):
            u = F.normalize(self._promote(z), dim=1)
            w = F.normalize(self.weight.to(u.dtype), dim=-1)
            return torch.stack([torch.linalg.vecdot(u, centre[y]) for centre in w], 1)

    def _dominant(
        self, cos: Float[Tensor, "batch centres"], y: Integer[Tensor, " batch"]
    ) -> Integer[Tensor, " classes"]:
        nearest = y.long() * self.centres + cos.argmax(1)
        counts = torch.bincount(nearest, minlength=self.num_classes * self.centres)
        return counts.view(self.num_classes, self.centres).argmax(1)
