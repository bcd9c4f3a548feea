import functools
import math
import time

import pytest
import torch

from spaceform.metrics import accuracy, auroc, bootstrap, calibration_error


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sample(n: int, seed: int = 0):
    logits = torch.randn(n, 5, generator=seeded(seed), dtype=torch.float64)
    p = torch.softmax(2 * logits, -1)
    return p, p.multinomial(1, generator=seeded(seed + 1)).squeeze(-1)


@pytest.mark.parametrize(
    "metric", [accuracy, calibration_error, functools.partial(calibration_error, bins=5, norm="l1")]
)
def test_vectorised_resamples_are_the_resamples(metric):
    """The same generator draws the same resamples, whether counted or copied."""
    p, y = sample(150)
    counted = bootstrap(metric, p, y, n=60, generator=seeded())
    copied = bootstrap(lambda a, b: metric(a, b), p, y, n=60, generator=seeded())
    assert counted == pytest.approx(copied, abs=1e-9)


def test_standard_error_of_a_mean():
    right = torch.arange(400) % 4 > 0
    interval = bootstrap(lambda r: r.double().mean(), right, n=4000, generator=seeded())
    exact = math.sqrt(0.75 * 0.25 / 400)
    assert interval.estimate == 0.75
    # The relative deviation of a standard deviation of 4000 draws is 1/√8000: 5 of them, one in two million.
    assert interval.standard_error == pytest.approx(exact, rel=5 / math.sqrt(8000))
    assert interval.low == pytest.approx(0.75 - 1.96 * exact, abs=0.004)
    assert interval.high == pytest.approx(0.75 + 1.96 * exact, abs=0.004)


def test_intervals_cover_the_truth():
    """90% intervals of the accuracy cover it in 81-97 of 100 samples (binomial: outside once in 500)."""
    covered = 0
    for seed in range(100):
        right = (torch.rand(200, generator=seeded(seed)) < 0.8).double()
        scores = torch.stack([right, 1 - right], -1)
        i = bootstrap(accuracy, scores, torch.zeros(200).long(), n=400, level=0.9, generator=seeded(seed))
        covered += i.low <= 0.8 <= i.high
    assert 81 <= covered <= 97


def test_basic_reflects_and_undefined_resamples_are_left_out():
    p, y = sample(100)
    a = bootstrap(calibration_error, p, y, n=50, generator=seeded())
    b = bootstrap(calibration_error, p, y, n=50, method="basic", generator=seeded())
    assert (b.low, b.high) == pytest.approx((2 * a.estimate - a.high, 2 * a.estimate - a.low))
    one_wrong = torch.tensor([True] * 9 + [False])
    i = bootstrap(auroc, torch.arange(10.0), one_wrong, n=200, generator=seeded())
    assert 0 <= i.low <= i.high <= 1
    assert math.isnan(bootstrap(auroc, torch.arange(4.0), torch.ones(4).bool(), n=10).low)


@pytest.mark.slow
def test_ten_thousand_examples_a_thousand_times_in_seconds():
    p, y = sample(10_000)
    start = time.process_time()
    bootstrap(calibration_error, p, y)
    assert time.process_time() - start < 10  # about one second on a quiet core


def test_bad_input_is_one_clear_sentence():
    p, y = sample(10)
    for wrong, message in (
        (lambda: bootstrap(accuracy), "at least one array"),
        (lambda: bootstrap(accuracy, p, y[:5]), r"one common, non-zero length, got \[10, 5\]"),
        (lambda: bootstrap(accuracy, p, y, n=1), "n must be an integer of at least 2"),
        (lambda: bootstrap(accuracy, p, y, level=95.0), "level must lie between 0 and 1, got 95.0"),
    ):
        with pytest.raises(ValueError, match=message):
            wrong()
