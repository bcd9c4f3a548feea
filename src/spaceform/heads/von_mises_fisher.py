"""The von Mises–Fisher head: embeddings and class weights are directions with a concentration (eq. 5–8)."""

import math
from typing import Literal, final

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor, nn

from spaceform import special
from spaceform.distributions.von_mises_fisher import sample_von_mises_fisher
from spaceform.geometry import Sphere
from spaceform.heads._evidence import LAWS
from spaceform.heads._expected_softmax import expected_objective, tangents
from spaceform.heads._marginal import Marginal
from spaceform.heads.base import StochasticHead
from spaceform.heads.predictive import weight_logits

# A vMF beyond this concentration is a point, to the last bit of float32.
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


@final
class VonMisesFisherHead(StochasticHead):
    """z ~ vMF(z̃/‖z̃‖, α‖z̃‖), w_j ~ vMF(w̃_j/‖w̃_j‖, ‖w̃_j‖), p(y | z, w) = softmax(β w_j·z); trained on eq. 8.

    The objective is the mean over `samples` draws of z of log Σ_j C(‖w̃_j‖)/C(‖w̃_j + βz‖), less β E[w_y]·E[z]:
    an upper bound of E[−log p(y | z, w)]. Draws are antithetic within an example and independent across
    examples; gradients pass through direction and concentration. `predict_proba` is the Monte Carlo average
    over z and all w_j, and is not differentiable.

    `normalizer` is "exact" or the paper's "bounds". `init_ratio` is λ: weights start with A(κ) ≈ λ, and
    `prepare` sets α so that the embeddings do. `gamma` weighs KL(law of z ‖ uniform), added to the objective.
    `class_chunk` streams the class axis, computing it again in the backward pass.

    β starts at 1, the paper's start for a network from scratch: there the bound is tightest and the gradient
    quietest, and probabilities stay flat until β has grown. Pass `beta=16` for a pretrained network.
    """

    geometry = Sphere()
    alpha: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        samples: int = 10,
        normalizer: Literal["exact", "bounds"] = "exact",
        init_ratio: float = 0.4,
        beta: float = 1.0,
        learn_beta: bool = True,
        gamma: float = 0.0,
        class_chunk: int | None = None,
    ) -> None:
        super().__init__(dim, num_classes, class_chunk=class_chunk)
        if dim < 2:
            raise ValueError(f"dim must be at least 2 to have a direction, got {dim}")
        if not (isinstance(samples, int) and samples > 0):
            raise ValueError(f"samples must be a positive integer, got {samples!r}")
        if normalizer not in ("exact", "bounds"):
            raise ValueError(f"normalizer must be 'exact' or 'bounds', got {normalizer!r}")
        if not 0 < init_ratio < 1:
            raise ValueError(f"init_ratio must lie between 0 and 1, got {init_ratio!r}")
        if not (math.isfinite(gamma) and gamma >= 0):
            raise ValueError(f"gamma must be finite and at least 0, got {gamma!r}")
        self.samples, self.normalizer, self.init_ratio, self.gamma = samples, normalizer, init_ratio, gamma
        self.weight = nn.Parameter(torch.empty(num_classes, dim))
        self.register_buffer("alpha", torch.ones(()))
        self.marginal = Marginal(dim)
        self._add_temperature(beta, learn_beta)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """w̃_ji ~ N(0, σ), σ = λ (n−1) / ((1−λ²) √n): the same A(‖w̃_j‖) in every dimension."""
        nn.init.normal_(
            self.weight, std=initial_concentration(self.dim, self.init_ratio) / math.sqrt(self.dim)
        )

    @torch.no_grad()
    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> None:
        """Set α = λ (n−1) / ((1−λ²) √n mean|z̃_i|): training starts with A(κ) ≈ λ for the embeddings too."""
        size = self._promote(self._checked(embeddings)).abs().mean()
        if _is_zero(size):
            raise ValueError("embeddings are all zero: they have no scale to set alpha from")
        self.alpha.copy_(initial_concentration(self.dim, self.init_ratio) / (math.sqrt(self.dim) * size))

    def confidence(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"]:
        """The concentration κ = α‖z̃‖ of the embedding."""
        z = self._promote(self._checked(z))
        return concentration_and_direction(z, self.alpha.to(z.dtype))[0]

    def _objective(
        self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"], generator: Generator | None
    ) -> Float[Tensor, " batch"]:
        kappa, mu = concentration_and_direction(z, self.alpha.to(z.dtype))
        cos, sin, v = self._antithetic(kappa, mu, generator)
        length = special.mean_resultant_length(kappa, self.dim, method=self.normalizer)
        weight, beta = self.weight.to(z.dtype), self.beta.to(z.dtype)
        law = LAWS[self.normalizer]
        loss = expected_objective(mu, cos, sin, length, v, weight, beta, y, law, self.class_chunk)
        return loss + self.gamma * self._divergence(kappa, length) if self.gamma else loss

    def _divergence(
        self, kappa: Float[Tensor, " batch"], length: Float[Tensor, " batch"]
    ) -> Float[Tensor, " batch"]:
        """KL(vMF(μ, κ) ‖ uniform) = κ A(κ) + log C(κ) − log C(0)."""
        zero = torch.zeros_like(kappa)
        return kappa * length + special.log_normalizer_difference(
            kappa, zero, self.dim, method=self.normalizer
        )

    def _antithetic(
        self, kappa: Float[Tensor, " batch"], mu: Float[Tensor, "batch dim"], generator: Generator | None
    ) -> tuple[Float[Tensor, "batch draws"], Float[Tensor, "batch draws"], Float[Tensor, "batch pairs dim"]]:
        """(cos θ, sin θ, v); the second half of the draws mirrors the first in θ's quantile and in v."""
        pairs = (self.samples + 1) // 2
        v = tangents(mu.detach(), pairs, generator)
        x = mu.new_empty(len(mu), pairs).normal_(generator=generator)
        cos, sin = self.marginal.antithetic(x, kappa)
        return cos[:, : self.samples], sin[:, : self.samples], v

    def _sample(
        self, z: Float[Tensor, "batch dim"], n: int, generator: Generator | None
    ) -> Float[Tensor, "n batch dim"]:
        kappa, mu = concentration_and_direction(z, self.alpha.to(z.dtype))
        return sample_von_mises_fisher(mu, kappa, (n,), generator=generator)

    @torch.no_grad()
    def _logit_samples(
        self, z: Float[Tensor, "batch dim"], generator: Generator | None
    ) -> Float[Tensor, "draws batch classes"]:
        kappa, mu = concentration_and_direction(z, self.alpha.to(z.dtype))
        cos, sin, v = self._antithetic(kappa, mu, generator)
        weight, beta = self.weight.to(z.dtype), self.beta.to(z.dtype)
        return weight_logits(mu, cos, sin, v, weight, beta, self.marginal, generator)

    def extra_repr(self) -> str:
        own = f"samples={self.samples}, normalizer={self.normalizer!r}, gamma={self.gamma:g}"
        return f"{super().extra_repr()}, {own}"


def _is_zero(x: Tensor) -> bool:
    return x.device.type == "cpu" and not bool(x > 0)
