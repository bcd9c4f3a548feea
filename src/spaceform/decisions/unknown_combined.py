"""One score for unknown items that are like no training item, like no class, between classes, or too large.

A score that finds one kind well misses another: distances find photos of other things, but miss a new kind of
bird among a hundred birds, where the probabilities of the head do better.
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.decisions.unknown import Items, Known, UnknownScore
from spaceform.decisions.unknown_distance import (
    classes_whitened,
    fitted_buffer,
    nearest_squared,
    whitening,
)
from spaceform.geometry import Geometry
from spaceform.geometry.base import direction
from spaceform.heads.base import log_mean_softmax
from spaceform.metrics.inputs import on_cpu

_MOST = 128
"""The most principal directions of the embeddings that are kept; the part outside counts by its length. With
all 2,048 directions of CUB-200 the AUROC is 0.04 higher, but the score takes 33 MB instead of 1 MB.
"""
_ITEMS = 4
"""The fewest training items for each direction that is kept."""
_EXACT = 512
"""Up to this dimension all directions are computed. Beyond it the first are found by two steps of subspace
iteration (Halko et al. 2011).
"""
_BEYOND = 20.0
"""Standard deviations that an item loses for each doubling of the largest norm or reach that was seen, after
the first. Known rows of three small tables have scores of -28 to 3: a row with six times the largest reach is
below them all. Without the free doubling the AUROC on FashionMNIST is 0.0004 lower.
"""

_MAY_BE_INFINITE, _POSITIVE = ("rest", "farthest"), ("rest", "scale")


@final
class Combined(UnknownScore):
    """The sum of three answers, each in standard deviations of the held-out items of known classes.

    How near is the item to the training items as a whole, by the Mahalanobis distance to their mean? How much
    nearer is it to its nearest class (the relative distance of Ren et al. 2021)? How sure is the head: minus
    the entropy of its probabilities? Directions of embeddings are compared, whatever the geometry.

    Directions do not tell how large an item is. So an item loses 20 standard deviations for each doubling of
    the largest norm of the training embeddings, and for each doubling of the largest reach of the held-out
    rows, where these are known. The first doubling is free: a new known item goes beyond n others with a
    probability of 1/(n + 1), and mostly by little. `fit` needs the held-out items.
    """

    name = "combined"
    mean: Float[Tensor, " dim"]
    basis: Float[Tensor, "dim kept"]
    rest: Float[Tensor, ""]
    background: Float[Tensor, "kept kept"]
    within: Float[Tensor, "kept kept"]
    centres: Float[Tensor, "classes kept"]
    centre: Float[Tensor, "3"]
    scale: Float[Tensor, "3"]
    longest: Float[Tensor, ""]
    """The largest norm of training embeddings."""
    farthest: Float[Tensor, ""]
    """The largest reach of held-out items; infinite where it is not known."""

    def __init__(self, geometry: Geometry | None = None) -> None:
        super().__init__(geometry)
        for name in ("mean", "basis", "rest", "background", "within", "centres", "centre", "scale"):
            self.register_buffer(name, torch.empty(0))
        for name in ("longest", "farthest"):
            self.register_buffer(name, torch.tensor(torch.inf))

    def _fit(self, z: Float[Tensor, "n dim"], y: Int[Tensor, " n"], held_out: Known | None) -> None:
        if held_out is None:
            raise ValueError(
                "the combined score weighs its parts by held-out items; pass held_out=Known(...)"
            )
        x = direction(z).double()
        mean = x.mean(0)
        x = x - mean
        B, rest = _principal(x, min(_MOST, x.shape[1], max(1, len(x) // _ITEMS)))
        x = x @ B
        centres, W = classes_whitened(x, y)
        found = (mean, B, rest, whitening(x), W, centres)
        names = ("mean", "basis", "rest", "background", "within", "centres")
        for name, value in zip(names, found, strict=True):
            setattr(self, name, value.to(z.dtype))
        L = torch.as_tensor(held_out.logits).to(z)
        a = self._answers(torch.as_tensor(held_out.z).to(z), L if L.ndim == 3 else L[None])
        σ = a.std(0)
        self.centre, self.scale = a.mean(0), torch.where(σ > 0, σ, 1.0)
        self.longest = _norm(z).amax()
        if held_out.reach is not None:
            self.farthest = torch.as_tensor(held_out.reach).to(z).amax()

    def checked(self, dim: int | None = None) -> "Combined":
        """The score itself, after a check of its state; also for embeddings of dimension `dim`, if given."""
        for name, shape in self._shapes(self.mean.numel() if dim is None else dim).items():
            value = self.get_buffer(name)
            if value.shape != shape:
                raise ValueError(f"{name} of the score has shape {tuple(value.shape)}, not {shape}")
            bounded = value.clamp_max(1) if name in _MAY_BE_INFINITE else value
            if not value.is_floating_point() or not bool(bounded.isfinite().all()):
                raise ValueError(f"{name} of the score must hold finite numbers")
            if name in _POSITIVE and not bool((value > 0).all()):
                raise ValueError(f"{name} of the score must be positive")
        return self

    def _shapes(self, dim: int) -> dict[str, tuple[int, ...]]:
        """The shape of each buffer, for embeddings of this dimension."""
        kept, classes = self.background.shape[-1:], self.centres.shape[:1]
        square = (*kept, *kept)
        shapes = {"mean": (dim,), "basis": (dim, *kept), "background": square, "within": square}
        shapes |= {"centres": (*classes, *kept), "centre": (3,), "scale": (3,)}
        return shapes | {"rest": (), "longest": (), "farthest": ()}

    def weigh_as(self, others: Sequence["Combined"]) -> "Combined":
        """Take the mean weights of other scores: the model of this one has seen their held-out items."""
        for name in ("centre", "scale"):
            setattr(self, name, torch.stack([getattr(other, name) for other in others]).mean(0))
        self.farthest = torch.stack([other.farthest for other in others]).amax()
        return self

    def _score(self, items: Items) -> Float[Tensor, " batch"]:
        z = items.z
        s = ((self._answers(z, items.logits) - self.centre.to(z)) / self.scale.to(z)).sum(-1)
        s = s - _BEYOND * _far_beyond(_norm(z), self.longest)
        if items.reach is not None:
            return s - _BEYOND * _far_beyond(items.reach.to(z), self.farthest)
        if not torch.compiler.is_compiling() and on_cpu(self.farthest) and bool(self.farthest.isfinite()):
            raise ValueError("the combined score was fitted with reach; pass reach=net.reach(x) of the items")
        return s

    def _answers(
        self, z: Float[Tensor, "batch dim"], L: Float[Tensor, "draws batch classes"]
    ) -> Float[Tensor, "batch 3"]:
        """(near the training items, nearer to a class, sure), each higher for known items."""
        x = direction(z) - fitted_buffer(self.mean, z, self.name)
        kept = x @ self.basis.to(z)
        outside = (x.square().sum(-1) - kept.square().sum(-1)).clamp_min(0)
        apart = (kept @ self.background.to(z)).square().sum(-1)
        to_class = nearest_squared(kept @ self.within.to(z), self.centres.to(z))
        log_p = log_mean_softmax(L)
        entropy = -(log_p.exp() * log_p).sum(-1)
        return torch.stack([-apart - outside / self.rest.to(z), apart - to_class, -entropy.to(z)], -1)


def _norm(z: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"]:
    """‖z‖; dividing by the largest coordinate first keeps it from overflowing."""
    largest = z.abs().amax(-1)
    unit = torch.where(largest > 0, largest, 1)
    return unit * torch.linalg.vector_norm(z / unit[:, None], dim=-1)


def _far_beyond(size: Float[Tensor, " batch"], most: Float[Tensor, ""]) -> Float[Tensor, " batch"]:
    """How often 2 · `most` must be doubled to reach the size; 0 for a smaller size."""
    least = torch.finfo(size.dtype).tiny
    return (size.clamp_min(least).log2() - most.to(size).clamp_min(least).log2() - 1).clamp_min(0)


def _principal(x: Float[Tensor, "n dim"], kept: int) -> tuple[Float[Tensor, "dim kept"], Float[Tensor, ""]]:
    """The first principal directions of centred x, and the mean variance along the others."""
    n, d = x.shape
    if d <= _EXACT:
        B = torch.linalg.eigh(x.T @ x / n).eigenvectors[:, -kept:]
    else:
        start = torch.randn(d, kept, generator=torch.Generator().manual_seed(0), dtype=x.dtype).to(x.device)
        B = torch.linalg.qr(start).Q
        for _ in range(2):
            B = torch.linalg.qr(x.T @ (x @ B)).Q
    if kept == d:
        return B, x.new_tensor(torch.inf)
    whole = x.square().sum() / n
    rest = (whole - (x @ B).square().sum() / n) / (d - kept)
    return B, rest.clamp_min(torch.finfo(torch.float32).eps * whole / d + torch.finfo(torch.float32).tiny)
