"""The Power Spherical head: eq. 8 with embeddings that need no rejection, and no Bessel function anywhere."""

from types import MappingProxyType
from typing import final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from spaceform.distributions.power_spherical import (
    PowerSpherical,
    power_spherical_angle,
    sample_power_spherical,
)
from spaceform.distributions.uniform import log_area
from spaceform.heads._kernels.evidence import LAWS, Law
from spaceform.heads.declaration import LogUniform, Start, Uniform
from spaceform.heads.directional import DirectionalHead


@final
class PowerSphericalHead(DirectionalHead):
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

    name, title = "power_spherical", "Power Spherical"
    searched = MappingProxyType({"beta": LogUniform(4.0, 64.0), "init_ratio": Uniform(0.4, 0.99)})
    defaults = MappingProxyType(
        {
            "features": Start(lr=0.3, weight_decay=3e-4, options={"init_ratio": 0.95, "beta": 16.0}),
            "pixels": Start(lr=0.3, weight_decay=1e-4, options={"init_ratio": 0.95, "beta": 8.0}),
        }
    )

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        samples: int = 10,
        init_ratio: float = 0.95,
        beta: float = 16.0,
        learn_beta: bool = True,
        gamma: float = 0.0,
        class_chunk: int | None = None,
    ) -> None:
        super().__init__(
            dim,
            num_classes,
            samples=samples,
            init_ratio=init_ratio,
            beta=beta,
            learn_beta=learn_beta,
            gamma=gamma,
            class_chunk=class_chunk,
        )

    @property
    def _law(self) -> Law:
        return LAWS["upper"]

    def _initial_alpha(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
        """α = λ (n−1) / ((1−λ) mean‖z̃‖): an embedding of mean norm starts with ‖E[z]‖ = λ."""
        size = (1 - self.init_ratio) * embeddings.norm(dim=1).mean()
        return self.init_ratio * (self.dim - 1) / size

    def _mean_length(self, kappa: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """κ/(n−1+κ)."""
        return kappa / (self.dim - 1 + kappa)

    def _divergence(
        self, kappa: Float[Tensor, " batch"], mu: Float[Tensor, "batch dim"]
    ) -> Float[Tensor, " batch"]:
        """KL(PowerSpherical(μ, κ) ‖ uniform) = log of the area − entropy; in float64, as the two cancel."""
        entropy = PowerSpherical(mu.double(), kappa.double(), validate_args=False).entropy()
        return (log_area(self.dim) - entropy).to(kappa.dtype)

    def _angles(
        self, kappa: Float[Tensor, " batch"], pairs: int, generator: Generator | None
    ) -> tuple[Float[Tensor, "batch draws"], Float[Tensor, "batch draws"]]:
        u = kappa.new_empty(pairs, len(kappa)).uniform_(generator=generator)
        cos, sin = power_spherical_angle(torch.cat([u, 1 - u]), kappa, self.dim)
        return cos.T, sin.T

    def _sample(
        self, z: Float[Tensor, "batch dim"], n: int, generator: Generator | None
    ) -> Float[Tensor, "n batch dim"]:
        kappa, mu = self._concentration_and_direction(z)
        return sample_power_spherical(mu, kappa, (n,), generator=generator)
