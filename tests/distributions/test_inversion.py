"""The angle to the mean direction as a function of a uniform number."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from reference.sphere import power_spherical_below, von_mises_fisher_law, wood_cosines
from spaceform.distributions import _inversion, power_spherical_angle, von_mises_fisher_angle

pytestmark = pytest.mark.slow

DIMS = (2, 3, 4, 5, 8, 16, 128, 512, 2048)
CONCENTRATIONS = (0.0, 0.1, 1.0, 9.0, 20.0, 60.5, 701.0, 1e4, 1e6)
ANGLES = {"von_mises_fisher": von_mises_fisher_angle, "power_spherical": power_spherical_angle}


def quantiles(dtype: torch.dtype, size: int = 2001) -> torch.Tensor:
    u = (torch.arange(size, dtype=torch.float64) + 0.5) / size
    tail = 10 ** -torch.linspace(3, 6, 13, dtype=torch.float64)
    return torch.cat([tail, u, 1 - tail]).sort().values.to(dtype)


def distribution_function(family: str, dim: int, k: float, theta: np.ndarray) -> np.ndarray:
    if family == "von_mises_fisher":
        return von_mises_fisher_law(dim, k).below(theta)
    return power_spherical_below(dim, k, theta)


@pytest.mark.parametrize("family", ANGLES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-5), (torch.float64, 1e-7)])
def test_distribution_function_gives_the_uniform_back(family, dtype, tolerance):
    u = quantiles(dtype)
    for dim in DIMS:
        cos, sin = ANGLES[family](u[:, None].expand(-1, 9), torch.tensor(CONCENTRATIONS, dtype=dtype), dim)
        theta = torch.atan2(sin.double(), cos.double()).numpy()
        for column, k in enumerate(CONCENTRATIONS):
            back = distribution_function(family, dim, k, theta[:, column])
            assert np.abs(back - u.double().numpy()).max() < tolerance, (dim, k)
            assert (np.diff(theta[:, column]) >= 0).all(), (dim, k)


def exact_rate(family: str, dim: int, k: float, theta: np.ndarray) -> np.ndarray:
    """dθ/dκ along the quantile through θ: by quadrature; for the Beta law by a difference of quantiles."""
    if family == "von_mises_fisher":
        return von_mises_fisher_law(dim, k).rate(theta, np.cos)
    u, half, h = distribution_function(family, dim, k, theta), (dim - 1) / 2, 1e-3 * k

    def angle(k: float) -> np.ndarray:
        near, far = stats.beta.ppf(u, half, half + k), stats.beta.isf(u, half + k, half)
        return np.where(near < far, 2 * np.arcsin(np.sqrt(near)), 2 * np.arccos(np.sqrt(far)))

    return (8 * (angle(k + h) - angle(k - h)) - (angle(k + 2 * h) - angle(k - 2 * h))) / (12 * h)


@pytest.mark.parametrize("family", ANGLES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-4), (torch.float64, 1e-6)])
def test_rate_is_the_implicit_derivative(family, dtype, tolerance):
    """Every rate between the quantiles 1e-3 and 1 − 1e-3, relative to itself."""
    u = torch.tensor([1e-3, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999], dtype=dtype)
    for dim in DIMS:
        for k in (0.1, 1.0, 9.0, 60.5, 701.0, 1e4):
            kappa = torch.full_like(u, k, requires_grad=True)
            cos, sin = ANGLES[family](u, kappa, dim)
            theta = torch.atan2(sin, cos)
            (rate,) = torch.autograd.grad(theta.sum(), kappa)
            exact = exact_rate(family, dim, k, torch.atan2(sin.double(), cos.double()).detach().numpy())
            assert np.abs(rate.double().numpy() / exact - 1).max() < tolerance, (dim, k)


@pytest.mark.parametrize("family", ANGLES)
@pytest.mark.parametrize("dim", [2, 3, 4, 9, 40])
def test_gradients_in_both_arguments_by_differences(family, dim):
    generator = torch.Generator().manual_seed(dim)
    u = torch.rand(7, 4, dtype=torch.float64, generator=generator).requires_grad_()
    k = torch.tensor([0.3, 2.0, 15.0, 300.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda u, k: ANGLES[family](u, k, dim), (u, k), eps=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", [1e-6, 0.5, 30.0, 1e5])
def test_three_dimensions_in_closed_form(k):
    """F = (1 − exp(−2κy))/(1 − exp(−2κ)) with y = (1 − cos θ)/2, and 1 − (1 − y)^(1+κ)."""
    u = torch.linspace(0.01, 0.99, 99, dtype=torch.float64)
    kappa = torch.tensor(k, dtype=torch.float64)
    y = -torch.log1p(u * math.expm1(-2 * k)) / (2 * k)
    cos, sin = von_mises_fisher_angle(u, kappa, 3)
    torch.testing.assert_close(torch.atan2(sin, cos), 2 * torch.asin(y.sqrt()), rtol=1e-9, atol=0)
    y = -torch.expm1(torch.log1p(-u) / (1 + k))
    cos, sin = power_spherical_angle(u, kappa, 3)
    torch.testing.assert_close(torch.atan2(sin, cos), 2 * torch.asin(y.sqrt()), rtol=1e-7, atol=0)


def test_uniform_circle_in_closed_form():
    u = torch.linspace(0, 1, 101, dtype=torch.float64)
    cos, sin = von_mises_fisher_angle(u, torch.tensor(0.0, dtype=torch.float64), 2)
    torch.testing.assert_close(torch.atan2(sin, cos), math.pi * u)


@pytest.mark.parametrize(("dim", "k"), [(2, 0.7), (5, 2.0), (128, 60.5), (512, 243.0)])
def test_wood_draws_the_same_law(dim, k):
    """Two-sample Kolmogorov–Smirnov, 1e5 draws each; false alarm 1e-5 a case."""
    rng = np.random.default_rng(dim)
    u = torch.from_numpy(rng.random(100_000))
    cos, _ = von_mises_fisher_angle(u, torch.tensor(k, dtype=torch.float64), dim)
    assert stats.ks_2samp(cos.numpy(), wood_cosines(dim, k, 100_000, rng)).pvalue > 1e-5


@pytest.mark.parametrize("family", ANGLES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 3, 4, 512, 65_536])
def test_finite_at_every_edge(family, dtype, dim):
    """Uniforms 0 and 1, concentrations 0 and 1e8: on the unit circle, with finite gradients."""
    u = torch.tensor([0.0, 1e-30, 0.5, 1 - 1e-7, 1.0], dtype=dtype)[:, None].expand(-1, 3)
    k = torch.tensor([0.0, 1e-20, 1e8], dtype=dtype, requires_grad=True)
    cos, sin = ANGLES[family](u, k, dim)
    torch.testing.assert_close(cos.square() + sin.square(), torch.ones_like(cos), rtol=0, atol=1e-6)
    assert (sin >= 0).all()
    (grad,) = torch.autograd.grad((cos + sin).sum(), k)
    assert grad.isfinite().all()


def test_blocks_change_the_draws_by_rounding_only(monkeypatch):
    u, k = torch.rand(3, 50), torch.linspace(0, 90, 50)
    whole = von_mises_fisher_angle(u, k, 7)
    monkeypatch.setattr(_inversion, "_ROWS", 16)
    for a, b in zip(whole, von_mises_fisher_angle(u, k, 7), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6)


def test_vmap_and_grad_agree_with_the_batched_call():
    u, k = torch.rand(6, 5), torch.linspace(0, 90, 5)
    cos, _ = von_mises_fisher_angle(u, k, 20)
    mapped = torch.vmap(lambda u, k: von_mises_fisher_angle(u, k, 20)[0], (1, 0), 1)(u, k)
    torch.testing.assert_close(mapped, cos)
    shared = torch.vmap(lambda u: von_mises_fisher_angle(u, k, 20)[0])(u)
    torch.testing.assert_close(shared, cos)
    leaf = k.clone().requires_grad_()
    (expected,) = torch.autograd.grad(von_mises_fisher_angle(u, leaf, 20)[0].sum(), leaf)
    each = torch.func.grad(lambda k, u: von_mises_fisher_angle(u, k, 20)[0].sum())
    torch.testing.assert_close(torch.vmap(each, (0, 1))(k, u), expected)


@pytest.mark.compiled
@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch's own, in tracing
def test_compiles_in_one_graph(unhooked):
    u, k = torch.rand(6, 5), torch.linspace(0, 90, 5).requires_grad_()
    for name in ANGLES:
        function = getattr(unhooked, f"{name}_angle")
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        for result, expected in zip(compiled(u, k, 20), function(u, k, 20), strict=True):
            torch.testing.assert_close(result, expected)
            (a,) = torch.autograd.grad(result.sum(), k, retain_graph=True)
            (b,) = torch.autograd.grad(expected.sum(), k, retain_graph=True)
            torch.testing.assert_close(a, b)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"uniform must have a shape that ends in .*\(5,\).*\(4,\)"):
        von_mises_fisher_angle(torch.rand(4), torch.ones(5), 3)
    with pytest.raises(TypeError, match=r"float32 and torch\.float64"):
        von_mises_fisher_angle(torch.rand(4), torch.ones(4, dtype=torch.float64), 3)
    with pytest.raises(ValueError, match="dim must be an integer of at least 2, got 1"):
        von_mises_fisher_angle(torch.rand(4), torch.ones(4), 1)
