"""EER, minDCF, Cllr, min Cllr and the DET curve against slow loops, hand values and scikit-learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_curve

from reference import metric_loops as loops
from spaceform.metrics import accept_threshold, cllr, det_curve, eer, min_cllr, min_dcf
from spaceform.metrics.ranks import items_needed, lowest_left_out

pairs = st.lists(st.tuples(st.integers(-4, 4), st.booleans()), min_size=2, max_size=30).filter(
    lambda found: len({same for _, same in found}) == 2
)


def gaussian_pairs(n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores N(±1, 2): their log-likelihood ratio is the score itself."""
    g = torch.Generator().manual_seed(seed)
    same = torch.rand(n, generator=g) < 0.3
    score = math.sqrt(2) * torch.randn(n, generator=g, dtype=torch.float64) + torch.where(same, 1.0, -1.0)
    return score, same


def test_by_hand():
    score = torch.tensor([3.0, 2.0, 2.0, 1.0, 0.0])
    same = torch.tensor([True, True, False, True, False])
    curve = det_curve(score, same)
    assert curve.threshold.tolist() == [math.inf, 3, 2, 1, 0]
    assert curve.false_accept.tolist() == [0, 0, 0.5, 0.5, 1]
    assert curve.false_reject.tolist() == pytest.approx([1, 2 / 3, 1 / 3, 0, 0])
    # From (0, 2/3) to (1/2, 1/3): x = 2/3 − 2x/3.
    assert eer(score, same).item() == pytest.approx(0.4)
    assert min_dcf(score, same, prior=0.5).item() == pytest.approx(0.5)
    assert min_dcf(score, same).item() == pytest.approx(2 / 3)
    assert cllr(torch.zeros(5), same).item() == pytest.approx(1)
    ratio = torch.log(torch.tensor([3.0, 1.0, 1.0, 1.0, 0.25]))
    by_hand = (math.log2(4 / 3) + 2) / 3 / 2 + (1 + math.log2(1.25)) / 2 / 2
    assert cllr(ratio, same).item() == pytest.approx(by_hand)


