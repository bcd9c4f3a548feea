"""What runs leave becomes arrays, and what they lack is said."""

import numpy as np
import pytest

from spaceform.study.verdict import ItemOutputs, Missing, evidence_from
from spaceform.study.verdict.goals import CLASSIFICATION_GOALS, RETRIEVAL_GOALS


def outputs(right, seed=0, **more):
    """Three classes; the listed items are right."""
    rng = np.random.default_rng(seed)
    y = np.arange(len(right)) % 3
    p = rng.random((len(right), 3)) * 0.3
    p[np.arange(len(right)), np.where(right, y, (y + 1) % 3)] += 1.0
    return ItemOutputs(labels=y, probabilities=p / p.sum(1, keepdims=True), **more)


def test_figures_are_in_the_goals_unit():
    found = evidence_from({"cosine": {0: outputs([1, 1, 0, 1]), 1: outputs([1, 1, 1, 1])}})
    assert found.series["accuracy"]["cosine"].means == pytest.approx([75.0, 100.0])
    assert found.series["accuracy"]["cosine"].seeds == (0, 1)
    assert "retrieval.map_at_r" not in found.series  # nobody measured it


def test_a_run_without_mistakes_has_no_auroc_and_says_why():
    runs = {"cosine": {0: outputs([1, 1, 0, 1]), 1: outputs([1, 1, 1, 1])}}
    found = evidence_from(runs).series["auroc_probability"]["cosine"]
    assert found.seeds == (0,)
    assert found.missing == {1: Missing.NO_MISTAKES}


def test_contributions_move_to_the_figure_of_the_tables():
    found = evidence_from({"cosine": {0: outputs([1, 0, 0, 1], measured={"nll": 3.0, "accuracy": None})}})
    assert found.series["nll"]["cosine"].means == pytest.approx([3.0])
    assert np.ptp(found.series["nll"]["cosine"].values) > 0
    assert found.series["accuracy"]["cosine"].means == pytest.approx([50.0])


def test_figures_alone_are_evidence_too():
    found = evidence_from({"vmf": {3: ItemOutputs(measured={"map_at_r": 0.25})}}, goals=RETRIEVAL_GOALS)
    assert found.series["map_at_r"]["vmf"].values.tolist() == [[25.0]]
    assert tuple(goal.column for goal in found.goals) == ("map_at_r",)


def test_where_one_label_has_no_items_all_are_judged_by_metrics():
    runs = {"cosine": {0: outputs([1, 0, 1, 1])}, "vmf": {0: ItemOutputs(measured={"accuracy": 0.5})}}
    found = evidence_from(runs).series["accuracy"]
    assert {label: one.values.shape for label, one in found.items()} == {"cosine": (1, 1), "vmf": (1, 1)}


def test_references_alone_make_no_goal():
    references = {"LogisticRegression": outputs([1, 0], average_precision=np.array([0.5, 1.0]))}
    found = evidence_from({"cosine": {0: outputs([1, 1])}}, references)
    assert "retrieval.map_at_r" not in found.series
    assert found.labels == ("cosine",)
    assert found.references == ("LogisticRegression",)


def test_other_items_are_refused():
    with pytest.raises(ValueError, match="vmf, seed 0 and cosine, seed 0 were measured on different"):
        evidence_from({"cosine": {0: outputs([1, 1])}, "vmf": {0: outputs([1, 1, 1])}})


def test_only_some_seeds():
    found = evidence_from({"cosine": {seed: outputs([1, seed % 2]) for seed in range(4)}})
    some = found.only({"cosine": [1, 2]})
    assert some.seeds("cosine") == (1, 2)
    assert some.series["accuracy"]["cosine"].means == pytest.approx([100.0, 50.0])


def test_arrays_of_a_run_are_found_by_name():
    p = np.full((2, 2), 0.5)
    arrays = {"labels": np.array([0, 1]), "probabilities": p, "probabilities_vector": p / 2}
    found = ItemOutputs.of(arrays, "vector")
    assert found.chosen is arrays["probabilities_vector"]
    assert found.confidence is None


def test_columns_differ_and_regions_are_positive():
    columns = [goal.column for goal in CLASSIFICATION_GOALS]
    assert len(set(columns)) == len(columns)
    assert all(goal.region > 0 for goal in (*CLASSIFICATION_GOALS, *RETRIEVAL_GOALS))
