"""Densities, entropies, moments, divergences, fits and bad input."""

import math

import numpy as np
import pytest
import torch
from jaxtyping import config
from scipy import special, stats
from torch.distributions import Independent, kl_divergence

from reference.bessel import values
from reference.sphere import NODES, WEIGHTS, von_mises_fisher_law
from spaceform.distributions import HypersphericalUniform, PowerSpherical, VonMisesFisher

FAMILIES = (VonMisesFisher, PowerSpherical)
CASES = [(2, 0.0), (2, 3.0), (3, 0.5), (4, 11.0), (8, 60.5), (16, 9.0), (128, 243.0), (512, 701.0)]


def axis(dim: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    mu = torch.zeros(dim, dtype=dtype)
    mu[-1] = 1
    return mu


def at_angle(theta: torch.Tensor, dim: int) -> torch.Tensor:
    """A unit vector at each angle from the last axis."""
    z = torch.zeros(*theta.shape, dim, dtype=theta.dtype)
    z[..., -1], z[..., 0] = theta.cos(), theta.sin()
    return z


def log_area(dim: int) -> float:
    return math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)


def over_sphere(law: torch.distributions.Distribution) -> tuple[float, float]:
    """∫ p and −∫ p log p over the sphere, for p a function of the angle to the last axis."""
    dim, k = law.event_shape[0], float(law.concentration)
    q = ((dim - 2) + math.hypot(dim - 2, 2 * k)) / 2
    mode = math.atan2(math.sqrt(dim - 2), k / math.sqrt(q)) if dim > 2 else 0.0
    around = mode + np.linspace(-16, 16, 129) / math.sqrt(max(q, 1.0))
    edges = np.unique(np.concatenate([np.linspace(0, np.pi, 65), around]).clip(0, np.pi))
    half = np.diff(edges)[:, None] / 2
    theta = torch.from_numpy((edges[:-1, None] + half * (1 + NODES)).ravel())
    log_p = law.log_prob(at_angle(theta, dim))
    ring = math.log(2) if dim == 2 else log_area(dim - 1)
    mass = (log_p + (dim - 2) * theta.sin().log() + ring).exp() * torch.from_numpy((half * WEIGHTS).ravel())
    return mass.sum().item(), -(mass * log_p).sum().item()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dim", "k"), CASES)
