"""One score for unknown items that are like no training item, like no class, between classes, or too large.

A score that finds one kind well misses another: distances find photos of other things, but miss a new kind of
bird among a hundred birds, where what tells classes apart does better.
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.decisions._left_out import AnswerScale, HeldOutItems, TrainingItems, weights
from spaceform.decisions._relative import ClassMeans, Discriminant, leading, relative, scatter
from spaceform.decisions.unknown import Items, Known, UnknownScore
from spaceform.decisions.unknown_distance import fitted_buffer, nearest_squared, shrunk
from spaceform.geometry import Geometry
from spaceform.geometry.base import direction
from spaceform.heads.base import log_mean_softmax
from spaceform.metrics.inputs import as_finite, as_labels, on_cpu

_MOST = 128
"""The most principal directions of the embeddings that are kept, and the most directions that tell classes
apart; the part outside the principal directions counts by its length.
"""
_ITEMS = 4
"""The fewest training items for each principal direction that is kept."""
_WIDEST = 2048
"""Embeddings of a higher dimension are first projected on 512 principal directions."""
_PROJECTED = 512
_DOUBLE = 512
"""Up to this dimension, sums over the items are of double precision."""
_BEYOND = 20.0
"""Spreads that an item loses for each doubling of the largest norm or reach that was seen, after the first.
Rows of three small tables times 1000 are then below all known rows.
"""
_FAR, _STEEP = 2.0, 5.0
"""An item that is like no training item loses so much for each spread beyond the first two."""

_MAY_BE_INFINITE, _POSITIVE = ("rest", "farthest"), ("rest", "scale", "background")


@final
class Combined(UnknownScore):
    """The sum of four answers, each in spreads of the held-out items of known classes.

    How near is the item to the training items as a whole, by the Mahalanobis distance to their mean? How much
    nearer is it to its nearest class (the relative distance of Ren et al. 2021)? How sure is the head: minus
    the entropy of its probabilities? How near is the item to the mean of its nearest class? Directions of
    embeddings are compared, whatever the geometry.

    Which answer counts most depends on the data. So each fifth of the classes is left out in turn, and an
    answer weighs as much as it tells their held-out items from the others. Classes that are left out are near
    to the others. Therefore the first answer counts more where it is more than two spreads low.

    Directions do not tell how large an item is. So an item loses 20 spreads for each doubling of the largest
    norm of the training embeddings, and for each doubling of the largest reach of the held-out rows, where
    these are known. The first doubling is free: a new known item goes beyond n others with a probability of
    1/(n + 1), and mostly by little. `fit` needs the held-out items.
    """

    name = "combined"
    mean: Float[Tensor, " dim"]
    basis: Float[Tensor, "dim kept"]
    background: Float[Tensor, " kept"]
    """Variances along the principal directions."""
    rest: Float[Tensor, ""]
    """The mean variance along the others."""
    within: Float[Tensor, "dim apart"]
    """Directions that tell classes apart, of variance 1 within classes."""
    spread: Float[Tensor, " apart"]
    """Variances of class means along them."""
    centres: Float[Tensor, "classes apart"]
    class_means: Float[Tensor, "classes kept"]
    centre: Float[Tensor, "4"]
    scale: Float[Tensor, "4"]
    weight: Float[Tensor, "4"]
    longest: Float[Tensor, ""]
    """The largest norm of training embeddings."""
    farthest: Float[Tensor, ""]
    """The largest reach of held-out items; infinite where it is not known."""

    def __init__(self, geometry: Geometry | None = None) -> None:
        super().__init__(geometry)
        names = ("mean", "basis", "background", "rest", "within", "spread", "centres")
        for name in (*names, "class_means", "centre", "scale", "weight"):
            self.register_buffer(name, torch.empty(0))
        for name in ("longest", "farthest"):
            self.register_buffer(name, torch.tensor(torch.inf))

    def _fit(self, z: Float[Tensor, "n dim"], y: Int[Tensor, " n"], held_out: Known | None) -> None:
        if held_out is None:
            raise ValueError(
                "the combined score weighs its parts by held-out items; pass held_out=Known(...)"
            )
        x = direction(z)
        x = x.double() if x.shape[1] <= _DOUBLE else x
        mean = x.mean(0)
        x = x - mean
        n, d = x.shape
        whole, into = x.square().sum().double() / n, None
        if d > _WIDEST:
            into, _ = leading(lambda B: x.T @ (x @ B) / n, x.T, min(_PROJECTED, n))
            x = x @ into
        S, means = scatter(x), ClassMeans.of(x, y)
        B, background = leading(lambda B: S @ B, S, min(_MOST, x.shape[1], max(1, n // _ITEMS)))
        rest = _rest(whole, background.double(), d)
        background = shrunk(torch.diag(background.clamp_min(0)), n).diagonal()
        scaled = (means.mean * means.share.sqrt()[:, None]).to(S)
        classes = Discriminant.of(S - scaled.T @ scaled, means, n, _MOST)
        for name, value in {
            "mean": mean,
            "basis": _from(into, B),
            "background": background,
            "rest": rest,
            "within": _from(into, classes.directions),
            "spread": classes.spread,
            "centres": means.mean @ classes.directions,
            "class_means": means.mean @ B.double(),
            "longest": _norm(z).amax(),
        }.items():
            setattr(self, name, value.to(z.dtype))
        train = TrainingItems(y, (x @ B).double(), rest, means.mean @ B.double(), means.labels, means.share)
        self._weigh(held_out, train, classes._replace(points=_from(into, classes.points)))

    def _weigh(self, held_out: Known, train: TrainingItems, classes: Discriminant) -> None:
        """Scale and weigh the answers by held-out items."""
        z, L = _checked(held_out, int(train.labels.max()))
        z, L = z.to(self.mean), L.to(self.mean)
        scale = AnswerScale.of(self._answers(z, L))
        x = (direction(z) - self.mean).double()
        own = x @ self.basis.double()
        held = HeldOutItems(
            as_labels(held_out.y, "held_out.y", len(z), L.shape[-1]).to(z.device),
            own,
            (x.square().sum(-1) - own.square().sum(-1)).clamp_min(0),
            x @ classes.points,
            log_mean_softmax(L).double(),
        )
        weight = weights(held, train, classes)
        for name, value in {"centre": scale.centre, "scale": scale.spread, "weight": weight}.items():
            setattr(self, name, value.to(z.dtype))
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
        """Of each buffer, where embeddings have this dimension."""
        kept, apart, classes = self.background.shape[-1:], self.spread.shape[-1:], self.centres.shape[:1]
        shapes = {"mean": (dim,), "basis": (dim, *kept), "background": (*kept,), "within": (dim, *apart)}
        shapes |= {"spread": (*apart,), "centres": (*classes, *apart), "rest": (), "longest": ()}
        shapes |= {"centre": (4,), "scale": (4,), "weight": (4,), "farthest": ()}
        return shapes | {"class_means": (*classes, *kept)}

    def weigh_as(self, others: Sequence["Combined"]) -> "Combined":
        """Take the mean weights of other scores: the model of this one has seen their held-out items."""
        for name in ("centre", "scale", "weight"):
            setattr(self, name, torch.stack([getattr(other, name) for other in others]).mean(0))
        self.farthest = torch.stack([other.farthest for other in others]).amax()
        return self

    def _score(self, items: Items) -> Float[Tensor, " batch"]:
        z = items.z
        a = (self._answers(z, items.logits) - self.centre.to(z)) / self.scale.to(z)
        s = a @ self.weight.to(z) + _STEEP * (a[:, 0] + _FAR).clamp_max(0)
        s = s - _BEYOND * _far_beyond(_norm(z), self.longest)
        if items.reach is not None:
            return s - _BEYOND * _far_beyond(items.reach.to(z), self.farthest)
        if not torch.compiler.is_compiling() and on_cpu(self.farthest) and bool(self.farthest.isfinite()):
            raise ValueError("the combined score was fitted with reach; pass reach=net.reach(x) of the items")
        return s

    def _answers(
        self, z: Float[Tensor, "batch dim"], L: Float[Tensor, "draws batch classes"]
    ) -> Float[Tensor, "batch 4"]:
        """(near the training items, nearer to a class, sure, near a class), each higher for known items."""
        x = direction(z) - fitted_buffer(self.mean, z, self.name)
        kept = x @ self.basis.to(z)
        outside = (x.square().sum(-1) - kept.square().sum(-1)).clamp_min(0)
        apart = (kept.square() / self.background.to(z)).sum(-1)
        nearer = relative(x @ self.within.to(z), self.centres.to(z), self.spread.to(z))
        log_p = log_mean_softmax(L)
        entropy = -(log_p.exp() * log_p).sum(-1)
        to_class = nearest_squared(kept, self.class_means.to(z)) + outside
        return torch.stack([-apart - outside / self.rest.to(z), nearer, -entropy.to(z), -to_class], -1)


def _norm(z: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"]:
    """‖z‖; dividing by the largest coordinate first keeps it from overflowing."""
    largest = z.abs().amax(-1)
    unit = torch.where(largest > 0, largest, 1)
    return unit * torch.linalg.vector_norm(z / unit[:, None], dim=-1)


def _far_beyond(size: Float[Tensor, " batch"], most: Float[Tensor, ""]) -> Float[Tensor, " batch"]:
    """How often 2 · `most` must be doubled to reach the size; 0 for a smaller size."""
    least = torch.finfo(size.dtype).tiny
    return (size.clamp_min(least).log2() - most.to(size).clamp_min(least).log2() - 1).clamp_min(0)


def _checked(held_out: Known, largest: int) -> tuple[Tensor, Tensor]:
    """Embeddings and logit samples of held-out items, if they have a logit for this largest label."""
    z, L = as_finite(held_out.z, "held_out.z", 2), as_finite(held_out.logits, "held_out.logits", (2, 3))
    if L.shape[-2] != len(z):
        raise ValueError(
            f"held_out.logits has {L.shape[-2]} entries for {len(z)} embeddings; the lengths must agree"
        )
    if L.shape[-1] <= largest:
        raise ValueError(
            f"held_out.logits have {L.shape[-1]} classes, but y has the label {largest}; pass the logits of "
            "the head that was trained on y"
        )
    return z, L if L.ndim == 3 else L[None]


def _from(into: Tensor | None, directions: Float[Tensor, "some kept"]) -> Float[Tensor, "dim kept"]:
    """Directions among the projected embeddings, as directions of the embeddings themselves."""
    return directions if into is None else into.to(directions) @ directions


def _rest(whole: Tensor, along: Float[Tensor, " kept"], dim: int) -> Float[Tensor, ""]:
    """The mean variance along the directions that are not kept; infinite where all are."""
    if len(along) == dim:
        return along.new_tensor(torch.inf)
    floor = torch.finfo(torch.float32).eps * whole / dim + torch.finfo(torch.float32).tiny
    return ((whole - along.sum()) / (dim - len(along))).clamp_min(floor)
