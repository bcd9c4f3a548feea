"""A scikit-learn classifier: the engine for features, with a head of any geometry."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import sparray, spmatrix
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from spaceform.decisions import LeastAmbiguousSets, Refusal
from spaceform.engine import (
    Candidate,
    Held,
    Rows,
    Training,
    TrainingSplit,
    Trial,
    finish,
    parts_of,
    refit,
    search,
)
from spaceform.engine.judges import judged
from spaceform.engine.matrices import dense_rows, merged, row_blocks, told_apart, weighed
from spaceform.engine.rows import SMALLEST_HELD_OUT, inputs_of
from spaceform.engine.space import Columns, space
from spaceform.heads import HEADS, Head, SubCentreArcFaceHead
from spaceform.heads.base import log_mean_softmax
from spaceform.nets import FeaturesNet

_Array = NDArray[Any]
Features: TypeAlias = ArrayLike | sparray | spmatrix

_TABLE_CANDIDATES = 4
"""Candidates of `search="auto"` for a table: with and without hidden layers, few or many pieces, little or
much dropout.
"""


class SpaceformClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """Features in, calibrated probabilities out, through an embedding in the geometry of your choice.

    The head is one of `spaceform.HEADS` by name, those of other packages among them, with `head_options` for
    its constructor. The net and its rates are those with which `spaceform compare` starts on such features:
    for tables two hidden layers on features in pieces, for embeddings a projection, for 1000 columns and more
    a scale for each column. A table has fewer than 100 columns, or fewer than 1000 that repeat their values,
    as categories, pixels and counts do. `search` is a number of candidates, the same as those of `compare`:
    the candidate with the lowest held-out loss is used. "auto" is 4 for tables and 1 otherwise. `hidden` (0,
    a number of units, or several), `dim`, `pieces`, `dropout`, `lr`, `weight_decay`, `batch_size` and
    `epochs` replace those of all candidates.

    First a stratified `validation_fraction` is held out. It decides between candidates and says at which
    epoch to stop, and a temperature is fitted on it (`calibrate`). Then the model goes on with all rows.
    Where this part would have fewer than 400 rows, three thirds take turns in being held out, and a new model
    learns all rows. Where a class has fewer than three rows, nothing is held out.

    `class_weight` (None, "balanced", or a weight for each label) and `sample_weight` are multiplied. They
    count in standardisation, training, stopping and temperature. Rows are first sorted, and equal rows become
    one row with their weights added. So a weight of two gives the same bits as a row given twice, and the
    order of the rows does not matter. Where few rows are distinct and each comes often, they are repeated
    again: some copies of a row may train while others are held out.

    The stochastic heads (vmf, power_spherical) train on random draws and predict from fixed ones: the same
    row has the same probabilities in every batch. Sparse rows are made dense in float32. Training is in
    float32; what was fitted on float64 predicts in float64.
    """

    _parameter_constraints: dict[str, list[Any]] = {  # noqa: RUF012 (scikit-learn's own convention)
        "head": [str],
        "search": [Interval(Integral, 1, None, closed="left"), StrOptions({"auto"})],
        "hidden": [Interval(Integral, 0, None, closed="left"), tuple, list, None],
        "dim": [Interval(Integral, 1, None, closed="left"), None],
        "pieces": [Interval(Integral, 0, None, closed="left"), None],
        "dropout": [Interval(Real, 0, 1, closed="left"), None],
        "lr": [Interval(Real, 0, None, closed="neither"), None],
        "weight_decay": [Interval(Real, 0, None, closed="left"), None],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "epochs": [Interval(Integral, 1, None, closed="left"), None],
        "head_options": [dict, None],
        "class_weight": [dict, StrOptions({"balanced"}), None],
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
        "calibrate": ["boolean"],
        "verbose": ["verbose"],
        "device": [str],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        head: str = "cosine",
        *,
        search: int | Literal["auto"] = "auto",
        hidden: int | tuple[int, ...] | None = None,
        dim: int | None = None,
        pieces: int | None = None,
        dropout: float | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        batch_size: int | None = None,
        epochs: int | None = None,
        head_options: dict[str, Any] | None = None,
        class_weight: Mapping[Any, float] | Literal["balanced"] | None = None,
        validation_fraction: float = 0.1,
        calibrate: bool = True,
        verbose: int = 0,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.head = head
        self.search = search
        self.hidden = hidden
        self.dim = dim
        self.pieces = pieces
        self.dropout = dropout
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.epochs = epochs
        self.head_options = head_options
        self.class_weight = class_weight
        self.validation_fraction = validation_fraction
        self.calibrate = calibrate
        self.verbose = verbose
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # Fitting.

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(self, X: Features, y: ArrayLike, sample_weight: ArrayLike | None = None) -> "SpaceformClassifier":
        """Fit from scratch."""
        X, y, weight = self._validated(X, y, sample_weight, reset=True)
        self.classes_, labels = np.unique(y, return_inverse=True)
        X, labels, weight = told_apart(*merged(X, labels, weight))
        if len(np.unique(labels)) < 2:
            raise ValueError(
                f"a classifier needs at least two classes, got one class: {self.classes_[labels[:1]]}; "
                "check y and sample_weight"
            )
        self._forget()
        rows = self._rows(X, labels, weighed(weight, labels, self.classes_, self.class_weight))
        parts = self._parts(rows)
        fixed: dict[str, Any] = {"seed": self._seed, "classes": len(self.classes_)}
        candidates = self._candidates(rows, len(parts[0].train) if parts else len(rows))
        if parts:
            hold: list[Held] = [part for part in ("epochs", "lr") if getattr(self, part) is not None]
            found = search(self.head, candidates, parts, hold=hold, on_trial=self._tell, **fixed)
            assert found.fitted is not None  # nothing was taken up from an earlier search
            self.candidate_, self.trials_ = found.candidate, list(found.trials)
            self.loss_curve_ = [look.calibrated_nll for look in found.fitted.history]
            self.n_iter_ = found.fitted.best_epoch
            if self.calibrate:
                self.calibrator_ = found.fitted.calibrator()
            self._held_out = (found.fitted.logits.cpu(), found.fitted.held_out[0].cpu())
            model = finish(self.head, self.candidate_, found.fitted, rows, **fixed)
            self._judge, self._known = judged(found.fitted, parts, model, rows)
        else:
            self.candidate_, self.trials_, self.loss_curve_ = candidates[0], [], []
            self.n_iter_ = self.candidate_.epochs
            model = refit(self.head, self.candidate_, rows, epochs=self.n_iter_, **fixed)
        self._inputs, self._dtype = model.net.inputs, rows.x.dtype
        self._model = model.to(self._dtype)
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: Features,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "SpaceformClassifier":
        """One pass over a part of the data. The first call names all `classes`.

        The rows of the first call set the standardisation for all calls.
        """
        first = not hasattr(self, "_model")
        X, y, weight = self._validated(X, y, sample_weight, reset=first)
        if first:
            if classes is None:
                raise ValueError("the first call of partial_fit needs classes=, every class that will come")
            self.classes_ = np.unique(np.asarray(classes))
            self._forget()
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise ValueError(f"classes={classes!r} differ from those of the first call, {self.classes_!r}")
        if self.class_weight == "balanced":
            raise ValueError('class_weight="balanced" needs all rows at once; give partial_fit a dict')
        labels = self._known_labels(y, "the first call did not name")
        self._learn(self._rows(X, labels, weighed(weight, labels, self.classes_, self.class_weight)))
        return self

    def _learn(self, rows: Rows) -> None:
        """One pass over these rows at a constant rate; the rows of the first call set the standardisation."""
        if not hasattr(self, "_model"):
            self._inputs, self._dtype = inputs_of(rows), rows.x.dtype
            self.candidate_, self.n_iter_ = self._candidates(rows, len(rows))[0], 0
        seen = rows.seen_by(self._inputs)
        if not hasattr(self, "_run"):
            start = copy.deepcopy(self._model).float() if hasattr(self, "_model") else None
            fixed: dict[str, Any] = {"seed": self._seed, "classes": len(self.classes_), "start": start}
            self._run = Training(self.head, self.candidate_, seen, **fixed)
        self._run.epoch(seen, [self.candidate_.lr] * self._run.batches(seen))
        self._model = copy.deepcopy(self._run.model(self._inputs)).to(self._dtype)
        self.n_iter_ += 1

    @property
    def net_(self) -> FeaturesNet:
        """Features in, embeddings out; standardisation is a part of it."""
        return self._model.net

    @property
    def head_(self) -> Head:
        """The fitted head."""
        return self._model.head

    # Predicting.

    def predict_proba(self, X: Features) -> _Array:
        """Probabilities of the classes in the order of `classes_`, calibrated where `fit` held data out."""
        p = np.exp(self._log_proba(X))
        return p / p.sum(1, keepdims=True)

    def predict(self, X: Features) -> _Array:
        """The most probable class."""
        best = self._log_proba(X).argmax(1)
        return self.classes_[best]

    def decision_function(self, X: Features) -> _Array:
        """Log-probabilities of all classes; with two classes, the log of the odds of the second."""
        log_p = self._log_proba(X)
        return log_p[:, 1] - log_p[:, 0] if len(self.classes_) == 2 else log_p

    def transform(self, X: Features) -> _Array:
        """Embeddings, un-normalised: compare them by `head_.geometry`."""
        return self._for_rows(X, lambda x: self._model.embed(x))

    def confidence(self, X: Features) -> _Array:
        """How sure the network is of each embedding: its norm, or its concentration. Not a probability."""
        return self._for_rows(X, lambda x: self.head_.confidence(self._model.embed(x)))

    def predict_set(self, X: Features, *, coverage: float = 0.9) -> _Array:
        """Sets that hold the true class with probability `coverage`: (rows, classes), true for members.

        If the model is right more often than that, some sets are empty. The promise comes from the rows that
        `fit` held out, whatever their weights, and from models that had not seen these rows. The final model
        has seen more rows, so the promise is approximate.
        """
        logits, labels = self._promised_by("predict_set")
        sets = LeastAmbiguousSets(coverage).fit(log_mean_softmax(logits).exp(), labels)
        p = self._for_rows(X, lambda x: log_mean_softmax(self._model.logits(x)).exp())
        members: _Array = sets(p / p.sum(1, keepdims=True)).numpy()
        return members

    def unknown(self, X: Features, *, share: float = 0.05) -> _Array:
        """Which rows are of no known class.

        About `share` of the rows of known classes are called unknown, too. The score is `decisions.Combined`.
        Its threshold comes from the rows that `fit` held out.
        """
        self._promised_by("unknown")
        refusal = Refusal(share).fit(self._known)
        found: _Array = refusal(self._for_rows(X, self._how_known)).numpy()
        return found

    def suspects(self, X: Features, y: ArrayLike, *, angle: float = 75.0) -> _Array:
        """Rows whose label should be checked: farther than `angle` degrees from its centre, farthest first.

        It needs `head="subcentre_arcface"`, and the rows that it was fitted on: the centre of a label is the
        one that most of them are nearest to.
        """
        z = torch.from_numpy(self._for_rows(X, lambda x: self._model.embed(x))).to(self.device)
        if not isinstance(self.head_, SubCentreArcFaceHead):
            raise ValueError(f'suspects needs head="subcentre_arcface", got head={self.head!r}')
        if not 0 <= angle <= 180:
            raise ValueError(f"angle must lie in 0 to 180, in degrees, got {angle:g}")
        labels = torch.from_numpy(self._known_labels(column_or_1d(y), "fit did not see")).to(self.device)
        rows: _Array = self.head_.suspects(z, labels, angle=math.radians(angle)).cpu().numpy()
        return rows

    def _how_known(self, x: Tensor) -> Tensor:
        model = self._model
        said: Tensor = self._judge(model.embed(x), model.logits(x), reach=model.net.reach(x))
        return said

    def _promised_by(self, method: str) -> tuple[Tensor, Tensor]:
        """Logits and labels of the held-out rows."""
        check_is_fitted(self, "_model")
        if not hasattr(self, "_held_out"):
            raise ValueError(
                f"{method} needs rows that fit held out, and there are none; fit with validation_fraction "
                "above 0 and at least three rows of each class"
            )
        return self._held_out

    @property
    def _n_features_out(self) -> int:
        return int(self.head_.dim)

    def _log_proba(self, X: Features) -> _Array:
        calibrated = getattr(self, "calibrator_", log_mean_softmax)
        return self._for_rows(X, lambda x: calibrated(self._model.logits(x)).double())

    def _for_rows(self, X: Features, function: Callable[[Tensor], Tensor]) -> _Array:
        """The values of `function` for these rows, which are checked, block by block."""
        check_is_fitted(self, "_model")
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        with torch.no_grad():
            found = [function(_tensor(block).to(self.device)).cpu() for block in row_blocks(X)]
        said: _Array = torch.cat(found).numpy()
        return said

    # What the steps above are made of.

    def _validated(
        self, X: Features, y: ArrayLike, sample_weight: ArrayLike | None, *, reset: bool
    ) -> tuple[_Array, _Array, _Array]:
        if self.head not in HEADS:
            raise ValueError(f"head must be one of {', '.join(HEADS)}, got {self.head!r}")
        types = [np.float64, np.float32]
        x, target = validate_data(self, X, y, accept_sparse="csr", dtype=types, reset=reset)
        check_classification_targets(target)
        weight = _check_sample_weight(sample_weight, x, dtype=x.dtype, ensure_non_negative=True)
        return dense_rows(x), target, weight

    def _forget(self) -> None:
        """Remove what an earlier fit left, and take a new seed."""
        for name in ("_model", "_run", "_held_out", "_known", "_judge", "calibrator_"):
            self.__dict__.pop(name, None)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))

    def _known_labels(self, y: _Array, what: str) -> _Array:
        """The numbers of labels that must be known."""
        if not np.isin(y, self.classes_).all():
            raise ValueError(f"y holds classes that {what}: {np.setdiff1d(y, self.classes_)!r}")
        labels: _Array = np.searchsorted(self.classes_, y)
        return labels

    def _rows(self, X: _Array, labels: _Array, weight: _Array) -> Rows:
        return Rows.of(*(_tensor(array).to(self.device) for array in (X, labels, weight)))

    def _candidates(self, rows: Rows, trained: int) -> list[Candidate]:
        """The engine's candidates, with the arguments of the constructor in place of their own values."""
        features, columns = rows.x.shape[1], Columns.of(rows)
        size = (_TABLE_CANDIDATES if columns.table else 1) if self.search == "auto" else self.search
        names = ("dim", "pieces", "dropout", "lr", "weight_decay", "batch_size", "epochs")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.hidden is not None:
            given["hidden"] = tuple(int(units) for units in np.atleast_1d(self.hidden) if units > 0)
            given |= {} if given["hidden"] else {"members": 1}  # several are for nets with hidden layers
        found: list[Candidate] = []
        listed = space(self.head, features, len(self.classes_), trained, columns=columns, size=size)
        for candidate in listed:
            options = {**candidate.options, **(self.head_options or {})}
            made = replace(candidate, **given, options=options)
            found += [] if made in found else [made]
        return found

    def _parts(self, rows: Rows) -> list[TrainingSplit]:
        """Splits into rows to train on and rows held out: one, three, or none."""
        labels = rows.y.cpu().numpy()
        counts = np.bincount(labels)
        size = round(len(rows) * self.validation_fraction)
        if size == 0 or counts[counts > 0].min() < 3:
            return []
        if size < SMALLEST_HELD_OUT or size < np.count_nonzero(counts):
            return parts_of(rows, None, seed=self._seed)
        split = StratifiedShuffleSplit(1, test_size=size, random_state=self._seed)
        train, held_out = (torch.from_numpy(part) for part in next(split.split(labels[:, None], labels)))
        return parts_of(rows[train], rows[held_out], seed=self._seed)

    def _tell(self, trial: Trial) -> None:
        if self.verbose:
            said = trial.error or f"held-out NLL {trial.calibrated_nll:.4f}, accuracy {trial.accuracy:.2%}"
            about = f"{self.head}, candidate {trial.candidate + 1}, {trial.epochs} epochs"
            print(f"{about}: {said}, {trial.seconds:.1f} s", flush=True)


def _tensor(array: _Array) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())  # torch warns of read-only ones
