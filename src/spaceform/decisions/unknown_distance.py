"""Items are unknown if they lie far from the training items: from the nearest, or from the nearest class."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.decisions.unknown import Items, Known, UnknownScore
from spaceform.geometry import Geometry
from spaceform.geometry.base import direction

_BLOCK = 1 << 22  # similarities held at a time


@final
class NearestNeighbours(UnknownScore):
    """Similarity to the k-th nearest training item, in the geometry (Sun et al. 2022)."""

    name = "nearest_neighbours"
    items: Float[Tensor, "n dim"]

    def __init__(self, geometry: Geometry | None = None, *, k: int = 10) -> None:
        super().__init__(geometry)
        if k < 1:
            raise ValueError(f"k must be at least 1, got {k}")
        self.k = k
        self.register_buffer("items", torch.empty(0, 0))

    def _fit(
        self,
        z: Float[Tensor, "n dim"],
        y: Int[Tensor, " n"],  # noqa: ARG002
        held_out: Known | None,  # noqa: ARG002
    ) -> None:
        if len(z) < self.k:
            raise ValueError(f"k = {self.k} nearest items need as many training items, got {len(z)}")
        self.items = z.clone()

    def _score(self, items: Items) -> Float[Tensor, " batch"]:
        seen = fitted_buffer(self.items, items.z, self.name)
        if torch.compiler.is_compiling():
            return self._nearness(items.z, seen)
        rows = max(1, _BLOCK // len(seen))
        return torch.cat([self._nearness(part, seen) for part in items.z.split(rows)])

    def _nearness(
        self, z: Float[Tensor, "batch dim"], items: Float[Tensor, "n dim"]
    ) -> Float[Tensor, " batch"]:
        return self.geometry.pairwise(z, items).topk(self.k, -1).values[:, -1]


@final
class Mahalanobis(UnknownScore):
    """Minus the squared Mahalanobis distance to the nearest class mean (Lee et al. 2018).

    All classes share one covariance, shrunk towards a multiple of the identity by the oracle-approximating
    rule (Chen et al. 2010), so that few items do not make it singular. On the sphere directions are compared,
    elsewhere the embeddings themselves.
    """

    name = "mahalanobis"
    means: Float[Tensor, "classes dim"]
    whitening: Float[Tensor, "dim dim"]

    def __init__(self, geometry: Geometry | None = None) -> None:
        super().__init__(geometry)
        self.register_buffer("means", torch.empty(0, 0))
        self.register_buffer("whitening", torch.empty(0, 0))

    def _fit(
        self,
        z: Float[Tensor, "n dim"],
        y: Int[Tensor, " n"],
        held_out: Known | None,  # noqa: ARG002
    ) -> None:
        means, W = classes_whitened(self._point(z).double(), y)
        self.whitening, self.means = W.to(z.dtype), means.to(z.dtype)

    def _score(self, items: Items) -> Float[Tensor, " batch"]:
        z = items.z
        means = fitted_buffer(self.means, z, self.name)
        return -nearest_squared(self._point(z) @ self.whitening.to(z), means)

    def _point(self, z: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
        return direction(z) if self.geometry.kind == "spherical" else z


def classes_whitened(
    x: Float[Tensor, "n dim"], y: Int[Tensor, " n"]
) -> tuple[Float[Tensor, "classes dim"], Float[Tensor, "dim dim"]]:
    """(means of the classes times W, W), where W Wᵀ is the inverse of the covariance within classes."""
    _, ids, sizes = torch.unique(y, return_inverse=True, return_counts=True)
    means = x.new_zeros(len(sizes), x.shape[1]).index_add_(0, ids, x) / sizes[:, None]
    W = whitening(x - means[ids])
    return means @ W, W


def whitening(x: Float[Tensor, "n dim"]) -> Float[Tensor, "dim dim"]:
    """W with W Wᵀ the inverse of the shrunk covariance Σ of centred x: U⁻¹ of Σ = Uᵀ U."""
    return torch.linalg.inv(torch.linalg.cholesky(shrunk_covariance(x), upper=True))


def nearest_squared(x: Float[Tensor, "batch dim"], points: Float[Tensor, "m dim"]) -> Float[Tensor, " batch"]:
    """Squared distance to the nearest of the points."""
    cross = x @ points.T - points.square().sum(-1) / 2
    return x.square().sum(-1) - 2 * cross.amax(-1)


def shrunk_covariance(x: Float[Tensor, "n dim"]) -> Float[Tensor, "dim dim"]:
    """Of centred x, by `shrunk`."""
    return shrunk(x.T @ x / len(x), len(x))


def shrunk(S: Float[Tensor, "dim dim"], n: int) -> Float[Tensor, "dim dim"]:
    """(1 − ρ) S + ρ (tr S/d) I of the covariance of n items, with the ρ of Chen et al. 2010, eq. 23."""
    d = len(S)
    mean_square, level = S.square().mean(), S.trace() / d
    floor = torch.finfo(S.dtype).eps
    if not bool(level > floor):
        return torch.eye(d).to(S)  # all items of a class are one point: distances are plain ones
    denominator = (n + 1) * (mean_square - level.square() / d)
    ρ = ((mean_square + level.square()) / denominator.clamp_min(floor * level.square())).clamp_max(1)
    return (1 - ρ) * S + (ρ + floor) * level * torch.eye(d).to(S)


def fitted_buffer(buffer: Tensor, z: Float[Tensor, "batch dim"], name: str) -> Tensor:
    if buffer.numel() == 0:
        raise ValueError(f"the {name} score has not been fitted; call fit(z, y) with training items")
    if buffer.shape[-1] != z.shape[1]:
        raise ValueError(
            f"z has dimension {z.shape[1]}, but the {name} score was fitted to {buffer.shape[-1]}"
        )
    return buffer.to(z)
