"""Verdicts on studies whose truth is known."""

from dataclasses import replace

import numpy as np
import pytest

from spaceform.study.verdict import (
    Evidence,
    ItemOutputs,
    Missing,
    Relation,
    Series,
    VarianceSource,
    decide,
    evidence_from,
    goal_words,
    overall_words,
    race,
    recommend,
)
from spaceform.study.verdict.posterior import posterior
from study.verdict.studies import ACCURACY, NLL, series, study


def test_the_better_head_is_chosen_and_the_rest_is_worse():
    found = decide(study({"good": 92.0, "bad": 89.0, "worse": 80.0})).goals[0]
    assert found.choice == "good"
    assert [one.relation for one in found.standings] == [Relation.CHOSEN, Relation.WORSE, Relation.WORSE]
    assert found.of("good").best > 0.99
    assert found.of("good").regret < 0.01
    assert found.of("bad").behind.mean == pytest.approx(3.0, abs=0.8)
    assert found.settlement.settled


def test_less_is_better_where_the_goal_says_so():
    found = decide(study({"good": 0.2, "bad": 0.9}, goal=NLL, run_item=0.05, own_item=0.02)).goals[0]
    assert found.choice == "good"
    assert found.of("bad").behind.mean > 0


def test_equal_heads_are_equivalent_once_the_evidence_is_large():
    levels = {"a": 90.0, "b": 90.0, "c": 90.05}
    found = decide(study(levels, seeds=8, items=20_000, seed_deviation=0.05)).goals[0]
    assert len(found.equivalent) == 2
    assert all(one.within < 0.5 for one in found.standings)


def test_what_little_evidence_does_not_say_is_open():
    found = decide(study({"a": 90.0, "b": 90.3}, items=100)).goals[0]
    assert {one.relation for one in found.standings} == {Relation.CHOSEN, Relation.OPEN}
    assert found.chosen.best < 0.9


def test_regrets_and_probabilities_belong_together():
    found = decide(study({"a": 90.0, "b": 90.4, "c": 90.2, "d": 70.0}, items=500)).goals[0]
    assert sum(one.best for one in found.standings) == pytest.approx(1.0)
    assert found.chosen.regret == min(one.regret for one in found.standings)
    for one in found.standings:
        gap = one.regret - found.chosen.regret
        assert gap == pytest.approx(one.behind.mean, abs=1e-9)  # the best is the same for all


def test_pairs_are_seen_from_both_sides():
    pairs = decide(study({"a": 90.0, "b": 91.0})).goals[0].pairs
    one, other = pairs["a", "b"], pairs["b", "a"]
    assert one.mean == pytest.approx(-other.mean)
    assert one.better == pytest.approx(1 - other.better)
    assert one.low == pytest.approx(-other.high)


def test_the_same_seed_gives_the_same_verdict():
    evidence = study({"a": 90.0, "b": 90.4})
    assert decide(evidence, seed=3) == decide(evidence, seed=3)


def test_regions_are_the_users():
    evidence = study({"a": 90.0, "b": 91.0}, seeds=6, items=20_000)
    assert decide(evidence).goals[0].of("a").relation is Relation.WORSE
    wide = decide(evidence, regions={"accuracy": 5.0}).goals[0]
    assert wide.of("a").relation is Relation.EQUIVALENT
    with pytest.raises(ValueError, match="there is no goal 'speed' to set a region for"):
        decide(evidence, regions={"speed": 1.0})
    with pytest.raises(ValueError, match=r"the region of accuracy must be positive, got 0\.0"):
        decide(evidence, regions={"accuracy": 0.0})


def test_references_are_compared_and_never_chosen():
    evidence = study({"a": 90.0, "b": 91.0}, references={"LogisticRegression": 96.0, "kNN": 70.0})
    found = decide(evidence).goals[0]
    assert found.choice == "b"
    assert found.reference.label == "LogisticRegression"
    assert found.reference.lead.sure
    assert found.reference.lead.mean < 0
    assert not found.reference.any_better
    by_label = {one.label: one for one in found.references}
    assert by_label["kNN"].any_better
    assert by_label["kNN"].lead.mean == pytest.approx(21, abs=1.5)


