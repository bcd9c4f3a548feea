"""Same or not: the exact ratio against mpmath, calibrated on unseen classes, rates that are kept."""

import math

import mpmath
import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from spaceform.decisions import (
    PAIRS,
    SimilarityPairs,
    VonMisesFisherPairs,
    learn_pairs,
    pairs_for,
    vmf_log_ratio,
)
from spaceform.decisions._pairs_fit import MOST, FitStart, fit_ratio, pair_rows
from spaceform.distributions import HypersphericalUniform, VonMisesFisher
from spaceform.geometry import Euclidean, PoincareBall, Sphere
from spaceform.heads import CosineHead, StandardHead
from spaceform.metrics import cllr, min_cllr

pytestmark = pytest.mark.slow

DIM = 16


def drawn(classes: int, each: int, seed: int, κ: float = 40.0, exponent: float = 0.0):
    """Directions vMF about one random direction for each class; log κ rises by `exponent` with log ‖z‖."""
    torch.manual_seed(seed)
    centres = HypersphericalUniform(DIM).sample((classes,)).double()
    y = torch.arange(classes).repeat_interleave(each)
    norm = (0.8 * torch.randn(len(y), dtype=torch.float64)).exp()
    return norm[:, None] * VonMisesFisher(centres[y], κ * norm**exponent).sample(), y


def all_pairs_of(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    i, j = torch.triu_indices(len(y), len(y), 1)
    return i, j, y[i] == y[j]


# The ratio


def log_c(n: int, k: mpmath.mpf) -> mpmath.mpf:
    v = mpmath.mpf(n) / 2 - 1
    if k == 0:  # one over the area of the sphere
        return mpmath.log(mpmath.gamma(v + 1) / (2 * mpmath.pi ** (v + 1)))
    return v * mpmath.log(k) - (v + 1) * mpmath.log(2 * mpmath.pi) - mpmath.log(mpmath.besseli(v, k))


@pytest.mark.parametrize("n", [2, 3, 16, 512])
@pytest.mark.parametrize(("k1", "k2"), [(1e-3, 2e-3), (1.0, 30.0), (50.0, 50.0), (700.0, 2.0), (2e4, 3e4)])
def test_the_ratio_is_that_of_mpmath(n, k1, k2):
    with mpmath.workdps(60):
        for cosine in (-1.0, -0.4, 0.0, 0.99, 1.0):
            a, b = mpmath.mpf(k1), mpmath.mpf(k2)
            together = mpmath.sqrt(a * a + b * b + 2 * a * b * mpmath.mpf(cosine))
            exact = float(log_c(n, a) + log_c(n, b) - log_c(n, together) - log_c(n, mpmath.mpf(0)))
            for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-6)):
                x, y, c = (torch.tensor(v, dtype=dtype) for v in (k1, k2, cosine))
                found = vmf_log_ratio(x, y, x * y * c, n).item()
                # Of the terms that the ratio is made of, log C(k) − log C(0), the largest is about k.
                assert found == pytest.approx(exact, abs=tolerance * (1 + min(k1, k2) + abs(exact)))


def test_the_ratio_is_the_integral_over_the_class():
    """∫ p(z₁|x) p(z₂|x) p(x) dx / (p(z₁) p(z₂)) on the circle, by the sum over 4,000 directions."""
    angle = torch.arange(4000, dtype=torch.float64) * (2 * math.pi / 4000)
    k1, k2, between = 3.0, 7.0, 0.9
    log_c2 = [-math.log(2 * math.pi) - math.log(float(mpmath.besseli(0, k))) for k in (k1, k2)]
    joint = (k1 * angle.cos() + k2 * (angle - between).cos() + sum(log_c2)).exp().mean()
    alone = 1 / (2 * math.pi)
    expected = math.log(joint.item() / alone**2)
    terms = [torch.tensor(v, dtype=torch.float64) for v in (k1, k2, k1 * k2 * math.cos(between))]
    assert vmf_log_ratio(*terms, 2).item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(("n", "w"), [(3, 5.0), (20, 60.0), (256, 300.0)])
