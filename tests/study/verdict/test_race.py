"""A race stops when the choice is safe, and asks for seeds of the heads in question alone."""

import pytest

from spaceform.study.verdict.race import Reason, race
from study.verdict.studies import study


def test_first_every_head_gets_three_seeds():
    found = race(study({"a": 90.0, "b": 91.0}, seeds=2))
    assert (found.go_on, found.reason) == (True, Reason.FIRST_SEEDS)
    assert found.seeds == {"a": 3, "b": 3}


def test_a_clear_winner_stops_the_race():
    found = race(study({"a": 90.0, "b": 95.0}))
    assert (found.go_on, found.reason) == (False, Reason.SETTLED)
    assert found.seeds == {"a": 3, "b": 3}
    assert found.questions[0].settled


def test_only_heads_in_question_get_more_seeds():
    levels = {"a": 90.0, "b": 90.5, "c": 90.2, "far": 40.0}
    found = race(study(levels, seed_deviation=3.0, seed=2))
    assert found.reason is Reason.REGRET
    assert found.seeds["far"] == 3
    assert 4 in found.seeds.values()
    assert set(found.runs) == {label for label, n in found.seeds.items() if n == 4}


def test_ten_seeds_are_the_end():
    found = race(study({"a": 90.0, "b": 90.5, "c": 90.2}, seeds=10, seed_deviation=12.0))
    assert (found.go_on, found.reason) == (False, Reason.MOST_SEEDS)
    assert not found.questions[0].settled


def test_items_do_not_call_for_seeds():
    """Few items leave much doubt; seeds that agree cannot lessen it."""
    found = race(study({"a": 90.0, "b": 90.2}, items=50, seed_deviation=0.01, run_item=0.0))
    assert found.reason is Reason.SETTLED


def test_a_race_stops_where_the_items_leave_much_of_the_doubt():
    """Forty items: the regret over seeds is not small, but that over new items is far larger."""
    noisy = {"seed_deviation": 3.0, "run_item": 0.0, "own_item": 25.0}
    few = race(study({"a": 90.0, "b": 90.2, "c": 90.1}, items=40, seed=2, **noisy))
    many = race(study({"a": 90.0, "b": 90.2, "c": 90.1}, items=20_000, seed=2, **noisy))
    assert (few.reason, many.reason) == (Reason.SETTLED, Reason.REGRET)
    assert few.questions[0].few_items
    assert not many.questions[0].few_items
    assert few.questions[0].regret > few.questions[0].region / 2


def test_one_head_needs_no_race():
    assert race(study({"a": 90.0})).reason is Reason.ONE_HEAD


def test_other_columns_and_regions():
    evidence = study({"a": 90.0, "b": 90.5}, seed_deviation=3.0)
    assert race(evidence, regions={"accuracy": 20.0}).reason is Reason.SETTLED
    with pytest.raises(ValueError, match="there is no goal 'nll' to race for"):
        race(evidence, columns=["nll"])
    with pytest.raises(ValueError, match="first must lie between 1 and most = 10, got 12"):
        race(evidence, first=12)
    with pytest.raises(ValueError, match="step must be at least 1, got 0"):
        race(evidence, step=0)


@pytest.mark.slow
def test_a_race_ends_where_all_seeds_would():
    """Of 30 studies the race and all twenty seeds choose heads within the region of each other in 28."""
    agreed, spent = 0, 0
    for seed in range(30):
        levels = {"a": 90.0, "b": 91.0, "c": 90.6, "d": 88.0}
        whole = study(levels, seeds=20, items=400, seed=seed, seed_deviation=0.8)
        counts = dict.fromkeys(levels, 3)
        while (found := race(whole.only({k: range(n) for k, n in counts.items()}))).go_on:
            counts = dict(found.seeds)
        means = {label: one.means.mean() for label, one in whole.series["accuracy"].items()}
        agreed += max(means.values()) - means[found.questions[0].choice] <= 0.5
        spent += sum(counts.values())
    assert agreed >= 28
    assert spent <= 30 * 4 * 20 / 2