def test_references_do_not_move_the_heads():
    levels = {"a": 90.0, "b": 90.5, "c": 91.0}
    rng = np.random.default_rng(0)
    alone = study(levels)
    rows = {**alone.series["accuracy"], "kNN": series(40.0, 1, 2_000, rng)}
    beside = Evidence(alone.labels, ("kNN",), alone.goals, {"accuracy": rows})
    one, other = (decide(e).goals[0].of("b").regret for e in (alone, beside))
    assert other == pytest.approx(one, abs=0.06)


def test_one_seed_each_uses_what_is_typical_and_says_so():
    found = decide(study({"a": 90.0, "b": 90.5}, seeds=1, items=50_000)).goals[0]
    assert {one.source for one in found.standings} == {VarianceSource.TYPICAL}
    assert found.of("a").seed_error == pytest.approx(ACCURACY.typical_seed_deviation)
    assert found.of("a").relation is Relation.OPEN


def test_one_seed_beside_others_borrows_their_spread():
    evidence = study({"a": 90.0, "b": 90.5, "c": 91.0}, seeds=5)
    found = decide(evidence.only({"a": range(5), "b": range(5), "c": [0]})).goals[0]
    assert [one.source for one in found.standings] == [
        VarianceSource.SEEDS,
        VarianceSource.SEEDS,
        VarianceSource.OTHERS,
    ]
    assert found.of("c").seed_error > found.of("a").seed_error


def test_figures_alone_hold_for_the_split():
    rows = {
        "a": Series((0, 1, 2), np.array([[90.0], [90.2], [90.1]])),
        "b": Series((0, 1, 2), np.array([[95.0], [95.2], [95.1]])),
    }
    found = decide(Evidence(("a", "b"), (), (ACCURACY,), {"accuracy": rows})).goals[0]
    assert found.items == 0
    assert found.of("a").item_error == 0
    assert found.of("a").relation is Relation.WORSE


def test_a_goal_without_figures_says_why():
    rows = {"a": Series((), np.zeros((0, 1)), {0: Missing.NO_MISTAKES, 1: Missing.NO_MISTAKES})}
    found = decide(Evidence(("a",), (), (ACCURACY,), {"accuracy": rows})).goals[0]
    assert found.choice is None
    assert [(gap.label, gap.reason, gap.runs, gap.of) for gap in found.gaps] == [
        ("a", Missing.NO_MISTAKES, 2, 2)
    ]


def test_agreement_on_few_items_is_no_proof():
    rows = {
        label: Series((0, 1, 2), np.full((3, 36), 100.0), {}, 100.0**2 * 0.5 / 36**2) for label in ("a", "b")
    }
    found = decide(Evidence(("a", "b"), (), (ACCURACY,), {"accuracy": rows})).goals[0]
    assert found.pairs["a", "b"].better == pytest.approx(0.5, abs=0.03)
    assert found.of("b").relation in (Relation.OPEN, Relation.CHOSEN)  # one item is 2.8 points


def test_seeds_that_would_settle_it_do():
    def spread(around, seeds):
        return Series(tuple(range(seeds)), around + 6.0 * np.linspace(-1, 1, seeds)[:, None])

    def of(seeds):
        rows = {label: spread(around, seeds) for label, around in (("a", 90.0), ("b", 90.4), ("c", 90.2))}
        return decide(Evidence(("a", "b", "c"), (), (ACCURACY,), {"accuracy": rows})).goals[0].settlement

    assert not of(3).settled
    assert of(3).seeds > 3
    assert of(of(3).seeds + 20).settled


def test_a_split_that_is_too_small_asks_for_items():
    rows = {
        label: Series(
            (0, 1, 2), np.tile(90.0 + lead + 40.0 * np.resize(np.repeat([1.0, -1.0], k), 40), (3, 1))
        )
        for label, lead, k in (("a", 0.0, 1), ("b", 0.2, 2), ("c", 0.1, 4))
    }
    found = decide(Evidence(("a", "b", "c"), (), (ACCURACY,), {"accuracy": rows})).goals[0]
    assert not found.settlement.settled
    assert found.settlement.seeds is None
    assert found.settlement.items > 40