def test_one_concentration_is_the_model_of_psda(n, w):
    """Brümmer et al. 2022 with classes spread uniformly, from its two hypotheses.

    With a class x ~ uniform and items vMF(x, w) the evidence of items with the sum s is ∫ Π vMF(zᵢ; x, w) dx
    = C(w)^m C(0)/C(w‖s‖). The ratio is that of all items together over those of both sides.
    """
    g = torch.Generator().manual_seed(n)
    first, second = (
        torch.nn.functional.normalize(torch.randn(5, m, n, generator=g, dtype=torch.float64), dim=-1)
        for m in (3, 2)
    )
    pairs = VonMisesFisherPairs()
    pairs.shape = torch.tensor([math.log(w), 0, 0], dtype=torch.float64)
    pairs.line = torch.tensor([1, 0], dtype=torch.float64)
    found = pairs(first * torch.tensor([1.0, 7.0, 0.2])[None, :, None], second)  # norms say nothing
    with mpmath.workdps(40):

        def evidence(items: torch.Tensor) -> mpmath.mpf:
            length = mpmath.sqrt(sum(mpmath.mpf(float(v)) ** 2 for v in items.sum(0)))
            return len(items) * log_c(n, mpmath.mpf(w)) + log_c(n, mpmath.mpf(0)) - log_c(n, w * length)

        for ratio, one, other in zip(found, first, second, strict=True):
            expected = evidence(torch.cat([one, other])) - evidence(one) - evidence(other)
            assert ratio.item() == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("head", [CosineHead(DIM, 4), StandardHead(DIM, 4)], ids=lambda h: h.name)
def test_a_head_says_whether_two_are_the_same(head):
    z, y = drawn(20, 10, 0)
    with pytest.raises(ValueError, match=r"no model of pairs; .*learn_pairs\(head, z, y\)"):
        head.same(z[:2], z[2:4])
    pairs = learn_pairs(head, z, y)
    assert type(pairs) is type(pairs_for(head.geometry))
    torch.testing.assert_close(head.same(z[:5], z[5:10]), pairs.same(z[:5], z[5:10]))
    torch.testing.assert_close(
        head.same(z[None, :5], z[5:6], prior=0.1), pairs.same(z[None, :5], z[5:6], prior=0.1)
    )
    assert head.same(z[:5], z[5:10]).mean() > 0.5 > head.same(z[:5], z[50:55]).mean()
    with pytest.raises(ValueError, match="z2 has dimension 3, and this head was made with dim=16"):
        head.same(z[:2], z[:2, :3])
    other = type(head)(DIM, 4)
    other.pairs = pairs_for(head.geometry)
    other.load_state_dict(head.state_dict())
    torch.testing.assert_close(other.same(z[:5], z[5:10]), head.same(z[:5], z[5:10]))


def test_the_ratio_is_symmetric_and_rises_with_the_cosine():
    c = torch.linspace(-1, 1, 50, dtype=torch.float64)
    k1, k2 = torch.full_like(c, 5.0), torch.full_like(c, 80.0)
    found = vmf_log_ratio(k1, k2, k1 * k2 * c, 10)
    torch.testing.assert_close(found, vmf_log_ratio(k2, k1, k1 * k2 * c, 10))
    assert (found.diff() > 0).all()
    nothing = torch.zeros_like(c)
    assert vmf_log_ratio(nothing, k2, nothing, 10).abs().max() < 1e-12  # no evidence, no ratio


