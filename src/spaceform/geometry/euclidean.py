"""Euclidean space: curvature 0."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.geometry.base import Geometry, Ranking, alike


@final
@dataclass(frozen=True)
class Euclidean(Geometry):
    """−‖z − z₂‖."""

    kind, title = "euclidean", "Euclidean space"

    def similarity(
        self, z: Float[Tensor, "*#batch dim"], z2: Float[Tensor, "*#batch dim"]
    ) -> Float[Tensor, "*#batch"]:
        """−‖z − z₂‖ of aligned pairs."""
        z, z2 = alike(z, z2)
        return -torch.linalg.vector_norm(z - z2, dim=-1)

    def pairwise(self, z: Float[Tensor, "n dim"], z2: Float[Tensor, "m dim"]) -> Float[Tensor, "n m"]:
        """−‖zᵢ − z₂ⱼ‖ from exact differences."""
        return -torch.cdist(*alike(z, z2, axes=2), compute_mode="donot_use_mm_for_euclid_dist")

    def ranking(self, z: Float[Tensor, "n dim"]) -> Ranking:
        """⟨zᵢ, zⱼ⟩ − ½‖zⱼ‖² = ½‖zᵢ‖² − ½‖zᵢ − zⱼ‖²."""
        return Ranking(z, z.new_ones(len(z)), z.square().sum(-1) / 2)

    def midpoint(self, z: Float[Tensor, "*batch n dim"]) -> Float[Tensor, "*batch dim"]:
        """The mean."""
        return z.mean(-2)
