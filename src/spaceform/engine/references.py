"""What people would use instead of a head, chosen on the same held-out rows.

There are logistic regression on standardised features, k nearest neighbours, and for tables histogram
gradient boosting. Where three folds take turns, the loss of a setting is taken over all held-out rows. In the
end the model is fitted on all rows that are not for testing. Each reference gives probabilities of all
classes, and what was tried.

Logistic regression and neighbours get as many settings as a head has candidates; logistic regression stops
earlier when the loss has clearly begun to rise. Boosting gets four settings.

For retrieval the reference needs no fit: the features as they came in, compared by their cosine.

scikit-learn takes seconds to import, so that each reference imports what it needs.
"""

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from spaceform.engine.rows import Rows, TrainingSplit, joined
from spaceform.engine.space import NARROW

_Floats = NDArray[np.float64]

_FLOOR = 1e-6
"""The least probability: that a class is missing in a leaf or among k neighbours proves nothing."""

_RISES = 3
"""A search along a valley ends after this many losses in a row above the lowest."""

_MOST_NEIGHBOURS = 100

_ASKED = 8192
"""Rows that are predicted at a time."""

_LAST_STEPS = 50
"""The most steps of the last fit, of all rows. It starts from the solution of a part, and on photo features
converges in 20 to 50 steps.
"""

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
    """A reference with its best setting, and the probabilities that it gives."""

    name: str
    settings: tuple[Setting, ...]
    best: Setting
    held_out_probabilities: _Floats
    """Those of the held-out rows of all parts, part after part, by models that did not see these rows."""
    probabilities: _Floats
    """Those of the rows it was asked about."""
    fit_seconds: float
    """The time of the last fit alone, with the best setting."""
    predict_seconds: float


def reference(
    name: str,
    parts: Sequence[TrainingSplit],
    x: torch.Tensor,
    *,
    classes: int,
    trials: int = 16,
    seed: int = 0,
) -> Reference:
    """Choose the setting of `name` on `parts`, and predict `x` (features that are not standardised).

    Settings run from simple to complex. Where the loss falls and then rises along them, as it does along C,
    the search ends when it has risen three times in a row.
    """
    kind = _KINDS[name]
    y = np.concatenate([part.held_out.y.numpy() for part in parts])
    w = np.concatenate([part.held_out.weight.numpy() for part in parts])
    families = [kind.family(part.train, classes, seed) for part in parts]
    held_out = [_x(part.held_out) for part in parts]
    settings: list[Setting] = []
    best, best_p, found = 0, np.empty((0, classes)), None
    for options in kind.settings(trials, parts):
        started = time.perf_counter()
        p = np.concatenate([f.predict(h, **options) for f, h in zip(families, held_out, strict=True)])
        right = float(np.average(p.argmax(1) == y, weights=w))
        nll = float(np.average(-np.log(p[np.arange(len(y)), y]), weights=w))
        settings.append(Setting(options, nll, right, time.perf_counter() - started))
        if nll <= settings[best].nll:
            best, best_p, found = len(settings) - 1, p, families[0].found()
        if kind.one_valley and len(settings) - 1 - best >= _RISES:
            break
    del families, held_out  # models and rows of the parts: memory that all rows take now
    whole = _whole(parts)
    started = time.perf_counter()
    chosen = kind.family(whole.train, classes, seed)
    chosen.start = found
    chosen.predict(whole.inputs(x[:1]).numpy(), **settings[best].options)
    fitted = time.perf_counter()
    blocks = (whole.inputs(some).numpy() for some in x.split(_ASKED))
    probabilities = np.concatenate([chosen.predict(some, **settings[best].options) for some in blocks])
    ended = time.perf_counter()
    times = fitted - started, ended - fitted
    return Reference(name, tuple(settings), settings[best], best_p, probabilities, *times)


def _whole(parts: Sequence[TrainingSplit]) -> TrainingSplit:
    """All rows that are not for testing. A run on features is trained on the same rows in the end."""
    raw = [_raw(part.held_out, part) for part in parts]
    if len(parts) == 1:  # the held-out rows of three folds are all rows already
        raw.append(_raw(parts[0].train, parts[0]))
    rows = reduce(joined, raw)
    del raw  # as large as the rows
    return TrainingSplit.of(rows, rows[torch.zeros(0, dtype=torch.long)])


def _x(rows: Rows) -> NDArray[Any]:
    x: NDArray[Any] = rows.features.numpy()
    return x


def _raw(rows: Rows, part: TrainingSplit) -> Rows:
    inverse = part.inputs.inverse
    x = (rows.features / inverse.masked_fill(inverse == 0, 1.0)).add_(part.inputs.mean)
    return Rows(x, rows.y, rows.weight)


def _spread(p: NDArray[Any], labels: NDArray[Any], classes: int) -> _Floats:
    """Probabilities of all classes, also of those without a training row; none is zero."""
    full = np.full((len(p), classes), _FLOOR)
    full[:, labels] = np.maximum(p, _FLOOR)
    whole: _Floats = full / full.sum(1, keepdims=True)
    return whole


class _Family(ABC):
    """A reference on the same training rows; each setting may use what the setting before has computed."""

    def __init__(self, rows: Rows, classes: int, seed: int) -> None:
        self.x, self.y, self.weight = _x(rows), rows.y.numpy(), rows.weight.numpy()
        self.classes, self.seed = classes, seed
        self.start: Any = None
        self.fitted: dict[str, Any] | None = None

    @abstractmethod
    def predict(self, x: NDArray[Any], **options: Any) -> _Floats: ...

    def found(self) -> Any:
        """The last solution, as a `start` for other rows of the same classes; None where it saves no time."""
        return None


