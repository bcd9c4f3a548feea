"""The Power Spherical head: eq. 8 with embeddings that need no rejection, and no Bessel function anywhere."""

from types import MappingProxyType
from typing import final

from jaxtyping import Float
from torch import Tensor

from spaceform.distributions.power_spherical import POWER_SPHERICAL
from spaceform.heads._kernels.class_terms import NORMALIZERS
from spaceform.heads.declaration import LogUniform, Start, Uniform
from spaceform.heads.directional import DirectionalHead


@final
class PowerSphericalHead(DirectionalHead):
    """z ~ PowerSpherical(z̃/‖z̃‖, α‖z̃‖), w_j ~ vMF(w̃_j/‖w̃_j‖, ‖w̃_j‖), p(y | z, w) = softmax(β w_j·z).

    The weights stay von Mises–Fisher: E_w[exp(β w·z)] has no closed form for Power Spherical weights. Their
    Bessel ratio A is replaced by its elementary bounds (eq. 9): in each term by the upper or the lower bound,
    whichever keeps the objective above E[−log p(y | z, w)]. The gap closes as β → 0 and as n grows, so
    training cannot exploit it through ‖w̃‖. E[z] = κ/(n−1+κ) μ is exact. Draws are antithetic within
    an example.

    `predict_proba` is the mean of p(y | z, w) over z and all w_j: over 64 fixed draws, or over `samples`
    random draws if a generator is given. `init_ratio` is λ: weights start with A(κ) ≈ λ, and `prepare` sets
    α so that E[z] of the embeddings has length λ. `gamma` weighs KL(law of z ‖ uniform), added to the
    objective. `class_chunk` streams the class axis.
    """

    name, title = "power_spherical", "Power Spherical"
    searched = MappingProxyType({"init_ratio": Uniform(0.85, 0.95), "beta": LogUniform(8.0, 32.0)})
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
            law=POWER_SPHERICAL,
            weight_normalizer=NORMALIZERS["upper"],
            size=mean_norm,
            samples=samples,
            init_ratio=init_ratio,
            beta=beta,
            learn_beta=learn_beta,
            gamma=gamma,
            class_chunk=class_chunk,
        )


def mean_norm(embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """The mean of ‖z̃‖."""
    return embeddings.norm(dim=1).mean()
