"""What every calibrator is: a module that is fitted once, then maps logits to log-probabilities."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from spaceform.calibrators._fit import Examples
from spaceform.metrics.inputs import TensorOrArray, as_finite, as_labels, finite_on_cpu

_C = TypeVar("_C", bound="Calibrator")


class Calibrator(nn.Module, ABC):
    """Fitted once on held-out examples; then a function from logit samples to log-probabilities.

    What is fitted are buffers, in float64: they are in `state_dict`, and they follow the dtype and device of
    the logits. A new calibrator loads a state of any size. Nothing is drawn and no value is looked at while a
    graph is traced, so `torch.export` and ONNX take the module as it is.
    """

    name: ClassVar[str]
    """The name in files and commands; the key in `CALIBRATORS`."""
    shapes: ClassVar[dict[str, int]]
    """The fitted buffers and their numbers of axes."""

    def __init__(self) -> None:
        super().__init__()
        for buffer in self.shapes:
            self.register_buffer(buffer, torch.empty(0, dtype=torch.float64))

    # What a leaf gives.

    @abstractmethod
    def _fit(self, examples: Examples, confidence: Float[Tensor, " batch"] | None) -> dict[str, Tensor]:
        """The fitted buffers."""

    @abstractmethod
    def _log_probs(
        self, L: Float[Tensor, "draws batch classes"], confidence: Float[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch classes"]: ...

    @abstractmethod
    def _fault(self) -> str | None:
        """What is wrong with loaded buffers, or empty. They are finite and have the right number of axes."""

    # What every caller meets.

    def fit(
        self: _C,
        logits: TensorOrArray,
        y: TensorOrArray,
        confidence: TensorOrArray | None = None,
        weight: TensorOrArray | None = None,
    ) -> _C:
        """Minimise the negative log-likelihood of (logits, y).

        `logits` has shape (batch, classes), or (draws, batch, classes) from a stochastic head. `confidence`
        is `head.confidence(z)`, one number for each example. `weight` says how often an example counts: a
        weight of 2 is an example given twice. If only the ratios of your weights have a meaning, divide them
        by their mean.
        """
        examples, kept = as_examples(logits, y, confidence, weight)
        for buffer, value in self._fit(examples, kept).items():
            setattr(self, buffer, value.detach().double().cpu().clone())
        return self

    def forward(
        self, logit_samples: TensorOrArray, confidence: TensorOrArray | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Calibrated log-probabilities, in the dtype and on the device of the logits."""
        if not self.fitted:
            raise ValueError(
                f"the {self.name} calibrator has not been fitted; call fit(logits, y), or load a state"
            )
        L = _tensor(logit_samples, "logits", (2, 3))
        κ = None if confidence is None else _tensor(confidence, "confidence", (1,)).to(L)
        L = L if L.ndim == 3 else L[None]
        if κ is not None:
            _check_confidence(κ, L.shape[1])
        return self._log_probs(L, κ)

    @property
    def fitted(self) -> bool:
        """Whether it has been fitted, or has loaded a state."""
        return all(buffer.numel() > 0 for buffer in self.buffers())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take a state of any size; refuse one whose numbers cannot have been fitted."""
        for buffer, axes in self.shapes.items():
            value = state_dict.get(prefix + buffer)
            if value is None:
                continue  # torch reports what is missing
            if value.ndim != axes or value.numel() == 0 or not bool(value.isfinite().all()):
                raise ValueError(
                    f"{buffer} of the {self.name} calibrator must be finite numbers with {axes} axes, "
                    f"got shape {tuple(value.shape)}"
                )
            setattr(self, buffer, torch.empty_like(value, dtype=torch.float64))
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if self.fitted and (fault := self._fault()) is not None:
            raise ValueError(f"the {self.name} calibrator has a wrong state: {fault}")


def as_examples(
    logits: TensorOrArray, y: TensorOrArray, confidence: TensorOrArray | None, weight: TensorOrArray | None
) -> tuple[Examples, Float[Tensor, " batch"] | None]:
    """Checked examples and their confidence; those of weight 0 are left out."""
    L = as_finite(logits, "logits", (2, 3))
    L = _with_finite_squares(L if L.ndim == 3 else L[None])
    _, N, K = L.shape
    labels = as_labels(y, "y", N, K).to(L.device)
    κ = None if confidence is None else as_finite(confidence, "confidence", 1).to(L.device)
    if κ is not None:
        _check_confidence(κ, N)
    if weight is None:
        return Examples(L, labels, torch.ones(N, dtype=torch.float64, device=L.device)), κ
    w = as_finite(weight, "weight", 1).to(L.device).double()
    if len(w) != N:
        raise ValueError(f"weight has {len(w)} entries for {N} examples; the lengths must agree")
    if bool(w.min() < 0) or bool(w.max() == 0):
        raise ValueError(f"weight must not be negative and not all zero, got {w.min().item():.4g} at least")
    kept = w > 0
    return Examples(L, labels, w).part(kept), None if κ is None else κ[kept]


def _with_finite_squares(L: Float[Tensor, "draws batch classes"]) -> Float[Tensor, "draws batch classes"]:
    """Huge logits in double precision, which the curvature of their loss needs."""
    largest = float(L.abs().max())
    if largest > 1e100:
        raise ValueError(f"logits reach {largest:.0e}: the model has diverged; train it at a lower rate")
    return L.double() if largest > 1e15 else L


def _tensor(x: TensorOrArray, name: str, ndims: tuple[int, ...]) -> Tensor:
    """The tensor. It is checked, except while a graph is traced.

    Values are looked at on the CPU only: a look at another device would wait for it.
    """
    if torch.compiler.is_compiling():
        assert isinstance(x, Tensor)
        return x
    checked = finite_on_cpu(x, name, ndims)
    return x.to(checked.dtype) if isinstance(x, Tensor) else checked


def _check_confidence(κ: Float[Tensor, " batch"], batch: int) -> None:
    if torch.compiler.is_compiling():
        return
    if len(κ) != batch:
        raise ValueError(f"confidence has {len(κ)} entries for {batch} examples; the lengths must agree")
    if κ.device.type == "cpu" and bool(κ.min() < 0):
        raise ValueError(f"confidence must not be negative, got {κ.min().item():.4g}; pass a norm")


def check_classes(L: Float[Tensor, "draws batch classes"], fitted: int) -> None:
    """The calibrator has a number for every class of its own."""
    if L.shape[-1] != fitted:
        raise ValueError(f"logits have {L.shape[-1]} classes, but the calibrator was fitted to {fitted}")


def weighted_quantiles(
    x: Float[Tensor, " batch"], weight: Float[Tensor, " batch"], levels: Float[Tensor, " levels"]
) -> Float[Tensor, " levels"]:
    """The least value below or at which lies this share of the weight."""
    values, order = x.sort()
    reached = weight[order].cumsum(0)
    at = torch.searchsorted(reached, levels * reached[-1])
    return values[at.clamp_max(len(values) - 1)]
