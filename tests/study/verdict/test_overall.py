"""One head over all goals, and ties that cost breaks."""

import numpy as np
import pytest

from spaceform.study.verdict import Evidence, Missing, Series, decide
from spaceform.study.verdict.decide import Relation
from spaceform.study.verdict.goal_words import chosen, rivals
from spaceform.study.verdict.overall import Cost, Why, break_tie, recommend
from spaceform.study.verdict.overall_words import overall
from study.verdict.studies import ACCURACY, NLL, study


def both(accuracy, nll, seeds=5, items=4_000, nll_items=None, **options):
    """Accuracy and NLL of the same heads."""
    one = study(accuracy, seeds=seeds, items=items, **options)
    rng = np.random.default_rng(9)
    rows = {
        label: Series(tuple(range(seeds)), level + 0.02 * rng.standard_normal((seeds, nll_items or items)))
        for label, level in nll.items()
    }
    return Evidence(one.labels, (), (ACCURACY, NLL), {"accuracy": one.series["accuracy"], "nll": rows})


WEIGHTS = {"accuracy": 1.0, "nll": 1.0}


def test_weights_decide_between_goals():
    evidence = both({"a": 93.0, "b": 90.0}, {"a": 0.4, "b": 0.3})
    verdict = decide(evidence)
    assert recommend(evidence, verdict, {"accuracy": 1.0}).choice.label == "a"
    assert recommend(evidence, verdict, WEIGHTS).choice.label == "b"  # 10 regions against 6
    assert recommend(evidence, verdict, {"accuracy": 3.0, "nll": 1.0}).choice.label == "a"


def test_overall_regret_is_the_weighted_sum_of_the_goals():
    evidence = both({"a": 93.0, "b": 90.0, "c": 80.0}, {"a": 0.4, "b": 0.3, "c": 0.9})
    verdict = decide(evidence)
    found = recommend(evidence, verdict, {"accuracy": 3.0, "nll": 1.0})
    assert found.weights == {"accuracy": 0.75, "nll": 0.25}
    for label in ("a", "b", "c"):
        parts = sum(found.weights[v.goal.column] * v.of(label).regret / v.goal.region for v in verdict.goals)
        least = min(
            sum(found.weights[v.goal.column] * v.of(one).regret / v.goal.region for v in verdict.goals)
            for one in ("a", "b", "c")
        )
        assert found.verdict.of(label).regret == pytest.approx(parts - least, abs=0.6)


@pytest.mark.parametrize("draw", range(12))
def test_the_choice_has_the_least_weighted_regret_that_a_page_shows(draw):
    """Also where heads are nearly level: the table of weights must not contradict the choice."""
    rng = np.random.default_rng(draw)
    levels = {
        label: (97 + 0.3 * rng.standard_normal(), 0.1 + 0.01 * rng.standard_normal()) for label in "abcd"
    }
    accuracy, nll = ({label: level[i] for label, level in levels.items()} for i in (0, 1))
    evidence = both(accuracy, nll, seeds=3, items=300)
    verdict = decide(evidence)
    found = recommend(evidence, verdict, WEIGHTS)
    weighted = {
        label: sum(0.5 * one.of(label).regret / one.goal.region for one in verdict.goals) for label in "abcd"
    }
    assert found.choice.first == min(weighted, key=weighted.get)


def test_goals_on_other_items_add_their_errors():
    evidence = both({"a": 93.0, "b": 90.0}, {"a": 0.4, "b": 0.3}, nll_items=500)
    found = recommend(evidence, decide(evidence), WEIGHTS)
    measured = {label: one.means.mean() for label, one in evidence.series["accuracy"].items()}
    losses = {label: one.means.mean() for label, one in evidence.series["nll"].items()}
    for label in ("a", "b"):
        worth = 0.5 * measured[label] / ACCURACY.region - 0.5 * losses[label] / NLL.region
        assert found.verdict.of(label).mean == pytest.approx(worth)


def test_goals_that_a_head_lacks_are_left_out():
    evidence = both({"a": 93.0, "b": 90.0}, {"a": 0.4, "b": 0.3})
    rows = dict(evidence.series["nll"])
    rows["b"] = Series((), np.zeros((0, 1)), dict.fromkeys(range(5), Missing.NO_MISTAKES))
    evidence = Evidence(("a", "b"), (), evidence.goals, {**evidence.series, "nll": rows})
    found = recommend(evidence, decide(evidence), WEIGHTS)
    assert found.left_out == ("nll",)
    assert found.weights == {"accuracy": 1.0}
    assert recommend(evidence, decide(evidence), {"nll": 1.0}) is None


def test_wrong_weights_are_refused():
    evidence = both({"a": 93.0, "b": 90.0}, {"a": 0.4, "b": 0.3})
    verdict = decide(evidence)
    with pytest.raises(ValueError, match="there is no goal 'speed' to weigh"):
        recommend(evidence, verdict, {"speed": 1.0})
    with pytest.raises(ValueError, match=r"the weight of accuracy must be 0 or more, got -1\.0"):
        recommend(evidence, verdict, {"accuracy": -1.0})


