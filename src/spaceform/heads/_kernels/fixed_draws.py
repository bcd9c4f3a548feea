"""The prediction of a head as a function of the embedding alone: nothing is drawn when it is asked.

A deterministic head has it already. A stochastic one predicts the mean of softmax(β w_j·z) over random z and
w_j, which `head.predict_proba` estimates anew at every call; here the draws are made once and shared by all
embeddings, so that an example has the same probabilities alone, in any batch, and in an exported graph.

A draw z = cos θ μ ± sin θ v has its own quantile level of θ and a fixed vector g, of which v is the part
orthogonal to μ. Then ŵ_j·z needs μ·ŵ_j, μ·g and the constants g·ŵ_j: two small products for all draws. A
class weight seen from z is t cos + r sin (`heads._kernels.weight_draws`); t and r are constants too. The
levels of θ, and those of t and r of every class, are the midpoints of equal strata in random order: each is
spread over its law as evenly as can be.

Measured on heads trained on digits (`python benchmarks/predictive.py`), mean error of a probability against
the limit of infinitely many draws, n = 3, 8, 64, 128: with the 64 fixed draws of the default 2.1e-3, 8e-4,
2.0e-4, 1.1e-4 (vMF) and 2.2e-3, 8e-4, 2.2e-4, 1.1e-4 (Power Spherical); with the 10 independent draws of
`head.predict_proba` 1e-2, 7e-3, 3e-3, 2e-3 (both). Angles are right to 2e-6 (n = 2: 6e-6).
"""

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float
from numpy.polynomial import chebyshev
from torch import Tensor, nn

from spaceform.distributions.power_spherical import power_spherical_angle
from spaceform.distributions.von_mises_fisher import von_mises_fisher_angle
from spaceform.heads.base import DeterministicHead, Head, StochasticHead
from spaceform.heads.directional import concentration_and_direction
from spaceform.heads.power_spherical import PowerSphericalHead
from spaceform.heads.von_mises_fisher import VonMisesFisherHead

_NODES = 64
_NEGLIGIBLE = 1e-7


def predictive(head: Head, *, draws: int = 64, seed: int = 0) -> nn.Module:
    """A module from embeddings (batch, dim) to logit samples (draws, batch, classes), the same at every call.

    Their softmax, averaged over the draws, is the prediction, as for `head.logit_samples`. Deterministic
    heads have one draw. It holds the head's parameters of this moment: make it after training.
    """
    if isinstance(head, DeterministicHead):
        return _Deterministic(head)
    if isinstance(head, VonMisesFisherHead | PowerSphericalHead):
        return FixedDraws(head, draws, seed)
    raise TypeError(
        f"fixed draws are known for {', '.join(c.__name__ for c in _LAWS)}, got {type(head).__name__}"
    )


class _Law(NamedTuple):
    """A law of θ, its angle at quantile levels and the place of its mode in y = artanh cos θ.

    T = tanh y* runs from 0 to 1 as κ goes from 0 to ∞; in it √(n−1) (y − y*) at a fixed level is smooth.
    """

    angle: Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]
    mode: Callable[[Tensor, int], tuple[Tensor, Tensor]]
    """(T, e^{2y*}) of κ."""
    concentration: Callable[[Tensor, int], Tensor]
    """κ of T."""


