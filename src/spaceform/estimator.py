"""A scikit-learn classifier: standardise, project, and a head of any geometry."""

import threading
from hashlib import blake2b
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    _fit_context,
)
from sklearn.model_selection import StratifiedKFold, StratifiedShuffleSplit
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from spaceform.calibrators import TemperatureScaling
from spaceform.heads import HEADS, Head
from spaceform.heads.base import log_mean_softmax
from spaceform.heads.directional import DirectionalHead
from spaceform.projection import ProjectionAndHead, Scaled, linear, with_hidden_layer

Array = NDArray[Any]

_building = threading.Lock()
"""Parameters are drawn from torch's global generator, which threads share."""

_HIDDEN = 256
"""Units of the hidden layer that `hidden="auto"` tries."""

_WIDEST = 256
"""An embedding has no more coordinates than this, unless `dim` says so; wider features are scaled instead."""

_START = {"init_ratio": 0.4, "beta": 1.0}
"""The paper's start of heads with random class weights: better than their own where rates follow the size of
the class weights, as here.
"""

_SMALLEST_HELD_OUT = 50
"""A held-out part with fewer examples says too little; then three parts take turns in being held out."""

_LOG_TEMPERATURE_SPREAD = 0.5
"""Of the prior of log T: a held-out part without mistakes would send T to 0."""


class SpaceformClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """Features in, calibrated probabilities out, through an embedding in the geometry of your choice.

    The embedding is a linear function of the standardised features, or has a ReLU layer of `hidden` units;
    "auto" tries 0 and 256 and keeps what has the lower held-out loss. It has `dim` coordinates; None: as many
    as features or classes, at most 256, but where more than 256 features meet no hidden layer the embedding
    is these features, each with a weight and an offset of its own. The head is one of `spaceform.HEADS` by
    name, with `head_options` for its constructor; the stochastic ones start at the paper's β and λ. Training
    is AdamW on mini-batches (`batch_size=None`: a sixteenth of the data, 32 to 256 rows) with `dropout` of
    features.

    First a stratified `validation_fraction` is held out: the rate is halved when its loss stalls for
    `patience`/2 epochs, training stops when it stalls for `patience`, and a temperature is fitted on it at
    the best epoch (`calibrate`). Then the network is trained anew on everything, as long and at the same
    rates. Where that part would have fewer than 50 rows, three thirds take turns in being held out; where a
    class has fewer than three rows, nothing is, and training takes `max_epochs`.

    `sample_weight` enters all of it: standardisation, training, stopping and temperature. Rows are first put
    in an order of their own, equal ones as one row with their weights added: a weight of two is a row given
    twice, to the last bit, and the order in which rows are given does not matter.

    The stochastic heads (vmf, power_spherical) train on random draws and predict from fixed ones
    (`spaceform.heads._kernels.fixed_draws`): the same row has the same probabilities in every batch.

    float64 input is computed in float64, float32 in float32, which is twice as fast.
    """

    _parameter_constraints: dict[str, list[Any]] = {  # noqa: RUF012 (scikit-learn's own convention)
        "head": [StrOptions(set(HEADS))],
        "dim": [Interval(Integral, 1, None, closed="left"), None],
        "hidden": [Interval(Integral, 0, None, closed="left"), StrOptions({"auto"})],
        "head_options": [dict, None],
        "standardize": ["boolean"],
        "dropout": [Interval(Real, 0, 1, closed="left")],
        "lr": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left"), None],
        "max_epochs": [Interval(Integral, 1, None, closed="left")],
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
        "patience": [Interval(Integral, 1, None, closed="left")],
        "calibrate": ["boolean"],
        "device": [str],
        "random_state": ["random_state"],
    }

    def __init__(
        self,
        head: str = "cosine",
        *,
        dim: int | None = None,
        hidden: int | Literal["auto"] = "auto",
        head_options: dict[str, Any] | None = None,
        standardize: bool = True,
        dropout: float = 0.3,
        lr: float = 0.003,
        weight_decay: float = 0.0,
        batch_size: int | None = None,
        max_epochs: int = 100,
        validation_fraction: float = 0.1,
        patience: int = 8,
        calibrate: bool = True,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.head = head
        self.dim = dim
        self.hidden = hidden
        self.head_options = head_options
        self.standardize = standardize
        self.dropout = dropout
        self.lr = lr
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.calibrate = calibrate
        self.device = device
        self.random_state = random_state

    # Fitting.

    @_fit_context(prefer_skip_nested_validation=True)
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> "SpaceformClassifier":
        """Fit from scratch."""
        X, y, weight = self._validated(X, y, sample_weight, reset=True)
        self.classes_, labels = np.unique(y, return_inverse=True)
        X, labels, weight = _merged(X, labels, weight)
        if len(np.unique(labels)) < 2:
            raise ValueError(
                f"a classifier needs at least two classes, got one class: {self.classes_[labels[:1]]}; "
                "check y and sample_weight"
            )
        self._start(X, weight)
        x, target, w = self._tensors(X, labels, weight, _dtype(X))
        parts = self._parts(labels)
        widths = (0, _HIDDEN) if self.hidden == "auto" else (self.hidden,)
        self.hidden_, rates = widths[0], [1.0] * self.max_epochs
        if parts:
            rehearsed = {width: self._rehearse(x, target, w, parts, width) for width in widths}
            self.hidden_ = min(rehearsed, key=lambda width: min(rehearsed[width].losses))
            rates, self.loss_curve_ = rehearsed[self.hidden_].rates, rehearsed[self.hidden_].losses
            if self.calibrate:
                held_out = torch.cat([rows for _, rows in parts])
                logits = rehearsed[self.hidden_].logits
                relative = w[held_out] / w[held_out].mean()
                self.calibrator_ = TemperatureScaling(prior_spread=_LOG_TEMPERATURE_SPREAD)
                self.calibrator_.fit(logits, target[held_out], weight=relative)
        self._network = self._new_network(x, self.hidden_)
        trained = [self._network.train_epoch(x, target, w, *step) for step in enumerate(rates)]
        if not parts:
            self.loss_curve_ = trained
        self.n_iter_ = len(rates)
        return self

    def _rehearse(
        self, x: Tensor, y: Tensor, w: Tensor, parts: list[tuple[Tensor, Tensor]], hidden: int
    ) -> "_Rehearsal":
        """Train with each part held out, all in step."""
        networks = [self._new_network(x[train], hidden) for train, _ in parts]
        held_out = torch.cat([rows for _, rows in parts])
        rates: list[float] = []
        losses: list[float] = []
        best, best_logits, rate = 0, torch.empty(0), 1.0
        for epoch in range(self.max_epochs):
            rates.append(rate)
            for network, (train, _) in zip(networks, parts, strict=True):
                network.train_epoch(x[train], y[train], w[train], epoch, rate)
            found = [n.logits(x[rows]) for n, (_, rows) in zip(networks, parts, strict=True)]
            logits = torch.cat(found, dim=1)
            losses.append(_weighted_nll(logits, y[held_out], w[held_out]))
            if epoch == 0 or losses[epoch] < losses[best]:
                best, best_logits = epoch, logits
            elif epoch - best >= self.patience:
                break
            elif (epoch - best) % max(1, self.patience // 2) == 0:
                rate /= 2
        return _Rehearsal(rates[: best + 1], losses, best_logits)

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "SpaceformClassifier":
        """One pass over a part of the data; the first call names all `classes`, and standardises for all."""
        first = not hasattr(self, "_network")
        X, y, weight = self._validated(X, y, sample_weight, reset=first)
        if first:
            if classes is None:
                raise ValueError("the first call of partial_fit needs classes=, every class that will come")
            self.classes_ = np.unique(np.asarray(classes))
            self._start(X, weight)
            self.hidden_ = 0 if self.hidden == "auto" else self.hidden
            x = self._standardised(X, _dtype(X))
            self._network = self._new_network(x, self.hidden_)
            self.n_iter_ = 0
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise ValueError(f"classes={classes!r} differ from those of the first call, {self.classes_!r}")
        if not np.isin(y, self.classes_).all():
            strange = np.setdiff1d(y, self.classes_)
            raise ValueError(f"y holds classes that the first call did not name: {strange!r}")
        labels = np.searchsorted(self.classes_, y)
        self._network.train_epoch(*self._tensors(X, labels, weight), epoch=self.n_iter_)
        self.n_iter_ += 1
        return self

    @property
    def net_(self) -> nn.Module:
        """The projection: standardised features in, embeddings out."""
        return self._network.net

    @property
    def head_(self) -> Head:
        """The fitted head."""
        return self._network.head

    # Predicting.

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities of the classes in the order of `classes_`, calibrated where `fit` held data out."""
        x = self._inputs(X)
        logits = self._network.logits(x)
        calibrated = getattr(self, "calibrator_", None)
        log_p = calibrated(logits) if calibrated is not None else log_mean_softmax(logits)
        p: Array = log_p.softmax(-1).double().cpu().numpy()
        return p / p.sum(1, keepdims=True)

    def predict(self, X: ArrayLike) -> Array:
        """The most probable class."""
        p = self.predict_proba(X)
        return self.classes_[p.argmax(1)]

    def transform(self, X: ArrayLike) -> Array:
        """Embeddings, un-normalised: compare them by `head_.geometry`."""
        x = self._inputs(X)
        z: Array = self._network.embed(x).cpu().numpy()
        return z

    def confidence(self, X: ArrayLike) -> Array:
        """How sure the network is of each embedding: its norm, or its concentration. Not a probability."""
        x = self._inputs(X)
        with torch.no_grad():
            c: Array = self.head_.confidence(self._network.embed(x)).cpu().numpy()
        return c

    @property
    def _n_features_out(self) -> int:
        return int(self.head_.dim)

    # The parts.

    def _validated(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None, *, reset: bool
    ) -> tuple[Array, Array, Array]:
        x, target = validate_data(self, X, y, dtype=[np.float64, np.float32], reset=reset)
        check_classification_targets(target)
        return x, target, _check_sample_weight(sample_weight, x, dtype=x.dtype, ensure_non_negative=True)

    def _start(self, X: Array, weight: Array) -> None:
        """The seed, and the standardisation of `X`."""
        self.__dict__.pop("calibrator_", None)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self.mean_ = np.zeros(X.shape[1])
        self.scale_ = np.ones(X.shape[1])
        if self.standardize:
            self.mean_ = np.average(X.astype(np.float64), axis=0, weights=weight)
            spread = np.sqrt(np.average((X - self.mean_) ** 2, axis=0, weights=weight))
            self.scale_ = np.where(spread > 1e-12 * np.abs(self.mean_), spread, 1.0)
            self.scale_[self.scale_ == 0] = 1.0

    def _new_network(self, x: Tensor, hidden: int) -> "ProjectionAndHead":
        """A network for data like `x`; the same one whenever it is asked for."""
        features, classes = x.shape[1], len(self.classes_)
        dim = self.dim or min(_WIDEST, max(features, classes, 2))
        with _building, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            if hidden:
                net = with_hidden_layer(features, hidden, dim)
            elif self.dim is None and features > _WIDEST:
                net, dim = Scaled(features), features
            else:
                net = linear(x, dim)
            net = net.to(x)
            starts_random = issubclass(HEADS[self.head], DirectionalHead)
            options = (_START if starts_random else {}) | (self.head_options or {})
            head = HEADS[self.head](dim, classes, **options).to(x)
            head.prepare(net(x).detach())
        batch = self.batch_size or min(256, max(32, len(x) // 16))
        return ProjectionAndHead(net, head, self.lr, self.weight_decay, self.dropout, batch, self._seed)

    def _parts(self, labels: Array) -> list[tuple[Tensor, Tensor]]:
        """(rows to train on, rows held out): one such pair, three, or none."""
        n, rarest = len(labels), int(np.bincount(labels)[np.unique(labels)].min())
        size = round(n * self.validation_fraction)
        if size == 0 or rarest < 3:
            return []
        split = (
            StratifiedShuffleSplit(1, test_size=size, random_state=self._seed)
            if size >= max(_SMALLEST_HELD_OUT, len(np.unique(labels)))
            else StratifiedKFold(3, shuffle=True, random_state=self._seed)
        )
        return [
            (torch.from_numpy(train), torch.from_numpy(held_out))
            for train, held_out in split.split(np.zeros((n, 1)), labels)
        ]

    def _inputs(self, X: ArrayLike) -> Tensor:
        """Checked and standardised features, in the type that the network was fitted in."""
        check_is_fitted(self, "_network")
        return self._standardised(validate_data(self, X, dtype=[np.float64, np.float32], reset=False))

    def _standardised(self, X: Array, dtype: torch.dtype | None = None) -> Tensor:
        dtype = next(self.net_.parameters()).dtype if dtype is None else dtype
        return torch.as_tensor((X - self.mean_) / self.scale_).to(self.device, dtype)

    def _tensors(
        self, X: Array, labels: Array, weight: Array, dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = self._standardised(X, dtype)
        return x, torch.as_tensor(labels).to(self.device), torch.as_tensor(weight).to(x)


def _dtype(X: Array) -> torch.dtype:
    return torch.float64 if X.dtype == np.float64 else torch.float32


class _Rehearsal(NamedTuple):
    rates: list[float]
    """Up to the best epoch, relative to `lr`."""
    losses: list[float]
    logits: Tensor
    """Of all held-out rows at the best epoch, part by part."""


def _merged(X: Array, labels: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Each distinct (x, y) of positive weight once, weights added, in an order that depends on them alone."""
    rows: dict[bytes, list[int]] = {}
    for i in np.flatnonzero(weight > 0):
        # + 0.0: minus zero equals zero, but has other bytes
        key = blake2b((X[i] + 0.0).tobytes(), digest_size=16, salt=int(labels[i]).to_bytes(8)).digest()
        rows.setdefault(key, []).append(int(i))
    groups = [rows[key] for key in sorted(rows)]
    first = np.array([group[0] for group in groups], dtype=np.intp)
    return X[first], labels[first], np.array([weight[group].sum() for group in groups], dtype=weight.dtype)


def _weighted_nll(logits: Tensor, y: Tensor, w: Tensor) -> float:
    nll = -log_mean_softmax(logits).gather(1, y[:, None])[:, 0]
    return float((nll * w).sum() / w.sum())
