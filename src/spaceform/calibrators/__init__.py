"""Post-hoc calibration: probabilities that keep their promise, fitted on held-out logits.

Every calibrator takes logits (or log-probabilities) of shape (batch, classes), or (draws, batch, classes)
from a stochastic head, and returns log-probabilities. An inverse temperature β = 1/T acts inside the Monte
Carlo average,

    p(y | x) = (1/S) Σₛ softmax(β ℓₛ)_y,

as it would if the head itself had been trained at that temperature: scaling the logarithm of the averaged
probabilities instead would undo the averaging.

Minimised is the mean negative log-likelihood. For one draw it is convex in β and in all that enters β
linearly; with several draws the minimum is sought from the best point of a wide scan, and every step must
decrease it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from spaceform.calibrators._fit import (
    Value,
    all_right,
    fit_inverse_temperature,
    last_decrease,
    loss,
    minimise,
    monotone,
    ramps,
    vector_loss,
    with_finite_squares,
)
from spaceform.heads.base import log_mean_softmax
from spaceform.metrics.inputs import Array, as_finite, as_labels

__all__ = [
    "CALIBRATORS",
    "Calibrator",
    "Isotonic",
    "NormAwareTemperature",
    "TemperatureScaling",
    "VectorScaling",
    "choose",
    "from_dict",
]

_T = TypeVar("_T")
_FOLDS = 5


class Calibrator(ABC):
    """Fitted once on held-out examples; then a function from logits to log-probabilities."""

    kind: ClassVar[str]

    @abstractmethod
    def fit(self, logits: Array, y: Array, confidence: Array | None = None) -> "Calibrator":
        """Minimise the loss on (logits, y); `confidence` is ‖z‖ or κ per example, where it is used."""

    @abstractmethod
    def __call__(self, logits: Array, confidence: Array | None = None) -> Float[Tensor, "batch classes"]:
        """Calibrated log-probabilities, in the dtype and on the device of the logits."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Numbers and strings only: it survives JSON exactly. `from_dict` reads it."""

    @classmethod
    @abstractmethod
    def _from_dict(cls, state: Mapping[str, Any]) -> "Calibrator": ...


@final
class TemperatureScaling(Calibrator):
    """softmax(ℓ/T) with one T (Guo et al. 2017).

    T is the minimiser to 1e-7 (float64 logits) or 1e-5 (float32), relatively, sought within a factor 1000 of
    the spread of the logits.

    Where every example is right the loss falls for ever as T → 0, and N right answers support no certainty:
    Laplace's rule of succession leaves the next one a chance of 1/(N + 2) to be wrong. T is then lowered only
    until the mean probability of the wrong classes is that, and stays 1 where it is no more already.
    """

    kind = "temperature"

    def __init__(self, temperature: float | None = None) -> None:
        if temperature is not None and not 0 < temperature < float("inf"):
            raise ValueError(f"temperature must be positive and finite, got {temperature!r}")
        self.temperature = temperature

    def fit(self, logits: Array, y: Array, confidence: Array | None = None) -> "TemperatureScaling":  # noqa: ARG002
        """Find T."""
        L, labels = _fitting_data(logits, y)
        self.temperature = 1 / fit_inverse_temperature(L, labels)
        return self

    def __call__(self, logits: Array, confidence: Array | None = None) -> Float[Tensor, "batch classes"]:  # noqa: ARG002
        """The log of the mean over draws of softmax(ℓ/T)."""
        return log_mean_softmax(_draws(logits) / _fitted(self.temperature, self.kind))

    def to_dict(self) -> dict[str, Any]:
        """{"kind": "temperature", "temperature": T}."""
        return {"kind": self.kind, "temperature": _fitted(self.temperature, self.kind)}

    @classmethod
    def _from_dict(cls, state: Mapping[str, Any]) -> "TemperatureScaling":
        return cls(float(state["temperature"]))


