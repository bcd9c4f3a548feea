"""What many sets together say: against published values, and where the truth is known."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

SCRIPTS = Path(__file__).parent.parent / "benchmarks"
pytestmark = pytest.mark.skipif(not SCRIPTS.exists(), reason="the scripts are in the repository alone")


@pytest.fixture
def over_sets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of benchmarks/."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("over_sets")


def test_the_critical_difference_is_that_of_the_published_example(over_sets: ModuleType) -> None:
    """Demšar 2006, table 6: four classifiers on 14 sets, mean ranks 3.143, 2.000, 2.893, 1.964; CD 1.25."""
    worth = np.array(
        [
            [0.763, 0.768, 0.771, 0.798],
            [0.599, 0.591, 0.590, 0.569],
            [0.954, 0.971, 0.968, 0.967],
            [0.628, 0.661, 0.654, 0.657],
            [0.882, 0.888, 0.886, 0.898],
            [0.936, 0.931, 0.916, 0.931],
            [0.661, 0.668, 0.609, 0.685],
            [0.583, 0.583, 0.563, 0.625],
            [0.775, 0.838, 0.866, 0.875],
            [1.000, 1.000, 1.000, 1.000],
            [0.940, 0.962, 0.965, 0.962],
            [0.619, 0.666, 0.614, 0.669],
            [0.972, 0.981, 0.9751, 0.975],
            [0.957, 0.978, 0.946, 0.970],
        ]
    )
    found = over_sets.ranks(worth)
    assert found.mean == pytest.approx([3.143, 2.000, 2.893, 1.964], abs=5e-4)
    assert found.critical == pytest.approx(1.25, abs=0.01)
    assert found.p < 0.05


def test_the_model_over_sets_finds_mean_and_spread(over_sets: ModuleType) -> None:
    """20,000 sets: standard errors are 0.004 for μ and about 0.004 for τ."""
    rng = np.random.default_rng(0)
    error = rng.uniform(0.1, 0.6, 20_000)
    d = 0.3 + 0.5 * rng.standard_normal(20_000) + error * rng.standard_normal(20_000)
    found = over_sets.effect(d, error)
    assert found.mean == pytest.approx(0.3, abs=0.02)
    assert found.between == pytest.approx(0.5, abs=0.02)
    assert (found.new_low, found.new_high) == pytest.approx((0.3 - 0.98, 0.3 + 0.98), abs=0.05)


def test_intervals_of_few_sets_cover(over_sets: ModuleType) -> None:
    """400 studies of 12 sets: 95 % covered, standard error 1.1 %, so below 91.6 % once in a thousand."""
    rng = np.random.default_rng(1)
    covered = []
    for _ in range(400):
        error = rng.uniform(0.1, 1.0, 12)
        found = over_sets.effect(0.4 * rng.standard_normal(12) + error * rng.standard_normal(12), error)
        covered.append(found.low <= 0 <= found.high)
    assert np.mean(covered) > 0.916


def test_sets_without_spread_have_none(over_sets: ModuleType) -> None:
    found = over_sets.effect(np.array([0.1, 0.11, 0.09, 0.1]), np.full(4, 0.5))
    assert found.between == 0
    assert found.mean == pytest.approx(0.1)
    with pytest.raises(ValueError, match="needs three of them, got 2"):
        over_sets.effect(np.zeros(2), np.ones(2))


def test_a_rule_that_is_there_is_found_and_one_that_is_not_costs(over_sets: ModuleType) -> None:
    """Head 1 wins where the first measure is high; with measures of noise nothing beats the average."""
    rng = np.random.default_rng(2)
    measures = rng.standard_normal((30, 3))
    worth = 0.05 * rng.standard_normal((30, 3))
    worth[:, 1] += measures[:, 0]
    found = over_sets.foretell(worth, measures, ["one", "other"] * 15)
    mean, low, _ = found.gain("regression on what is measured", over_sets.AVERAGE)
    assert low > 0
    assert mean > 0.1
    noise = over_sets.foretell(worth, rng.standard_normal((30, 3)), ["one", "other"] * 15)
    assert noise.gain("that of the three most similar sets", over_sets.AVERAGE)[1] < 0
    assert all((regret >= 0).all() for regret in noise.regrets.values())


def test_a_kind_with_a_winner_of_its_own_is_seen(over_sets: ModuleType) -> None:
    kinds = ["text"] * 6 + ["table"] * 6
    worth = np.zeros((12, 2))
    worth[:6, 0], worth[6:, 1] = 1.0, 0.9
    found = over_sets.foretell(worth, np.zeros((12, 1)), kinds)
    assert found.regrets["the best on average for this kind of data"].max() == 0
    assert found.regrets[over_sets.AVERAGE].max() > 0
