"""Is this item of a class that the model knows? Scores that are higher for known items.

Every score is a module with the same call, score(z, logit_samples, confidence, reach): embeddings, the head's
`logit_samples(z)` and `confidence(z)`, and, where the items are rows of features, the net's `reach(x)`.
`fit(z, y, held_out)` takes embeddings of training items of known classes; a score that weighs several answers
takes held-out items of these classes, too.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, TypeVar, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from spaceform.geometry import Geometry, Sphere
from spaceform.metrics.inputs import TensorOrArray, as_finite, as_labels, finite_on_cpu

_U = TypeVar("_U", bound="UnknownScore")


class Known(NamedTuple):
    """What a trained model says of items of known classes."""

    z: TensorOrArray
    """Embeddings."""
    y: TensorOrArray
    logits: TensorOrArray
    """`head.logit_samples(z)`."""
    confidence: TensorOrArray
    """`head.confidence(z)`."""
    reach: TensorOrArray | None = None
    """`net.reach(x)` of rows of features: how far they lie from the training rows."""


class Items(NamedTuple):
    """What a score gets for each item."""

    z: Float[Tensor, "batch dim"]
    logits: Float[Tensor, "draws batch classes"]
    confidence: Float[Tensor, " batch"] | None
    reach: Float[Tensor, " batch"] | None


class UnknownScore(nn.Module, ABC):
    """One number for each item, higher for items of known classes. What is fitted are buffers."""

    name: ClassVar[str]
    """The name in files and commands; the key in `UNKNOWN_SCORES`."""

    def __init__(self, geometry: Geometry | None = None) -> None:
        super().__init__()
        self.geometry = Sphere() if geometry is None else geometry

    def fit(self: _U, z: TensorOrArray, y: TensorOrArray, held_out: Known | None = None) -> _U:
        """Look at training items of the known classes; `Combined` needs held-out ones, too."""
        x = as_finite(z, "z", 2)
        self._fit(x, as_labels(y, "y", len(x)).to(x.device), held_out)
        return self

    def forward(
        self,
        z: TensorOrArray,
        logit_samples: TensorOrArray,
        confidence: TensorOrArray | None = None,
        reach: TensorOrArray | None = None,
    ) -> Float[Tensor, " batch"]:
        """The score of each item."""
        if torch.compiler.is_compiling():
            assert isinstance(z, Tensor)
            assert isinstance(logit_samples, Tensor)
            assert confidence is None or isinstance(confidence, Tensor)
            assert reach is None or isinstance(reach, Tensor)
            x, L, κ, r = z, logit_samples, confidence, reach
        else:
            x, L = finite_on_cpu(z, "z", 2), finite_on_cpu(logit_samples, "logits", (2, 3))
            κ = None if confidence is None else finite_on_cpu(confidence, "confidence", 1)
            r = None if reach is None else finite_on_cpu(reach, "reach", 1)
            _check_lengths(x, logits=L.transpose(-2, 0), confidence=κ, reach=r)
        return self._score(Items(x, L if L.ndim == 3 else L[None], κ, r))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take a state of any size."""
        for name in list(self._buffers):
            if (value := state_dict.get(prefix + name)) is not None:
                setattr(self, name, torch.empty_like(value))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @abstractmethod
    def _fit(self, z: Float[Tensor, "n dim"], y: Int[Tensor, " n"], held_out: Known | None) -> None: ...

    @abstractmethod
    def _score(self, items: Items) -> Float[Tensor, " batch"]: ...


@final
class Energy(UnknownScore):
    """The logarithm of Σⱼ exp ℓⱼ, averaged over the draws inside the logarithm (Liu et al. 2020).

    The logits of a head are log-likelihoods up to a constant: for `VonMisesFisherHead` this is the log
    evidence of all classes together. Nothing is fitted.
    """

    name = "energy"

    def _fit(self, z: Float[Tensor, "n dim"], y: Int[Tensor, " n"], held_out: Known | None) -> None: ...

    def _score(self, items: Items) -> Float[Tensor, " batch"]:
        return energy(items.logits)


@final
class OwnEvidence(UnknownScore):
    """The head's own confidence: the norm or concentration of the embedding. Nothing is fitted."""

    name = "evidence"

    def _fit(self, z: Float[Tensor, "n dim"], y: Int[Tensor, " n"], held_out: Known | None) -> None: ...

    def _score(self, items: Items) -> Float[Tensor, " batch"]:
        if items.confidence is None:
            raise ValueError("OwnEvidence needs confidence, one number per item; pass head.confidence(z)")
        return items.confidence


def energy(logits: Float[Tensor, "draws batch classes"]) -> Float[Tensor, " batch"]:
    """The logarithm of (1/S) Σₛ Σⱼ exp ℓₛⱼ."""
    top = logits.amax((0, 2))
    return (logits - top[:, None]).exp().sum(2).mean(0).log() + top


def _check_lengths(z: Tensor, **others: Tensor | None) -> None:
    for name, values in others.items():
        if values is not None and len(values) != len(z):
            raise ValueError(
                f"{name} has {len(values)} entries for {len(z)} embeddings; the lengths must agree"
            )
