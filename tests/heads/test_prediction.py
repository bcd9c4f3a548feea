"""Prediction of stochastic heads: fixed draws by default, random ones where a generator is given."""

import copy

import pytest
import torch
from jaxtyping import config
from torch import Tensor

from spaceform.distributions.power_spherical import POWER_SPHERICAL
from spaceform.distributions.von_mises_fisher import VON_MISES_FISHER
from spaceform.heads import PowerSphericalHead, StochasticHead, VonMisesFisherHead
from spaceform.heads._kernels import fixed_draws
from spaceform.heads._kernels.fixed_draws import angle_series, series_angle

HEADS = [VonMisesFisherHead, PowerSphericalHead]
both = pytest.mark.parametrize("head", HEADS)


@pytest.mark.parametrize("law", [VON_MISES_FISHER, POWER_SPHERICAL], ids=["vmf", "power_spherical"])
@pytest.mark.parametrize("dim", [2, 3, 8, 128, 2048])
def test_angles_are_the_quantiles_of_their_law(law, dim: int) -> None:
    kappa = torch.cat([torch.zeros(1), torch.logspace(-4, 7, 200)])
    level = ((torch.arange(64.0).double() + 0.5) / 64)[:, None].expand(-1, len(kappa)).contiguous()
    cos, sin = law.angle(level, kappa.double(), dim)
    found_cos, found_sin = series_angle(law, angle_series(law, dim, 64), kappa, dim)
    bound = 6e-6 if dim == 2 else 2e-6
    assert (found_cos - cos).abs().max() < bound
    assert ((found_sin - sin) / sin).abs().max() < bound


def head_and_embeddings(head: type[StochasticHead], dim: int) -> tuple[StochasticHead, Tensor]:
    torch.manual_seed(0)
    z = torch.randn(20, dim) * torch.logspace(-1, 1, 20)[:, None]
    made = head(dim, 5, beta=20.0, init_ratio=0.6)
    made.prepare(z)
    return made, z


@both
@pytest.mark.parametrize("dim", [2, 3, 32])
def test_fixed_draws_are_near_the_limit_of_monte_carlo(head, dim: int) -> None:
    made, z = head_and_embeddings(head, dim)
    generator = torch.Generator().manual_seed(1)
    ten = made.predict_proba(z, generator=generator)
    made.samples = 10_000
    # The limit's own standard error is at most 0.5/√10,000 = 0.005 for a probability.
    limit = made.predict_proba(z, generator=generator)
    error = {}
    for draws in (64, 4096):
        made.draws = draws
        error[draws] = (made.predict_proba(z) - limit).abs().mean()
    assert error[64] < (ten - limit).abs().mean() / 1.5
    assert error[4096] < 0.01


@both
@pytest.mark.parametrize("classes", [5, 600])
def test_a_row_does_not_depend_on_batch_call_or_mode(head, classes: int, monkeypatch) -> None:
    monkeypatch.setattr("spaceform.heads.stochastic._BLOCK_NUMBERS", 64 * 5 * 3)  # several blocks
    torch.manual_seed(0)
    made, z = head(16, classes).double(), torch.randn(20, 16, dtype=torch.float64)
    whole = made.predict_proba(z)
    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(torch.cat([made.predict_proba(row[None]) for row in z]), whole, **close)
    torch.testing.assert_close(made.predict_proba(z.flip(0)).flip(0), whole, **close)
    torch.rand(3)
    torch.testing.assert_close(made.eval().predict_proba(z), whole, **close)
    torch.testing.assert_close(made.log_probs(z).exp(), whole, **close)
    torch.testing.assert_close(made.logit_samples(z).softmax(-1).mean(0), whole, **close)
    again = head(16, classes).double()
    again.load_state_dict(made.state_dict())
    torch.testing.assert_close(again.predict_proba(z), whole, **close)


@both
def test_it_follows_the_parameters_as_they_train(head) -> None:
    made, z = head_and_embeddings(head, 16)
    before = made.predict_proba(z)
    with torch.no_grad():
        made.weight.mul_(-0.5)
        made.log_beta.add_(1.0)
    fresh = copy.deepcopy(made)
    assert (made.predict_proba(z) - before).abs().max() > 0.01
    torch.testing.assert_close(made.predict_proba(z), fresh.predict_proba(z))


@pytest.mark.slow
@both
@pytest.mark.parametrize("dim", [2, 3, 16])
def test_fixed_draws_are_differentiable(head, dim: int) -> None:
    made = head(dim, 4, beta=3.0, init_ratio=0.6).double()
    z = torch.randn(
        3, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(dim)
    ).requires_grad_()

    def predict(z: Tensor, weight: Tensor, log_beta: Tensor) -> Tensor:
        parameters = {"weight": weight, "log_beta": log_beta}
        return torch.func.functional_call(
            _Predicting(made), {f"head.{k}": v for k, v in parameters.items()}, z
        )

    inputs = (z, made.weight.detach().requires_grad_(), made.log_beta.detach().requires_grad_())
    assert torch.autograd.gradcheck(predict, inputs, eps=1e-6, atol=1e-6)


class _Predicting(torch.nn.Module):
    def __init__(self, head: StochasticHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, z: Tensor) -> Tensor:
        return self.head.log_probs(z)


@both
def test_random_draws_refuse_a_gradient_in_one_sentence(head) -> None:
    made, z = head_and_embeddings(head, 8)
    p = made.predict_proba(z.requires_grad_(), generator=torch.Generator().manual_seed(0))
    with pytest.raises(NotImplementedError, match="random draws of a prediction have no gradient: leave out"):
        p.sum().backward()


@both
def test_gradients_at_zero_are_finite(head) -> None:
    made = head(8, 3)
    torch.nn.init.zeros_(made.weight[1].data)
    z = torch.zeros(2, 8, requires_grad=True)
    made.log_probs(z)[:, 0].sum().backward()
    assert all(g.isfinite().all() for g in (z.grad, made.weight.grad, made.log_beta.grad))


@both
@pytest.mark.parametrize("dim", [2, 8])
def test_extreme_embeddings_are_finite(head, dim: int) -> None:
    made, _ = head_and_embeddings(head, dim)
    z = torch.tensor([0.0, 1e-30, 1e-3, 1.0, 1e6, 1e30])[:, None] * torch.ones(6, dim)
    z.requires_grad_()
    p = made.log_probs(z)
    p.sum().backward()
    assert p.isfinite().all()
    assert z.grad.isfinite().all()


def test_many_classes_share_columns(monkeypatch) -> None:
    monkeypatch.setattr(fixed_draws, "_COLUMNS", 4)
    made = VonMisesFisherHead(8, 10)
    assert made.fixed.stratum.shape == (64, 4)
    assert made.predict_proba(torch.randn(3, 8)).shape == (3, 10)


@both
def test_a_change_of_type_does_not_round_the_draws(head) -> None:
    made, z = head_and_embeddings(head, 16)
    made.double()
    expected = made.predict_proba(z)
    made.fixed.bfloat16()
    torch.testing.assert_close(made.predict_proba(z), expected, rtol=0, atol=1e-12)


def test_wrong_numbers_of_draws_are_refused() -> None:
    config.update("jaxtyping_disable", True)
    head = VonMisesFisherHead(4, 2)
    for wrong in (7, 0, -2, True, 2.0):
        with pytest.raises(ValueError, match=f"draws must be a positive even number, got {wrong}"):
            head.draws = wrong
    head.draws = 2
    assert head.logit_samples(torch.ones(3, 4)).shape == (2, 3, 2)
