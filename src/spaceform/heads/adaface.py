"""ADAFACE: a margin that follows the norm of the embedding, the quality of the example (Kim et al., 2022).

With ẑ = clip(h (‖z‖ − μ)/σ, −1, 1), μ and σ the running mean and deviation of norms, the target's cosine is

    ψ(cos θ) = cos(θ + g) − a,    g = −m ẑ,    a = m ẑ + m:

ArcFace's margin where the norm is small (ẑ = −1), CosFace's at the mean norm (ẑ = 0), more for a large norm.
"""

import math
from types import MappingProxyType
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform.heads._checks import values_readable
from spaceform.heads._kernels.cosine_softmax import LONGEST, plain_norms
from spaceform.heads._kernels.margin import Margin
from spaceform.heads.class_weights import Init
from spaceform.heads.declaration import LogUniform, Start
from spaceform.heads.margins import MarginHead, check_angle

_WIDE_TYPES = (torch.float32, torch.float64)
"""The types that can hold any norm up to `LONGEST`."""
_NARROWEST = 1e-12
"""The smallest deviation of norms that is used."""


@final
class AdaFaceHead(MarginHead):
    """Scaled cosines with a margin on the target that follows ‖z‖; prediction leaves the margin out.

    Clear examples have long embeddings. Among long embeddings, hard examples get the larger gradient; among
    short ones, whose items may be impossible to recognise, easy examples do. `concentration` is h: the norm
    has its full effect 1/h standard deviations from the mean.

    The running mean and deviation, `norm_mean` and `norm_std`, change in `train()` with every batch of two or
    more examples, before this batch uses them. Their rate is `momentum`, or 1/k at the k-th batch if that is
    larger. In `eval()` they stay. `prepare` counts as the first batch. If there are several processes, each
    follows its own batches, as in BatchNorm. No gradient flows through the margin. Where θ + g leaves [0, π],
    ψ goes on falling (see `Margin`). The warm-up is as in `ArcFaceHead`, the rest as in `CosineHead`.
    """

    name, title = "adaface", "AdaFace"
    compared = False
    searched = MappingProxyType({"margin": LogUniform(0.05, 0.2), "beta": LogUniform(8.0, 32.0)})
    defaults = MappingProxyType(
        {
            "features": Start(lr=0.15, weight_decay=5e-4, options={"margin": 0.2, "beta": 16.0}),
            "pixels": Start(
                lr=0.1, weight_decay=1e-4, options={"margin": 0.2, "warmup_epochs": 3, "beta": 8.0}
            ),
        }
    )
    norm_mean: Tensor
    norm_std: Tensor
    batches: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        margin: float = 0.4,
        concentration: float = 0.333,
        momentum: float = 0.01,
        warmup_epochs: int = 0,
        beta: float = 16.0,
        learn_beta: bool = True,
        init: Init = "xavier",
        class_chunk: int | None = None,
    ) -> None:
        check_angle(margin)
        if not (math.isfinite(concentration) and concentration > 0):
            raise ValueError(f"concentration must be positive and finite, got {concentration!r}")
        if not 0 < momentum <= 1:
            raise ValueError(f"momentum must lie in (0, 1], got {momentum!r}")
        super().__init__(
            dim,
            num_classes,
            margin=margin,
            warmup_epochs=warmup_epochs,
            beta=beta,
            learn_beta=learn_beta,
            init=init,
            class_chunk=class_chunk,
        )
        self.concentration, self.momentum = concentration, momentum
        # Before any norm is seen: the norms of standard normal coordinates.
        self.register_buffer("norm_mean", torch.tensor(math.sqrt(dim)))
        self.register_buffer("norm_std", torch.tensor(math.sqrt(0.5)))
        self.register_buffer("batches", torch.tensor(0))

    def extra_repr(self) -> str:
        """The base's text, and what else the margin depends on."""
        return f"{super().extra_repr()}, concentration={self.concentration:g}, momentum={self.momentum:g}"

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> None:
        """Start the running mean and deviation from the norms of these embeddings."""
        self.batches.zero_()
        z = self._of_all_ranks(embeddings).detach()
        self._follow(self._norms(z, plain_norms(z)), self.norm_mean, self.norm_std)

    def _target_margin(
        self, z: Float[Tensor, "batch dim"], norms: Float[Tensor, " batch"] | None = None
    ) -> Margin:
        mean, std, m = self.norm_mean, self.norm_std, self.margin
        norms = self._norms(z, norms)
        if self.training:
            self._follow(norms, mean, std)
        if values_readable(norms):
            most = m.item()
            angle = torch.sub(norms, mean).mul_(self.concentration * -most / (std.item() + _NARROWEST))
            angle.clamp_(-most, most)
        else:
            angle = (norms - mean).mul_(self.concentration * -m / (std + _NARROWEST)).clamp_(-m, m)
        return Margin(angle, shift=m - angle)

    def _norms(
        self, z: Float[Tensor, "batch dim"], plain: Float[Tensor, " batch"] | None = None
    ) -> Float[Tensor, " batch"]:
        """‖z‖, at most as large as the running mean can be."""
        if plain is not None and self.norm_mean.dtype in _WIDE_TYPES:
            return plain
        longest = min(LONGEST, torch.finfo(self.norm_mean.dtype).max / 2)
        # In float64 no square of a float32 overflows; Apple's GPUs have no float64.
        wide, z = (None, z.clamp(-longest, longest)) if z.device.type == "mps" else (torch.float64, z)
        norms = torch.linalg.vector_norm(z.detach(), dim=1, dtype=wide)
        return norms.clamp_max_(longest).to(z.dtype)

    def _follow(
        self, norms: Float[Tensor, " batch"], mean: Float[Tensor, ""], std: Float[Tensor, ""]
    ) -> None:
        """Move the running mean and deviation towards those of a batch; one example has no deviation."""
        if norms.shape[0] < 2:
            return
        own_std, own_mean = torch.std_mean(norms)
        if own_mean.dtype != mean.dtype:
            own_std, own_mean = own_std.to(mean.dtype), own_mean.to(mean.dtype)
        rate: Any = self.momentum
        if not values_readable(norms):
            rate = self.batches.add_(1).to(mean.dtype).reciprocal().clamp_min_(rate)
        elif (seen := self.batches.item()) * rate < 1:
            self.batches.fill_(seen + 1)
            rate = max(1 / (seen + 1), rate)
        mean.lerp_(own_mean, rate)
        std.lerp_(own_std, rate)