class _Sklearn(_Family):
    """A classifier of scikit-learn, fitted once for every setting."""

    @abstractmethod
    def _model(self, **options: Any) -> Any: ...

    def predict(self, x: NDArray[Any], **options: Any) -> _Floats:
        from sklearn.exceptions import ConvergenceWarning

        if self.fitted != options:
            self.model = self._model(**options)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                self.model.fit(self.x, self.y, sample_weight=self.weight)
            self.fitted = options
        return _spread(self.model.predict_proba(x), self.model.classes_, self.classes)


@final
class _Logistic(_Sklearn):
    """Each C starts from the solution of the C before."""

    def _model(self, **options: Any) -> Any:
        if self.fitted is not None:
            return self.model.set_params(**options)
        from sklearn.linear_model import LogisticRegression

        model = LogisticRegression(max_iter=300, warm_start=True, random_state=self.seed, **options)
        if self.start is not None and np.array_equal(self.start[2], np.unique(self.y)):
            model.set_params(max_iter=_LAST_STEPS)
            model.coef_, model.intercept_, model.classes_ = self.start
        return model

    def found(self) -> Any:
        """The weights, from which a fit on other rows is faster; with few features every fit is fast."""
        if self.x.shape[1] < NARROW:
            return None
        return self.model.coef_.copy(), self.model.intercept_.copy(), self.model.classes_


@final
class _Boosting(_Sklearn):
    def _model(self, **options: Any) -> Any:
        from sklearn.ensemble import HistGradientBoostingClassifier

        return HistGradientBoostingClassifier(
            max_iter=300,
            early_stopping=len(self.x) >= 500,
            validation_fraction=0.1,
            n_iter_no_change=10,
            random_state=self.seed,
            **options,
        )


@final
class _Neighbours(_Family):
    """The nearest rows are looked up once for every metric and every x."""

    def predict(self, x: NDArray[Any], **options: Any) -> _Floats:
        near = self._near(x, options["metric"])[:, : options["k"]]
        votes = np.zeros((len(x), self.classes))
        np.add.at(votes, (np.arange(len(x))[:, None], self.y[near]), self.weight[near])
        # As if one more neighbour were shared by all classes: a class without a vote is not impossible.
        return (votes + 1 / self.classes) / (votes.sum(1, keepdims=True) + 1)

    def _near(self, x: NDArray[Any], metric: str) -> NDArray[np.intp]:
        from sklearn.neighbors import NearestNeighbors

        key = {"x": x, "metric": metric}
        if self.fitted is None or self.fitted["x"] is not x or self.fitted["metric"] != metric:
            if self.fitted is None or self.fitted["metric"] != metric:
                most = min(_MOST_NEIGHBOURS, len(self.x))
                self.index = NearestNeighbors(n_neighbors=most).fit(_compared(self.x, metric))
            self.nearest: NDArray[np.intp] = self.index.kneighbors(
                _compared(x, metric), return_distance=False
            )
            self.fitted = key
        return self.nearest


def _compared(x: NDArray[Any], metric: str) -> NDArray[Any]:
    """Rows whose Euclidean neighbours are those by this metric: of the cosine, directions.

    scikit-learn looks for Euclidean neighbours with few distances in memory at a time; for those by the
    cosine it takes a GiB of distances, and twice as much for their order.
    """
    from sklearn.preprocessing import normalize

    directions: NDArray[Any] = normalize(x) if metric == "cosine" else x
    return directions


def _logistic_settings(trials: int, parts: Sequence[TrainingSplit]) -> list[dict[str, Any]]:
    """Values of C. Where few are tried, those that are usually good: many features ask for a smaller C."""
    wide = parts[0].train.x.shape[1] >= NARROW
    good = ([0.05, 0.01, 0.3] if wide else [1.0, 0.1, 10.0])[:trials]
    if trials > len(good):
        return [{"C": float(C)} for C in np.geomspace(1e-3, 1e2, trials)]
    return [{"C": C} for C in sorted(good)]


def _neighbour_settings(trials: int, parts: Sequence[TrainingSplit]) -> list[dict[str, Any]]:
    most = min(_MOST_NEIGHBOURS, *(len(part.train) for part in parts))
    each = max(1, trials // 2)
    ks = [min(10, most)] if each == 1 else sorted({round(k) for k in np.geomspace(1, most, each)})
    found = [{"k": k, "metric": metric} for metric in ("cosine", "euclidean") for k in ks]
    return found[:trials] if trials == 1 else found


def _boosting_settings(trials: int, parts: Sequence[TrainingSplit]) -> list[dict[str, Any]]:  # noqa: ARG001
    """At most four: a trial costs as much as many trials of a head, and their losses differ little."""
    grid = [{"learning_rate": rate, "max_leaf_nodes": leaves} for leaves in (31, 15) for rate in (0.1, 0.05)]
    return grid[: max(1, trials)]


@final
@dataclass(frozen=True)
class _Kind:
    settings: Callable[[int, Sequence[TrainingSplit]], list[dict[str, Any]]]
    family: Callable[[Rows, int, int], _Family]
    one_valley: bool
    """Whether the loss falls and then rises along the settings."""


_KINDS = {
    "logistic": _Kind(_logistic_settings, _Logistic, True),
    "neighbours": _Kind(_neighbour_settings, _Neighbours, False),
    "boosting": _Kind(_boosting_settings, _Boosting, False),
}
