"""What heads share whose embeddings are directions with a concentration: eq. 8 for any such law (eq. 5–8)."""

import math
from abc import abstractmethod

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor, nn

from spaceform.geometry import Sphere
from spaceform.heads._kernels.evidence import Law
from spaceform.heads._kernels.expected_softmax import expected_objective, spread_signs, tangents
from spaceform.heads._kernels.marginal import Marginal
from spaceform.heads._kernels.weight_draws import weight_logits
from spaceform.heads.base import StochasticHead

# A law beyond this concentration is a point, to the last bit of float32.
_MOST_CONCENTRATED = 1e15


def initial_concentration(dim: int, init_ratio: float) -> float:
    """κ = λ (n−1) / (1−λ²), where the upper bound of A_n(κ) is λ: the start of embeddings and weights."""
    return init_ratio * (dim - 1) / (1 - init_ratio**2)


def concentration_and_direction(
    z: Float[Tensor, "batch dim"], scale: Float[Tensor, ""]
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch dim"]]:
    """κ = α‖z̃‖ and μ = z̃/‖z̃‖ over the whole range of the type; a zero z̃ has κ = 0 and some constant μ."""
    largest = z.detach().abs().amax(1, keepdim=True)
    nothing = largest < torch.finfo(z.dtype).tiny
    inverse = largest.masked_fill(nothing, torch.inf).reciprocal()
    u = z * inverse
    u = u + nothing * torch.eye(1, z.shape[1], dtype=z.dtype, device=z.device)
    norm = torch.linalg.vector_norm(u, dim=1, keepdim=True)
    kappa = (norm * (largest * scale).clamp_max(_MOST_CONCENTRATED))[:, 0]
    return kappa, u / norm


class DirectionalHead(StochasticHead):
    """z of a law on the sphere about z̃/‖z̃‖ with concentration α‖z̃‖, w_j ~ vMF(w̃_j/‖w̃_j‖, ‖w̃_j‖).

    A leaf gives the law of z: its angle to μ, its mean, its divergence from the uniform law, its draws, and
    the α that `prepare` sets; and how C and A of the weights are evaluated.
    """

    geometry = Sphere()
    confidence_symbol = "κ"
    alpha: Tensor
    signs: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        samples: int,
        init_ratio: float,
        beta: float,
        learn_beta: bool,
        gamma: float,
        class_chunk: int | None,
    ) -> None:
        super().__init__(dim, num_classes, class_chunk=class_chunk)
        if dim < 2:
            raise ValueError(f"dim must be at least 2 to have a direction, got {dim}")
        if not (isinstance(samples, int) and samples > 0):
            raise ValueError(f"samples must be a positive integer, got {samples!r}")
        if not 0 < init_ratio < 1:
            raise ValueError(f"init_ratio must lie between 0 and 1, got {init_ratio!r}")
        if not (math.isfinite(gamma) and gamma >= 0):
            raise ValueError(f"gamma must be finite and at least 0, got {gamma!r}")
        self.samples, self.init_ratio, self.gamma = samples, init_ratio, gamma
        self.weight = nn.Parameter(torch.empty(num_classes, dim))
        self.register_buffer("alpha", torch.ones(()))
        self.register_buffer("signs", spread_signs((samples + 1) // 2, dim), persistent=False)
        self.marginal = Marginal(dim)
        self._add_temperature(beta, learn_beta)
        self.reset_parameters()

    # What a leaf gives.

    @property
    @abstractmethod
    def _law(self) -> Law:
        """How C and A of the class weights are evaluated."""

    @abstractmethod
    def _initial_alpha(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
        """The α with which E[z] of these embeddings starts λ long; infinite if they are all zero."""

    @abstractmethod
    def _mean_length(self, kappa: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """‖E[z]‖."""

    @abstractmethod
    def _divergence(
        self, kappa: Float[Tensor, " batch"], mu: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, " batch"]:
        """KL(law of z ‖ uniform)."""

    @abstractmethod
    def _angles(
        self, kappa: Float[Tensor, " batch"], pairs: int, generator: Generator | None
    ) -> tuple[Float[Tensor, "batch draws"], Float[Tensor, "batch draws"]]:
        """(cos θ, sin θ), draws = 2 · pairs; the second half mirrors the first in θ's quantile."""

    # What follows.

    def reset_parameters(self) -> None:
        """w̃_ji ~ N(0, σ), σ = λ (n−1) / ((1−λ²) √n): the same A(‖w̃_j‖) in every dimension.

        α is that of embeddings with coordinates of size 1, until `prepare` has seen some.
        """
        nn.init.normal_(
            self.weight, std=initial_concentration(self.dim, self.init_ratio) / math.sqrt(self.dim)
        )

        with torch.no_grad():
            self.alpha.copy_(self._initial_alpha(torch.ones(1, self.dim)))

    @torch.no_grad()
    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> None:
        """Set α so that training starts with ‖E[z]‖ ≈ λ."""
        alpha = self._initial_alpha(self._promote(self._checked(embeddings)))
        if alpha.device.type == "cpu" and not bool(alpha.isfinite()):
            raise ValueError("embeddings are all zero: they have no scale to set alpha from")
        self.alpha.copy_(alpha)

    def confidence(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"]:
        """The concentration κ = α‖z̃‖ of the embedding."""
        return self._concentration_and_direction(self._promote(self._checked(z)))[0]

    def _concentration_and_direction(
        self, z: Float[Tensor, "batch dim"]
    ) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch dim"]]:
        return concentration_and_direction(z, self.alpha.to(z.dtype))

    def _antithetic(
        self, kappa: Float[Tensor, " batch"], mu: Float[Tensor, "batch dim"], generator: Generator | None
    ) -> tuple[Float[Tensor, "batch draws"], Float[Tensor, "batch draws"], Float[Tensor, "batch pairs dim"]]:
        """(cos θ, sin θ, v); the second half of the draws mirrors the first in θ's quantile and in v."""
        pairs = (self.samples + 1) // 2
        v = tangents(mu.detach(), pairs, generator, self.signs)
        cos, sin = self._angles(kappa, pairs, generator)
        return cos[:, : self.samples], sin[:, : self.samples], v

    def _objective(
        self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"], generator: Generator | None
    ) -> Float[Tensor, " batch"]:
        kappa, mu = self._concentration_and_direction(z)
        cos, sin, v = self._antithetic(kappa, mu, generator)
        length, weight, beta = self._mean_length(kappa), self.weight.to(z.dtype), self.beta.to(z.dtype)
        loss = expected_objective(mu, cos, sin, length, v, weight, beta, y, self._law, self.class_chunk)
        return loss + self.gamma * self._divergence(kappa, mu) if self.gamma else loss

    @torch.no_grad()
    def _logit_samples(
        self, z: Float[Tensor, "batch dim"], generator: Generator | None
    ) -> Float[Tensor, "draws batch classes"]:
        kappa, mu = self._concentration_and_direction(z)
        cos, sin, v = self._antithetic(kappa, mu, generator)
        weight, beta = self.weight.to(z.dtype), self.beta.to(z.dtype)
        return weight_logits(mu, cos, sin, v, weight, beta, self.marginal, generator)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, samples={self.samples}, gamma={self.gamma:g}"
