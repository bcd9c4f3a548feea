"""The von Mises–Fisher head: embeddings and class weights are directions with a concentration (eq. 5–8)."""

import math
from types import MappingProxyType
from typing import Literal, final

from jaxtyping import Float
from torch import Tensor

from spaceform.distributions.von_mises_fisher import VON_MISES_FISHER, VON_MISES_FISHER_BOUNDS
from spaceform.heads._kernels.class_terms import NORMALIZERS
from spaceform.heads.declaration import LogUniform, Start, Uniform
from spaceform.heads.directional import DirectionalHead


@final
class VonMisesFisherHead(DirectionalHead):
    """z ~ vMF(z̃/‖z̃‖, α‖z̃‖), w_j ~ vMF(w̃_j/‖w̃_j‖, ‖w̃_j‖), p(y | z, w) = softmax(β w_j·z); trained on eq. 8.

    The objective is the mean over `samples` draws of z of log Σ_j C(‖w̃_j‖)/C(‖w̃_j + βz‖), less β E[w_y]·E[z]:
    an upper bound of E[−log p(y | z, w)]. Draws are antithetic within an example and independent across
    examples; gradients pass through direction and concentration. `predict_proba` is the mean of p(y | z, w)
    over z and all w_j: over 64 fixed draws, or over `samples` random draws if a generator is given.

    `normalizer` is "exact" or the paper's "bounds". `init_ratio` is λ: weights start with A(κ) ≈ λ, and
    `prepare` sets α so that the embeddings do. `gamma` weighs KL(law of z ‖ uniform), added to the objective.
    `class_chunk` streams the class axis, computing it again in the backward pass.

    From the default β and λ training starts to learn at once with a usual rate (Adam's 1e-3). The paper's
    start for a network from scratch, `beta=1, init_ratio=0.4`, has the tightest bound and the least noise in
    the gradient. But probabilities stay flat until β has grown, which needs the paper's high rates
    (`recipe.PAPER`).
    """

    name, title = "vmf", "vMF"
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
            law={"exact": VON_MISES_FISHER, "bounds": VON_MISES_FISHER_BOUNDS}[normalizer],
            weight_normalizer=NORMALIZERS[normalizer],
            size=typical_norm,
            samples=samples,
            init_ratio=init_ratio,
            beta=beta,
            learn_beta=learn_beta,
            gamma=gamma,
            class_chunk=class_chunk,
        )
        self.normalizer = normalizer

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, normalizer={self.normalizer!r}"


def typical_norm(embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
    """√n mean|z̃_i|, as in the paper."""
    return math.sqrt(embeddings.shape[1]) * embeddings.abs().mean()
