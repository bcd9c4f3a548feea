"""The draws of a directional head's prediction, which are made once and shared by all embeddings.

The prediction is the mean of softmax(β w_j·z) over random z and w_j. With these draws it is a function of the
embedding and the parameters alone: an example has the same probabilities alone, in any batch, at every call
and in an exported graph; and it is differentiable.

A draw z = cos θ μ ± sin θ v has its own quantile level of θ and a fixed vector g, of which v is the part
orthogonal to μ. Then ŵ_j·z needs μ·ŵ_j, μ·g and g·ŵ_j: small products. A class weight seen from z is
t cos + r sin (`weight_draws`). The levels of θ, and those of t and r of every class, are the midpoints of
equal strata in random order: each is spread over its law as evenly as can be.

At a given level y = artanh cos θ, less its mode y*, is a smooth function of T = tanh y*, which runs from 0 to
1 as κ goes from 0 to ∞: a Chebyshev series in T, found once from the law's quantiles. The general inversion
(`AngularLaw.angle`) would need a search in a table for each embedding, which ONNX does not have.

Measured on heads trained on digits (`python benchmarks/predictive.py`), mean error of a probability against
the limit of infinitely many draws, n = 3, 8, 64, 128: with the 64 fixed draws of the default 2.1e-3, 8e-4,
2.0e-4, 1.1e-4 (vMF) and 2.2e-3, 8e-4, 2.2e-4, 1.1e-4 (Power Spherical); with the paper's 10 independent
draws 1e-2, 7e-3, 3e-3, 2e-3 (both). Angles are right to 2e-6 (n = 2: 6e-6).
"""

import math
from functools import cache
from typing import NamedTuple, final

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy.polynomial import chebyshev
from torch import Generator, Tensor

from spaceform.distributions.law import AngularLaw
from spaceform.distributions.von_mises_fisher import VON_MISES_FISHER, von_mises_fisher_angle
from spaceform.heads._kernels.angle_table import beyond_the_mode, chebyshev_nodes
from spaceform.heads._kernels.exact_buffers import ExactBuffers, making_constants

_NODES = 64
_NEGLIGIBLE = 1e-7
# The most columns of strata; more classes share them, to save memory.
_COLUMNS = 4096


class DrawnWeights(NamedTuple):
    """Draws of class weights; seen from a unit vector at the angle φ they are along cos φ + across sin φ."""

    along: Float[Tensor, "draws 1 classes"]
    across: Float[Tensor, "draws 1 classes"]
    direction: Float[Tensor, "classes dim"]
    products: Float[Tensor, "draws 1 classes"]
    """g·ŵ_j of each draw."""