@settings(max_examples=60, deadline=None)
@given(pairs)
def test_the_loops_agree_and_order_is_irrelevant(found):
    s, same = [float(a) for a, _ in found], [b for _, b in found]
    for turn in (slice(None), slice(None, None, -1)):
        score, truth = np.array(s)[turn], np.array(same)[turn]
        curve = det_curve(score, truth)
        expected = loops.error_rates(s, same)
        assert np.stack([np.asarray(c) for c in curve], 1) == pytest.approx(np.array(expected))
        assert eer(score, truth).item() == pytest.approx(loops.eer(s, same), abs=1e-12)
        assert min_dcf(score, truth, prior=0.2, false_accept_cost=3.0).item() == pytest.approx(
            loops.min_dcf(s, same, 0.2, 3.0, 1.0), abs=1e-12
        )
        assert cllr(score, truth).item() == pytest.approx(loops.cllr(s, same), abs=1e-12)
        assert min_cllr(score, truth).item() == pytest.approx(loops.min_cllr(s, same), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(pairs)
def test_laws(found):
    """A rising map of the score changes nothing but Cllr; no rising map has a Cllr below the least."""
    s, same = torch.tensor([float(a) for a, _ in found]), torch.tensor([b for _, b in found])
    for metric in (eer, min_dcf, min_cllr):
        assert metric(s.exp(), same).item() == pytest.approx(metric(s, same).item(), abs=1e-12)
    least = min_cllr(s, same).item()
    assert 0 <= least <= 1 + 1e-12
    for ratio in (s, s.exp(), 0.3 * s - 1, 4 * torch.tanh(s)):
        assert cllr(ratio, same).item() >= least - 1e-12
    assert 0 <= min_dcf(s, same).item() <= 1


@pytest.mark.parametrize("ties", [False, True])
def test_scikit_learn(ties):
    score, same = gaussian_pairs(3000)
    score = score.round(decimals=1) if ties else score
    curve = det_curve(score, same)
    accept, hit, threshold = roc_curve(same.numpy(), score.numpy(), drop_intermediate=False)
    np.testing.assert_allclose(curve.false_accept, accept, atol=1e-12)
    np.testing.assert_allclose(curve.false_reject, 1 - hit, atol=1e-12)
    np.testing.assert_allclose(curve.threshold, threshold)
    p = IsotonicRegression().fit(score.numpy(), same.numpy()).predict(score.numpy())
    with np.errstate(divide="ignore"):
        ratio = np.log(p) - np.log1p(-p) - math.log(same.double().mean() / (1 - same.double().mean()))
    cost = np.where(same, np.logaddexp(0, -ratio), np.logaddexp(0, ratio)) / math.log(2)
    expected = (cost[same].mean() + cost[~same].mean()) / 2
    assert min_cllr(score, same).item() == pytest.approx(expected, abs=1e-9)


def test_a_true_ratio_has_nearly_its_least_cost():
    score, same = gaussian_pairs(200_000)
    found, least = cllr(score, same).item(), min_cllr(score, same).item()
    assert least <= found <= 1.01 * least
    assert cllr(3 * score, same).item() > 1.2 * least
    # Two normal laws of spread √2 about ±1: the error at 0 is Φ(−1/√2) = 0.23975, here within four
    # standard errors.
    assert eer(score, same).item() == pytest.approx(0.23975, abs=4 * 0.00105)


def test_perfect_and_useless_scores():
    same = torch.tensor([True, True, False, False])
    perfect, useless = same.double(), torch.zeros(4)
    assert (eer(perfect, same), min_dcf(perfect, same), min_cllr(perfect, same)) == (0, 0, 0)
    assert (eer(useless, same), min_dcf(useless, same), min_cllr(useless, same)) == (0.5, 1, 1)
    assert cllr(torch.tensor([900.0, 900, -900, -900]), same).item() == 0
    assert cllr(torch.tensor([-900.0, 900, -900, -900]), same).item() == pytest.approx(225 / math.log(2))


def test_the_threshold_refuses_what_the_guarantee_needs():
    different = torch.arange(999.0)
    assert accept_threshold(different, 1e-3) == pytest.approx(998, abs=1e-3)
    assert not bool((different >= accept_threshold(different, 1e-3)).any())
    assert int((different >= accept_threshold(different, 0.1)).sum()) == 99
    assert not bool((torch.ones(50) >= accept_threshold(torch.ones(50), 0.1)).any())  # ties are refused
    with pytest.raises(ValueError, match="needs at least 999 pairs of two classes, got 998"):
        accept_threshold(different[1:], 1e-3)
    with pytest.raises(ValueError, match="between 0 and 1, both excluded, got 0"):
        accept_threshold(different, 0.0)


@pytest.mark.parametrize(
    ("coverage", "exact"),
    [(0.5, 1), (0.7, 3), (0.9, 9), (0.95, 19), (0.99, 99), (0.999, 999), (0.9999, 9999), (0.99999, 99_999)],
)
def test_the_number_of_items_that_is_named_is_enough_and_one_less_is_not(coverage, exact):
    needed = items_needed(1 - coverage)
    assert needed == exact
    assert lowest_left_out(needed, 1 - coverage) == 1
    assert lowest_left_out(needed - 1, 1 - coverage) == 0


def test_the_threshold_keeps_its_rate():
    """400 thresholds from 199 pairs, each on 50 new ones. The share that one accepts has the law
    Beta(k, n + 1 − k). The mean over all leaves four of its standard errors with a probability of 6e-5.
    """
    g = torch.Generator().manual_seed(5)
    accepted = 0
    for _ in range(400):
        scores = torch.randn(249, generator=g)
        accepted += int((scores[199:] >= accept_threshold(scores[:199], 0.05)).sum())
    a, b, m = 10, 190, 50
    variance = 400 * m * a * b * (a + b + m) / ((a + b) ** 2 * (a + b + 1))
    assert abs(accepted - 400 * m * 0.05) < 4 * math.sqrt(variance)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: eer(torch.ones(3), torch.ones(3)), "no pair of two classes"),
        (lambda: cllr(torch.ones(3), torch.zeros(3)), "no pair of one class"),
        (lambda: eer(torch.ones(3), torch.ones(2)), "same has shape"),
        (lambda: eer(torch.ones(2), torch.tensor([0, 2])), r"for example y\[i\] == y\[j\]"),
        (lambda: min_cllr(torch.tensor([math.nan, 1]), torch.tensor([0, 1])), "score must be finite"),
        (
            lambda: min_dcf(*gaussian_pairs(9), prior=1.0),
            "prior must lie between 0 and 1, both excluded, got 1.0",
        ),
        (lambda: min_dcf(*gaussian_pairs(9), false_accept_cost=0.0), "false_accept_cost must be positive"),
    ],
)
def test_wrong_use_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()