EQUAL = {"a": 90.0, "b": 90.05, "c": 80.0}
LARGE = {"seeds": 8, "items": 20_000, "seed_deviation": 0.05}


def test_of_equivalent_heads_the_cheaper_is_chosen():
    verdict = decide(study(EQUAL, **LARGE)).goals[0]
    first, other = verdict.choice, verdict.equivalent[0]
    costs = {first: Cost(10.0), other: Cost(5.0), "c": Cost(0.1)}
    found = break_tie(verdict, costs)
    assert (found.label, found.why, found.first) == (other, Why.CHEAPER, first)
    assert found.time == pytest.approx(0.5)


def test_at_the_same_cost_the_simpler_is_chosen():
    verdict = decide(study(EQUAL, **LARGE)).goals[0]
    first, other = verdict.choice, verdict.equivalent[0]
    costs = {first: Cost(10.0, complexity=2), other: Cost(11.0, complexity=1), "c": Cost(0.1)}
    assert break_tie(verdict, costs).why is Why.SIMPLER
    same = {label: Cost(10.0) for label in EQUAL}
    assert (break_tie(verdict, same).label, break_tie(verdict, same).why) == (first, Why.FIRST)


def test_cost_does_not_buy_a_worse_head():
    verdict = decide(study({"good": 95.0, "cheap": 90.0})).goals[0]
    found = break_tie(verdict, {"good": Cost(100.0), "cheap": Cost(1.0)})
    assert (found.label, found.why) == ("good", Why.CLEAR)


def test_without_costs_the_least_regret_stays():
    verdict = decide(study(EQUAL, **LARGE)).goals[0]
    assert break_tie(verdict).label == verdict.choice
    assert break_tie(decide(study({"a": 90.0})).goals[0]).why is Why.ONLY


def near_by(seed):
    """A verdict on two equal heads and a worse one; open heads that lose hardly more than the first."""
    verdict = decide(study({"a": 93.0, "b": 93.0, "c": 91.0}, seeds=3, items=1_000, seed=seed)).goals[0]
    least = verdict.of(verdict.choice).regret
    most = least + 0.2 * ACCURACY.region
    return verdict, [s.label for s in verdict.standings if s.relation is Relation.OPEN and s.regret <= most]


def test_of_open_heads_that_lose_as_much_the_cheaper_is_taken():
    """Where the evidence does not say, cost does; a head that loses more on average is not taken for it."""
    verdict, near = next((v, near) for v, near in map(near_by, range(50)) if near)
    assert len(near) == 1
    (other,), first = near, verdict.choice
    costs = {label: Cost(2.0) for label in "abc"} | {other: Cost(1.0)}
    found = break_tie(verdict, costs)
    assert (found.label, found.why, found.first, found.time) == (other, Why.LITTLE_LOST, first, 0.5)
    said = chosen(verdict, found)
    assert f"expected to be hardly worse than {first}, and it trains" in said
    assert said.endswith(f", and it trains and predicts in half the time that {first} needs.")
    assert f"may also be {first} (" in rivals(verdict, found)
    assert f"{other} (" not in rivals(verdict, found)
    assert break_tie(verdict, {label: Cost(2.0) for label in "ab"} | {"c": Cost(0.1)}).label != "c"
    assert break_tie(verdict).label == first


def test_an_open_head_that_loses_more_is_not_taken_for_its_cost():
    cheap = {label: Cost(2.0) for label in "abc"}
    told = [verdict for verdict, near in map(near_by, range(50)) if not near]
    assert len(told) > 5
    for verdict in told:
        for other in {*"abc"} - {verdict.choice}:
            assert break_tie(verdict, {**cheap, other: Cost(0.1)}).why is not Why.LITTLE_LOST


def test_a_goal_of_little_weight_does_not_decide_by_a_difference_of_a_hundred_regions():
    """The head that 98 % of the weight prefers is chosen; with more weight the difference does decide."""
    evidence = both({"a": 93.0, "b": 91.0}, {"a": 1.30, "b": 0.30})
    verdict = decide(evidence)
    assert verdict.of("nll").counted(0.02) == pytest.approx(0.1, rel=0.05)
    assert verdict.of("nll").counted(0.5) == NLL.region
    found = recommend(evidence, verdict, {"accuracy": 98.0, "nll": 2.0})
    assert found.choice.label == "a"
    said = overall(found, verdict)
    assert any(f"No more than 10 of these count in {NLL.title}." in one for one in said)
    found = recommend(evidence, verdict, {"accuracy": 1.0, "nll": 1.0})
    assert found.choice.label == "b"
    assert not any("No more than" in one for one in overall(found, verdict))
