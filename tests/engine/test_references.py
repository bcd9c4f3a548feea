"""References: the setting with the lowest held-out loss, and probabilities of every class."""

import tracemalloc

import numpy as np
import pytest
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from spaceform.engine import REFERENCES, Rows, parts_of, reference

pytestmark = pytest.mark.slow


def wine(held_out: int | None = 30):
    x, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order].astype(np.float32), y[order]
    if held_out is None:  # four times the same rows: enough for one part
        train = Rows.of(np.tile(x[:120], (4, 1)), np.tile(y[:120], 4))
        return parts_of(train, train, seed=0), x[120:], y[120:]
    return parts_of(Rows.of(x[:90], y[:90]), Rows.of(x[90:120], y[90:120]), seed=0), x[120:], y[120:]


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_learns_wine(name):
    parts, x, y = wine()
    assert len(parts) == 3
    trials = 1 if name == "boosting" else 8
    found = reference(name, parts, Rows.of(x, y).x, classes=3, trials=trials)
    p = found.probabilities
    assert p.shape == (len(x), 3)
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-6)
    assert (p > 0).all()
    assert (p.argmax(1) == y).mean() > 0.9
    assert found.best.nll == min(s.nll for s in found.settings)
    assert found.held_out_probabilities.shape == (120, 3)


def test_logistic_regression_is_scikit_learns():
    parts, x, y = wine(None)
    assert len(parts) == 1
    found = reference("logistic", parts, Rows.of(x, y).x, classes=3, trials=8)
    order = np.random.default_rng(0).permutation(178)[:120]
    train = np.tile(load_wine().data[order].astype(np.float32), (8, 1))  # what trains and what is held out
    labels = np.tile(load_wine().target[order], 8)
    scale = StandardScaler().fit(train)
    peer = LogisticRegression(C=found.best.options["C"], max_iter=300).fit(scale.transform(train), labels)
    np.testing.assert_allclose(found.probabilities, peer.predict_proba(scale.transform(x)), atol=2e-3)


def test_a_class_without_a_training_row_has_a_small_probability():
    parts, x, y = wine()
    p = reference("logistic", parts, Rows.of(x, y).x, classes=4, trials=2).probabilities
    assert p.shape == (len(x), 4)
    assert (p[:, 3] < 1e-5).all()
    assert (p[:, 3] > 0).all()


def test_a_single_trial_is_a_usual_setting():
    parts, x, y = wine()
    logistic, neighbours = (
        reference(name, parts, Rows.of(x, y).x, classes=3, trials=1).settings
        for name in ("logistic", "neighbours")
    )
    assert [one.options for one in logistic] == [{"C": 1.0}]
    assert [one.options for one in neighbours] == [{"k": 10, "metric": "cosine"}]


def test_neighbours_by_the_cosine_are_scikit_learns():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((900, 20)).astype(np.float32) + 0.5, np.arange(900) % 3
    parts = parts_of(Rows.of(x[:400], y[:400]), Rows.of(x[400:800], y[400:800]), seed=0)
    found = reference("neighbours", parts, Rows.of(x[800:], y[800:]).x, classes=3, trials=1)
    scale = StandardScaler().fit(x[:800])
    peer = KNeighborsClassifier(10, metric="cosine").fit(scale.transform(x[:800]), y[:800])
    votes = 10 * peer.predict_proba(scale.transform(x[800:]))
    np.testing.assert_allclose(found.probabilities, (votes + 1 / 3) / 11, atol=1e-6)


def test_distances_to_the_neighbours_are_taken_some_at_a_time():
    """Those of 20,000 rows to 3,000 would take 240 MB, and their order twice as much."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((3000, 8)).astype(np.float32), np.arange(3000) % 3
    parts = parts_of(Rows.of(x[:2000], y[:2000]), Rows.of(x[2000:], y[2000:]), seed=0)
    test = Rows.of(rng.standard_normal((20_000, 8)).astype(np.float32), np.zeros(20_000)).x
    tracemalloc.start()
    try:
        reference("neighbours", parts, test, classes=3, trials=1)
        assert tracemalloc.get_traced_memory()[1] < 100 * 2**20
    finally:
        tracemalloc.stop()


def test_a_start_from_a_part_leads_to_the_same_minimum():
    rng = np.random.default_rng(0)
    y = np.arange(1200) % 3
    x = (rng.standard_normal((1200, 120)) + 0.4 * np.eye(120)[y]).astype(np.float32)
    parts = parts_of(Rows.of(x[:500], y[:500]), Rows.of(x[500:900], y[500:900]), seed=0)
    assert len(parts) == 1
    found = reference("logistic", parts, Rows.of(x[900:], y[900:]).x, classes=3, trials=1)
    scale = StandardScaler().fit(x[:900])
    peer = LogisticRegression(C=found.best.options["C"], max_iter=1000, tol=1e-8)
    peer.fit(scale.transform(x[:900]).astype(np.float64), y[:900])
    np.testing.assert_allclose(found.probabilities, peer.predict_proba(scale.transform(x[900:])), atol=2e-3)
