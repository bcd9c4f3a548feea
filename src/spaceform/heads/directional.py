"""The base of heads whose embeddings are directions with a concentration: eq. 8 for any such law."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float, Integer
from torch import Generator, Tensor, nn

from spaceform.distributions.law import AngularLaw
from spaceform.distributions.von_mises_fisher import VON_MISES_FISHER
from spaceform.geometry import Sphere
from spaceform.heads._kernels.angle_table import AngleTable
from spaceform.heads._kernels.class_terms import Normalizer
from spaceform.heads._kernels.expected_softmax import expected_objective, spread_signs, tangents
from spaceform.heads._kernels.fixed_draws import FixedDraws
from spaceform.heads._kernels.softmax import chunk_size
from spaceform.heads._kernels.weight_draws import weight_logits
from spaceform.heads.soft_labels import SoftLabels, over_blocks
from spaceform.heads.stochastic import DRAWS, StochasticHead, device_of

# With a concentration above this, a law is a point, to the last bit of float32.
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

    Two such heads differ in three values: the law of z, how C and A of the weights are evaluated, and which
    size of the embeddings sets α.
    """

    geometry = Sphere()
    shardable = True
    confidence_symbol = "κ"
    alpha: Tensor
    signs: Tensor

    def __init__(
        self,
        dim: int,
        num_classes: int,
        *,
        law: AngularLaw,
        weight_normalizer: Normalizer,
        size: Callable[[Tensor], Tensor],
        samples: int,
        init_ratio: float,
        beta: float,
        learn_beta: bool,
        gamma: float,
        class_chunk: int | None,
    ) -> None:
        super().__init__(dim, num_classes, samples=samples, class_chunk=class_chunk)
        if dim < 2:
            raise ValueError(f"dim must be at least 2 to have a direction, got {dim}")
        if not 0 < init_ratio < 1:
            raise ValueError(f"init_ratio must lie between 0 and 1, got {init_ratio!r}")
        if not (math.isfinite(gamma) and gamma >= 0):
            raise ValueError(f"gamma must be finite and at least 0, got {gamma!r}")
        self.law, self.weight_normalizer, self._size = law, weight_normalizer, size
        self.init_ratio, self.gamma = init_ratio, gamma
        self.weight = nn.Parameter(torch.empty(num_classes, dim))
        self.register_buffer("alpha", torch.ones(()))
        self.register_buffer("signs", spread_signs((samples + 1) // 2, dim), persistent=False)
        self.table, self.weight_table = AngleTable(law, dim), AngleTable(VON_MISES_FISHER, dim)
        self.draws = DRAWS
        self._add_temperature(beta, learn_beta)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """w̃_ji ~ N(0, σ), σ = λ (n−1) / ((1−λ²) √n): the same A(‖w̃_j‖) in every dimension.

        Until `prepare` has seen embeddings, α is the right one for coordinates of size 1.
        """
        self._start(self.weight, self.num_classes)
        with torch.no_grad():
            self.alpha.copy_(self._initial_alpha(torch.ones(1, self.dim)))

    def _start(self, weight: Tensor, num_classes: int) -> None:  # noqa: ARG002 (the same for any number)
        nn.init.normal_(weight, std=initial_concentration(self.dim, self.init_ratio) / math.sqrt(self.dim))

    @torch.no_grad()
    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> None:
        """Set α so that training starts with ‖E[z]‖ ≈ λ."""
        alpha = self._initial_alpha(self._of_all_ranks(embeddings))
        if alpha.device.type == "cpu" and not bool(alpha.isfinite()):
            raise ValueError("embeddings are all zero: they have no scale to set alpha from")
        self.alpha.copy_(alpha)

    def _initial_alpha(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, ""]:
        """The α with which E[z] of these embeddings has about the length λ; infinite if they are all zero."""
        ratio = torch.tensor(self.init_ratio, dtype=torch.float64, device="cpu")
        return float(self.law.concentration(ratio, self.dim)) / self._size(embeddings)

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
        x = kappa.new_empty(kappa.shape[0], pairs).normal_(generator=generator)
        cos, sin = self.table.antithetic(x, kappa)
        return cos[:, : self.samples], sin[:, : self.samples], v

    def _objective(
        self, z: Float[Tensor, "batch dim"], y: Integer[Tensor, " batch"], generator: Generator | None
    ) -> Float[Tensor, " batch"]:
        kappa, mu = self._concentration_and_direction(z)
        cos, sin, v = self._antithetic(kappa, mu, generator)
        length, normalizer = self.law.mean_length(kappa, self.dim), self.weight_normalizer
        weight, beta = self._rows(z.dtype), self.beta.to(z.dtype)
        loss = expected_objective(
            mu, cos, sin, length, v, weight, beta, y, normalizer, self.class_chunk, self.shard
        )
        if not self.gamma:
            return loss
        divergence = self.law.divergence(kappa, self.dim)
        return loss + self.gamma * (divergence if self.shard is None else self.shard.once(divergence))

    def _soft_objective(
        self, z: Float[Tensor, "batch dim"], labels: SoftLabels, generator: Generator | None
    ) -> Float[Tensor, " batch"]:
        """Only −βE[w_y]·E[z] depends on the label in eq. 8: the target's replaces that of class 0."""
        objective = self._objective(z, z.new_zeros(z.shape[0], dtype=torch.long), generator)
        agreement = self._agreement(z)
        objective = objective + agreement(slice(0, 1))[:, 0]

        def counted(block: slice) -> tuple[Tensor, Tensor]:
            target = labels.target(block)
            return target.sum(1), (target * agreement(block)).sum(1)

        chunk = chunk_size(z.shape[0], self.num_classes, self.class_chunk)
        if chunk >= self.num_classes or torch.compiler.is_compiling():
            total, agreed = counted(labels.every_class)
        else:
            parts = zip(*over_blocks(counted, labels.blocks(chunk)), strict=True)
            total, agreed = (torch.stack(part).sum(0) for part in parts)
        return total * objective - agreed

    def _agreement(self, z: Float[Tensor, "batch dim"]) -> Callable[[slice], Float[Tensor, "batch block"]]:
        """The terms βE[w_j]·E[z] = β A(‖w̃_j‖)/‖w̃_j‖ · ‖E[z]‖ · w̃_j·μ of classes, differentiable once."""
        kappa, mu = self._concentration_and_direction(z)
        length, order = self.law.mean_length(kappa, self.dim), self.dim / 2 - 1
        weight, beta, normalizer = self.weight.to(z.dtype), self.beta.to(z.dtype), self.weight_normalizer

        def of(block: slice) -> Tensor:
            dot, norm = mu @ weight[block].T, torch.linalg.vector_norm(weight[block], dim=1)
            with torch.no_grad():
                ratio = normalizer.target_ratio(norm, dot, order)
                slope = normalizer.target_slope(norm, dot, order)
                bend = (slope - ratio) / norm.clamp_min(torch.finfo(norm.dtype).tiny ** 0.5)
            ratio = ratio + bend * (norm - norm.detach())  # the derivative of A(κ)/κ is (A′ − A/κ)/κ
            return beta * length[:, None] * ratio * dot

        return of

    def _sample(
        self, z: Float[Tensor, "batch dim"], n: int, generator: Generator | None
    ) -> Float[Tensor, "n batch dim"]:
        kappa, mu = self._concentration_and_direction(z)
        return self.law.sample(mu, kappa, (n,), generator=generator)

    def _random_logit_samples(
        self, z: Float[Tensor, "batch dim"], generator: Generator
    ) -> Float[Tensor, "samples batch classes"]:
        kappa, mu = self._concentration_and_direction(z)
        cos, sin, v = self._antithetic(kappa, mu, generator)
        weight, beta = self.weight.to(z.dtype), self.beta.to(z.dtype)
        return weight_logits(mu, cos, sin, v, weight, beta, self.weight_table, generator)

    def _fixed_logits(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        first = 0 if self.shard is None else self.shard.first
        weights = self.fixed.weights(self._rows(dtype), self.beta.to(dtype), first)
        return lambda z: self.fixed(*self._concentration_and_direction(z), weights)

    def _fix_draws(self, number: int) -> None:
        self.fixed = FixedDraws(self.law, self.dim, self.num_classes, number).to(device_of(self))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, samples={self.samples}, gamma={self.gamma:g}"
