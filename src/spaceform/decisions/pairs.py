"""Are these two of one class? The log-likelihood ratio of a pair, calibrated on pairs of held-out classes.

For embeddings on the sphere the ratio is exact. A class is a direction x, drawn uniformly; an embedding z of
it with the direction μ has the likelihood vMF(μ; x, k). Then with C the normaliser of vMF and η = kμ

    log p(z₁, z₂ | one class)/(p(z₁) p(z₂)) = log C(k₁) + log C(k₂) − log C(‖η₁ + η₂‖) − log C(0).

Several embeddings of one class, an enrolment, are one with η = Σ kᵢ μᵢ: nothing else changes. With one k for
all embeddings this is the model of Brümmer et al. 2022 (PSDA) for classes that are spread uniformly.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, TypeVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from spaceform.decisions._pairs_fit import FitStart, fit_ratio, pair_rows
from spaceform.geometry import Geometry, Sphere
from spaceform.geometry.base import direction
from spaceform.heads.base import Head
from spaceform.metrics.inputs import TensorOrArray, as_labels, finite_on_cpu, on_cpu
from spaceform.metrics.ranks import checked_share
from spaceform.metrics.verification import accept_threshold
from spaceform.special import concentration_from_mean_resultant_length, log_normalizer_difference

_P = TypeVar("_P", bound="Pairs")
_BLOCK_PAIRS = 1 << 14  # pairs whose embeddings are held at a time


def vmf_log_ratio(
    k1: Float[Tensor, "*#batch"], k2: Float[Tensor, "*#batch"], dot: Float[Tensor, "*#batch"], dim: int
) -> Float[Tensor, "..."]:
    """The ratio above from ‖η₁‖, ‖η₂‖ and η₁·η₂: positive where one class explains both better.

    It is (log C(k₁) − log C(‖η₁ + η₂‖)) + (log C(k₂) − log C(0)), and ‖η₁ + η₂‖² − k₁² = k₂² + 2 η₁·η₂: no
    digits are lost to subtraction.
    """
    together = log_normalizer_difference(k1, None, dim, squared_difference=k2.square() + 2 * dot)
    return together + log_normalizer_difference(k2, torch.zeros_like(k2), dim)


class Pairs(nn.Module, ABC):
    """The log-likelihood ratio that two embeddings share a class: above 0, one class is more likely than two.

    It is fitted to pairs of held-out items, if possible of classes that were not trained on. The fit
    minimises Cllr, in which both kinds of pairs have the same weight. What is fitted are buffers in float64.
    """

    name: ClassVar[str]
    """The name in files and commands; the key in `PAIRS`."""
    shape: Float[Tensor, " p"]
    """The fitted numbers that the ratio itself depends on."""
    line: Float[Tensor, "2"]
    """Scale and offset that calibrate it."""
    different: Float[Tensor, " pairs"]
    """Ratios of the held-out pairs of two classes: `threshold` is one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shape", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("line", torch.zeros(0, dtype=torch.float64))
        self.register_buffer("different", torch.zeros(0, dtype=torch.float64))

    # What a leaf gives.

    @abstractmethod
    def _statistics(
        self, z1: Float[Tensor, "pairs dim"], z2: Float[Tensor, "pairs dim"]
    ) -> Float[Tensor, "numbers pairs"]:
        """What the ratio of a pair needs to know of its embeddings; it does not depend on the shape."""

    @abstractmethod
    def _start(
        self, statistics: Float[Tensor, "numbers pairs"], same: Bool[Tensor, " pairs"], dim: int
    ) -> FitStart:
        """Where the fit begins."""

    @abstractmethod
    def _of_statistics(
        self, shape: Float[Tensor, " p"], statistics: Float[Tensor, "numbers pairs"], dim: int
    ) -> Float[Tensor, " pairs"]:
        """The ratio without the line."""

    @abstractmethod
    def _member(self, z: Float[Tensor, "batch items dim"]) -> Float[Tensor, "batch dim"]:
        """One vector for each enrolment."""

    @abstractmethod
    def _of_members(
        self, a: Float[Tensor, "n dim"], b: Float[Tensor, "m dim"], aligned: bool
    ) -> Float[Tensor, "..."]:
        """The ratio without the line, of aligned members or of all pairs."""

    # What every caller meets.

    def fit(self: _P, z: TensorOrArray, y: TensorOrArray) -> _P:
        """Learn from pairs of held-out items: at most 50,000 of one class and as many of two."""
        x = _embeddings(z, "z", (2,)).cpu()
        labels = as_labels(y, "y", len(x)).cpu()
        first, second, same = pair_rows(labels)
        blocks = zip(first.split(_BLOCK_PAIRS), second.split(_BLOCK_PAIRS), strict=True)
        statistics = torch.cat([self._statistics(x[i].double(), x[j].double()) for i, j in blocks], 1)
        dim = x.shape[1]
        begin = self._start(statistics, same, dim)

        def ratio(θ: Tensor) -> Tensor:
            return self._of_statistics(torch.cat([θ, begin.kept]), statistics, dim)

        θ, self.line = fit_ratio(ratio, begin, same, len(labels.unique()))
        self.shape = torch.cat([θ, begin.kept])
        self.different = self._lined(self._of_statistics(self.shape, statistics[:, ~same], dim))
        return self

    def forward(self, z1: TensorOrArray, z2: TensorOrArray) -> Float[Tensor, " batch"]:
        """The calibrated ratio of aligned pairs; an enrolment of several items is (batch, items, dim)."""
        a, b = self._members(z1, z2)
        if len(a) != len(b):
            raise ValueError(f"z1 has {len(a)} entries, z2 {len(b)}; pairs need as many, or use all_pairs")
        return self._lined(self._of_members(a, b, True))

    def all_pairs(self, z1: TensorOrArray, z2: TensorOrArray) -> Float[Tensor, "n m"]:
        """The calibrated ratio of each entry of z1 with each entry of z2."""
        return self._lined(self._of_members(*self._members(z1, z2), False))

    def of_labelled(
        self, z: TensorOrArray, y: TensorOrArray
    ) -> tuple[Float[Tensor, " pairs"], Bool[Tensor, " pairs"]]:
        """The calibrated ratio of pairs of labelled items (50,000 of a kind at most), and which share a
        class.
        """
        x = _embeddings(z, "z", (2,)).cpu()
        first, second, same = pair_rows(as_labels(y, "y", len(x)).cpu())
        blocks = zip(first.split(_BLOCK_PAIRS), second.split(_BLOCK_PAIRS), strict=True)
        return torch.cat([self(x[i].double(), x[j].double()) for i, j in blocks]), same

    def same(self, z1: TensorOrArray, z2: TensorOrArray, *, prior: float = 0.5) -> Float[Tensor, " batch"]:
        """The probability that aligned pairs share a class, where a share `prior` of all pairs does."""
        odds = torch.tensor(checked_share(prior, "prior"), dtype=torch.float64).logit()
        ratio = self(z1, z2)
        return torch.sigmoid(ratio + odds.to(ratio))

    def threshold(self, false_accept: float) -> float:
        """The least ratio to accept, so that at most a share `false_accept` of pairs of two classes is
        accepted.
        """
        self._check_fitted()
        return accept_threshold(self.different, false_accept)

    def _lined(self, ratio: Tensor) -> Tensor:
        scale, offset = self.line.to(ratio)
        return scale * ratio + offset

    def _members(self, z1: TensorOrArray, z2: TensorOrArray) -> tuple[Tensor, Tensor]:
        self._check_fitted()
        a, b = _embeddings(z1, "z1", (2, 3)), _embeddings(z2, "z2", (2, 3))
        if a.shape[-1] != b.shape[-1]:
            raise ValueError(f"z1 has dimension {a.shape[-1]}, z2 {b.shape[-1]}; embed both by one net")
        dtype = torch.promote_types(a.dtype, b.dtype)
        one, other = (self._member(x.to(dtype) if x.ndim == 3 else x.to(dtype)[:, None]) for x in (a, b))
        return one, other

    def _check_fitted(self) -> None:
        if self.line.numel() == 0:
            raise ValueError(f"the {self.name} pairs have not been fitted; call fit(z, y), or load a state")

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take a state of any size."""
        for name in ("shape", "line", "different"):
            if (value := state_dict.get(prefix + name)) is not None:
                setattr(self, name, torch.empty_like(value, dtype=torch.float64))
        super()._load_from_state_dict(state_dict, prefix, *rest)


@final
class VonMisesFisherPairs(Pairs):
    """The exact ratio on the sphere; the concentration of an embedding rises with its norm as the pairs say.

    log k = a + b (log ‖z‖ − c) with a and b learnt and c the mean of log ‖z‖. k says how near embeddings of
    one class lie. b is 0 where the norm says nothing about that, and 1 where it is a concentration; it is not
    negative, since a large norm never means a doubtful embedding.
    """

    name = "von_mises_fisher"

    def _statistics(
        self, z1: Float[Tensor, "pairs dim"], z2: Float[Tensor, "pairs dim"]
    ) -> Float[Tensor, "numbers pairs"]:
        norms = (torch.linalg.vector_norm(z, dim=-1).log() for z in (z1, z2))
        return torch.stack([(direction(z1) * direction(z2)).sum(-1), *norms])

    def _start(
        self, statistics: Float[Tensor, "numbers pairs"], same: Bool[Tensor, " pairs"], dim: int
    ) -> FitStart:
        # E[μ₁·μ₂ | one class] = A(k)².
        r = statistics[0, same].mean().clamp(1e-4, 0.9999).sqrt()
        k = concentration_from_mean_resultant_length(r, dim)
        return FitStart(torch.stack([k.log(), torch.zeros_like(k)]), statistics[1:].mean()[None], 1.0, 0.0)

    def _of_statistics(
        self, shape: Float[Tensor, " p"], statistics: Float[Tensor, "numbers pairs"], dim: int
    ) -> Float[Tensor, " pairs"]:
        k1, k2 = (_concentration(shape, log_norm) for log_norm in statistics[1:])
        return vmf_log_ratio(k1, k2, k1 * k2 * statistics[0], dim)

    def _member(self, z: Float[Tensor, "batch items dim"]) -> Float[Tensor, "batch dim"]:
        """η = Σ kᵢ μᵢ."""
        k = _concentration(self.shape.to(z), torch.linalg.vector_norm(z, dim=-1).log())
        return (k[..., None] * direction(z)).sum(-2)

    def _of_members(
        self, a: Float[Tensor, "n dim"], b: Float[Tensor, "m dim"], aligned: bool
    ) -> Float[Tensor, "..."]:
        k1, k2 = (torch.linalg.vector_norm(η, dim=-1) for η in (a, b))
        if aligned:
            return vmf_log_ratio(k1, k2, (a * b).sum(-1), a.shape[-1])
        return vmf_log_ratio(k1[:, None].expand(-1, len(b)), k2.expand(len(a), -1), a @ b.T, a.shape[-1])


@final
class SimilarityPairs(Pairs):
    """The geometry's own similarity, with a line. For the cosine this is the usual logistic calibration."""

    name = "similarity"

    def __init__(self, geometry: Geometry | None = None) -> None:
        super().__init__()
        self.geometry = Sphere() if geometry is None else geometry

    def _statistics(
        self, z1: Float[Tensor, "pairs dim"], z2: Float[Tensor, "pairs dim"]
    ) -> Float[Tensor, "numbers pairs"]:
        return self.geometry.similarity(z1, z2)[None]

    def _start(
        self,
        statistics: Float[Tensor, "numbers pairs"],
        same: Bool[Tensor, " pairs"],
        dim: int,  # noqa: ARG002
    ) -> FitStart:
        # The ratio of two normal laws that share one variance.
        one, other = statistics[0, same], statistics[0, ~same]
        variance = (one.var(correction=0) + other.var(correction=0)) / 2
        gap = (one.mean() - other.mean()).clamp_min(1e-6)
        scale = float(gap / variance.clamp_min(1e-6 * float(gap) ** 2))
        nothing = statistics.new_zeros(0)
        return FitStart(nothing, nothing, scale, -scale * float(one.mean() + other.mean()) / 2)

    def _of_statistics(
        self,
        shape: Float[Tensor, " p"],  # noqa: ARG002
        statistics: Float[Tensor, "numbers pairs"],
        dim: int,  # noqa: ARG002
    ) -> Float[Tensor, " pairs"]:
        return statistics[0]

    def _member(self, z: Float[Tensor, "batch items dim"]) -> Float[Tensor, "batch dim"]:
        return z[:, 0] if z.shape[1] == 1 else self.geometry.midpoint(z)

    def _of_members(
        self, a: Float[Tensor, "n dim"], b: Float[Tensor, "m dim"], aligned: bool
    ) -> Float[Tensor, "..."]:
        return self.geometry.similarity(a, b) if aligned else self.geometry.pairwise(a, b)