@final
class NormAwareTemperature(Calibrator):
    """softmax(β(κ) ℓ): the inverse temperature depends on the embedding's norm or concentration κ.

    Spherical losses throw the norm away, yet it says how sure the model is. β is a monotone function of log
    κ, linear between `knots` quantiles of the fitting data and constant outside them, rising or falling,
    whichever has the lower loss. It is linear in its coefficients, so the fit is convex.

    Where the large norms have no error among them, nothing in the data bounds their β. So a weak doubt
    stands at each knot: minimised is the mean loss plus Σⱼ (βⱼ/β − 1)²/2N, β being plain scaling's.
    It costs plain scaling nothing, so this never falls behind it on the data it was fitted to, and is nothing
    beside the evidence of many examples; where every example is right, this is plain scaling.
    """

    kind = "norm_aware_temperature"

    def __init__(self, knots: int = 3) -> None:
        if not isinstance(knots, int) or knots < 2:
            raise ValueError(f"knots must be an integer of at least 2, got {knots!r}")
        self.knots = knots
        self._log_confidence: Tensor | None = None
        self._inverse_temperature: Tensor | None = None

    def fit(self, logits: Array, y: Array, confidence: Array | None = None) -> "NormAwareTemperature":
        """Find β at the knots."""
        L, labels = _fitting_data(logits, y)
        κ = self._confidence(confidence, L.shape[1]).cpu().double()
        β = fit_inverse_temperature(L, labels)
        positive = κ[κ > 0]
        levels = torch.linspace(0.05, 0.95, self.knots, dtype=torch.float64)
        at = (
            torch.from_numpy(np.unique(np.quantile(positive.log().numpy(), levels)))
            if len(positive)
            else κ[:1] * 0
        )
        best = loss(L, labels, torch.full_like(κ, β)).value, torch.full_like(at, β)
        for rises in (True, False) if len(at) > 1 and not all_right(L, labels) else ():
            basis, knots = (monotone(x, at, rises) for x in (κ, at.exp()))
            start = torch.zeros_like(knots[0])
            start[0] = β

            def evaluate(θ: Tensor, basis: Tensor = basis, knots: Tensor = knots) -> Value:
                v, n = loss(L, labels, basis @ θ), len(basis)
                doubt = knots @ θ / β - 1
                return Value(
                    v.value + float(doubt.square().sum()) / (2 * n),
                    (basis.T @ v.slope + knots.T @ doubt / β) / n,
                    (basis.T @ (basis * v.curvature[:, None]) + knots.T @ knots / β**2) / n,
                )

            lower = torch.zeros_like(start)
            lower[0] = β / 1000
            θ, value = minimise(evaluate, start, lower, last=last_decrease(L))
            if value < best[0]:
                best = value, knots @ θ
        self._log_confidence, self._inverse_temperature = at, best[1]
        return self

    def temperature(self, confidence: Array) -> Float[Tensor, " batch"]:
        """T(κ) = 1/β(κ)."""
        κ = self._confidence(confidence, len(confidence))
        at = _fitted(self._log_confidence, self.kind).to(κ.device)
        β = _fitted(self._inverse_temperature, self.kind).to(κ.device)
        return (1 / (β[0] + ramps(κ.double(), at) @ β.diff())).to(κ.dtype)

    def __call__(self, logits: Array, confidence: Array | None = None) -> Float[Tensor, "batch classes"]:
        """The log of the mean over draws of softmax(ℓ/T(κ))."""
        L = _draws(logits)
        T = self.temperature(self._confidence(confidence, L.shape[1])).to(L)
        return log_mean_softmax(L / T[:, None])

    def to_dict(self) -> dict[str, Any]:
        """The knots and β at them."""
        return {
            "kind": self.kind,
            "knots": self.knots,
            "log_confidence": _fitted(self._log_confidence, self.kind).tolist(),
            "inverse_temperature": _fitted(self._inverse_temperature, self.kind).tolist(),
        }

    @classmethod
    def _from_dict(cls, state: Mapping[str, Any]) -> "NormAwareTemperature":
        self = cls(int(state["knots"]))
        self._log_confidence = torch.tensor(state["log_confidence"], dtype=torch.float64)
        self._inverse_temperature = torch.tensor(state["inverse_temperature"], dtype=torch.float64)
        return self

    def _confidence(self, confidence: Array | None, batch: int) -> Float[Tensor, " batch"]:
        if confidence is None:
            raise ValueError(
                "NormAwareTemperature needs confidence=, one number per example; pass head.confidence(z)"
            )
        κ = as_finite(confidence, "confidence", 1)
        if len(κ) != batch:
            raise ValueError(f"confidence has {len(κ)} entries for {batch} examples; the lengths must agree")
        if bool(κ.min() < 0):
            raise ValueError(f"confidence must not be negative, got {κ.min().item():.4g}; pass a norm")
        return κ


