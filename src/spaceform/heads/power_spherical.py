"""The Power Spherical head: eq. 8 with embeddings that need no rejection, and no Bessel function anywhere."""

import math
from typing import final

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor, nn

from spaceform.distributions.power_spherical import (
    PowerSpherical,
    power_spherical_angle,
    sample_power_spherical,
)
from spaceform.distributions.uniform import log_area
from spaceform.geometry import Sphere
from spaceform.heads._evidence import LAWS
from spaceform.heads._expected_softmax import expected_objective, tangents
from spaceform.heads._marginal import Marginal
from spaceform.heads.base import StochasticHead
from spaceform.heads.predictive import weight_logits
from spaceform.heads.von_mises_fisher import concentration_and_direction, initial_concentration


@final
class PowerSphericalHead(StochasticHead):
    """z ~ PowerSpherical(z̃/‖z̃‖, α‖z̃‖), w_j ~ vMF(w̃_j/‖w̃_j‖, ‖w̃_j‖), p(y | z, w) = softmax(β w_j·z).

    The weights stay von Mises–Fisher, as E_w[exp(β w·z)] has no closed form for Power Spherical ones. Their
    Bessel ratio A is replaced by its elementary bounds (eq. 9), the upper or the lower one term by term,
    whichever keeps the objective above E[−log p(y | z, w)]; the gap closes as β → 0 and as n grows, so that
    training has nothing to gain from it through ‖w̃‖. E[z] = κ/(n−1+κ) μ is exact. The cosine of a draw is
    2 Beta − 1 by inversion, antithetic within an example.

    `predict_proba` is the Monte Carlo average over z and all w_j, and is not differentiable. `init_ratio` is
    λ: weights start with A(κ) ≈ λ, and `prepare` sets α so that E[z] of the embeddings has length λ. `gamma`
    weighs KL(law of z ‖ uniform), added to the objective. `class_chunk` streams the class axis.
    """

    geometry = Sphere()
    alpha: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        samples: int = 10,
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
        if not 0 < init_ratio < 1:
            raise ValueError(f"init_ratio must lie between 0 and 1, got {init_ratio!r}")
        if not (math.isfinite(gamma) and gamma >= 0):
            raise ValueError(f"gamma must be finite and at least 0, got {gamma!r}")
        self.samples, self.init_ratio, self.gamma = samples, init_ratio, gamma
        self.weight = nn.Parameter(torch.empty(num_classes, dim))
        self.register_buffer("alpha", torch.ones(()))
        self.marginal = Marginal(dim)
        self._add_temperature(beta, learn_beta)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """w̃_ji ~ N(0, σ), σ = λ (n−1) / ((1−λ²) √n), as for the von Mises–Fisher head."""
        nn.init.normal_(
            self.weight, std=initial_concentration(self.dim, self.init_ratio) / math.sqrt(self.dim)
        )

    @torch.no_grad()
    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> None:
        """Set α = λ (n−1) / ((1−λ) mean‖z̃‖): an embedding of mean norm starts with ‖E[z]‖ = λ."""
        size = self._promote(self._checked(embeddings)).norm(dim=1).mean()
        if size.device.type == "cpu" and not bool(size > 0):
            raise ValueError("embeddings are all zero: they have no scale to set alpha from")
        self.alpha.copy_(self.init_ratio * (self.dim - 1) / ((1 - self.init_ratio) * size))

    def confidence(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, " batch"]:
        """The concentration κ = α‖z̃‖ of the embedding."""
        z = self._promote(self._checked(z))
        return concentration_and_direction(z, self.alpha.to(z.dtype))[0]

    def _objective(
        self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"], generator: Generator | None
    ) -> Float[Tensor, " batch"]:
        kappa, mu = concentration_and_direction(z, self.alpha.to(z.dtype))
        cos, sin, v = self._antithetic(kappa, mu, generator)
        length = kappa / (self.dim - 1 + kappa)
        weight, beta = self.weight.to(z.dtype), self.beta.to(z.dtype)
        loss = expected_objective(mu, cos, sin, length, v, weight, beta, y, LAWS["upper"], self.class_chunk)
        return loss + self.gamma * self._divergence(kappa, mu) if self.gamma else loss

    def _divergence(
        self, kappa: Float[Tensor, " batch"], mu: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, " batch"]:
        """KL(PowerSpherical(μ, κ) ‖ uniform) = log of the area − entropy; in float64, as the two cancel."""
        entropy = PowerSpherical(mu.double(), kappa.double(), validate_args=False).entropy()
        return (log_area(self.dim) - entropy).to(kappa.dtype)

    def _antithetic(
        self, kappa: Float[Tensor, " batch"], mu: Float[Tensor, "batch dim"], generator: Generator | None
    ) -> tuple[Float[Tensor, "batch draws"], Float[Tensor, "batch draws"], Float[Tensor, "batch pairs dim"]]:
        """(cos θ, sin θ, v); the second half of the draws mirrors the first in θ's quantile and in v."""
        pairs = (self.samples + 1) // 2
        v = tangents(mu.detach(), pairs, generator)
        u = mu.new_empty(pairs, len(mu)).uniform_(generator=generator)
        cos, sin = power_spherical_angle(torch.cat([u, 1 - u])[: self.samples], kappa, self.dim)
        return cos.T, sin.T, v

    def _sample(
        self, z: Float[Tensor, "batch dim"], n: int, generator: Generator | None
    ) -> Float[Tensor, "n batch dim"]:
        kappa, mu = concentration_and_direction(z, self.alpha.to(z.dtype))
        return sample_power_spherical(mu, kappa, (n,), generator=generator)

    @torch.no_grad()
    def _logit_samples(
        self, z: Float[Tensor, "batch dim"], generator: Generator | None
    ) -> Float[Tensor, "draws batch classes"]:
        kappa, mu = concentration_and_direction(z, self.alpha.to(z.dtype))
        cos, sin, v = self._antithetic(kappa, mu, generator)
        weight, beta = self.weight.to(z.dtype), self.beta.to(z.dtype)
        return weight_logits(mu, cos, sin, v, weight, beta, self.marginal, generator)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, samples={self.samples}, gamma={self.gamma:g}"
