"""The base of all geometries: a similarity of embeddings, and a way to order a gallery by it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor


@final
@dataclass(frozen=True, eq=False)
class Ranking:
    """Embeddings prepared so that one gemm orders a gallery.

    scale_i ⟨features_i, features_j⟩ − bias_j, with scale_i > 0, increases with the similarity of i and j for
    a fixed query i. The Gram matrix features·featuresᵀ is symmetric: if queries and gallery are the same set,
    half of it suffices. Scores have the rounding of a gemm, a few eps × ‖features_i‖‖features_j‖. To order
    neighbours that are closer than this, use `Geometry.similarity` or float64 embeddings.
    """

    features: Float[Tensor, "n dim"]
    scale: Float[Tensor, " n"]
    bias: Float[Tensor, " n"]

    def __getitem__(self, rows: slice | Tensor) -> "Ranking":
        return Ranking(self.features[rows], self.scale[rows], self.bias[rows])

    def __len__(self) -> int:
        return len(self.features)

    def scores(self, gallery: "Ranking") -> Float[Tensor, "n m"]:
        """Scores of every gallery item for each of these queries; scores of two rows cannot be compared."""
        return torch.addmm(gallery.bias, self.features * self.scale[:, None], gallery.features.T, beta=-1)


class Geometry(ABC):
    """A similarity of embeddings; closer embeddings have a larger one."""

    kind: ClassVar[Literal["euclidean", "hyperbolic", "spherical"]]
    """The kind of space, by the sign of its curvature."""
    title: ClassVar[str]
    """The name in tables and figures."""

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
        """What is needed to order by similarity, computed once for each embedding."""

    @abstractmethod
    def midpoint(self, z: Float[Tensor, "*batch n dim"]) -> Float[Tensor, "*batch dim"]:
        """The embedding in the middle of n embeddings: their prototype."""


def alike(z: Tensor, z2: Tensor, *, axes: int | None = None) -> tuple[Tensor, Tensor]:
    """Both embeddings in the wider of their types, after a check of their shapes and types."""
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


def direction(z: Tensor) -> Tensor:
    """z/‖z‖, and 0 for 0; dividing by the largest coordinate first keeps the norm from overflowing."""
    largest = z.detach().abs().amax(-1, keepdim=True)
    return torch.nn.functional.normalize(z / torch.where(largest > 0, largest, 1), dim=-1)