# What is learnt


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_the_truth_is_found_and_unseen_classes_are_calibrated(exponent):
    pairs = VonMisesFisherPairs().fit(*drawn(60, 12, 0, exponent=exponent))
    z, y = drawn(60, 12, 1, exponent=exponent)
    i, j, same = all_pairs_of(y)
    ratio = pairs(z[i], z[j])
    least = min_cllr(ratio, same).item()
    assert cllr(ratio, same).item() <= 1.05 * least
    a, b, c = pairs.shape.tolist()
    assert b == pytest.approx(exponent, abs=0.15)
    assert a - b * c == pytest.approx(math.log(40), abs=0.3)
    assert pairs.line[0].item() == pytest.approx(1, abs=0.15)
    cosine = SimilarityPairs().fit(*drawn(60, 12, 0, exponent=exponent))
    usual = cllr(cosine(z[i], z[j]), same).item()
    assert cllr(ratio, same).item() < usual * (1.01 if exponent == 0 else 0.9)


def test_probabilities_are_as_frequent_as_they_say():
    pairs = VonMisesFisherPairs().fit(*drawn(60, 12, 0, κ=20.0))
    z, y = drawn(60, 12, 1, κ=20.0)
    i, j, same = all_pairs_of(y)
    prior = same.double().mean().item()
    p = pairs.same(z[i], z[j], prior=prior)
    assert p.mean().item() == pytest.approx(prior, rel=0.1)
    for low, high in ((0.1, 0.3), (0.3, 0.7), (0.7, 0.9)):
        inside = (p >= low) & (p < high)
        assert same[inside].double().mean().item() == pytest.approx(p[inside].mean().item(), abs=0.08)


