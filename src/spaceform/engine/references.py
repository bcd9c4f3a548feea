"""What people would use instead of a head, chosen on the same held-out rows with as many trials.

Logistic regression on standardised features, k nearest neighbours, and for tables histogram gradient
boosting. Where three folds take turns, a setting's loss is that of all held-out rows; then the model is
fitted on all rows that are not for testing. Each gives probabilities of all classes, and what was tried.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors

from spaceform.engine.fit import Part, Rows
from spaceform.engine.search import joined

Array = NDArray[np.float64]

_FLOOR = 1e-6
"""A probability is never taken for less: a tree's leaf or k neighbours without a class are not proof."""

REFERENCES = ("logistic", "neighbours", "boosting")


@final
@dataclass(frozen=True)
class Setting:
    """One setting of a reference, and its held-out loss."""

    options: dict[str, Any]
    nll: float
    accuracy: float
    seconds: float


@final
@dataclass(frozen=True)
class Reference:
    """A chosen reference: probabilities of the rows it was asked for."""

    name: str
    settings: tuple[Setting, ...]
    best: Setting
    held_out_probabilities: Array
    """Of the held-out rows of all parts, part after part, by models that did not see them."""
    probabilities: Array
    """Of the rows asked for."""
    fit_seconds: float
    """Of the chosen model alone."""
    predict_seconds: float


def reference(
    name: str, parts: Sequence[Part], x: torch.Tensor, *, classes: int, trials: int = 16, seed: int = 0
) -> Reference:
    """Choose the setting of `name` on `parts`; predict `x`, features as they came in."""
    kind = _KINDS[name]
    settings, held_out = [], []
    for options in kind.settings(trials, parts):
        started = time.perf_counter()
        p = np.concatenate(
            [kind.fit(part.train, classes, seed, **options)(_x(part.held_out)) for part in parts]
        )
        y = np.concatenate([part.held_out.y.numpy() for part in parts])
        w = np.concatenate([part.held_out.weight.numpy() for part in parts])
        right = float(np.average(p.argmax(1) == y, weights=w))
        nll = float(np.average(-np.log(p[np.arange(len(y)), y]), weights=w))
        settings.append(Setting(options, nll, right, time.perf_counter() - started))
        held_out.append(p)
    best = min(range(len(settings)), key=lambda i: settings[i].nll)
    whole = _whole(parts)
    started = time.perf_counter()
    predict = kind.fit(whole.train, classes, seed, **settings[best].options)
    fitted = time.perf_counter()
    probabilities = predict(whole.inputs(x).numpy())
    ended = time.perf_counter()
    return Reference(
        name,
        tuple(settings),
        settings[best],
        held_out[best],
        probabilities,
        fitted - started,
        ended - fitted,
    )


def _whole(parts: Sequence[Part]) -> Part:
    """All rows that are not for testing: as a run on features is trained in the end."""
    raw = [_raw(part.held_out, part) for part in parts]
    if len(parts) == 1:  # of folds, those held out are all the rows there are
        raw.append(_raw(parts[0].train, parts[0]))
    rows = reduce(joined, raw)
    return Part.of(rows, rows)


def _x(rows: Rows) -> NDArray[Any]:
    x: NDArray[Any] = rows.x.numpy()
    return x


def _raw(rows: Rows, part: Part) -> Rows:
    inverse = part.inputs.inverse
    x = rows.x / inverse.masked_fill(inverse == 0, 1.0) + part.inputs.mean
    return Rows(x, rows.y, rows.weight)


_Predict = Callable[[NDArray[Any]], Array]


@final
@dataclass(frozen=True)
class _Kind:
    settings: Callable[[int, Sequence[Part]], list[dict[str, Any]]]
    fit: Callable[..., _Predict]


def _spread(p: NDArray[Any], labels: NDArray[Any], classes: int) -> Array:
    """Probabilities of all classes, also of those without a training row, none of them zero."""
    full = np.full((len(p), classes), _FLOOR)
    full[:, labels] = np.maximum(p, _FLOOR)
    whole: Array = full / full.sum(1, keepdims=True)
    return whole


def _sklearn(model: ClassifierMixin, rows: Rows, classes: int) -> _Predict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(_x(rows), rows.y.numpy(), sample_weight=rows.weight.numpy())
    return lambda x: _spread(model.predict_proba(x), model.classes_, classes)


def _logistic_settings(trials: int, parts: Sequence[Part]) -> list[dict[str, Any]]:  # noqa: ARG001
    return [{"C": float(C)} for C in np.geomspace(1e-3, 1e2, trials)]


def _logistic(rows: Rows, classes: int, seed: int, *, C: float) -> _Predict:
    return _sklearn(LogisticRegression(C=C, max_iter=300, random_state=seed), rows, classes)


def _neighbour_settings(trials: int, parts: Sequence[Part]) -> list[dict[str, Any]]:
    most = min(len(part.train) for part in parts)
    each = max(1, trials // 2)
    ks = sorted({min(most, round(k)) for k in np.geomspace(1, 100, each)})
    return [{"k": k, "metric": metric} for metric in ("cosine", "euclidean") for k in ks]


def _neighbours(rows: Rows, classes: int, seed: int, *, k: int, metric: str) -> _Predict:  # noqa: ARG001
    found = NearestNeighbors(n_neighbors=k, metric=metric).fit(_x(rows))
    labels, weight = rows.y.numpy(), rows.weight.numpy()

    def predict(x: NDArray[Any]) -> Array:
        near = found.kneighbors(x, return_distance=False)
        votes = np.zeros((len(x), classes))
        np.add.at(votes, (np.arange(len(x))[:, None], labels[near]), weight[near])
        # As if each class had had a share of one neighbour: a class without a vote is not impossible.
        return (votes + 1 / classes) / (votes.sum(1, keepdims=True) + 1)

    return predict


def _boosting_settings(trials: int, parts: Sequence[Part]) -> list[dict[str, Any]]:  # noqa: ARG001
    grid = [
        {"learning_rate": rate, "max_leaf_nodes": leaves, "l2_regularization": l2}
        for l2 in (0.0, 1.0)
        for leaves in (31, 15)
        for rate in (0.1, 0.05)
    ]
    return grid[: max(1, min(trials, 4))]


def _boosting(rows: Rows, classes: int, seed: int, **options: Any) -> _Predict:
    model = HistGradientBoostingClassifier(
        max_iter=300,
        early_stopping=len(rows) >= 500,
        validation_fraction=0.1,
        n_iter_no_change=10,
        random_state=seed,
        **options,
    )
    return _sklearn(model, rows, classes)


_KINDS = {
    "logistic": _Kind(_logistic_settings, _logistic),
    "neighbours": _Kind(_neighbour_settings, _neighbours),
    "boosting": _Kind(_boosting_settings, _boosting),
}
