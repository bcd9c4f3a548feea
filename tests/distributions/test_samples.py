"""Draws of real vectors: their law, their moments and their gradients."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from reference.sphere import power_spherical_below, von_mises_fisher_law
from spaceform.distributions import HypersphericalUniform, PowerSpherical, VonMisesFisher
from spaceform.special import mean_resultant_length

pytestmark = pytest.mark.slow

DRAWS = 100_000
COORDINATES = 5e7
"""At most so many are drawn: 24,414 vectors of 2048. The angle's inverse is tested by itself there."""
DIMS = (2, 3, 4, 8, 16, 128, 512, 2048)
CONCENTRATIONS = (0.0, 0.1, 1.0, 9.0, 11.0, 20.0, 60.5, 243.0, 701.0, 1e4, 1e6)
FAMILIES = (VonMisesFisher, PowerSpherical)

# Kolmogorov–Smirnov: P(D √N > 2.5) = 7e-6. A mean off by more than 5 standard errors: 6e-7; four are looked
# at in each of 176 cases. One false alarm in 600 seeds for the whole grid; the seeds are fixed.
KS_LIMIT, Z_LIMIT = 2.5, 5.0


def direction(dim: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    g = torch.randn(dim, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(g, dim=-1).to(dtype)


def distribution_function(family: type, dim: int, k: float, theta: np.ndarray) -> np.ndarray:
    if family is VonMisesFisher:
        return von_mises_fisher_law(dim, k).below(theta)
    return power_spherical_below(dim, k, theta)


def moments(family: type, dim: int, k: float) -> tuple[float, float]:
    """E and E of the square of y = (1 − μ·z)/2."""
    if family is VonMisesFisher:
        law = von_mises_fisher_law(dim, k)
        return law.mean(lambda t: np.sin(t / 2) ** 2), law.mean(lambda t: np.sin(t / 2) ** 4)
    law = stats.beta((dim - 1) / 2, (dim - 1) / 2 + k)
    return law.mean(), law.var() + law.mean() ** 2


def z_score(values: np.ndarray, expected: float) -> float:
    return abs(values.mean() - expected) / (values.std() / math.sqrt(len(values)))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dim", DIMS)
def test_draws_follow_the_law(family, dim):
    """The angle to μ, its first two moments, and the first two moments of coordinates across μ."""
    mu, across = direction(dim, 1), direction(dim, 2).double()
    across = torch.nn.functional.normalize(across - (across @ mu.double()) * mu.double(), dim=-1)
    generator = torch.Generator().manual_seed(dim)
    draws, chunk = min(DRAWS, int(COORDINATES / dim)), min(DRAWS, 1_500_000 // dim)
    for k in CONCENTRATIONS:
        law = family(mu, k)
        apart, tangent = [], []
        for start in range(0, draws, chunk):
            z = law.sample((min(chunk, draws - start),), generator)
            assert (torch.linalg.vector_norm(z, dim=-1) - 1).abs().max() < 1e-6
            tangent.append(z @ across.float())
            apart.append(torch.linalg.vector_norm(z.sub_(mu), dim=-1))
        y = torch.cat(apart).double().square().numpy() / 4
        v = torch.cat(tangent).double().numpy()

        theta = 2 * np.arcsin(np.sqrt(np.minimum(y, 1)))
        u = np.sort(distribution_function(family, dim, k, theta))
        steps = np.arange(draws + 1) / draws
        distance = max((steps[1:] - u).max(), (u - steps[:-1]).max())
        assert distance * math.sqrt(draws) < KS_LIMIT, (dim, k)

        first, second = moments(family, dim, k)
        assert z_score(y, first) < Z_LIMIT, (dim, k)
        assert z_score(y**2, second) < Z_LIMIT, (dim, k)
        assert z_score(v, 0.0) < Z_LIMIT, (dim, k)
        assert z_score(v**2, 4 * (first - second) / (dim - 1)) < Z_LIMIT, (dim, k)


@pytest.mark.parametrize("dim", [2, 3, 16, 512])
def test_uniform_draws_follow_the_law(dim):
    """(1 + any coordinate)/2 is Beta((n−1)/2, (n−1)/2); false alarm 7e-6 a case."""
    z = HypersphericalUniform(dim).sample((20_000,), torch.Generator().manual_seed(dim))
    assert (torch.linalg.vector_norm(z, dim=-1) - 1).abs().max() < 1e-6
    half = (dim - 1) / 2
    for coordinate in (0, dim - 1):
        result = stats.kstest((1 + z[:, coordinate].double().numpy()) / 2, stats.beta(half, half).cdf)
        assert result.pvalue > 7e-6


@pytest.mark.parametrize(("dim", "k"), [(5, 2.0), (8, 5.0), (16, 9.0), (128, 60.5), (512, 701.0)])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_of_the_mean_by_the_concentration(family, dim, k):
    """The pathwise dE[μ·z]/dκ against A_n′(κ), and (n−1)/(n−1+κ)² for Power Spherical."""
    if family is VonMisesFisher:
        kappa = torch.tensor(k, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(mean_resultant_length(kappa, dim), kappa)
        exact = slope.item()
    else:
        exact = (dim - 1) / (dim - 1 + k) ** 2
    mu, generator = direction(dim, 3), torch.Generator().manual_seed(dim)
    parts = []
    for _ in range(10):
        kappa = torch.full((DRAWS // 10,), k, requires_grad=True)
        z = family(mu, kappa, validate_args=False).rsample(generator=generator)
        parts += torch.autograd.grad((z @ mu).sum(), kappa)
    gradient = torch.cat(parts).double()
    error = abs(gradient.mean().item() - exact)
    assert error < 0.01 * exact
    assert error < 3 * gradient.std().item() / math.sqrt(DRAWS)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dim", [2, 3, 5, 15, 16, 40])
def test_gradients_along_the_path_by_differences(family, dim):
    """With common random numbers the draws are a smooth function of mean direction and concentration."""
    x = 3 * direction(dim, 4, torch.float64).expand(2, dim) + 0.1 * torch.arange(2 * dim).reshape(2, dim)
    k = torch.tensor([1.5, 40.0], dtype=torch.float64)

    def draws(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        loc = torch.nn.functional.normalize(x, dim=-1)
        return family(loc, k).rsample((3,), torch.Generator().manual_seed(5))

    inputs = (x.double().requires_grad_(), k.requires_grad_())
    assert torch.autograd.gradcheck(draws, inputs, eps=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dim", "k"), [(3, 2.0), (16, 9.0), (128, 60.5)])
def test_gradient_of_expectations_by_the_mean_direction(family, dim, k):
    """∇ E[a·z + (b·z)²] by μ against differences of the closed form, within 4 standard errors."""
    a, b, mu = (
        direction(dim, 6, torch.float64),
        direction(dim, 7, torch.float64),
        direction(dim, 8, torch.float64),
    )

    def expectation(x: torch.Tensor) -> torch.Tensor:
        law = family(torch.nn.functional.normalize(x, dim=-1), k)
        return a @ law.mean + b @ law.covariance_matrix @ b + (b @ law.mean) ** 2

    basis = torch.eye(dim, dtype=torch.float64)[: min(dim, 8)]
    h = 1e-5
    exact = torch.stack([(expectation(mu + h * e) - expectation(mu - h * e)) / (2 * h) for e in basis])
    x = mu.expand(400, dim).clone().requires_grad_()  # 50 draws each: a table for every draw takes seconds
    z = family(torch.nn.functional.normalize(x, dim=-1), k).rsample(
        (50,), generator=torch.Generator().manual_seed(9)
    )
    (gradient,) = torch.autograd.grad((z @ a + (z @ b) ** 2).mean(0).sum(), x)
    gradient = gradient @ basis.T
    error = (gradient.mean(0) - exact).abs()
    assert (error < 4 * gradient.std(0) / math.sqrt(len(gradient)) + 1e-9).all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [2, 3, 15, 16, 512])
def test_safe_at_the_axes_and_at_extreme_concentrations(family, dtype, dim):
    """At loc = ±e₁ and a rounding away from it, κ = 0 and 1e8: unit vectors, finite gradients."""
    axis = torch.zeros(dim, dtype=dtype)
    axis[0] = 1
    near = axis.clone()
    near[1] = torch.finfo(dtype).eps
    loc = torch.stack([axis, -axis, near, -near])[:, None].expand(4, 3, dim).clone().requires_grad_()
    k = torch.tensor([0.0, 1.0, 1e8], dtype=dtype).expand(4, 3).clone().requires_grad_()
    z = family(loc, k).rsample((200,), torch.Generator().manual_seed(10))
    assert (torch.linalg.vector_norm(z, dim=-1) - 1).abs().max() < 1e-6
    assert ((z * loc).sum(-1)[..., 2] > 1 - 1e-4).all()
    for gradient in torch.autograd.grad(z.sum(), (loc, k)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dim", [3, 20])
def test_a_second_derivative_along_the_path_is_refused(family, dim):
    k = torch.tensor([2.0, 20.0], dtype=torch.float64, requires_grad=True)
    loc = direction(dim, 5).double().expand(2, dim).clone().requires_grad_()
    z = family(loc, k).rsample((4,))
    by_loc, by_k = torch.autograd.grad(z[..., 0].square().sum(), (loc, k), create_graph=True)
    for slope, wanted in ((by_k, k), (by_k, loc), (by_loc, k)):
        with pytest.raises(RuntimeError, match=r"no second derivative: leave out|not have been used"):
            torch.autograd.grad(slope.sum(), wanted, retain_graph=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_generator_makes_draws_reproducible(family):
    law = family(direction(16, 11).expand(3, 16), torch.tensor([0.0, 5.0, 300.0]))
    first = law.rsample((4, 2), torch.Generator().manual_seed(12))
    assert first.shape == (4, 2, 3, 16)
    assert torch.equal(first, law.sample((4, 2), torch.Generator().manual_seed(12)))
    assert not torch.equal(first, law.sample((4, 2), torch.Generator().manual_seed(13)))


def test_float64_draws_have_float64_rounding():
    for dim in (2, 3, 16, 512):
        law = VonMisesFisher(direction(dim, 14, torch.float64), 50.0)
        z = law.sample((1000,), torch.Generator().manual_seed(15))
        assert z.dtype == torch.float64
        assert (torch.linalg.vector_norm(z, dim=-1) - 1).abs().max() < 1e-14


def test_autocast_does_not_coarsen_the_draws():
    law = VonMisesFisher(direction(512, 16), torch.tensor(700.0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = law.rsample((100,), torch.Generator().manual_seed(17))
    assert torch.equal(z, law.rsample((100,), torch.Generator().manual_seed(17)))


@pytest.mark.compiled
@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # torch's own, in tracing
@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_distribution_compiles(family, unhooked):
    family = getattr(unhooked, family.__name__)

    def objective(loc: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        law = family(loc, k)
        z = law.rsample((5,))
        return law.log_prob(z).mean() + law.entropy().mean() + z.mean()

    loc = direction(20, 18).expand(3, 20).clone().requires_grad_()
    k = torch.tensor([1.0, 5.0, 300.0], requires_grad=True)
    value = torch.compile(objective, backend="aot_eager", fullgraph=True)(loc, k)
    for gradient in torch.autograd.grad(value, (loc, k)):
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0


def test_vmap_draws_differ_along_the_mapped_dimension():
    loc, k = direction(20, 19).expand(3, 20), torch.tensor([1.0, 5.0, 300.0])
    law = torch.vmap(lambda m, k: VonMisesFisher(m, k, False).rsample((4,)), randomness="different")
    z = law(loc, k)
    assert z.shape == (3, 4, 20)
    assert (torch.linalg.vector_norm(z, dim=-1) - 1).abs().max() < 1e-6
    with pytest.raises(RuntimeError, match='needs randomness="different", got'):
        torch.vmap(lambda m, k: VonMisesFisher(m, k, False).rsample((4,)), randomness="same")(loc, k)
