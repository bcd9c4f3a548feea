"""Where no head should be recommended: too few test items, or nothing learnt."""

import numpy as np
import pytest

from spaceform.study.judge import Advice
from spaceform.study.verdict import goal_words
from spaceform.study.verdict.decide import FEWEST_ITEMS, Relation, Untold, decide
from spaceform.study.verdict.evidence import evidence_from
from spaceform.study.verdict.guessing import guessing
from spaceform.study.verdict.item_outputs import ItemOutputs
from spaceform.study.verdict.overall import recommend
from spaceform.study.verdict.race import Reason, race


def _outputs(labels, strength, rng, classes=3):
    """Probabilities that know the label as well as `strength` says; 0 is nothing."""
    logits = rng.normal(size=(len(labels), classes)) * 0.5
    logits[np.arange(len(labels)), labels] += strength
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    return ItemOutputs(labels, p, p, p, rng.random(len(labels)))


def _study(items, strengths, reference=None, seeds=3, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, items)
    runs = {
        head: {s: _outputs(labels, strength, rng) for s in range(seeds)}
        for head, strength in strengths.items()
    }
    beside = {} if reference is None else {"LogisticRegression": _outputs(labels, reference, rng)}
    return evidence_from(runs, beside)


def _advice(evidence) -> Advice:
    verdict = decide(evidence)
    return Advice(evidence, verdict, recommend(evidence, verdict), {})


@pytest.mark.parametrize("items", [1, 2, FEWEST_ITEMS - 1])
def test_a_few_items_choose_no_head(items):
    advice = _advice(_study(items, {"cosine": 6.0, "vmf": 0.0}))
    assert advice.recommendation is None
    assert {one.choice for one in advice.verdict.goals if one.standings} == {None}
    assert {s.relation for one in advice.verdict.goals for s in one.standings} <= {Relation.OPEN}
    said = advice.brief()
    assert f"the test part has only {items} item" in said[0]
    assert "Choose" not in " ".join(said)
    assert advice.verdict.of("accuracy").untold is Untold.FEW_ITEMS
    assert "test items tell nothing" in goal_words.chosen(advice.verdict.of("accuracy"), None)
    assert race(advice.evidence).reason is Reason.NOTHING_TOLD


def test_some_dozen_items_are_said_to_be_few():
    advice = _advice(_study(30, {"cosine": 4.0, "vmf": 1.0}))
    assert advice.recommendation is not None
    assert "The test part has only 30 items: one of them is 3.3 points of accuracy." in advice.overall()
    many = _advice(_study(300, {"cosine": 4.0, "vmf": 1.0}))
    assert not any("The test part" in one for one in many.overall())


@pytest.mark.slow
def test_doubt_grows_as_items_get_fewer():
    """Two heads of which neither is better: the probability of being the best stays away from 1."""
    best = []
    for seed in range(40):
        verdict = decide(_study(8, {"cosine": 2.0, "vmf": 2.0}, seeds=1, seed=seed))
        best.append(max(one.best for one in verdict.of("nll").standings))
    assert np.mean(np.array(best) > 0.95) <= 0.15


@pytest.mark.parametrize("reference", [None, 0.0])
def test_heads_that_learnt_nothing_are_not_recommended(reference):
    advice = _advice(_study(200, {"cosine": 0.0, "vmf": 0.0}, reference))
    assert advice.recommendation is None
    assert advice.to_deploy is None
    said = advice.brief()
    assert said[0].startswith("No head can be recommended: none is shown to have learnt anything here.")
    assert ("LogisticRegression learnt nothing either." in said[0]) == (reference is not None)
    assert said[1].startswith("Look at the data first")
    assert "Choose" not in " ".join(said)
    assert "no head is better than guessing" in goal_words.chosen(advice.verdict.of("accuracy"), None)
    assert race(advice.evidence).reason is Reason.NOTHING_TOLD


def test_a_reference_that_learnt_is_named():
    said = _advice(_study(200, {"cosine": 0.0, "vmf": 0.0}, 3.0)).brief()
    assert said[1] == "LogisticRegression did better than guessing: use that."


def test_one_head_that_learnt_is_recommended():
    advice = _advice(_study(200, {"cosine": 3.0, "vmf": 0.0}))
    assert advice.recommendation.choice.label == "cosine"


@pytest.mark.slow
def test_chance_is_seldom_taken_for_learning():
    """Six heads and three references that know nothing; one value in two hundred lies beyond chance."""
    learnt = 0
    for seed in range(200):
        strengths = dict.fromkeys(["a", "b", "c", "d", "e", "f"], 0.0)
        learnt += bool(_study(100, strengths, 0.0, seeds=1, seed=seed).guessing.learnt)
    assert learnt <= 20


def test_better_probabilities_alone_are_learnt_too():
    """Nine of ten items are of one class, and all are called so; but who is sure is right more often."""
    rng = np.random.default_rng(0)
    hard = rng.random(1_000) < 0.3
    labels = (rng.random(1_000) < np.where(hard, 0.4, 0.01)).astype(np.int64)
    p = np.where(hard, 0.4, 0.01)
    outputs = ItemOutputs(labels, np.stack([1 - p, p], 1), np.stack([1 - p, p], 1))
    found = guessing({"cosine": {0: outputs}}, {})
    assert (found.right, found.learnt) == ((), ("cosine",))
    said = _advice(evidence_from({"cosine": {0: outputs}, "vmf": {0: outputs}})).overall()
    assert any(one.startswith("No head is shown to be right more often than guessing") for one in said)


@pytest.mark.parametrize(("items", "classes"), [(36, 3), (200, 3), (600, 2), (1_500, 20), (5_000, 77)])
def test_the_shares_of_the_classes_are_guessing_and_nothing_is_learnt(items, classes):
    """What is the same for every item is no learning: shares of these items, of others, or nearly so."""
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.arange(items) % classes)
    for other in (labels, rng.integers(0, classes, 4 * items)):
        p = (np.bincount(other, minlength=classes) + 1e-3)[None].repeat(items, 0)
        p = p * np.exp(1e-3 * rng.standard_normal(p.shape))
        p /= p.sum(1, keepdims=True)
        assert guessing({"cosine": {0: ItemOutputs(labels, p, p)}}, {}).learnt == ()