def test_errors_are_those_of_the_model():
    """Standard errors against their true values, over 60 studies: the mean square is within 15 %."""
    squares = []
    for seed in range(60):
        rows = study({"a": 90.0, "b": 90.0}, seeds=5, items=1_000, seed=seed, seed_deviation=0.4)
        known = posterior(rows.series["accuracy"], (), ACCURACY)
        B = known.item_covariance
        squares.append((B[0, 0] + B[1, 1] - 2 * B[0, 1], known.seed_variance.mean() / 5))
    item, seed = np.mean(squares, axis=0)
    assert item == pytest.approx(2 * 2.0**2 / 1_000, rel=0.15)
    assert seed == pytest.approx((0.4**2 + 5.0**2 / 1_000) / 5, rel=0.2)


def test_the_same_head_under_two_names_is_rarely_called_different():
    """At most 5 % of 400 studies: more than 31 have a probability of 0.5 %."""
    called = 0
    for seed in range(400):
        rows = study({"a": 90.0, "b": 90.0}, seeds=3, items=300, seed=seed, seed_deviation=0.4)
        known = posterior(rows.series["accuracy"], (), ACCURACY)
        draws = known.draw(1_024, 0)
        better = float((draws[:, 0] > draws[:, 1]).mean())
        called += max(better, 1 - better) >= 0.975
    assert called <= 31


def test_stated_probabilities_hold():
    """Of 3,000 pairs those stated at 80 to 95 % hold as often as stated, within 5 points."""
    stated, held = [], []
    rng = np.random.default_rng(5)
    for seed in range(200):
        levels = {f"h{i}": 90 + 0.5 * rng.standard_normal() for i in range(6)}
        rows = study(levels, seeds=3, items=500, seed=seed, seed_deviation=0.4)
        draws = posterior(rows.series["accuracy"], (), ACCURACY).draw(1_024, 0)
        true = np.array([*levels.values()])
        for a in range(6):
            for b in range(a):
                better = float((draws[:, a] > draws[:, b]).mean())
                stated.append(max(better, 1 - better))
                held.append((better > 0.5) == (true[a] > true[b]))
    stated, held = np.array(stated), np.array(held)
    band = (stated >= 0.8) & (stated < 0.95)
    assert band.sum() > 300
    assert held[band].mean() == pytest.approx(stated[band].mean(), abs=0.05)


def test_intervals_stay_within_what_is_possible():
    found = decide(study({"a": 99.9, "b": 99.8}, items=50)).goals[0]
    assert all(one.high <= 100.0 for one in found.standings)
    assert replace(ACCURACY, region=1.0).least == 0.0


def _by_luck(items, sharpness, seed=0):
    """Two heads of three seeds on items of which 85 % are right; a norm that knows nothing."""
    rng = np.random.default_rng(seed)
    labels = np.zeros(items, dtype=np.int64)
    runs = {"cosine": {}, "vmf": {}}
    for by_seed in runs.values():
        for number in range(3):
            top = rng.beta(8.5, 1.5, items).clip(0.51, 0.99)
            wrong = rng.random(items) > top
            stated = top**sharpness / (top**sharpness + (1 - top) ** sharpness)
            p = np.stack([np.where(wrong, 1 - stated, stated), np.where(wrong, stated, 1 - stated)], 1)
            by_seed[number] = ItemOutputs(labels, p, p, p, rng.random(items))
    return evidence_from(runs)


def test_figures_that_chance_alone_gives_choose_no_head():
    evidence = _by_luck(60, 1.0)
    verdict = decide(evidence)
    for column in ("auroc_confidence", "calibration_error_l2"):
        found = verdict.of(column)
        assert found.choice is None
        assert found.chance > max(one.mean for one in found.standings)
        assert {one.relation for one in found.standings} == {Relation.OPEN}
    recommendation = recommend(evidence, verdict)
    assert "auroc_confidence" in recommendation.left_out
    assert "auroc_confidence" not in recommendation.weights
    said = overall_words.overall(recommendation, verdict)
    assert any(one.startswith("AUROC of the norm does not count: the heads have 0.") for one in said)
    found = goal_words.chosen(verdict.of("auroc_confidence"), None)
    assert ", and with 60 test items values up to 0." in found
    assert found.endswith(" may be chance.")
    assert goal_words.sentences(verdict.of("auroc_confidence"), None) == [found]
    assert "auroc_confidence" not in [one.column for one in race(evidence).questions]


def test_an_error_that_chance_does_not_give_is_judged():
    found = decide(_by_luck(2_000, 2.5)).of("calibration_error_l2")
    assert found.choice is not None
    assert found.chance is None