def pairs_for(geometry: Geometry) -> Pairs:
    """The model for embeddings of a geometry: exact on the sphere, elsewhere a line in the distance.

    If classes were normal with one variance and spread widely, the exact ratio would fall with the squared
    distance. A line in the distance itself is less sure about pairs that lie far apart, which suits real
    data.
    """
    return VonMisesFisherPairs() if isinstance(geometry, Sphere) else SimilarityPairs(geometry)


def learn_pairs(head: Head, z: TensorOrArray, y: TensorOrArray) -> Pairs:
    """Fit the model of the head's geometry to embeddings z of held-out classes; then `head.same` answers.

    The model is `head.pairs`, a module of the head: it is in its `state_dict`.
    """
    pairs = pairs_for(head.geometry).fit(z, y)
    head.pairs = pairs
    return pairs


PAIRS: dict[str, type[Pairs]] = {kind.name: kind for kind in (VonMisesFisherPairs, SimilarityPairs)}


def _concentration(shape: Float[Tensor, " p"], log_norm: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Exp(a + b (log ‖z‖ − c)), inside the range where the normaliser is known."""
    a, b, c = shape
    return (a + b.clamp_min(0) * (log_norm - c)).clamp(-18, 18).exp()


def _embeddings(z: TensorOrArray, name: str, axes: tuple[int, ...]) -> Tensor:
    x = finite_on_cpu(z, name, axes)
    if on_cpu(x) and len(zero := (x == 0).all(-1).flatten().nonzero()):
        raise ValueError(
            f"{name} has a zero vector (entry {int(zero[0])}), which has no direction; leave it out"
        )
    return x