def test_similarity_with_a_line_is_logistic_regression():
    z, y = drawn(20, 10, 0)
    i, j, same = pair_rows(y)
    cosine = Sphere().similarity(z[i], z[j])
    weight = np.where(same, 0.5 / same.sum(), 0.5 / (~same).sum())
    peer = LogisticRegression(C=1e9, tol=1e-10, max_iter=1000).fit(
        cosine[:, None].numpy(), same.numpy(), weight
    )
    expected = torch.from_numpy(peer.decision_function(cosine[:, None].numpy()))
    nothing = torch.zeros(0, dtype=torch.float64)
    _, (scale, offset) = fit_ratio(lambda _: cosine, FitStart(nothing, nothing, 20.0, -5.0), same, 10**9)
    torch.testing.assert_close(scale * cosine + offset, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("geometry", [Euclidean(), PoincareBall(0.5)], ids=lambda g: g.kind)
def test_other_geometries_have_their_similarity(geometry):
    z, y = drawn(20, 10, 0)
    pairs = SimilarityPairs(geometry).fit(z, y)
    i, j, same = all_pairs_of(y)
    assert cllr(pairs(z[i], z[j]), same).item() <= 1.1 * min_cllr(pairs(z[i], z[j]), same).item()


def test_the_threshold_keeps_its_rate_on_unseen_classes():
    """Pairs share items and classes, so the rate varies more than binomially: half and twice are far away."""
    pairs = VonMisesFisherPairs().fit(*drawn(60, 12, 0, κ=20.0))
    z, y = drawn(60, 12, 1, κ=20.0)
    i, j, same = all_pairs_of(y)
    ratio = pairs(z[i], z[j])
    for rate in (0.1, 0.01, 1e-3):
        accepted = (ratio[~same] >= pairs.threshold(rate)).double().mean().item()
        assert rate / 2 < accepted < 2 * rate
    with pytest.raises(ValueError, match="needs at least 999999 pairs of two classes"):
        pairs.threshold(1e-6)


def test_pairs_without_error_have_a_finite_ratio():
    z, y = drawn(5, 6, 0, κ=1e6)
    for kind in PAIRS.values():
        pairs = kind().fit(z, y)
        assert cllr(pairs.all_pairs(z, z)[0, 1:], y[1:] == y[0]).item() < 0.05
        assert pairs.line.isfinite().all()


# Enrolments, all pairs, state


def test_an_enrolment_is_one_embedding_with_the_sum_of_evidence():
    z, y = drawn(40, 12, 0, κ=8.0)
    pairs = VonMisesFisherPairs().fit(z, y)
    z, y = drawn(40, 12, 1, κ=8.0)
    items = z.reshape(40, 12, DIM)
    one, five = pairs(items[:, 0], items[:, 11]), pairs(items[:, :5], items[:, 11])
    assert five.mean() > 1.5 * one.mean()
    torch.testing.assert_close(pairs(items[:, :1], items[:, 11]), one)
    torch.testing.assert_close(pairs(items[:, :5].flip(1), items[:, 11]), five)
    foreign = pairs(items[:, :5], items[:, 11].roll(1, 0))
    same = torch.arange(80) < 40
    assert cllr(torch.cat([five, foreign]), same) < cllr(
        torch.cat([one, pairs(items[:, 0], items[:, 11].roll(1, 0))]), same
    )


@pytest.mark.parametrize("kind", PAIRS)
def test_all_pairs_are_the_pairs_and_the_state_is_all_there_is(kind):
    z, y = drawn(10, 6, 0, exponent=0.5)
    pairs = PAIRS[kind]().fit(z, y)
    table = pairs.all_pairs(z[:4], z[:7].numpy())
    for i in range(4):
        torch.testing.assert_close(table[i], pairs(z[i].expand(7, -1), z[:7]), rtol=1e-9, atol=1e-9)
    again = PAIRS[kind]()
    again.load_state_dict(pairs.state_dict())
    torch.testing.assert_close(again(z[:5], z[5:10]), pairs(z[:5], z[5:10]))
    assert again.threshold(0.05) == pairs.threshold(0.05)
    narrow = pairs(z[:5].float(), z[5:10].float())
    assert narrow.dtype == torch.float32
    torch.testing.assert_close(narrow.double(), pairs(z[:5], z[5:10]), rtol=1e-4, atol=1e-4)
    assert pairs.same(z[:5], z[:5]).min() > 0.5


@pytest.mark.parametrize(("classes", "each"), [(2, 2), (30, 4), (3, 700), (4000, 2)])
def test_pairs_are_what_they_say_and_not_too_many(classes, each):
    y = torch.arange(classes).repeat_interleave(each)
    first, second, same = pair_rows(y)
    assert torch.equal(y[first] == y[second], same)
    assert not bool((first == second).any())
    possible = classes * each * (each - 1) // 2
    assert min(possible, 0.85 * MOST) <= int(same.sum()) <= MOST
    others = (classes * each) * (classes - 1) * each // 2
    assert min(others, MOST) == int((~same).sum())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p, z: p(z, z[:, :5]), "z1 has dimension 16, z2 5; embed both by one net"),
        (lambda p, z: p(z[:3], z[:2]), "z1 has 3 entries, z2 2; pairs need as many"),
        (lambda p, z: p(z[:2], 0 * z[:2]), r"z2 has a zero vector \(entry 0\)"),
        (lambda p, z: p.same(z, z, prior=1.0), "prior must lie between 0 and 1"),
        (lambda p, z: p.fit(z, torch.zeros(len(z)).long()), "y has no pair of two classes"),
        (lambda p, z: p.fit(z, torch.arange(len(z))), "y has no pair of one class"),
        (lambda p, z: p.fit(torch.cat([z[:-1], 0 * z[:1]]), torch.arange(len(z)) % 2), "z has a zero vector"),
        (lambda p, z: type(p)()(z, z), "pairs have not been fitted"),
        (lambda p, z: type(p)().threshold(0.1) + len(z), "pairs have not been fitted"),
    ],
)
@pytest.mark.parametrize("kind", PAIRS)
def test_wrong_use_is_one_sentence(kind, call, message):
    z, y = drawn(4, 5, 0)
    with pytest.raises(ValueError, match=message):
        call(PAIRS[kind]().fit(z, y), z)


def test_a_norm_that_misleads_is_not_believed():
    """Large norms here are the doubtful ones, which contradicts what a norm means: the ratio ignores it."""
    pairs = VonMisesFisherPairs().fit(*drawn(60, 12, 0, exponent=-1.0))
    z, _ = drawn(60, 12, 1, exponent=-1.0)
    torch.testing.assert_close(pairs(z[:9] * 7, z[9:18] / 3), pairs(z[:9], z[9:18]))