@final
class VectorScaling(Calibrator):
    """softmax(w ∘ ℓ + b): a scale and an offset per class (Guo et al. 2017).

    Minimised is the mean negative log-likelihood plus ridge/2 (‖T w − 1‖² + ‖b‖²), T being the plain
    temperature: strictly convex, and finite where a class has no example. Newton's method, O(examples ·
    classes²) a step. Where every example is right it is plain temperature scaling.
    """

    kind = "vector"

    def __init__(self, ridge: float = 1e-4) -> None:
        if not 0 <= ridge < float("inf"):
            raise ValueError(f"ridge must not be negative, got {ridge!r}")
        self.ridge = ridge
        self._scale: Tensor | None = None
        self._offset: Tensor | None = None

    def fit(self, logits: Array, y: Array, confidence: Array | None = None) -> "VectorScaling":  # noqa: ARG002
        """Find w and b."""
        L, labels = _fitting_data(logits, y)
        β = fit_inverse_temperature(L, labels)
        K = L.shape[-1]
        start = torch.cat([torch.ones(K), torch.zeros(K)]).to(labels.device).double()

        def evaluate(θ: Tensor) -> Value:
            v = vector_loss(L, labels, β, θ)
            ridge = self.ridge * torch.eye(2 * K).to(θ)
            return Value(
                v.value + self.ridge / 2 * float((θ - start).square().sum()),
                v.slope + self.ridge * (θ - start),
                v.curvature + ridge,
            )

        θ = start
        if not all_right(L, labels):
            θ, _ = minimise(evaluate, start, torch.full_like(start, -torch.inf))
        self._scale, self._offset = θ[:K].cpu() * β, θ[K:].cpu()
        return self

    def __call__(self, logits: Array, confidence: Array | None = None) -> Float[Tensor, "batch classes"]:  # noqa: ARG002
        """The log of the mean over draws of softmax(w ∘ ℓ + b)."""
        L = _draws(logits)
        w, b = _fitted(self._scale, self.kind), _fitted(self._offset, self.kind)
        if len(w) != L.shape[-1]:
            raise ValueError(f"logits have {L.shape[-1]} classes, but the calibrator was fitted to {len(w)}")
        return log_mean_softmax(w.to(L) * L + b.to(L))

    def to_dict(self) -> dict[str, Any]:
        """w, b and the ridge."""
        return {
            "kind": self.kind,
            "ridge": self.ridge,
            "scale": _fitted(self._scale, self.kind).tolist(),
            "offset": _fitted(self._offset, self.kind).tolist(),
        }

    @classmethod
    def _from_dict(cls, state: Mapping[str, Any]) -> "VectorScaling":
        self = cls(float(state["ridge"]))
        self._scale = torch.tensor(state["scale"], dtype=torch.float64)
        self._offset = torch.tensor(state["offset"], dtype=torch.float64)
        return self


