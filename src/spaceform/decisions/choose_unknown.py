"""Choose the score that finds unknown items, without any unknown items: by leaving known classes out."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.decisions.unknown import Energy, Known, OwnEvidence, UnknownScore
from spaceform.decisions.unknown_combined import Combined
from spaceform.decisions.unknown_distance import Mahalanobis, NearestNeighbours
from spaceform.geometry import Geometry
from spaceform.metrics.confidence import ood_auroc
from spaceform.metrics.inputs import TensorOrArray, as_finite, as_labels

_FOLDS = 5

UNKNOWN_SCORES: dict[str, type[UnknownScore]] = {
    kind.name: kind for kind in (Combined, Energy, OwnEvidence, NearestNeighbours, Mahalanobis)
}


class ChosenScore(NamedTuple):
    """The fitted score and, for every kind, the mean AUROC over the folds of classes."""

    score: UnknownScore
    auroc: dict[str, float]


def choose_unknown(
    z: TensorOrArray, y: TensorOrArray, held_out: Known, geometry: Geometry | None = None
) -> ChosenScore:
    """`Combined`, unless another score is clearly better at finding classes that were made unknown.

    z and y are embeddings and labels of training items. Each fifth of the classes in turn is made unknown:
    its training items are not shown to the score, its logits are taken away, and its held-out items stand for
    unknown ones. A score is clearly better where its AUROC is above by two standard errors over the folds.
    The net itself has seen these classes and holds them apart from all others. That flatters `Energy`, which
    is measured but not chosen. The chosen score is then fitted to all training items.
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
        known, foreign = ~out[labels], out[held.y]
        if not bool(foreign.any()) or bool(foreign.all()):
            continue
        number = (~out).cumsum(0) - 1  # of the classes that are left
        rest = Known(held.z, number[held.y], held.logits[..., ~out], held.confidence)
        own = Known(
            rest.z[~foreign], rest.y[~foreign], rest.logits[..., ~foreign, :], rest.confidence[~foreign]
        )
        for name, kind in UNKNOWN_SCORES.items():
            score = kind(geometry).fit(train[known], number[labels[known]], own)
            s = score(rest.z, rest.logits, rest.confidence)
            found[name].append(ood_auroc(s[~foreign], s[foreign]).item())
    if not found[Energy.name]:
        raise ValueError("held_out has items of one fold of classes alone; hold out items of every class")
    means = {name: sum(values) / len(values) for name, values in found.items()}
    best = _chosen({name: values for name, values in found.items() if name != Energy.name})
    return ChosenScore(UNKNOWN_SCORES[best](geometry).fit(train, labels, Known(*held, held_out.reach)), means)


def _chosen(found: Mapping[str, Sequence[float]]) -> str:
    """The name of the score, from the AUROC of each fold."""
    ours = np.array(found[Combined.name])
    gains = {name: np.array(values) - ours for name, values in found.items()}
    best = max(gains, key=lambda name: float(gains[name].mean()))
    folds = len(ours)
    clear = folds > 1 and gains[best].mean() > 2 * gains[best].std(ddof=1) / np.sqrt(folds)
    return best if clear else Combined.name


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
