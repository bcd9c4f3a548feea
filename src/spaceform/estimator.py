"""A scikit-learn classifier: standardise, project, and a head of any geometry."""

import math
import threading
from collections.abc import Iterator
from copy import deepcopy
from numbers import Integral, Real
from typing import Any

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
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn

from spaceform.calibrators import TemperatureScaling
from spaceform.heads import HEADS
from spaceform.predictive import predictive

Array = NDArray[Any]

_building = threading.Lock()
"""Parameters are drawn from torch's global generator, which threads share."""

_DRAWS = 64
"""Fixed draws of a stochastic head, at prediction."""

_FEWEST_MISTAKES = 10
"""A temperature is told by the mistakes: with fewer, the fitted one runs to extremes."""

_SMALLEST_HELD_OUT = 50
"""A held-out part with fewer examples says too little to stop by; then all data trains, for all epochs."""


class SpaceformClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """Features in, calibrated probabilities out, through an embedding in the geometry of your choice.

    `z = project(standardise(x))` is linear, or has one ReLU layer of width `hidden`; the head is one of
    `spaceform.HEADS` by name, with `head_options` for its constructor. Training is Adam on mini-batches; a
    stratified `validation_fraction` is held out, the rate is halved when its loss stalls for `patience`/2
    epochs, training stops when it stalls for `patience`, the best epoch is kept, and a temperature is fitted
    on the same part (`calibrate`). Where that part would hold fewer than 50 examples, all of them train.

    The stochastic heads (vmf, power_spherical) train on random draws and predict from fixed ones
    (`spaceform.predictive`): the same row has the same probabilities in every batch.

    float64 input is computed in float64, float32 in float32, which is twice as fast.
    """

    _parameter_constraints: dict[str, list[Any]] = {  # noqa: RUF012 (scikit-learn's own convention)
        "head": [StrOptions(set(HEADS))],
        "dim": [Interval(Integral, 1, None, closed="left"), None],
        "hidden": [Interval(Integral, 1, None, closed="left"), None],
        "head_options": [dict, None],
        "standardize": ["boolean"],
        "lr": [Interval(Real, 0, None, closed="neither")],
        "weight_decay": [Interval(Real, 0, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
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
        hidden: int | None = None,
        head_options: dict[str, Any] | None = None,
        standardize: bool = True,
        lr: float = 0.003,
        weight_decay: float = 0.0,
        batch_size: int = 256,
        max_epochs: int = 200,
        validation_fraction: float = 0.1,
        patience: int = 10,
        calibrate: bool = True,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.head = head
        self.dim = dim
        self.hidden = hidden
        self.head_options = head_options
        self.standardize = standardize
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
        present = weight > 0
        X, labels, weight = X[present], labels[present], weight[present]
        if len(np.unique(labels)) < 2:
            raise ValueError(
                f"a classifier needs at least two classes, got one class: {self.classes_[labels[:1]]}; "
                "check y and sample_weight"
            )
        self._start(X, weight)
        train, held_out = self._hold_out(labels)
        x, target, w = self._tensors(X, labels, weight)
        best, best_loss, stalled = self._parameters(), np.inf, 0
        self.loss_curve_: list[float] = []
        for epoch in range(self.max_epochs):
            self.n_iter_ = epoch + 1
            self.head_.start_epoch(epoch)
            trained = self._epoch(x[train], target[train], w[train])
            loss = self._loss(x[held_out], target[held_out], w[held_out]) if len(held_out) else trained
            self.loss_curve_.append(loss)
            if loss < best_loss - 1e-5:
                best, best_loss, stalled = self._parameters(), loss, 0
                continue
            stalled += 1
            if stalled % max(1, self.patience // 2) == 0:
                for group in self._optimizer.param_groups:
                    group["lr"] /= 2
            if stalled >= self.patience and len(held_out):
                break
        if len(held_out):
            self._module.load_state_dict(best)
            if self.calibrate:
                self._calibrate(x[held_out], target[held_out])
        return self

    @_fit_context(prefer_skip_nested_validation=True)
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> "SpaceformClassifier":
        """One pass over a part of the data; the first call names all `classes`, and standardises for all."""
        first = not hasattr(self, "head_")
        X, y, weight = self._validated(X, y, sample_weight, reset=first)
        if first:
            if classes is None:
                raise ValueError("the first call of partial_fit needs classes=, every class that will come")
            self.classes_ = np.unique(np.asarray(classes))
            self._start(X, weight)
            self.n_iter_ = 0
        elif classes is not None and not np.array_equal(np.unique(np.asarray(classes)), self.classes_):
            raise ValueError(f"classes={classes!r} differ from those of the first call, {self.classes_!r}")
        if not np.isin(y, self.classes_).all():
            strange = np.setdiff1d(y, self.classes_)
            raise ValueError(f"y holds classes that the first call did not name: {strange!r}")
        self.n_iter_ += 1
        self._epoch(*self._tensors(X, np.searchsorted(self.classes_, y), weight))
        return self

    # Predicting.

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probabilities of the classes in the order of `classes_`, calibrated where `fit` held data out."""
        logits = self._logits(self._inputs(X))
        calibrated = getattr(self, "calibrator_", None)
        log_p = calibrated(logits) if calibrated is not None else logits.log_softmax(-1).logsumexp(0)
        p: Array = log_p.softmax(-1).double().cpu().numpy()
        return p / p.sum(1, keepdims=True)

    def predict(self, X: ArrayLike) -> Array:
        """The most probable class."""
        p = self.predict_proba(X)
        return self.classes_[p.argmax(1)]

    def transform(self, X: ArrayLike) -> Array:
        """Embeddings, un-normalised: compare them by `head_.geometry`."""
        z: Array = self._embed(self._inputs(X)).cpu().numpy()
        return z

    def confidence(self, X: ArrayLike) -> Array:
        """How sure the network is of each embedding: its norm, or its concentration. Not a probability."""
        with torch.no_grad():
            c: Array = self.head_.confidence(self._embed(self._inputs(X))).cpu().numpy()
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
        """Standardisation from `X`, and a network, a head and an optimiser drawn from `random_state`."""
        self.__dict__.pop("calibrator_", None)
        random = check_random_state(self.random_state)
        self._seed = int(random.randint(2**31 - 1))
        self._generator = torch.Generator(self.device).manual_seed(self._seed)
        classes, features = len(self.classes_), X.shape[1]
        self.mean_ = np.zeros(features)
        self.scale_ = np.ones(features)
        if self.standardize:
            self.mean_ = np.average(X.astype(np.float64), axis=0, weights=weight)
            spread = np.sqrt(np.average((X - self.mean_) ** 2, axis=0, weights=weight))
            self.scale_ = np.where(spread > 1e-12 * np.abs(self.mean_), spread, 1.0)
            self.scale_[self.scale_ == 0] = 1.0
        dim = self.dim or min(512, max(features, classes, 2))
        dtype = torch.float64 if X.dtype == np.float64 else torch.float32
        with _building, torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            layers = (
                [nn.Linear(features, dim)]
                if self.hidden is None
                else [nn.Linear(features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, dim)]
            )
            self.net_ = nn.Sequential(*layers).to(self.device, dtype)
            options = self.head_options or {}
            self.head_ = HEADS[self.head](dim, classes, **options).to(self.device, dtype)
        self.head_.prepare(self._embed(self._inputs(X, checked=True)))
        groups: list[dict[str, Any]] = [{"params": [*self.net_.parameters()]}]
        for group in self.head_.parameter_groups():
            options = {"lr": self.lr * _relative_size(group["params"], dim, classes)}
            if group["name"] in ("temperature", "hyperplanes"):
                options["weight_decay"] = 0.0
            groups.append({"params": group["params"], **options})
        self._optimizer = torch.optim.AdamW(groups, lr=self.lr, weight_decay=self.weight_decay)

    def _calibrate(self, x: Tensor, y: Tensor) -> None:
        logits = self._logits(x)
        mistakes = int((logits.softmax(-1).mean(0).argmax(1) != y).sum())
        if mistakes >= _FEWEST_MISTAKES:
            self.calibrator_ = TemperatureScaling().fit(logits, y)

    @property
    def _module(self) -> nn.ModuleDict:
        return nn.ModuleDict({"net": self.net_, "head": self.head_})

    def _parameters(self) -> dict[str, Tensor]:
        return deepcopy(self._module.state_dict())

    def _hold_out(self, labels: Array) -> tuple[Array, Array]:
        everything = np.arange(len(labels))
        size = round(len(labels) * self.validation_fraction)
        if size < max(_SMALLEST_HELD_OUT, len(np.unique(labels))) or np.bincount(labels).min() < 2:
            return everything, everything[:0]
        train, held_out = train_test_split(
            everything, test_size=size, stratify=labels, random_state=self._seed
        )
        return train, held_out

    def _inputs(self, X: ArrayLike, *, checked: bool = False) -> Tensor:
        """Standardised features on the device."""
        if not checked:
            check_is_fitted(self, "head_")
            X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        dtype = next(self.net_.parameters()).dtype
        x = torch.as_tensor((np.asarray(X) - self.mean_) / self.scale_)
        return x.to(self.device, dtype)

    def _tensors(self, X: Array, labels: Array, weight: Array) -> tuple[Tensor, Tensor, Tensor]:
        x = self._inputs(X, checked=True)
        return x, torch.as_tensor(labels).to(self.device), torch.as_tensor(weight).to(x)

    def _epoch(self, x: Tensor, y: Tensor, w: Tensor) -> float:
        """One pass of mini-batches in random order; the weighted mean objective."""
        total = 0.0
        for rows in self._batches(len(x)):
            objective = (self.head_(self.net_(x[rows]), y[rows], generator=self._generator) * w[rows]).sum()
            self._optimizer.zero_grad()
            (objective / w[rows].sum().clamp_min(torch.finfo(w.dtype).tiny)).backward()
            self._optimizer.step()
            total += objective.item()
        return total / float(w.sum())

    def _batches(self, n: int) -> Iterator[Tensor]:
        if n <= self.batch_size:
            yield torch.arange(n, device=self.device)
            return
        order = torch.randperm(n, generator=self._generator, device=self.device)
        yield from order.tensor_split(-(-n // self.batch_size))

    def _embed(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.net_(x)

    def _logits(self, x: Tensor) -> Tensor:
        """Logit samples (draws, n, classes), in blocks; a function of each row alone (`predictive`)."""
        with torch.no_grad():
            predict = predictive(self.head_, draws=_DRAWS)
            return torch.cat([predict(self.net_(rows)) for rows in x.split(1024)], dim=1)

    def _loss(self, x: Tensor, y: Tensor, w: Tensor) -> float:
        log_p = self._logits(x).log_softmax(-1).logsumexp(0)
        nll = -log_p.log_softmax(-1).gather(1, y[:, None])[:, 0]
        return float((nll * w).sum() / w.sum())

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        if "_generator" in state:
            state["_generator"] = state["_generator"].get_state()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_generator" in state:
            generator = torch.Generator(state["device"])
            generator.set_state(state["_generator"])
            state = state | {"_generator": generator}
        super().__setstate__(state)


def _relative_size(parameters: list[nn.Parameter], dim: int, classes: int) -> float:
    """How much larger than Xavier's the class weights start, at least 1.

    Adam's steps have the size of its rate: a concentration of a hundred should not take a hundred thousand.
    """
    sizes = [float(p.detach().square().mean().sqrt()) for p in parameters if p.ndim == 2]
    return max([1.0, *(size * math.sqrt((dim + classes) / 2) for size in sizes)])