@final
class Isotonic(Calibrator):
    """Each class's probability through its own isotonic regression, then normalised (Zadrozny & Elkan 2002).

    The regressions are scikit-learn's, on the probabilities averaged over the draws. Fitted values are kept
    at least 1/(2 N), half an example, so that no log-probability is infinite. Order, and so accuracy, may
    change.
    """

    kind = "isotonic"

    def __init__(self) -> None:
        self._x: Tensor | None = None
        self._y: Tensor | None = None

    def fit(self, logits: Array, y: Array, confidence: Array | None = None) -> "Isotonic":  # noqa: ARG002
        """One regression per class."""
        try:
            from sklearn.isotonic import IsotonicRegression
        except ImportError as error:
            raise ImportError(
                "Isotonic needs scikit-learn; install it with: pip install 'spaceform[lab]'"
            ) from error

        L, labels = _fitting_data(logits, y)
        p = log_mean_softmax(L.double()).exp().cpu().numpy()
        right, N = labels.cpu().numpy(), len(labels)
        curves = [IsotonicRegression().fit(p[:, j], right == j) for j in range(p.shape[1])]
        longest = max(len(c.X_thresholds_) for c in curves)
        # Repeating the last point makes the curves one rectangle and changes none of them.
        x, v = (
            torch.from_numpy(np.stack([np.pad(t, (0, longest - len(t)), mode="edge") for t in threshold]))
            for threshold in ([c.X_thresholds_ for c in curves], [c.y_thresholds_ for c in curves])
        )
        self._x, self._y = x.double(), v.double().clamp_min(1 / (2 * N))
        return self

    def __call__(self, logits: Array, confidence: Array | None = None) -> Float[Tensor, "batch classes"]:  # noqa: ARG002
        """Logarithm of the regressions' values, normalised."""
        L = _draws(logits)
        x, v = _fitted(self._x, self.kind).to(L.device), _fitted(self._y, self.kind).to(L.device)
        if len(x) != L.shape[-1]:
            raise ValueError(f"logits have {L.shape[-1]} classes, but the calibrator was fitted to {len(x)}")
        p = log_mean_softmax(L.double()).exp().T.contiguous()
        right = torch.searchsorted(x, p).clamp(0, x.shape[1] - 1)
        left = (right - 1).clamp_min(0)
        x0, x1, v0, v1 = x.gather(1, left), x.gather(1, right), v.gather(1, left), v.gather(1, right)
        share = ((p - x0) / (x1 - x0)).nan_to_num(0, posinf=0, neginf=0).clamp(0, 1)
        q = v0 + share * (v1 - v0)
        return (q / q.sum(0)).log().T.to(L.dtype).contiguous()

    def to_dict(self) -> dict[str, Any]:
        """The corners of each class's curve."""
        return {
            "kind": self.kind,
            "x": _fitted(self._x, self.kind).tolist(),
            "y": _fitted(self._y, self.kind).tolist(),
        }

    @classmethod
    def _from_dict(cls, state: Mapping[str, Any]) -> "Isotonic":
        self = cls()
        self._x = torch.tensor(state["x"], dtype=torch.float64)
        self._y = torch.tensor(state["y"], dtype=torch.float64)
        return self


CALIBRATORS: dict[str, type[Calibrator]] = {
    c.kind: c for c in (TemperatureScaling, NormAwareTemperature, VectorScaling, Isotonic)
}


def choose(logits: Array, y: Array, confidence: Array) -> Calibrator:
    """Plain temperature, or the one that depends on the norm where that is clearly better; fitted.

    Both are fitted without each fifth of the examples in turn. The norm enters where it lowers the negative
    log-likelihood of what was held out by more than two standard errors.
    """
    L, labels = _fitting_data(logits, y)
    κ = NormAwareTemperature()._confidence(confidence, len(labels))
    kinds: tuple[type[Calibrator], ...] = (TemperatureScaling, NormAwareTemperature)
    fold = (torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)) % _FOLDS).to(L.device)
    gain = torch.zeros(len(labels), dtype=torch.float64)
    for k in range(min(_FOLDS, len(labels) - 1)):
        out, rest = fold == k, fold != k
        plain, aware = (
            kind().fit(L[:, rest], labels[rest], κ[rest])(L[:, out], κ[out]).gather(1, labels[out, None])
            for kind in kinds
        )
        gain[out.cpu()] = (aware - plain)[:, 0].cpu().double()
    clearly = bool(gain.mean() > 2 * gain.std(correction=0) / len(gain) ** 0.5)
    return kinds[clearly]().fit(L, labels, κ)


def from_dict(state: Mapping[str, Any]) -> Calibrator:
    """The calibrator that `to_dict` wrote down."""
    kind = state.get("kind")
    if kind not in CALIBRATORS:
        raise ValueError(f"unknown calibrator {kind!r}; choose from {', '.join(CALIBRATORS)}")
    return CALIBRATORS[kind]._from_dict(state)


def _draws(logits: Array) -> Float[Tensor, "draws batch classes"]:
    """One draw where there is no axis of draws."""
    L = as_finite(logits, "logits", (2, 3))
    return L if L.ndim == 3 else L[None]


def _fitting_data(
    logits: Array, y: Array
) -> tuple[Float[Tensor, "draws batch classes"], Int[Tensor, " batch"]]:
    L = _draws(logits)
    return with_finite_squares(L), as_labels(y, "y", L.shape[1], L.shape[2]).to(L.device)


def _fitted(value: _T | None, kind: str) -> _T:
    if value is None:
        raise ValueError(f"the {kind} calibrator has not been fitted; call fit(logits, y) first")
    return value