def _von_mises_fisher_mode(kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    u = 2 * kappa / (dim - 1)
    root = (1 + u * u).sqrt()
    return u / (1 + root), u + root


def _power_spherical_mode(kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return kappa / (dim - 1 + kappa), 1 + 2 * kappa / (dim - 1)


_LAWS: dict[type[StochasticHead], _Law] = {
    VonMisesFisherHead: _Law(
        von_mises_fisher_angle, _von_mises_fisher_mode, lambda T, n: (n - 1) * T / (1 - T * T)
    ),
    PowerSphericalHead: _Law(
        power_spherical_angle, _power_spherical_mode, lambda T, n: (n - 1) * T / (1 - T)
    ),
}


@final
class _Deterministic(nn.Module):
    def __init__(self, head: DeterministicHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "1 batch classes"]:
        return self.head.logit_samples(z)


@final
class FixedDraws(nn.Module):
    """Logit samples of a stochastic head from draws that were made once."""

    coefficients: Float[Tensor, "degrees draws"]
    alpha: Float[Tensor, ""]
    beta: Float[Tensor, ""]
    direction: Float[Tensor, "classes dim"]
    vectors: Float[Tensor, "pairs dim"]
    products: Float[Tensor, "pairs 1 classes"]
    along: Float[Tensor, "draws 1 classes"]
    across: Float[Tensor, "draws 1 classes"]

    @torch.no_grad()
    def __init__(self, head: VonMisesFisherHead | PowerSphericalHead, draws: int, seed: int) -> None:
        super().__init__()
        if not (isinstance(draws, int) and draws > 0 and draws % 2 == 0):
            raise ValueError(f"draws must be a positive even number, got {draws!r}")
        self.dim, self.law = head.dim, _LAWS[type(head)]
        weight = head.weight.detach().cpu().double()
        kappa = torch.linalg.vector_norm(weight, dim=1)
        direction = weight / kappa.clamp_min(torch.finfo(torch.float64).tiny)[:, None]
        random = torch.Generator().manual_seed(seed)
        g = torch.randn(draws // 2, head.dim, dtype=torch.float64, generator=random)
        g = g / torch.linalg.vector_norm(g, dim=1, keepdim=True)
        order = _mirrored(draws, random)
        t, rest = von_mises_fisher_angle(_levels(draws, len(weight), random), kappa, head.dim)
        rest = rest * _first_coordinate(_levels(draws, len(weight), random), head.dim)
        constants = {
            "coefficients": _tabulate(self.law, head.dim, draws)[:, order],
            "alpha": head.alpha,
            "beta": head.beta,
            "direction": direction,
            "vectors": g,
            "products": (g @ direction.T)[:, None],
            "along": t[:, None],
            "across": rest[:, None],
        }
        for name, value in constants.items():
            self.register_buffer(name, value.to(head.weight).clone(memory_format=torch.contiguous_format))

    def forward(self, z: Float[Tensor, "batch dim"]) -> Float[Tensor, "draws batch classes"]:
        z = z.to(self.direction.dtype)
        kappa, mu = concentration_and_direction(z, self.alpha)
        cos, sin = self._angle(kappa)
        a, b = mu @ self.direction.T, (mu @ self.vectors.T).T[..., None]
        # Where g is nearly ±μ, v is lost in rounding: ŵ·v is never taken for longer than it can be.
        v = (self.products - b * a) / (1 - b * b).clamp_min(1e-6).sqrt()
        most = (1 - a * a).clamp_min(0).sqrt()
        v = torch.minimum(torch.maximum(v, -most), most)
        angle = cos * a + sin * torch.cat([v, -v])
        return self.beta * (self.along * angle + self.across * (1 - angle * angle).clamp_min(0).sqrt())

    def _angle(
        self, kappa: Float[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "draws batch 1"], Float[Tensor, "draws batch 1"]]:
        """(cos θ, sin θ) at the levels of the draws."""
        T, peak = self.law.mode(kappa, self.dim)
        x = 2 * T - 1
        basis = [torch.ones_like(x), x]
        for _ in range(len(self.coefficients) - 2):
            basis.append(2 * x * basis[-1] - basis[-2])
        y = torch.stack(basis[: len(self.coefficients)], 1) @ self.coefficients
        e2y = (y.exp() * peak[:, None]).T[..., None]
        return 1 - 2 / (1 + e2y), 2 * e2y.sqrt() / (1 + e2y)


def _levels(draws: int, columns: int, random: torch.Generator) -> Float[Tensor, "draws columns"]:
    """The midpoints of equal strata, each column in an order of its own."""
    order = torch.rand(draws, columns, generator=random).argsort(0)
    return (order.double() + 0.5) / draws


def _mirrored(draws: int, random: torch.Generator) -> Tensor:
    """An order of the strata in which the second half mirrors the first."""
    pairs = draws // 2
    side = torch.randint(2, (pairs,), generator=random).bool()
    first = torch.randperm(pairs, generator=random)
    first = torch.where(side, first, draws - 1 - first)
    return torch.cat([first, draws - 1 - first])


def _first_coordinate(level: Float[Tensor, "draws columns"], dim: int) -> Float[Tensor, "draws columns"]:
    """Of a uniform direction on S^(n−2), at quantile levels."""
    if dim == 2:
        return torch.where(level < 0.5, 1.0, -1.0).to(level)
    if dim == 3:
        return (math.pi * level).cos()
    return von_mises_fisher_angle(level, level.new_zeros(level.shape[1]), dim - 1)[0]


@cache
def _tabulate(law: _Law, dim: int, draws: int) -> Float[Tensor, "degrees draws"]:
    """Chebyshev coefficients in 2T − 1 of 2 (y − y*) at the midpoints of the strata."""
    x = np.cos(np.pi * (np.arange(_NODES) + 0.5) / _NODES)
    T = torch.from_numpy((x + 1) / 2)
    level = ((torch.arange(draws, dtype=torch.float64) + 0.5) / draws)[:, None].expand(-1, _NODES)
    cos, sin = law.angle(level.contiguous(), law.concentration(T, dim), dim)
    # 2 artanh cos θ, from the end of the two that keeps its digits
    y = torch.where(cos > 0, 2 * torch.log((1 + cos) / sin), 2 * torch.log(sin / (1 - cos)))
    a = chebyshev.chebfit(x, (y - 2 * torch.atanh(T)).T.numpy(), _NODES - 1)
    keep = max(2, int((np.cumsum(np.abs(a).max(1)[::-1])[::-1] > _NEGLIGIBLE).sum()))
    return torch.from_numpy(a[:keep])
