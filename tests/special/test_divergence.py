"""Divergences of concentrations, and how far the mean length stays below 1, against mpmath."""

import mpmath as mp
import pytest
import torch

from reference import bessel
from spaceform import special
from spaceform.special import exact

METHODS = ["exact", "bounds"]


@pytest.mark.parametrize("dim", [2, 3, 16, 203, 512, 65_536])
def test_the_shortfall_against_mpmath(dim: int):
    k = bessel.concentrations(dim)
    with mp.workdps(bessel.DIGITS):
        true = [1 - bessel.values(dim / 2 - 1, x).mean for x in k.tolist()]
    assert (bessel.errors(exact.shortfall(k, dim / 2 - 1), true) / bessel.floats(true)).max() <= 2e-14


@pytest.mark.parametrize("dim", [2, 3, 4, 8, 16, 203, 512, 2048, 65_536])
def test_the_divergence_from_the_uniform_law_against_mpmath(dim: int):
    """Relative to the divergence itself, in both precisions; below κ = 0.01 it is κ²/2n, to 1e-4."""
    k = bessel.concentrations(dim)
    small, k = k[k < 1e-2], k[k >= 1e-2]
    with mp.workdps(bessel.DIGITS):
        oracles = [bessel.values(dim / 2 - 1, x) for x in k.tolist()]
        true = [x * v.mean - v.log_f for x, v in zip(k.tolist(), oracles, strict=True)]
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
        found = special.divergence_from_uniform(k.to(dtype), dim).double()
        assert (bessel.errors(found, true) / bessel.floats(true)).max() <= tolerance
        found = special.divergence_from_uniform(small.to(dtype), dim).double()
        torch.testing.assert_close(found, small.square() / (2 * dim), rtol=1e-4, atol=0)


def test_the_divergence_at_huge_concentrations_in_float32():
    """κ A(κ) and log C(κ) grow as κ; their sum, subtracted, was 570.06 for 570.03 and 864 for 862.5."""
    for dim, k in ((128, 1e6), (128, 1e8), (512, 1e8)):
        both = (torch.tensor(k, dtype=dtype) for dtype in (torch.float32, torch.float64))
        single, double = (special.divergence_from_uniform(x, dim) for x in both)
        torch.testing.assert_close(single.double(), double, rtol=5e-7, atol=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dim", [2, 3, 16, 128])
def test_the_divergence_from_the_uniform_law_is_made_of_its_terms(method: str, dim: int):
    k = torch.logspace(-2, 4, 40, dtype=torch.float64, requires_grad=True)
    growth = special.log_normalizer_difference(k, torch.zeros_like(k), dim, method=method)
    terms = growth + k * special.mean_resultant_length(k, dim, method=method)
    found = special.divergence_from_uniform(k, dim, method=method)
    torch.testing.assert_close(found, terms, rtol=1e-10, atol=1e-11)
    assert torch.autograd.gradcheck(lambda k: special.divergence_from_uniform(k, dim, method=method), k)
    assert torch.autograd.gradgradcheck(lambda k: special.divergence_from_uniform(k, dim, method=method), k)


@pytest.mark.parametrize("dim", [2, 3, 16, 512])
def test_the_divergence_of_two_concentrations_against_mpmath(dim: int):
    """Within 3e-6 (float32) of the larger of the divergence and the change of log κ, times n."""
    k = [0.1, 3.0, float(dim), 1e3, 1e6, 1.5e6, 1e8]
    x, y = (t.flatten() for t in torch.meshgrid(*2 * [torch.tensor(k, dtype=torch.float64)], indexing="ij"))
    with mp.workdps(bessel.DIGITS):
        oracles = {c: bessel.values(dim / 2 - 1, c) for c in k}
        true = [
            oracles[b].log_f - oracles[a].log_f + (mp.mpf(a) - b) * oracles[a].mean
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
    scale = bessel.floats(true).clamp_min(1) + dim * (x / y).log().abs()
    for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 3e-6)):
        found = exact.bregman(x.to(dtype), y.to(dtype), dim / 2 - 1).double()
        assert (bessel.errors(found, true) / scale).max() <= tolerance
