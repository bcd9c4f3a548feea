"""The unit sphere: curvature 1."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from spaceform.geometry.base import Geometry, Ranking, alike, direction


@final
@dataclass(frozen=True)
class Sphere(Geometry):
    """⟨z, z₂⟩/(‖z‖‖z₂‖); the cosine with a zero embedding is 0."""

    kind, title = "spherical", "unit sphere"

    def similarity(
        self, z: Float[Tensor, "*#batch dim"], z2: Float[Tensor, "*#batch dim"]
    ) -> Float[Tensor, "*#batch"]:
        """Cosine of aligned pairs."""
        z, z2 = alike(z, z2)
        return (direction(z) * direction(z2)).sum(-1)

    def pairwise(self, z: Float[Tensor, "n dim"], z2: Float[Tensor, "m dim"]) -> Float[Tensor, "n m"]:
        """Cosine of all pairs: one gemm."""
        z, z2 = alike(z, z2, axes=2)
        return direction(z) @ direction(z2).T

    def ranking(self, z: Float[Tensor, "n dim"]) -> Ranking:
        """The cosine itself."""
        return Ranking(direction(z), z.new_ones(len(z)), z.new_zeros(len(z)))

    def midpoint(self, z: Float[Tensor, "*batch n dim"]) -> Float[Tensor, "*batch dim"]:
        """The direction of the mean of the directions: norms do not count."""
        return direction(direction(z).mean(-2))