def test_density_integrates_to_one_and_gives_the_entropy(family, dim, k):
    law = family(axis(dim), k)
    mass, entropy = over_sphere(law)
    assert mass == pytest.approx(1, abs=1e-10)
    assert law.entropy().item() == pytest.approx(entropy, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(("dim", "k"), [(2, 0.5), (3, 7.0), (8, 60.5), (128, 243.0), (512, 701.0)])
def test_agrees_with_scipy(dim, k):
    law, peer = VonMisesFisher(axis(dim), k), stats.vonmises_fisher(axis(dim).numpy(), k)
    z = at_angle(torch.linspace(0.1, 3, 7, dtype=torch.float64), dim)
    np.testing.assert_allclose(law.log_prob(z).numpy(), peer.logpdf(z.numpy()), rtol=1e-10)
    np.testing.assert_allclose(law.entropy().item(), peer.entropy(), rtol=1e-10)


@pytest.mark.parametrize(("dim", "k"), [(2, 1e6), (3, 1e8), (16, 1e4), (512, 701.0), (512, 1e6), (2048, 1e8)])
def test_float32_does_not_cancel_at_large_concentrations(dim, k):
    """Log C_n(κ) ≈ −κ and κ μ·z ≈ κ would leave eps κ: 0.06 at 1e6. Here 2e-6 of the value itself."""
    theta = torch.linspace(0, 2, 5, dtype=torch.float64) * math.sqrt(dim / k)
    for family in FAMILIES:
        single, double = family(axis(dim, torch.float32), k), family(axis(dim), k)
        z = at_angle(theta, dim).float()
        expected = double.log_prob(torch.nn.functional.normalize(z.double(), dim=-1))
        torch.testing.assert_close(single.log_prob(z).double(), expected, rtol=2e-6, atol=2e-6)
        torch.testing.assert_close(single.entropy().double(), double.entropy(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("dim", "k"), [(2, 3.0), (3, 1e-3), (16, 9.0), (512, 701.0), (2048, 1e6), (3, 1e8)])
def test_height_of_the_density_against_mpmath(dim, k):
    """Log C_n(κ) + κ with log C_n(κ) = log C_n(0) − log F."""
    exact = float(k - values(dim / 2 - 1, k).log_f - log_area(dim))
    law = VonMisesFisher(axis(dim), k)
    assert law.log_height().item() == pytest.approx(exact, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("dim", "k"), [(2, 0.3), (3, 4.0), (16, 1e3), (2048, 1e7), (7, 0.0)])
def test_power_spherical_height_against_scipy(dim, k):
    half = (dim - 1) / 2
    law = PowerSpherical(axis(dim), k)
    exact = special.gammaln(k + 2 * half) - special.gammaln(k + half) - half * math.log(4 * math.pi)
    assert law.log_height().item() == pytest.approx(exact, rel=1e-12, abs=2e-8 if k > 1e5 else 1e-12)
    lost = special.digamma(k + 2 * half) - special.digamma(k + half)
    assert law.entropy().item() == pytest.approx(k * lost - exact, rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_density_and_entropy(family):
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    k = torch.tensor([0.7, 5.0, 90.0], dtype=torch.float64, requires_grad=True)
    z = torch.nn.functional.normalize(x.detach().flip(0), dim=-1)

    def both(x: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        law = family(torch.nn.functional.normalize(x, dim=-1), k)
        return law.log_prob(z), law.entropy()

    assert torch.autograd.gradcheck(both, (x, k))
    assert torch.autograd.gradgradcheck(both, (x, k))


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_finite_at_concentration_zero(family):
    k = torch.zeros((), dtype=torch.float64, requires_grad=True)
    law = family(axis(5), k)
    z = torch.stack([axis(5), -axis(5)])[:1]
    for value in (law.log_prob(z).sum(), law.entropy(), law.variance.sum(), law.mean.sum()):
        (gradient,) = torch.autograd.grad(value, k)
        assert gradient.isfinite()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dim", "k"), CASES)
def test_moments_against_the_law_of_the_angle(family, dim, k):
    law = family(axis(dim), k)
    if family is VonMisesFisher:
        angle = von_mises_fisher_law(dim, k)
        first, second = angle.mean(np.cos), angle.mean(lambda t: np.cos(t) ** 2)
    else:
        beta = stats.beta((dim - 1) / 2 + k, (dim - 1) / 2)
        first = 2 * beta.mean() - 1
        second = 4 * beta.moment(2) - 4 * beta.mean() + 1
    assert law.mean[-1].item() == pytest.approx(first, abs=1e-10)
    assert law.mean[:-1].abs().max() == 0
    assert law.variance[-1].item() == pytest.approx(second - first**2, abs=1e-10)
    assert law.variance[0].item() == pytest.approx((1 - second) / (dim - 1), abs=1e-10)
    torch.testing.assert_close(law.covariance_matrix.diagonal(), law.variance)
    torch.testing.assert_close(law.stddev, law.variance.sqrt())
    assert torch.equal(law.mode, axis(dim))


def test_covariance_of_draws():
    mu = torch.nn.functional.normalize(torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64), dim=-1)
    for law in (VonMisesFisher(mu, 4.0), PowerSpherical(mu, 4.0), HypersphericalUniform(4)):
        z = law.sample((200_000,), torch.Generator().manual_seed(2)).double()
        # five standard errors of a covariance of coordinates of at most 1
        torch.testing.assert_close(z.T.cov(), law.covariance_matrix.double(), rtol=0, atol=0.01)
        torch.testing.assert_close(z.mean(0), law.mean.double(), rtol=0, atol=0.01)


def test_uniform_is_both_families_without_concentration():
    for dim in (2, 3, 64):
        uniform = HypersphericalUniform(dim, dtype=torch.float64)
        z = uniform.sample((5,))
        assert uniform.entropy().item() == pytest.approx(log_area(dim))
        for family in FAMILIES:
            law = family(axis(dim), 0.0)
            torch.testing.assert_close(law.log_prob(z), uniform.log_prob(z))
            torch.testing.assert_close(law.entropy(), uniform.entropy())
            torch.testing.assert_close(law.variance, uniform.variance)
        assert uniform.mode.isnan().all()


def closed_pairs(dim: int) -> list[tuple]:
    g = torch.randn(2, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(dim))
    m1, m2 = torch.nn.functional.normalize(g, dim=-1)
    uniform = HypersphericalUniform(dim, dtype=torch.float64)
    return [
        (VonMisesFisher(m1, 6.0), VonMisesFisher(m2, 2.5)),
        (VonMisesFisher(m1, 6.0), VonMisesFisher(m1, 6.01)),
        (VonMisesFisher(m1, 6.0), uniform),
        (uniform, VonMisesFisher(m1, 6.0)),
        (PowerSpherical(m1, 6.0), uniform),
        (uniform, PowerSpherical(m1, 6.0)),
        (PowerSpherical(m1, 6.0), VonMisesFisher(m2, 2.5)),
    ]


@pytest.mark.parametrize("dim", [2, 3, 16])
@pytest.mark.parametrize("pair", range(7))
def test_divergences_against_draws(dim, pair):
    """E_p[log p − log q] of 2e5 draws, within 5 standard errors: false alarm 6e-7 a case."""
    p, q = closed_pairs(dim)[pair]
    z = p.sample((200_000,), torch.Generator().manual_seed(3))
    ratio = p.log_prob(z) - q.log_prob(z)
    error = (kl_divergence(p, q) - ratio.mean()).abs().item()
    assert error < 5 * ratio.std().item() / math.sqrt(len(ratio)) + 1e-12


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dim", [3, 128, 512])
def test_divergence_from_the_uniform_law_keeps_its_digits_in_float32(family, dim):
    k = torch.tensor([1e-2, 1.0, 30.0, 1e4, 1e6, 1e8])
    single = kl_divergence(family(axis(dim, torch.float32), k), HypersphericalUniform(dim))
    wide = HypersphericalUniform(dim, dtype=torch.float64)
    double = kl_divergence(family(axis(dim), k.double()), wide)
    torch.testing.assert_close(single.double(), double, rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("dim", [2, 3, 40])
def test_gradients_of_the_divergence_of_two_concentrations(dim):
    k = torch.tensor([0.0, 0.3, 7.0, 500.0], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([2.0, 0.1, 9.0, 300.0], dtype=torch.float64, requires_grad=True)
    mu, nu = axis(dim), at_angle(torch.tensor(0.4, dtype=torch.float64), dim)

    def divergence(k, other):
        return kl_divergence(
            VonMisesFisher(mu, k, validate_args=False), VonMisesFisher(nu, other, validate_args=False)
        )

    assert torch.autograd.gradcheck(divergence, (k, other))


def test_divergences_are_zero_positive_and_batched():
    mu = axis(6).expand(4, 6)
    k = torch.tensor([0.0, 1.0, 50.0, 1e6], dtype=torch.float64)
    p = VonMisesFisher(mu, k)
    torch.testing.assert_close(kl_divergence(p, p), torch.zeros_like(k), rtol=0, atol=1e-9)
    assert (kl_divergence(p, VonMisesFisher(-mu, k)) >= 0).all()
    wide = HypersphericalUniform(6, (3, 1), dtype=torch.float64)
    assert kl_divergence(p, wide).shape == kl_divergence(wide, p).shape == (3, 4)
    assert kl_divergence(wide, wide).abs().max() == 0
    with pytest.raises(ValueError, match="p and q must live on one sphere, got 6 and 5 dimensions"):
        kl_divergence(p, HypersphericalUniform(5))
    with pytest.raises(NotImplementedError):
        kl_divergence(p, PowerSpherical(mu, k))


@pytest.mark.parametrize(("dim", "k"), [(2, 2.0), (3, 30.0), (16, 9.0), (128, 243.0)])
def test_fit_is_the_maximum_of_the_likelihood(dim, k):
    mu = axis(dim)
    z = VonMisesFisher(mu, k).sample((3000,), torch.Generator().manual_seed(4))
    fitted = VonMisesFisher.fit(z)
    if dim <= 16:  # beyond, scipy's own fit divides by 0
        peer_mu, peer_k = stats.vonmises_fisher.fit(z.numpy())
        np.testing.assert_allclose(fitted.loc.numpy(), peer_mu, atol=1e-9)
        np.testing.assert_allclose(fitted.concentration.item(), peer_k, rtol=1e-6)
    best = fitted.log_prob(z).sum()
    for other in (0.99, 1.01):
        assert VonMisesFisher(fitted.loc, fitted.concentration * other).log_prob(z).sum() < best


def test_fit_takes_batches_and_weights():
    generator = torch.Generator().manual_seed(5)
    truth = VonMisesFisher(torch.stack([axis(8), -axis(8)]), torch.tensor([5.0, 1e5], dtype=torch.float64))
    z = truth.sample((40_000,), generator)
    fitted = VonMisesFisher.fit(z)
    assert fitted.batch_shape == (2,)
    torch.testing.assert_close(fitted.concentration, truth.concentration, rtol=0.03, atol=0)
    single = VonMisesFisher.fit(z.float())
    assert single.concentration.dtype == torch.float32
    torch.testing.assert_close(single.concentration.double(), fitted.concentration, rtol=2e-3, atol=0)
    weights = torch.ones(z.shape[:-1], dtype=torch.float64)
    weights[1000:] = 0
    weighted, few = VonMisesFisher.fit(z, weights), VonMisesFisher.fit(z[:1000])
    torch.testing.assert_close(weighted.loc, few.loc)
    torch.testing.assert_close(weighted.concentration, few.concentration)


def test_fit_without_a_preferred_direction_is_uniform():
    z = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    fitted = VonMisesFisher.fit(z)
    assert fitted.concentration == 0
    assert torch.linalg.vector_norm(fitted.loc) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_citizen_of_torch_distributions(family):
    loc = axis(5, torch.float32).expand(3, 1, 5)
    law = family(loc, torch.tensor([1.0, 2.0]))
    assert law.batch_shape == (3, 2)
    assert law.event_shape == (5,)
    assert law.rsample((4,)).shape == (4, 3, 2, 5)
    assert law.log_prob(law.sample()).shape == (3, 2)
    assert law.log_prob(axis(5, torch.float32)).shape == (3, 2)
    wide = law.expand((7, 3, 2))
    assert wide.batch_shape == (7, 3, 2)
    assert wide.sample().shape == (7, 3, 2, 5)
    assert wide.entropy().shape == (7, 3, 2)
    torch.testing.assert_close(wide.variance[0], law.variance)
    assert Independent(law, 1).log_prob(law.sample()).shape == (3,)
    assert law.support.check(law.sample()).all()
    assert not law.support.check(2 * law.sample()).any()
    assert set(family.arg_constraints) == {"loc", "concentration"}
    assert family.__name__ in repr(law)


def test_uniform_is_a_citizen_too():
    law = HypersphericalUniform(4, (2,))
    assert law.batch_shape == (2,)
    assert law.expand((3, 2)).sample((5,)).shape == (5, 3, 2, 4)
    assert law.log_prob(law.sample((6,))).shape == (6, 2)
    assert law.entropy().shape == (2,)


BAD = [
    (
        lambda f: f(torch.ones(3), 1.0),
        ValueError,
        r"loc must hold vectors of length 1, got one of length 1\.73205;",
    ),
    (
        lambda f: f(torch.tensor([math.nan, 1.0]), 1.0),
        ValueError,
        "loc must hold vectors of length 1, got .*nan",
    ),
    (lambda f: f(torch.tensor([0, 1]), 1.0), TypeError, r"loc must be .*got a tensor of torch\.int64"),
    (lambda f: f(torch.ones(1), 1.0), ValueError, r"loc must have 2 or more coordinates .*\(1,\)"),
    (lambda f: f(torch.tensor(1.0), 1.0), ValueError, r"loc must have 2 or more coordinates .*\(\)"),
    (lambda f: f(torch.tensor([0.0, 1.0]), -1.0), ValueError, "concentration must be .*at least 0, got -1"),
    (
        lambda f: f(torch.tensor([0.0, 1.0]), math.nan),
        ValueError,
        "concentration must be .*at least 0, got nan",
    ),
    (lambda f: f(torch.tensor([0.0, 1.0]), math.inf), ValueError, "concentration must be finite.*got inf"),
    (lambda f: f(torch.tensor([0.0, 1.0]), torch.tensor(3)), TypeError, "concentration must be .*int64"),
    (
        lambda f: f(torch.tensor([0.0, 1.0]).expand(3, 2), torch.ones(4)),
        ValueError,
        r"concentration must broadcast .*\(3,\), got the shape \(4,\)",
    ),
    (
        lambda f: f(torch.tensor([0.0, 1.0]), 1.0).log_prob(torch.tensor([1.0, 1.0])),
        ValueError,
        "value must hold vectors of length 1, got one of length 1.41421",
    ),
    (
        lambda f: f(torch.tensor([0.0, 1.0]), 1.0).log_prob(torch.tensor([1.0, 0.0, 0.0])),
        ValueError,
        r"value must broadcast against the shape \(2,\), got the shape \(3,\)",
    ),
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("call", "error", "sentence"), BAD)
def test_bad_input_is_named(family, call, error, sentence):
    """Our own sentence, not the shape checker's, which users do not run."""
    config.update("jaxtyping_disable", True)
    with pytest.raises(error, match=sentence) as caught:
        call(family)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dim", [0, -3, 1, 2.5, True])
def test_bad_dim_is_named(dim):
    config.update("jaxtyping_disable", True)
    with pytest.raises(ValueError, match=f"dim must be an integer of at least 2, got {dim}"):
        HypersphericalUniform(dim)


def test_bad_fits_are_named():
    one = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    with pytest.raises(
        ValueError, match=r"value must hold directions that differ: .* VonMisesFisher\(loc, 1e\+08\)"
    ):
        VonMisesFisher.fit(one)
    with pytest.raises(ValueError, match="value must hold vectors of length 1, got one of length 2"):
        VonMisesFisher.fit(2 * one)
    with pytest.raises(ValueError, match=r"value must have samples .*\(0, 2\)"):
        VonMisesFisher.fit(one[:0])
    with pytest.raises(ValueError, match=r"weights must be at least 0 .* got a smallest of -1"):
        VonMisesFisher.fit(one, -torch.ones(2))


def test_validation_can_be_switched_off():
    law = VonMisesFisher(torch.ones(3), 1.0, validate_args=False)
    assert law.log_prob(torch.ones(3)).isfinite()
