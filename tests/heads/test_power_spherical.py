"""The Power Spherical head: its objective, an upper bound, its gradients, its prediction, its limits."""

from functools import partial

import pytest
import torch
from jaxtyping import config
from torch import Tensor

import head_cases
from head_cases import bound_and_loss, gamma_adds_the_divergence, law_scores, slope_of_the_expectation
from reference import vmf_loss as reference
from spaceform import special
from spaceform.heads._kernels.class_terms import NORMALIZERS
from spaceform.heads.directional import concentration_and_direction
from spaceform.heads.power_spherical import PowerSphericalHead

make = partial(head_cases.drawing_case, PowerSphericalHead)


def literal(head: PowerSphericalHead, z: Tensor, y: Tensor, seed: int) -> Tensor:
    """The objective with the draws of this seed, from the two bounds of eq. 9 and their integrals."""
    generator = torch.Generator().manual_seed(seed)
    n, w, beta = head.dim, head.weight, head.beta
    e = (n - 1) / 2
    kappa, mu = head.alpha * z.norm(dim=1), z / z.norm(dim=1, keepdim=True)
    cos, sin, v = head._antithetic(kappa, mu, generator)
    draws = reference.draws(mu, cos, sin, v)

    def integral(k: Tensor, d: float) -> Tensor:
        s = torch.sqrt(d**2 + k**2)
        return s - e * torch.log(e + s)

    k1, k2 = w.norm(dim=-1), (w + beta * draws[:, :, None]).norm(dim=-1)
    growth = torch.maximum(integral(k2, e) - integral(k1, e), integral(k2, e + 1) - integral(k1, e + 1))
    k = w[y].norm(dim=-1)
    cosine = (w[y] * mu).sum(-1) / k
    upper, lower = (k / (e + torch.sqrt(d**2 + k**2)) for d in (e, e + 1))
    target = beta * kappa / (n - 1 + kappa) * torch.minimum(upper * cosine, lower * cosine)
    return growth.logsumexp(-1).mean(0) - target


@pytest.mark.parametrize("dim", [2, 3, 16, 64])
@pytest.mark.parametrize("samples", [1, 4, 7])
@pytest.mark.parametrize("class_chunk", [None, 4])
def test_value_and_gradient_are_those_of_the_bounds(dim, samples, class_chunk):
    head, z, y = make(dim, samples=samples, class_chunk=class_chunk)
    ours, theirs = head(z, y, generator=torch.Generator().manual_seed(1)), literal(head, z, y, 1)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    upstream = torch.randn(len(y), dtype=torch.float64)
    inputs = [z, head.weight, head.log_beta]
    found = [torch.autograd.grad(loss, inputs, upstream) for loss in (ours, theirs)]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9 * float(b.abs().max()))


@pytest.mark.parametrize("dim", [2, 3, 16, 128])
def test_the_elementary_terms_lie_above_the_exact_ones(dim):
    order = dim / 2 - 1
    norm = torch.logspace(-2, 4, 60, dtype=torch.float64)
    shift = torch.linspace(-0.99, 3, 101, dtype=torch.float64)[:, None] * norm.square()
    above = NORMALIZERS["upper"].evidence(norm.square(), order)(shift.clone())[0]
    exact = special.log_normalizer_difference(norm, None, dim, squared_difference=shift)
    assert (above >= exact - 1e-12 * (1 + exact.abs())).all()
    for dot in (torch.ones_like(norm), -torch.ones_like(norm)):
        ratio = NORMALIZERS["upper"].target_ratio(norm, dot, order)
        assert (-ratio * norm * dot >= -special.mean_resultant_length(norm, dim) * dot - 1e-12).all()


@pytest.mark.parametrize("dim", [3, 32])
@pytest.mark.parametrize("beta", [1.0, 8.0])
def test_the_objective_lies_above_the_expected_cross_entropy(dim, beta):
    head, z, y = make(dim, classes=5, batch=4, samples=100, beta=beta)
    bound, loss, error = bound_and_loss(head, z, y)
    assert (bound > loss - 4 * error).all()
    assert (bound < loss + 0.7 * beta).all()


