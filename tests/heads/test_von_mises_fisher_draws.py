"""What the vMF head draws: cosines that follow the marginal, and independent tangents."""

import math

import numpy as np
import pytest
import torch

from spaceform import special
from spaceform.distributions.von_mises_fisher import VON_MISES_FISHER
from spaceform.heads._kernels.angle_table import AngleTable
from spaceform.heads._kernels.expected_softmax import spread_signs, tangents


@pytest.mark.parametrize("dim", [3, 4, 16, 17, 40, 128, 512, 2048])
@pytest.mark.parametrize("ratio", [0.0, 0.05, 1.0, 30.0])
def test_draws_of_the_cosine_follow_the_marginal(dim, ratio):
    """The distribution function by the trapezoid rule in θ, at 402 normal scores: error below 3e-6."""
    kappa = torch.tensor([ratio * dim], dtype=torch.float64)
    x = torch.linspace(0, 5, 201, dtype=torch.float64)[None]
    cos, _ = AngleTable(VON_MISES_FISHER, dim).antithetic(x, kappa)
    mode = (
        math.acos(2 * ratio * dim / ((dim - 2) + math.hypot(dim - 2, 2 * ratio * dim)))
        if ratio
        else math.pi / 2
    )
    width = 9 / math.sqrt(dim - 2 + 2 * ratio * dim) if dim > 8 else math.pi
    theta = np.linspace(max(0, mode - width), min(math.pi, mode + width), 200_001)
    with np.errstate(divide="ignore"):
        log_f = (dim - 2) * np.log(np.sin(theta).clip(0)) + ratio * dim * np.cos(theta)
    f = np.exp(log_f - log_f[1:-1].max())
    cdf = np.concatenate([[0], np.cumsum((f[1:] + f[:-1]) / 2)])
    above = np.interp(np.arccos(cos[0].numpy()), theta, cdf / cdf[-1])
    expected = torch.special.ndtr(torch.cat([-x, x], 1))[0].numpy()
    assert np.abs(above - expected).max() < 3e-6


@pytest.mark.parametrize("dim", [3, 5, 16, 128, 512, 2048])
@pytest.mark.parametrize("ratio", [0.01, 0.5, 3.0, 100.0])
def test_moments_of_the_cosine_and_their_derivatives(dim, ratio):
    """E[t] = A(κ) and dE[t]/dκ = A′(κ), integrated over the normal score."""
    kappa = torch.tensor([ratio * dim], dtype=torch.float64, requires_grad=True)
    x = torch.linspace(0, 6, 2001, dtype=torch.float64)[None]
    weight = torch.exp(-(x**2) / 2)
    weight[:, 0] /= 2
    weight = torch.cat([weight, weight], 1) / (2 * weight.sum())
    cos, sin = AngleTable(VON_MISES_FISHER, dim).antithetic(x, kappa)
    torch.testing.assert_close(cos**2 + sin**2, torch.ones_like(cos), rtol=0, atol=1e-12)
    mean = special.mean_resultant_length(kappa, dim)
    torch.testing.assert_close((cos * weight).sum(), mean.sum(), rtol=2e-6, atol=1e-8)
    ours, theirs = (torch.autograd.grad(a.sum(), kappa)[0] for a in (cos * weight, mean))
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=0)
    # The derivative of the sine is that of the same angle.
    cos, sin = AngleTable(VON_MISES_FISHER, dim).antithetic(x, kappa)
    slope = torch.autograd.grad((sin * sin * weight).sum(), kappa)[0]
    cos, sin = AngleTable(VON_MISES_FISHER, dim).antithetic(x, kappa)
    torch.testing.assert_close(
        slope, -torch.autograd.grad((cos * cos * weight).sum(), kappa)[0], rtol=1e-6, atol=0
    )


@pytest.mark.slow
@pytest.mark.parametrize(("dim", "pairs"), [(64, 5), (64, 8), (200, 5)])
def test_vectors_made_of_one_are_uniform_and_hardly_correlated(dim, pairs):
    """Along any direction a, v·a has variance (1 − (μ·a)²)/(n−1), and little in common with the next v·a."""
    mu, a = (torch.nn.functional.normalize(torch.rand(dim, dtype=torch.float64), dim=0) for _ in range(2))
    v = tangents(mu.expand(40_000, -1), pairs, torch.Generator().manual_seed(0), spread_signs(pairs, dim))
    torch.testing.assert_close(v.norm(dim=2), torch.ones(40_000, pairs, dtype=torch.float64))
    assert float((v @ mu).abs().max()) < 1e-12
    along = v @ a
    variance = float(1 - (mu @ a) ** 2) / (dim - 1)
    assert float((along.mean(0) / math.sqrt(variance / 40_000)).abs().max()) < 4.5  # false alarm 3e-5
    torch.testing.assert_close(
        along.var(0), torch.full((pairs,), variance, dtype=torch.float64), rtol=0.035, atol=0
    )
    others = torch.corrcoef(along.T) - torch.eye(pairs)
    assert float(others.abs().max()) < 4 / math.sqrt(dim)
