"""How two embeddings compare: Euclidean distance, Poincaré distance, cosine. Final, frozen values.

z is always what the net emits. A geometry normalises or exponential-maps it itself.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.geometry import poincare

__all__ = ["Euclidean", "Geometry", "PoincareBall", "Ranking", "Sphere"]


@final
@dataclass(frozen=True, eq=False)
class Ranking:
    """Embeddings prepared so that one gemm orders a gallery.

    scale_i ⟨features_i, features_j⟩ − bias_j, with scale_i > 0, increases with the similarity of i and j for
    a fixed query i. The Gram matrix features·featuresᵀ is symmetric: where queries and gallery are one set,
    half of it suffices. Scores carry the rounding of a gemm, a few eps × ‖features_i‖‖features_j‖. Neighbours
    closer than that are told apart by `Geometry.similarity`, or by preparing float64 embeddings.
    """

    features: Float[Tensor, "n dim"]
    scale: Float[Tensor, " n"]
    bias: Float[Tensor, " n"]

    def __getitem__(self, rows: slice | Tensor) -> "Ranking":
        return Ranking(self.features[rows], self.scale[rows], self.bias[rows])

    def __len__(self) -> int:
        return len(self.features)

    def scores(self, gallery: "Ranking") -> Float[Tensor, "n m"]:
        """Scores of every gallery item for each of these queries, comparable along a row only."""
        return torch.addmm(gallery.bias, self.features * self.scale[:, None], gallery.features.T, beta=-1)


class Geometry(ABC):
    """A similarity of embeddings, larger for closer."""

    kind: ClassVar[str]
    """One of "euclidean", "hyperbolic" and "spherical"."""
    title: ClassVar[str]
    """What people call the space."""

    @abstractmethod
    def similarity(
        self, z: Float[Tensor, "*#batch dim"], z2: Float[Tensor, "*#batch dim"]
    ) -> Float[Tensor, "*#batch"]:
        """Similarity of aligned pairs."""

    @abstractmethod
    def pairwise(self, z: Float[Tensor, "n dim"], z2: Float[Tensor, "m dim"]) -> Float[Tensor, "n m"]:
        """Similarity of all pairs, in O(n·m) memory."""

    @abstractmethod
    def ranking(self, z: Float[Tensor, "n dim"]) -> Ranking:
        """What ordering by similarity needs, computed once per embedding."""


@final
@dataclass(frozen=True)
class Euclidean(Geometry):
    """−‖z − z₂‖."""

    kind: ClassVar[str] = "euclidean"
    title: ClassVar[str] = "Euclidean space"

    def similarity(
        self, z: Float[Tensor, "*#batch dim"], z2: Float[Tensor, "*#batch dim"]
    ) -> Float[Tensor, "*#batch"]:
        """−‖z − z₂‖ of aligned pairs."""
        z, z2 = _alike(z, z2)
        return -torch.linalg.vector_norm(z - z2, dim=-1)

    def pairwise(self, z: Float[Tensor, "n dim"], z2: Float[Tensor, "m dim"]) -> Float[Tensor, "n m"]:
        """−‖zᵢ − z₂ⱼ‖ from exact differences."""
        return -torch.cdist(*_alike(z, z2, axes=2), compute_mode="donot_use_mm_for_euclid_dist")

    def ranking(self, z: Float[Tensor, "n dim"]) -> Ranking:
        """⟨zᵢ, zⱼ⟩ − ½‖zⱼ‖² = ½‖zᵢ‖² − ½‖zᵢ − zⱼ‖²."""
        return Ranking(z, z.new_ones(len(z)), z.square().sum(-1) / 2)


@final
@dataclass(frozen=True)
class Sphere(Geometry):
    """⟨z, z₂⟩/(‖z‖‖z₂‖); the cosine with a zero embedding is 0."""

    kind: ClassVar[str] = "spherical"
    title: ClassVar[str] = "unit sphere"

    def similarity(
        self, z: Float[Tensor, "*#batch dim"], z2: Float[Tensor, "*#batch dim"]
    ) -> Float[Tensor, "*#batch"]:
        """Cosine of aligned pairs."""
        z, z2 = _alike(z, z2)
        return (_direction(z) * _direction(z2)).sum(-1)

    def pairwise(self, z: Float[Tensor, "n dim"], z2: Float[Tensor, "m dim"]) -> Float[Tensor, "n m"]:
        """Cosine of all pairs: one gemm."""
        z, z2 = _alike(z, z2, axes=2)
        return _direction(z) @ _direction(z2).T

    def ranking(self, z: Float[Tensor, "n dim"]) -> Ranking:
        """The cosine itself."""
        return Ranking(_direction(z), z.new_ones(len(z)), z.new_zeros(len(z)))


@final
@dataclass(frozen=True)
class PoincareBall(Geometry):
    """Minus the geodesic distance of the points `project(expmap0(z))` of the ball of radius 1/√curvature."""

    kind: ClassVar[str] = "hyperbolic"
    title: ClassVar[str] = "Poincaré ball"

    curvature: float

    def __post_init__(self) -> None:
        poincare.check_curvature(self.curvature)

    def point(self, z: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim"]:
        """Where the embedding lies in the ball: exponential map at 0, then projection."""
        return poincare.project(poincare.expmap0(z, self.curvature), self.curvature)

    def similarity(
        self, z: Float[Tensor, "*#batch dim"], z2: Float[Tensor, "*#batch dim"]
    ) -> Float[Tensor, "*#batch"]:
        """−d of aligned pairs."""
        z, z2 = _alike(z, z2)
        return -poincare.distance(self.point(z), self.point(z2), self.curvature)

    def pairwise(self, z: Float[Tensor, "n dim"], z2: Float[Tensor, "m dim"]) -> Float[Tensor, "n m"]:
        """−d of all pairs."""
        z, z2 = _alike(z, z2, axes=2)
        return -poincare.pairwise_distance(self.point(z), self.point(z2), self.curvature)

    def ranking(self, z: Float[Tensor, "n dim"]) -> Ranking:
        """1 − cosh(√c d)/cosh 2rᵢ, an inner product on the hyperboloid; r = √c‖z‖ up to the projection.

        cosh(√c dᵢⱼ) = cosh 2rᵢ cosh 2rⱼ − ⟨fᵢ, fⱼ⟩ with f = sinh(2r) z/‖z‖. Taken from cosh 2rᵢ it
        leaves ⟨fᵢ, fⱼ⟩ − 2 sinh²(rⱼ) cosh 2rᵢ: no 1 is lost to rounding near the origin.
        """
        r = (math.sqrt(self.curvature) * torch.linalg.vector_norm(z, dim=-1)).clamp_max(
            math.atanh(1 - poincare.MARGIN)
        )
        return Ranking(
            _direction(z) * torch.sinh(2 * r)[:, None], 1 / torch.cosh(2 * r), 2 * torch.sinh(r).square()
        )


def _alike(z: Tensor, z2: Tensor, *, axes: int | None = None) -> tuple[Tensor, Tensor]:
    """Both in the wider of their types, where they are embeddings of one dimension."""
    for name, x in (("z", z), ("z2", z2)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}; pass torch.as_tensor({name})")
        if not x.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {x.dtype}; pass {name}.float()")
        if x.ndim == 0 or x.ndim != (axes or x.ndim):
            wanted = "(items, dim)" if axes == 2 else "(..., dim)"
            raise ValueError(f"{name} must have shape {wanted}, got {tuple(x.shape)}")
    if z.shape[-1] != z2.shape[-1]:
        raise ValueError(
            f"z and z2 must have one dimension, got {z.shape[-1]} and {z2.shape[-1]}; embed both by one net"
        )
    dtype = torch.promote_types(z.dtype, z2.dtype)
    return z.to(dtype), z2.to(dtype)


def _direction(z: Tensor) -> Tensor:
    """z/‖z‖, and 0 for 0; dividing by the largest coordinate first keeps the norm from overflowing."""
    largest = z.detach().abs().amax(-1, keepdim=True)
    return torch.nn.functional.normalize(z / torch.where(largest > 0, largest, 1), dim=-1)
