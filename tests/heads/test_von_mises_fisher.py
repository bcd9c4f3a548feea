"""The vMF head: eq. 8 letter by letter, its gradients, its draws, its prediction, its limits."""

import math
from functools import partial
from itertools import product

import pytest
import torch
from jaxtyping import config
from torch import Tensor

import head_cases
from head_cases import bound_and_loss, gamma_adds_the_divergence, law_scores, slope_of_the_expectation
from reference import vmf_loss as reference
from spaceform import special
from spaceform.heads._kernels.class_terms import NORMALIZERS
from spaceform.heads._kernels.expected_softmax import expected_objective, tangents
from spaceform.heads.directional import concentration_and_direction
from spaceform.heads.von_mises_fisher import VonMisesFisherHead

DIMS = [2, 3, 5, 16, 64]


make = partial(head_cases.drawing_case, VonMisesFisherHead)


def literal(head: VonMisesFisherHead, z: Tensor, y: Tensor, seed: int) -> Tensor:
    """Eq. 8 by the reference, with the draws that the head makes from this seed."""
    generator = torch.Generator().manual_seed(seed)
    kappa, mu = head.alpha * z.norm(dim=1), z / z.norm(dim=1, keepdim=True)
    pairs = (head.samples + 1) // 2
    v = tangents(mu.detach(), pairs, generator, head.signs)
    x = torch.randn(len(z), pairs, dtype=z.dtype, generator=generator)
    cos, sin = (a[:, : head.samples] for a in head.table.antithetic(x, kappa))
    if head.normalizer == "bounds":
        log_normalizer, ratio = reference.log_normalizer_bounds, reference.ratio_bounds
    else:
        log_normalizer, ratio = special.log_normalizer, special.mean_resultant_length
    mean = ratio(kappa, head.dim)[:, None] * mu
    return reference.objective(
        reference.draws(mu, cos, sin, v), mean, head.weight, head.beta, y, log_normalizer, ratio
    )


def gradients(loss: Tensor, head: VonMisesFisherHead, z: Tensor, upstream: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [z, head.weight, head.log_beta], upstream))


@pytest.mark.parametrize(("dim", "samples"), [*product(DIMS, [1, 4, 7]), (64, 16), (64, 17), (64, 300)])
@pytest.mark.parametrize("normalizer", ["bounds", "exact"])
@pytest.mark.parametrize("class_chunk", [None, 4])
def test_value_and_gradient_are_those_of_the_equation(dim, samples, normalizer, class_chunk):
    head, z, y = make(dim, samples=samples, normalizer=normalizer, class_chunk=class_chunk)
    ours = head(z, y, generator=torch.Generator().manual_seed(1))
    theirs = literal(head, z, y, 1)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    upstream = torch.randn(len(y), dtype=torch.float64)
    for a, b in zip(gradients(ours, head, z, upstream), gradients(theirs, head, z, upstream), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9 * float(b.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("dim", [3, 5, 24])
def test_gradient_is_the_derivative_of_the_expectation(dim):
    """Against differences of means over 40,000 draws, coupled in another way; within 5 standard errors."""
    head, z, y = make(dim, classes=3, batch=1)
    differences, pathwise, error = slope_of_the_expectation(head, z, y)
    assert abs(differences - pathwise) < 5 * error
    assert error < 0.05 * abs(differences)


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
    e = reference.sample_vmf(mu.repeat(draws, 1), kappa.repeat(draws), generator).view(draws, batch, 1, dim)
    length = w.norm(dim=1)
    w_draws = reference.sample_vmf(
        (w / length[:, None]).repeat(draws * batch, 1), length.repeat(draws * batch), generator
    )
    theirs = head.beta.detach() * (e * w_draws.view(draws, batch, classes, dim)).sum(-1)
    score = law_scores(ours, theirs)
    assert float(score.abs().max()) < 4.5
    assert float(score.square().mean().sqrt()) < 1.8


def test_prediction_makes_nothing_larger_than_its_logits():
    head = VonMisesFisherHead(64, 500, samples=4)
    z = torch.randn(8, 64)
    head.logit_samples(z, generator=torch.Generator())  # makes tables
    with torch.profiler.profile(profile_memory=True) as profile:
        head.logit_samples(z, generator=torch.Generator())
    assert max(e.cpu_memory_usage for e in profile.events()) <= 2 * 4 * 4 * 8 * 500


@pytest.mark.parametrize("dim", [3, 32])
@pytest.mark.parametrize("beta", [1.0, 8.0])
def test_the_objective_lies_above_the_expected_cross_entropy(dim, beta):
    head, z, y = make(dim, classes=5, batch=4, samples=100, beta=beta)
    bound, loss, error = bound_and_loss(head, z, y)
    assert (bound > loss - 4 * error).all()
    assert (bound < loss + 0.5 * beta).all()


def weight_gradients(head: VonMisesFisherHead, z: Tensor, y: Tensor, rounds: int) -> Tensor:
    found = []
    for seed in range(rounds):
        loss = head(z, y, generator=torch.Generator().manual_seed(seed)).sum()
        found.append(torch.autograd.grad(loss, head.weight)[0].flatten())
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "most"), [(1.0, 0.02), (16.0, 0.5)])
def test_antithetic_draws_cut_the_variance_of_the_weight_gradient(beta, most):
    """Relative to ten independent draws, at n = 128."""
    head, z, y = make(128, classes=20, batch=2, samples=10, beta=beta)
    antithetic = weight_gradients(head, z, y, 40).var(0).sum()
    head.samples = 1
    independent = weight_gradients(head, z, y, 100).var(0).sum() / 10
    assert float(antithetic / independent) < most


