"""Sets of classes that hold the true one with a stated probability: split conformal prediction.

Every leaf gives each class of an item a typicality, higher for more likely. On n held-out items that of the
true class is known; the threshold is the k-th lowest of these n numbers, k = ⌊(1 − coverage)(n + 1)⌋. The set
of a new item has all classes that reach it. If the new item is exchangeable with the held-out ones, its true
class is below the threshold with a probability of at most k/(n + 1) ≤ 1 − coverage, whatever the model.
Held-out means: seen neither in training nor by a calibrator that made the probabilities.

The usual scores are 1 minus ours: small numbers near a probability of 0 keep their digits, those near 1 lose
them. Nothing is drawn at random, so a graph gives the same sets; coverage is then at least what was asked.
Where the model is right more often than that, some sets are empty.
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from spaceform.metrics.inputs import (
    TensorOrArray,
    as_finite,
    as_floats,
    as_labels,
    as_probs,
    finite_on_cpu,
    on_cpu,
)
from spaceform.metrics.ranks import checked_share, items_needed, lowest_left_out

_S = TypeVar("_S", bound="PredictionSets")


class PredictionSets(nn.Module, ABC):
    """Fitted once on held-out items; then a function from probabilities to sets of classes.

    `by_class` makes the promise for each class and not on average: every class has a threshold of its own and
    needs items enough for it.

    What is fitted are buffers in float64, in `state_dict`; they follow the probabilities' dtype and device.
    No value is looked at while a graph is traced, so `torch.export` and ONNX take the module as it is.
    """

    name: ClassVar[str]
    """The name in files and commands; the key in `SETS`."""
    fitted_buffers: ClassVar[tuple[str, ...]] = ("threshold",)
    threshold: Tensor
    """The threshold of the typicality: one number, or one for each class."""

    def __init__(self, coverage: float = 0.9, *, by_class: bool = False) -> None:
        super().__init__()
        self.coverage = checked_share(coverage, "coverage")
        self.by_class = by_class
        for buffer in self.fitted_buffers:
            self.register_buffer(buffer, torch.empty(0, dtype=torch.float64))

    # What a leaf gives.

    @abstractmethod
    def _typicality(
        self, p: Float[Tensor, "batch classes"], confidence: Float[Tensor, " batch"] | None
    ) -> Float[Tensor, "batch classes"]: ...

    def _prepare(
        self,
        p: Float[Tensor, "batch classes"],  # noqa: ARG002
        y: Int[Tensor, " batch"],
        confidence: Float[Tensor, " batch"] | None,  # noqa: ARG002
    ) -> Int[Tensor, " rest"]:
        """Fit what the typicality itself needs; returns the rows that are left for the threshold."""
        return torch.arange(len(y), device=y.device)

    # What every caller meets.

    def fit(
        self: _S, probabilities: TensorOrArray, labels: TensorOrArray, confidence: TensorOrArray | None = None
    ) -> _S:
        """Find the threshold on held-out items; `confidence` is `head.confidence(z)`, one number an item."""
        p = as_probs(probabilities, "probabilities")
        y = as_labels(labels, "labels", *p.shape).to(p.device)
        κ = None if confidence is None else as_finite(confidence, "confidence", 1).to(p)
        _check_length(κ, len(p))
        rest = self._prepare(p, y, κ)
        p, y, κ = p[rest], y[rest], None if κ is None else κ[rest]
        typical = self._typicality(p, κ).gather(1, y[:, None])[:, 0].double().cpu()
        self.threshold = (
            _class_thresholds(typical, y.cpu(), p.shape[1], self.coverage)
            if self.by_class
            else _threshold(typical, self.coverage, len(labels) - len(rest))
        )
        return self

    def forward(
        self, probabilities: TensorOrArray, confidence: TensorOrArray | None = None
    ) -> Bool[Tensor, "batch classes"]:
        """Which classes are in the set of each item."""
        if not self.fitted:
            raise ValueError(
                f"the {self.name} sets have not been fitted; call fit(probabilities, labels), or load a state"
            )
        p, κ = self._inputs(probabilities, confidence)
        typical = self._typicality(p, κ)
        t = self.threshold.to(typical)
        # A class within rounding of the threshold is in: a set may grow by that, never shrink.
        return typical >= t - 8 * torch.finfo(p.dtype).eps * t.abs()

    @property
    def fitted(self) -> bool:
        """Whether it has been fitted, or has loaded a state."""
        return self.threshold.numel() > 0

    def _inputs(
        self, probabilities: TensorOrArray, confidence: TensorOrArray | None
    ) -> tuple[Tensor, Tensor | None]:
        """The inputs. They are checked except while a graph is traced; their values only on the CPU."""
        if torch.compiler.is_compiling():
            assert isinstance(probabilities, Tensor)
            assert confidence is None or isinstance(confidence, Tensor)
            return probabilities, confidence
        check = as_probs if on_cpu(probabilities) else partial(as_floats, ndim=2)
        p = check(probabilities, "probabilities")
        if self.threshold.ndim == 1 and p.shape[1] != len(self.threshold):
            raise ValueError(
                f"probabilities have {p.shape[1]} classes, but the sets were fitted to {len(self.threshold)}"
            )
        κ = None if confidence is None else finite_on_cpu(confidence, "confidence", 1).to(p)
        _check_length(κ, len(p))
        return p, κ

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take a state of any size; refuse one whose numbers cannot have been fitted."""
        for buffer in self.fitted_buffers:
            value = state_dict.get(prefix + buffer)
            if value is None:
                continue  # torch reports what is missing
            if value.ndim > 1 or value.numel() == 0 or not bool(value.isfinite().all()):
                raise ValueError(
                    f"{buffer} of the {self.name} sets must be finite numbers on at most one axis, "
                    f"got shape {tuple(value.shape)}"
                )
            setattr(self, buffer, torch.empty_like(value, dtype=torch.float64))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"coverage={self.coverage:g}" + (", by_class=True" if self.by_class else "")


def _threshold(typical: Float[Tensor, " n"], coverage: float, used: int) -> Float[Tensor, ""]:
    k = lowest_left_out(len(typical), 1 - coverage)
    if k == 0:
        needed = items_needed(1 - coverage)
        already = f" beside the {used} that the norm takes" if used else ""
        raise ValueError(
            f"a coverage of {coverage:g} needs at least {needed} held-out items{already}, "
            f"got {len(typical)}; hold out more or ask for less coverage"
        )
    return typical.sort().values[k - 1].clone()


def _class_thresholds(
    typical: Float[Tensor, " n"], y: Int[Tensor, " n"], classes: int, coverage: float
) -> Float[Tensor, " classes"]:
    counts = torch.bincount(y, minlength=classes)
    needed = items_needed(1 - coverage)
    short = (counts < needed).nonzero()[:, 0]
    if len(short):
        first = int(short[0])
        more = f" and {len(short) - 1} more classes have too few" if len(short) > 1 else ""
        raise ValueError(
            f"a coverage of {coverage:g} for each class needs at least {needed} held-out items of each, but "
            f"class {first} has {int(counts[first])}{more}; hold out more or use by_class=False"
        )
    each = [_threshold(typical[y == j], coverage, 0) for j in range(classes)]
    return torch.stack(each)


def _check_length(confidence: Tensor | None, batch: int) -> None:
    if confidence is not None and len(confidence) != batch:
        raise ValueError(
            f"confidence has {len(confidence)} entries for {batch} items; the lengths must agree"
        )
