"""Fixed draws: the right law, near the limit of Monte Carlo, a function of each embedding alone."""

import pytest
import torch

from spaceform import CosineHead, PowerSphericalHead, VonMisesFisherHead
from spaceform.distributions import power_spherical_angle, von_mises_fisher_angle
from spaceform.heads._kernels.fixed_draws import FixedDraws, _tabulate, predictive
from spaceform.heads.base import StochasticHead

HEADS = [
    pytest.param(VonMisesFisherHead, von_mises_fisher_angle, id="vmf"),
    pytest.param(PowerSphericalHead, power_spherical_angle, id="power_spherical"),
]


@pytest.mark.parametrize(("head", "quantile"), HEADS)
@pytest.mark.parametrize("dim", [2, 3, 8, 128, 2048])
def test_angles_are_the_quantiles_of_their_law(head, quantile, dim: int) -> None:
    fixed = FixedDraws(head(dim, 4), 64, 0)
    fixed.coefficients = _tabulate(fixed.law, dim, 64).float()
    kappa = torch.cat([torch.zeros(1), torch.logspace(-4, 7, 200)])
    level = ((torch.arange(64.0).double() + 0.5) / 64)[:, None].expand(-1, len(kappa)).contiguous()
    cos, sin = quantile(level, kappa.double(), dim)
    found_cos, found_sin = fixed._angle(kappa)
    bound = 6e-6 if dim == 2 else 2e-6
    assert (found_cos[..., 0] - cos).abs().max() < bound
    assert ((found_sin[..., 0] - sin) / sin).abs().max() < bound


def heads_and_embeddings(head: type[StochasticHead], dim: int) -> tuple[StochasticHead, torch.Tensor]:
    torch.manual_seed(0)
    z = torch.randn(20, dim) * torch.logspace(-1, 1, 20)[:, None]
    made = head(dim, 5, beta=20.0, init_ratio=0.6)
    made.prepare(z)
    return made, z


@pytest.mark.parametrize("head", [VonMisesFisherHead, PowerSphericalHead])
@pytest.mark.parametrize("dim", [2, 3, 32])
def test_prediction_is_near_the_limit_of_monte_carlo(head, dim: int) -> None:
    made, z = heads_and_embeddings(head, dim)
    generator = torch.Generator().manual_seed(1)
    ten = made.predict_proba(z, generator=generator)
    made.samples = 10_000
    # The limit's own standard error is at most 0.5/√10,000 = 0.005 for a probability.
    limit = made.predict_proba(z, generator=generator)
    error = [(predictive(made, draws=s)(z).softmax(-1).mean(0) - limit).abs().mean() for s in (64, 4096)]
    assert error[0] < (ten - limit).abs().mean() / 1.5
    assert error[1] < 0.01


@pytest.mark.parametrize("head", [VonMisesFisherHead, PowerSphericalHead])
def test_a_row_does_not_depend_on_its_batch(head) -> None:
    made, z = heads_and_embeddings(head, 16)
    made, z = made.double(), z.double()
    fixed = predictive(made)
    whole = fixed(z)
    torch.testing.assert_close(torch.cat([fixed(row[None]) for row in z], 1), whole, rtol=0, atol=1e-10)
    torch.testing.assert_close(predictive(made)(z.flip(0)).flip(1), whole, rtol=0, atol=1e-10)


def test_extreme_embeddings_are_finite() -> None:
    made, _ = heads_and_embeddings(VonMisesFisherHead, 8)
    z = torch.tensor([0.0, 1e-30, 1e-3, 1.0, 1e6, 1e30])[:, None] * torch.ones(6, 8)
    assert predictive(made)(z).isfinite().all()


def test_deterministic_heads_keep_their_logits() -> None:
    head, z = CosineHead(6, 3), torch.randn(4, 6)
    torch.testing.assert_close(predictive(head)(z)[0], head.logits(z))


def test_an_odd_number_of_draws_is_refused() -> None:
    with pytest.raises(ValueError, match="draws must be a positive even number, got 7"):
        predictive(VonMisesFisherHead(4, 2), draws=7)
