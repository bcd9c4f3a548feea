"""Which score finds unknown items: asked without any, by leaving known classes out."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.decisions.unknown import Energy, OwnEvidence, UnknownScore
from spaceform.decisions.unknown_distance import Mahalanobis, NearestNeighbours
from spaceform.geometry import Geometry
from spaceform.metrics.confidence import ood_auroc
from spaceform.metrics.inputs import TensorOrArray, as_finite, as_labels

_FOLDS = 5

UNKNOWN_SCORES: dict[str, type[UnknownScore]] = {
    kind.name: kind for kind in (Energy, OwnEvidence, NearestNeighbours, Mahalanobis)
}


class Known(NamedTuple):
    """What a trained model says of items of known classes."""

    z: TensorOrArray
    """Embeddings."""
    y: TensorOrArray
    logits: TensorOrArray
    """`head.logit_samples(z)`."""
    confidence: TensorOrArray
    """`head.confidence(z)`."""


class ChosenScore(NamedTuple):
    """The fitted score and, for every kind, the mean AUROC over the folds of classes."""

    score: UnknownScore
    auroc: dict[str, float]


def choose_unknown(
    z: TensorOrArray, y: TensorOrArray, held_out: Known, geometry: Geometry | None = None
) -> ChosenScore:
    """The score that best tells held-out items of known classes from those of classes made unknown.

    z and y are embeddings and labels of training items. Each fifth of the classes in turn is made unknown:
    its training items are not shown to the score, its logits are taken away, and its held-out items stand for
    unknown ones. The net itself has seen these classes, so this says which score to prefer and not how well
    it will do. What ignores classes, as `OwnEvidence` does, finds none of them and is chosen only where
    nothing else finds any. The chosen score is then fitted to all training items.
    """
    held = _checked(held_out)
    classes = held.logits.shape[-1]
    train = as_finite(z, "z", 2).cpu()
    labels = as_labels(y, "y", len(train), classes).cpu()
    if classes < 4:
        raise ValueError(f"leaving classes out needs at least 4 classes, got {classes}; name a score instead")
    fold = torch.randperm(classes, generator=torch.Generator().manual_seed(0)) % min(_FOLDS, classes // 2)
    found: dict[str, list[float]] = {name: [] for name in UNKNOWN_SCORES}
    for k in range(int(fold.max()) + 1):
        out = fold == k
        foreign = out[held.y]
        if not bool(foreign.any()) or bool(foreign.all()):
            continue
        for name, kind in UNKNOWN_SCORES.items():
            known = ~out[labels]
            score = kind(geometry).fit(train[known], labels[known])
            s = score(held.z, held.logits[..., ~out], held.confidence)
            found[name].append(ood_auroc(s[~foreign], s[foreign]).item())
    if not found[Energy.name]:
        raise ValueError("held_out has items of one fold of classes alone; hold out items of every class")
    means = {name: sum(values) / len(values) for name, values in found.items()}
    best = max(means, key=lambda name: means[name])
    return ChosenScore(UNKNOWN_SCORES[best](geometry).fit(train, labels), means)


class _Tensors(NamedTuple):
    z: Float[Tensor, "n dim"]
    y: Int[Tensor, " n"]
    logits: Float[Tensor, "... n classes"]
    confidence: Float[Tensor, " n"]


def _checked(items: Known) -> _Tensors:
    z = as_finite(items.z, "held_out.z", 2)
    logits = as_finite(items.logits, "held_out.logits", (2, 3)).cpu()
    y = as_labels(items.y, "held_out.y", len(z), logits.shape[-1]).cpu()
    return _Tensors(z.cpu(), y, logits, as_finite(items.confidence, "held_out.confidence", 1).cpu())