@pytest.mark.parametrize("dim", [3, 24])
def test_gradient_is_the_derivative_of_the_expectation(dim):
    """Against differences of means over 40,000 draws, coupled in another way; within 5 standard errors."""
    head, z, y = make(dim, classes=3, batch=1)
    differences, pathwise, error = slope_of_the_expectation(head, z, y)
    assert abs(differences - pathwise) < 5 * error


@pytest.mark.slow
@pytest.mark.parametrize("dim", [2, 3, 6, 32])
def test_prediction_has_the_law_of_sampled_vectors(dim):
    """Means of logits, probabilities and products of logits: 30 numbers, each within 4.5 standard errors."""
    draws, batch, classes = 20_000, 2, 3
    head, z, _ = make(dim, classes=classes, batch=batch, samples=draws, beta=5.0)
    generator = torch.Generator().manual_seed(dim)
    ours = head.logit_samples(z, generator=generator).detach()
    kappa, mu = (a.detach() for a in concentration_and_direction(z, head.alpha))
    w = head.weight.detach()
    e = reference.sample_power_spherical(mu.repeat(draws, 1), kappa.repeat(draws), generator)
    length = w.norm(dim=1)
    w_draws = reference.sample_vmf(
        (w / length[:, None]).repeat(draws * batch, 1), length.repeat(draws * batch), generator
    )
    pairs = e.view(draws, batch, 1, dim) * w_draws.view(draws, batch, classes, dim)
    theirs = head.beta.detach() * pairs.sum(-1)
    score = law_scores(ours, theirs)
    assert float(score.abs().max()) < 4.5
    assert float(score.square().mean().sqrt()) < 1.8


@pytest.mark.parametrize("dim", [3, 16, 128])
def test_gamma_adds_the_divergence_from_the_uniform_law(dim):
    gamma_adds_the_divergence(make, dim, lambda theta, kappa: kappa * torch.log1p(theta.cos()))


@pytest.mark.parametrize("dim", [2, 3, 128])
@pytest.mark.parametrize("beta", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("size", [0.0, 1e-20, 1.0, 1e6, 1e30])
def test_everything_is_finite(dim, beta, size):
    for classes, batch in ((1, 1), (7, 3)):
        torch.manual_seed(0)
        head = PowerSphericalHead(dim, classes, beta=beta, gamma=0.1)
        z = (torch.randn(batch, dim) * size).requires_grad_()
        loss = head(z, torch.zeros(batch, dtype=torch.long))
        loss.sum().backward()
        for a in (loss, z.grad, head.weight.grad, head.log_beta.grad, head.log_probs(z), head.confidence(z)):
            assert a.isfinite().all()


@pytest.mark.parametrize("dim", [8, 128])
def test_training_starts_with_the_wanted_length(dim):
    torch.manual_seed(0)
    head = PowerSphericalHead(dim, 200, init_ratio=0.6)
    z = 0.01 * torch.randn(300, dim)
    head.prepare(z)
    assert abs(float(head.sample(z, 20).mean(0).norm(dim=1).mean()) - 0.6) < 0.05
    torch.testing.assert_close(head.sample(z, 3).norm(dim=-1), torch.ones(3, 300), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_loss(dtype):
    head, z, y = make(32, classes=20, batch=16, dtype=torch.float32, beta=16.0)
    plain = head(z, y, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype):
        cast = head(z.to(dtype), y, generator=torch.Generator().manual_seed(0))
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast.mean(), plain.mean(), rtol=1e-2, atol=0)


def test_wrong_options_are_named():
    config.update("jaxtyping_disable", True)
    for options, words in (
        ({"samples": 0}, "samples must be a positive integer, got 0"),
        ({"init_ratio": 1.0}, "init_ratio must lie between 0 and 1, got 1.0"),
        ({"gamma": -1.0}, "gamma must be finite and at least 0, got -1.0"),
    ):
        with pytest.raises(ValueError, match=words):
            PowerSphericalHead(4, 3, **options)
    with pytest.raises(ValueError, match="embeddings are all zero"):
        PowerSphericalHead(4, 3).prepare(torch.zeros(2, 4))