@final
class FixedDraws(ExactBuffers):
    """Logit samples of a directional head from draws that were made once."""

    angles: Float[Tensor, "degrees draws"]
    weight_angles: Float[Tensor, "degrees draws"]
    vectors: Float[Tensor, "pairs dim"]
    stratum: Int64[Tensor, "draws columns"]
    side: Float[Tensor, "draws columns"]

    def __init__(self, law: AngularLaw, dim: int, num_classes: int, draws: int) -> None:
        super().__init__()
        self.law, self.dim, self.draws = law, dim, draws
        self._add_constants(**_constants(law, dim, min(num_classes, _COLUMNS), draws))

    def weights(
        self, weight: Float[Tensor, "classes dim"], beta: Float[Tensor, ""], first: int = 0
    ) -> "DrawnWeights":
        """What all embeddings share, for the weights of all classes, or of some classes from `first` on."""
        kappa = torch.linalg.vector_norm(weight, dim=1)
        # The direction of a zero weight does not matter: its draws are uniform.
        direction = weight * kappa.masked_fill(kappa == 0, torch.inf).reciprocal()[:, None]
        cos, sin = series_angle(VON_MISES_FISHER, self.weight_angles, kappa, self.dim)
        # Not `gather`: onnxscript cannot fold it, and prints warnings.
        own = torch.arange(len(weight), device=weight.device)
        stratum = self._columns(self.stratum, first, len(weight)) * len(weight) + own
        t, r = (x.flatten().index_select(0, stratum.flatten()).view_as(x) for x in (cos, sin))
        r = r * self._columns(self.side, first, len(weight)).to(weight.dtype)
        products = (self.vectors.to(weight.dtype) @ direction.T)[:, None]
        return DrawnWeights((beta * t)[:, None], (beta * r)[:, None], direction, torch.cat(2 * [products]))

    def forward(
        self, kappa: Float[Tensor, " batch"], mu: Float[Tensor, "batch dim"], weights: "DrawnWeights"
    ) -> Float[Tensor, "draws batch classes"]:
        """β w_j·z of every draw."""
        # ŵ·z = cos θ ŵ·μ ± sin θ ŵ·v and ŵ·v = (ŵ·g − (μ·g)(ŵ·μ))/r, r = √(1 − (μ·g)²).
        b = (mu @ self.vectors.to(mu.dtype).T).T
        inverse = (1 - b * b).clamp_min(1e-6).rsqrt()
        cos, sin = series_angle(self.law, self.angles, kappa, self.dim)
        s = sin * torch.cat([inverse, -inverse])
        c = cos - s * torch.cat([b, b])
        angle = torch.addcmul(c[..., None] * (mu @ weights.direction.T), s[..., None], weights.products)
        least = torch.finfo(angle.dtype).tiny
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            sine = (1 - angle * angle).clamp_min(least).sqrt()
            return torch.addcmul(weights.along * angle, weights.across, sine)
        # The same, in place.
        sine = angle.square().neg_().add_(1).clamp_min_(least).sqrt_()
        return angle.mul_(weights.along).addcmul_(weights.across, sine)

    def _columns(self, x: Tensor, first: int, classes: int) -> Tensor:
        """A column for each class from `first` on; with many classes columns repeat."""
        first %= x.shape[1]
        times = -(-(first + classes) // x.shape[1])
        return (x if times == 1 else x.repeat(1, times))[:, first : first + classes]


@making_constants()
def _constants(law: AngularLaw, dim: int, columns: int, draws: int) -> dict[str, Tensor]:
    random = Generator().manual_seed(0)
    g = torch.randn(draws // 2, dim, dtype=torch.float64, generator=random)
    return {
        "vectors": g / torch.linalg.vector_norm(g, dim=1, keepdim=True),
        "angles": angle_series(law, dim, draws)[:, _mirrored(draws, random)],
        "weight_angles": angle_series(VON_MISES_FISHER, dim, draws),
        "stratum": _shuffled(draws, columns, random),
        "side": _first_coordinate(dim, draws)[_shuffled(draws, columns, random)],
    }


def series_angle(
    law: AngularLaw,
    coefficients: Float[Tensor, "degrees draws"],
    kappa: Float[Tensor, " rows"],
    dim: int,
) -> tuple[Float[Tensor, "draws rows"], Float[Tensor, "draws rows"]]:
    """(cos θ, sin θ) at the levels of the columns of `angle_series`."""
    T, peak, _ = law.peak(kappa, dim)
    x = 2 * T - 1
    basis, twice = [torch.ones_like(x), x], 2 * x
    for _ in range(len(coefficients) - 2):
        basis.append(twice * basis[-1] - basis[-2])
    e2y = (coefficients.to(x.dtype).T @ torch.stack(basis)).exp() * peak
    return 1 - 2 / (1 + e2y), 2 * e2y.sqrt() / (1 + e2y)


@cache
@making_constants()
def angle_series(law: AngularLaw, dim: int, draws: int) -> Float[Tensor, "degrees draws"]:
    """Chebyshev coefficients in 2T − 1 of 2 (y − y*) at the midpoints of the strata."""
    x = chebyshev_nodes(_NODES)
    y = beyond_the_mode(law, dim, _midpoints(draws), torch.from_numpy((x + 1) / 2))
    a = chebyshev.chebfit(x, 2 * y.numpy(), _NODES - 1)
    keep = max(2, int((np.cumsum(np.abs(a).max(1)[::-1])[::-1] > _NEGLIGIBLE).sum()))
    return torch.from_numpy(a[:keep])


def _midpoints(draws: int) -> Float[Tensor, " draws"]:
    return (torch.arange(draws, dtype=torch.float64) + 0.5) / draws


def _shuffled(draws: int, columns: int, random: Generator) -> Int64[Tensor, "draws columns"]:
    """The strata, in another order in each column."""
    return torch.rand(draws, columns, generator=random).argsort(0)


def _mirrored(draws: int, random: Generator) -> Int64[Tensor, " draws"]:
    """An order of the strata in which the second half mirrors the first."""
    pairs = draws // 2
    side = torch.randint(2, (pairs,), generator=random).bool()
    first = torch.randperm(pairs, generator=random)
    first = torch.where(side, first, draws - 1 - first)
    return torch.cat([first, draws - 1 - first])


def _first_coordinate(dim: int, draws: int) -> Float[Tensor, " draws"]:
    """The first coordinate of a uniform direction on S^(n−2), at the midpoints of the strata."""
    level = _midpoints(draws)
    if dim == 2:
        return torch.where(level < 0.5, 1.0, -1.0).to(level)
    if dim == 3:
        return (math.pi * level).cos()
    return von_mises_fisher_angle(level, level.new_zeros(()), dim - 1)[0]