@pytest.mark.slow
def test_draws_are_independent_across_examples():
    """Then the variances of the examples' gradients add up; draws shared by 16 would give about 16 times."""
    head, z, y = make(16, classes=5, batch=1, samples=4, beta=16.0)
    alone = weight_gradients(head, z, y, 200).var(0).sum()
    together = weight_gradients(head, z.detach().repeat(16, 1), y.repeat(16), 200).var(0).sum()
    assert 0.6 < float(together / (16 * alone)) < 1.6


@pytest.mark.parametrize("dim", [3, 16, 128])
def test_gamma_adds_the_divergence_from_the_uniform_law(dim):
    gamma_adds_the_divergence(make, dim, lambda theta, kappa: kappa * theta.cos())


@pytest.mark.parametrize("chunk", [1, 7, 64, 200])
def test_streamed_classes_give_the_same_value_and_gradient(chunk):
    found = []
    for class_chunk in (None, chunk):
        head, z, y = make(32, classes=150, batch=9, dtype=torch.float32, class_chunk=class_chunk, beta=16.0)
        loss = head(z, y, generator=torch.Generator().manual_seed(2))
        found.append([loss.detach(), *gradients(loss, head, z, torch.linspace(-1, 2, 9))])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * float(a.abs().max()))


@pytest.mark.parametrize("dim", [2, 3, 5, 16, 64, 512, 2048])
def test_evidence_in_single_precision(dim):
    """Values within 7e-7 × (1 + |value|), ratios within 8e-7, of those in double precision."""
    norm = dim * torch.logspace(-2, 2, 41)
    factor = torch.linspace(-0.9, 3, 64)[:, None]
    single, double = (
        NORMALIZERS["exact"].evidence(square, dim / 2 - 1)(factor.to(square.dtype) * square)
        for square in (norm.square(), norm.square().double())
    )
    assert ((single[0] - double[0]).abs() / (1 + double[0].abs())).max() < 7e-7
    for ours, exact in zip(single[1:], double[1:], strict=True):
        assert (ours / exact - 1).abs().max() < 8e-7


@pytest.mark.parametrize("dim", [3, 128])
def test_float32_is_near_float64(dim):
    head, z, y = make(dim, classes=30, batch=20, beta=16.0)
    v = tangents(concentration_and_direction(z, head.alpha)[1].detach(), 3, None)
    x = torch.randn(20, 3, dtype=torch.float64)

    def run(dtype: torch.dtype) -> list[Tensor]:
        inputs = [a.detach().to(dtype).requires_grad_() for a in (z, head.weight, head.beta)]
        kappa, mu = concentration_and_direction(inputs[0], head.alpha.to(dtype))
        cos, sin = head.table.antithetic(x.to(dtype), kappa)
        length = special.mean_resultant_length(kappa, dim)
        loss = expected_objective(
            mu, cos, sin, length, v.to(dtype), *inputs[1:], y, NORMALIZERS["exact"], None
        )
        return [loss.detach(), *torch.autograd.grad(loss.sum(), inputs)]

    for a, b in zip(run(torch.float32), run(torch.float64), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-5 * float(b.abs().max()))


@pytest.mark.parametrize("dim", [2, 3, 8, 128])
@pytest.mark.parametrize("beta", [1.0, 100.0, 1e4])
@pytest.mark.parametrize("size", [0.0, 1e-20, 1.0, 1e6, 1e30])
@pytest.mark.parametrize("normalizer", ["exact", "bounds"])
def test_everything_is_finite(dim, beta, size, normalizer):
    for classes, batch in ((1, 1), (7, 3)):
        torch.manual_seed(0)
        head = VonMisesFisherHead(dim, classes, beta=beta, normalizer=normalizer, gamma=0.1)
        z = (torch.randn(batch, dim) * size).requires_grad_()
        y = torch.zeros(batch, dtype=torch.long)
        loss = head(z, y)
        loss.sum().backward()
        for a in (loss, z.grad, head.weight.grad, head.log_beta.grad, head.log_probs(z), head.confidence(z)):
            assert a.isfinite().all()


