"""LORENTZ: softmax of signed distances to hyperplanes of the hyperboloid (Bdeir et al., 2024).

With R = √c‖z‖ and a plane whose normal is v_j, a_j away from the origin,

    logit_j = (‖v_j‖/√c) asinh(cosh(√c a_j) sinh(R) cos∠(v_j, z) − sinh(√c a_j) cosh(R)):

HYPERBOLIC in other coordinates (an embedding z there lies where 2z does here), and v_j·z − a_j‖v_j‖ as c → 0.
"""

import math
from types import MappingProxyType
from typing import Any, final

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from spaceform.geometry import Hyperboloid
from spaceform.geometry.hyperbolic import check_clip
from spaceform.heads._kernels.hyperboloid import (
    clipped,
    distance_cross_entropy,
    planes,
    points,
    signed_distances,
    working_type,
)
from spaceform.heads.base import DeterministicHead
from spaceform.heads.class_weights import Init, class_weights
from spaceform.heads.curvature import Curvature
from spaceform.heads.declaration import Choice, LogUniform, Start
from spaceform.heads.soft_labels import TrainingLogits


@final
class LorentzHead(DeterministicHead):
    """Softmax of signed distances to hyperplanes of the hyperboloid of curvature −c.

    The embedding enters by the exponential map at the origin, at the distance ‖z‖ from it, which is kept
    below 7.6/√c. The parameters are free: plane j has the normal `normals`_j and the signed distance
    `offsets`_j from the origin, which starts at 0. Near the origin the head is STANDARD with a bias, so that
    the same learning rates can be used; no gradient explodes at the boundary.

    `clip` shortens longer embeddings to this norm (Guo et al., 2022). With `learn_curvature` the curvature
    starts at `curvature` and is learned as exp of a parameter.

    Against mpmath, float32 logits are within 1e-5 of the largest logit of the same embedding: where points
    far from the origin may lie near a plane, products are taken in float64 (on the CPU, not compiled).
    """

    name, title = "lorentz", "Lorentz"
    compared = False
    searched = MappingProxyType({"curvature": LogUniform(1e-5, 1e-1), "clip": Choice((None, 10.0, 30.0))})
    defaults = MappingProxyType(
        {
            "features": Start(lr=0.03, weight_decay=5e-3, options={"curvature": 1e-3}),
            "pixels": Start(lr=0.05, weight_decay=1e-4, options={"curvature": 1e-2}),
        }
    )

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        curvature: float = 1e-2,
        learn_curvature: bool = False,
        clip: float | None = None,
        init: Init = "xavier",
        class_chunk: int | None = None,
    ) -> None:
        super().__init__(dim, num_classes, class_chunk=class_chunk)
        check_clip(clip)
        self.clip = clip
        self.normals = class_weights(num_classes, dim, init)
        self.offsets = nn.Parameter(torch.zeros(num_classes))
        self.curvature = Curvature(curvature, learn_curvature)

    @property
    def geometry(self) -> Hyperboloid:
        """The hyperboloid of the curvature that the head has now."""
        return Hyperboloid(self.curvature.value, self.clip)

    def _logits(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        return signed_distances(*self._points_and_planes(z)).to(z.dtype)

    def _training_logits(self, z: Float[Tensor, "batch dim"]) -> TrainingLogits:
        u, w, s = self._points_and_planes(z)
        return lambda _share, block: signed_distances(u, w[block], s[block]).to(z.dtype)

    def _loss(self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        return distance_cross_entropy(*self._points_and_planes(z), y, self.class_chunk).to(z.dtype)

    def _points_and_planes(
        self, z: Float[Tensor, "batch dim"]
    ) -> tuple[
        Float[Tensor, "batch dim+1"],
        Float[Tensor, "{self.num_classes} dim+1"],
        Float[Tensor, " {self.num_classes}"],
    ]:
        z = clipped(z, self.clip)
        z = z.to(working_type(z, lambda: math.sqrt(self.curvature.value), lambda: self.offsets))
        c = self.curvature(z.dtype)
        w, s = planes(self.normals.to(z.dtype), self.offsets.to(z.dtype), c)
        return points(z, c), w, s

    def numbers(self) -> dict[str, float]:
        """The curvature c, and the norm to which embeddings are clipped."""
        return {"curvature": self.curvature.value} | ({} if self.clip is None else {"clip": self.clip})

    def parameter_groups(self) -> list[dict[str, Any]]:
        """`hyperplanes`, for which weight decay has no meaning, and the curvature if it is learned."""
        return self.curvature.parameter_groups(self.normals, self.offsets)

    def extra_repr(self) -> str:
        """The base's text, and the curvature."""
        return f"{super().extra_repr()}, {self.curvature.description}, clip={self.clip}"
