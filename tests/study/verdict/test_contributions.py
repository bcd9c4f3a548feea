"""Contributions have the value as their mean and the value's spread under resampling as their spread."""

import numpy as np
import pytest
import torch

from spaceform import metrics
from spaceform.metrics import retrieval
from spaceform.study.verdict import contributions


def predictions(n: int, seed: int = 0, sharpness: float = 1.5):
    """Probabilities of four classes that are right about four times in five, and a little too sure."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 4, n)
    logits = rng.standard_normal((n, 4))
    logits[np.arange(n), y] += 2.0 * rng.random(n) + 0.5
    p = np.exp(sharpness * logits)
    return (p / p.sum(1, keepdims=True)).astype(np.float32), y


def resampled(metric, values, draws=2_000, seed=1):
    """Standard deviations of a value over resampled items: from multiplicities, and from contributions."""
    n = len(values)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), draws)
    return float(np.std(metric(torch.from_numpy(counts)).numpy())), float(np.std(values) / np.sqrt(n))


def test_means_are_the_metrics():
    p, y = predictions(1_000)
    right = contributions.right(p, y) > 0
    top = p.max(1)
    score = np.random.default_rng(2).random(1_000) + 0.2 * right
    pairs = [
        (contributions.right(p, y), metrics.accuracy(p, y)),
        (contributions.surprise(p, y), metrics.nll(torch.from_numpy(p).log(), torch.from_numpy(y))),
        (contributions.to_brier(p, y), metrics.brier(p, y)),
        (contributions.to_calibration_error(top, right), metrics.calibration_error(p, y)),
        (contributions.to_auroc(score, right), metrics.auroc(score, right)),
    ]
    for values, value in pairs:
        assert values.mean() == pytest.approx(float(value), abs=1e-6)


def test_calibration_error_with_ties_is_the_metric():
    p, y = predictions(500)
    p = np.round(p, 1)
    p /= p.sum(1, keepdims=True)
    values = contributions.to_calibration_error(p.max(1), contributions.right(p, y) > 0)
    assert values.mean() == pytest.approx(float(metrics.calibration_error(p, y)), abs=1e-6)


def test_auroc_spreads_as_under_resampling():
    p, y = predictions(1_500)
    right = contributions.right(p, y) > 0
    score = np.random.default_rng(2).random(1_500) + 0.4 * right
    direct, linear = resampled(
        lambda counts: metrics.auroc(score, right, counts=counts), contributions.to_auroc(score, right)
    )
    assert linear == pytest.approx(direct, rel=0.08)  # four standard errors of 2,000 draws are 6 %


def test_calibration_error_spreads_as_under_resampling():
    p, y = predictions(3_000, sharpness=4.0)
    right = contributions.right(p, y) > 0
    direct, linear = resampled(
        lambda counts: metrics.calibration_error(p, y, counts=counts),
        contributions.to_calibration_error(p.max(1), right),
    )
    assert linear == pytest.approx(direct, rel=0.1)


def test_auroc_has_no_figure_without_mistakes():
    assert contributions.to_auroc(np.arange(4.0), np.ones(4, dtype=bool)) is None
    assert contributions.to_auroc(np.arange(4.0), np.zeros(4, dtype=bool)) is None


def left_out(z, y):
    """Influence of each item on mAP@R, as query and in the gallery: left out in turn."""
    n = len(y)
    whole = retrieval(z, y, k=(1,)).map_at_r
    keep = [np.delete(np.arange(n), i) for i in range(n)]
    return np.array([(n - 1) * (whole - retrieval(z[k], y[k], k=(1,)).map_at_r) for k in keep])


def test_an_item_counts_about_twice_in_retrieval():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(6), 25)
    z = torch.from_numpy(rng.standard_normal((6, 8))[y] + 0.9 * rng.standard_normal((150, 8)))
    labels = torch.from_numpy(y)
    own = retrieval(z, labels, k=(1,)).average_precision.numpy()
    values = contributions.to_retrieval(own)
    assert values.mean() == pytest.approx(own.mean())
    ratio = np.std(values) / np.std(left_out(z, labels))
    assert 0.85 < ratio < 1.35  # on the safe side, more often than not


def test_queries_without_a_relevant_item_do_not_count():
    values = contributions.to_retrieval(np.array([0.5, np.nan, 1.0]))
    assert values == pytest.approx([0.25, 1.25])


@pytest.mark.parametrize("n", [60, 300, 5_000])
def test_chance_in_the_calibration_error_is_that_of_perfect_probabilities(n):
    rng = np.random.default_rng(n)
    top = rng.beta(8, 2, n)
    level, variance = contributions.chance_in_calibration_error(top)
    errors = [contributions.to_calibration_error(top, rng.random(n) < top).mean() for _ in range(4_000)]
    # 0.5 % of 4,000 lie beyond, ± 4.5; the χ² is approximate where bins have four items
    assert 0.0005 < np.mean(np.array(errors) > level) < 0.012
    assert np.std(errors) == pytest.approx(np.sqrt(variance), rel=0.15)


def test_probabilities_of_1_leave_nothing_to_chance():
    assert contributions.chance_in_calibration_error(np.ones(40)) == (0.0, 0.0)


@pytest.mark.parametrize("wrong", [3, 12, 200])
def test_chance_in_the_auroc_is_that_of_a_score_that_knows_nothing(wrong):
    rng = np.random.default_rng(wrong)
    correct = np.arange(1_000) >= wrong
    level = contributions.chance_in_auroc(correct)
    areas = [contributions.to_auroc(rng.random(1_000), correct).mean() for _ in range(2_000)]
    assert 0.0005 < np.mean(np.array(areas) > level) < 0.012


def test_chance_in_the_auroc_of_few_items_is_not_above_1():
    assert contributions.chance_in_auroc(np.arange(36) > 0) == 1.0