def test_zero_weights_and_empty_batches():
    head = VonMisesFisherHead(8, 4)
    torch.nn.init.zeros_(head.weight)
    z = torch.randn(3, 8, requires_grad=True)
    loss = head(z, torch.arange(3))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert head.weight.grad.isfinite().all()
    torch.testing.assert_close(loss, loss[:1].expand(3), rtol=1e-5, atol=1e-5)
    assert head(torch.zeros(0, 8), torch.zeros(0, dtype=torch.long)).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_the_loss(dtype):
    head, z, y = make(32, classes=20, batch=16, dtype=torch.float32, beta=16.0)
    plain = head(z, y, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype):
        cast = head(z.to(dtype), y, generator=torch.Generator().manual_seed(0))
    assert cast.dtype == torch.float32
    torch.testing.assert_close(cast.mean(), plain.mean(), rtol=1e-2, atol=0)
    cast.sum().backward()
    assert head.weight.grad.isfinite().all()


def test_tables_survive_a_change_of_precision():
    head = VonMisesFisherHead(32, 5).bfloat16().float()
    torch.testing.assert_close(head.table.coefficients, VonMisesFisherHead(32, 5).table.coefficients)
    z = torch.randn(4, 32)
    assert VonMisesFisherHead(32, 5).bfloat16()(z, torch.arange(4)).dtype == torch.float32


@pytest.mark.parametrize("dim", [3, 8, 64])
def test_runs_without_looking_at_values(dim):
    """On the meta device there are none: whatever would synchronise a GPU raises here."""
    head = VonMisesFisherHead(dim, 5, gamma=0.1).to("meta")
    z = torch.empty(4, dim, device="meta", requires_grad=True)
    head._objective(z, torch.empty(4, dtype=torch.long, device="meta"), None).sum().backward()
    assert z.grad.shape == z.shape
    assert head._logit_samples(z, None).shape == (64, 4, 5)


def test_draws_are_reproducible_and_on_the_sphere():
    head, z, y = make(24, dtype=torch.float32)
    seeds = torch.Generator()
    for call in (lambda g: head(z, y, generator=g), lambda g: head.predict_proba(z, generator=g)):
        torch.testing.assert_close(call(seeds.manual_seed(5)), call(seeds.manual_seed(5)), rtol=0, atol=0)
        assert not torch.equal(call(seeds.manual_seed(5)), call(seeds.manual_seed(6)))
    torch.manual_seed(1)
    first = head(z, y)
    torch.manual_seed(1)
    torch.testing.assert_close(first, head(z, y), rtol=0, atol=0)
    draws = head.sample(z, 7, generator=seeds)
    assert draws.shape == (7, 5, 24)
    torch.testing.assert_close(draws.norm(dim=-1), torch.ones(7, 5), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dim", [8, 128, 512])
def test_training_starts_with_the_wanted_ratio(dim):
    torch.manual_seed(0)
    head = VonMisesFisherHead(dim, 200, init_ratio=0.6)
    embeddings = 0.01 * torch.randn(300, dim)
    head.prepare(embeddings)
    goal = 0.6 / (1 - 0.36) * (dim - 1) / math.sqrt(dim)
    torch.testing.assert_close(head.alpha, goal / embeddings.abs().mean())
    assert abs(float(head.weight.detach().std()) / goal - 1) < 0.05
    for kappa in (head.weight.detach().norm(dim=1), head.confidence(embeddings) * math.sqrt(2 / math.pi)):
        ratio = special.mean_resultant_length(kappa, dim).mean()
        assert abs(float(ratio) - 0.6) < 0.05
    assert "alpha" in head.state_dict()


def test_parameter_groups_hold_every_parameter_once():
    head = VonMisesFisherHead(4, 3)
    groups = {group["name"]: group["params"] for group in head.parameter_groups()}
    assert groups == {"class_weights": [head.weight], "temperature": [head.log_beta]}
    assert [group["name"] for group in VonMisesFisherHead(4, 3, learn_beta=False).parameter_groups()] == [
        "class_weights"
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 0}, "samples must be a positive integer, got 0"),
        ({"normalizer": "bound"}, "'exact' or 'bounds', got 'bound'"),
        ({"init_ratio": 1.0}, "init_ratio must lie between 0 and 1, got 1.0"),
        ({"gamma": -1.0}, "gamma must be finite and at least 0, got -1.0"),
    ],
)
def test_wrong_options_are_named(options, words):
    config.update("jaxtyping_disable", True)
    with pytest.raises(ValueError, match=words):
        VonMisesFisherHead(4, 3, **options)


def test_a_line_has_no_direction_and_zero_no_scale():
    with pytest.raises(ValueError, match="dim must be at least 2"):
        VonMisesFisherHead(1, 3)
    with pytest.raises(ValueError, match="embeddings are all zero"):
        VonMisesFisherHead(4, 3).prepare(torch.zeros(2, 4))
