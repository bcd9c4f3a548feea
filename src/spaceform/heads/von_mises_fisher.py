"""The von Mises–Fisher head: embeddings and class weights are directions with a concentration (eq. 5–8)."""

import math
from types import MappingProxyType
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from spaceform import special
from spaceform.distributions.von_mises_fisher import sample_von_mises_fisher
from spaceform.heads._kernels.evidence import LAWS, Law, MeanLength
from spaceform.heads.declaration import LogUniform, Start, Uniform
from spaceform.heads.directional import DirectionalHead, initial_concentration


@final
class VonMisesFisherHead(DirectionalHead):
    """z ~ vMF(z̃/‖z̃‖, α‖z̃‖), w_j ~ vMF(w̃_j/‖w̃_j‖, ‖w̃_j‖), p(y | z, w) = softmax(β w_j·z); trained on eq. 8.

    The objective is the mean over `samples` draws of z of log Σ_j C(‖w̃_j‖)/C(‖w̃_j + βz‖), less β E[w_y]·E[z]:
    an upper bound of E[−log p(y | z, w)]. Draws are antithetic within an example and independent across
    examples; gradients pass through direction and concentration. `predict_proba` is the Monte Carlo average
    over z and all w_j, and is not differentiable.

    `normalizer` is "exact" or the paper's "bounds". `init_ratio` is λ: weights start with A(κ) ≈ λ, and
    `prepare` sets α so that the embeddings do. `gamma` weighs KL(law of z ‖ uniform), added to the objective.
    `class_chunk` streams the class axis, computing it again in the backward pass.

    β and λ start where a usual rate (Adam's 1e-3) learns at once. The paper's start for a network from
    scratch, `beta=1, init_ratio=0.4`, has the tightest bound and quietest gradient, but probabilities stay
    flat until β has grown, which takes its high rates; `recipe.PAPER` has them.
    """

    name, title = "vmf", "vMF"
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
        normalizer: Literal["exact", "bounds"] = "exact",
        init_ratio: float = 0.95,
        beta: float = 16.0,
        learn_beta: bool = True,
        gamma: float = 0.0,
        class_chunk: int | None = None,
    ) -> None:
        if normalizer not in ("exact", "bounds"):
            raise ValueError(f"normalizer must be 'exact' or 'bounds', got {normalizer!r}")
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
        self.normalizer = normalizer

    @property
    def _law(self) -> Law:
        return LAWS[self.normalizer]

    def _initial_alpha(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
        """α = λ (n−1) / ((1−λ²) √n mean|z̃_i|): A(κ) ≈ λ."""
        size = math.sqrt(self.dim) * embeddings.abs().mean()
        return initial_concentration(self.dim, self.init_ratio) / size

    def _mean_length(self, kappa: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """A(κ)."""
        length: Tensor = MeanLength.apply(kappa, self._law, self.dim / 2 - 1)
        return length

    def _divergence(
        self,
        kappa: Float[Tensor, " batch"],
        mu: Float[Tensor, "batch dim"],  # noqa: ARG002 (the uniform law has no direction)
    ) -> Float[Tensor, " batch"]:
        """KL(vMF(μ, κ) ‖ uniform) = κ A(κ) + log C(κ) − log C(0)."""
        growth = special.log_normalizer_difference(
            kappa, torch.zeros_like(kappa), self.dim, method=self.normalizer
        )
        return kappa * self._mean_length(kappa) + growth

    def _angles(
        self, kappa: Float[Tensor, " batch"], pairs: int, generator: Generator | None
    ) -> tuple[Float[Tensor, "batch draws"], Float[Tensor, "batch draws"]]:
        x = kappa.new_empty(len(kappa), pairs).normal_(generator=generator)
        return self.marginal.antithetic(x, kappa)

    def _sample(
        self, z: Float[Tensor, "batch dim"], n: int, generator: Generator | None
    ) -> Float[Tensor, "n batch dim"]:
        kappa, mu = self._concentration_and_direction(z)
        return sample_von_mises_fisher(mu, kappa, (n,), generator=generator)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, normalizer={self.normalizer!r}"
