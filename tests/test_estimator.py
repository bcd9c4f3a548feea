"""`SpaceformClassifier` as a scikit-learn citizen."""

import contextlib
import pickle
from typing import Any
from unittest import SkipTest

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator

from spaceform import HEADS, SpaceformClassifier, metrics

# Checks that say the same about every head; the default head goes through all of them.
_ABOUT_THE_HEAD = {
    "check_classifiers_train",
    "check_methods_subset_invariance",
    "check_methods_sample_order_invariance",
    "check_fit_idempotent",
    "check_estimators_pickle",
    "check_dict_unchanged",
    "check_sample_weights_invariance",
    "check_sample_weight_equivalence_on_dense_data",
}


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, ...]:
    X, y = load_digits(return_X_y=True)
    return tuple(train_test_split(X.astype(np.float32), y, test_size=1 / 3, stratify=y, random_state=0))


def quick(head: str = "cosine", **options: Any) -> SpaceformClassifier:
    return SpaceformClassifier(head, **{"max_epochs": 15, "lr": 0.02, "dim": 8, "random_state": 0} | options)


@pytest.mark.compiled  # scikit-learn passes values of the wrong type on purpose
def test_passes_every_check_of_scikit_learn() -> None:
    for estimator, check in estimator_checks_generator(SpaceformClassifier(max_epochs=60, lr=0.02)):
        with contextlib.suppress(SkipTest):  # one of a hundred is about sparse or array-API input
            check(estimator)


@pytest.mark.parametrize("head", [name for name in HEADS if name != "cosine"])
def test_every_head_passes_the_checks_that_concern_it(head: str) -> None:
    ran = set()
    options = {"samples": 4} if head in ("vmf", "power_spherical") else {}
    made = SpaceformClassifier(head, max_epochs=40, lr=0.05, dim=4, head_options=options)
    for estimator, check in estimator_checks_generator(made):
        name = check.func.__name__
        # A weight of two is not two rows where each row has draws of its own; see the test of weights below.
        if options and name == "check_sample_weight_equivalence_on_dense_data":
            continue
        if name in _ABOUT_THE_HEAD:
            ran.add(name)
            check(estimator)
    assert len(ran) >= 5


@pytest.mark.parametrize("head", HEADS)
def test_learns_digits(digits, head: str) -> None:
    X, X_test, y, y_test = digits
    model = quick(head).fit(X, y)
    p = model.predict_proba(X_test)
    assert model.score(X_test, y_test) > 0.9
    assert np.allclose(p.sum(1), 1)
    assert model.transform(X_test).shape == (len(X_test), 8)
    right = torch.from_numpy(model.predict(X_test) == y_test)
    assert model.confidence(X_test).shape == (len(X_test),)
    assert float(metrics.auroc(torch.from_numpy(p.max(1)), right)) > 0.8


def test_a_stochastic_head_predicts_each_row_alone(digits) -> None:
    X, X_test, y, _ = digits
    model = quick("vmf", max_epochs=3).fit(X, y)
    alone = np.concatenate([model.predict_proba(row[None]) for row in X_test[:20]])
    assert np.allclose(model.predict_proba(X_test)[:20], alone, atol=1e-5)


def test_pipeline_search_and_calibration(digits) -> None:
    X, X_test, y, y_test = digits
    search = GridSearchCV(make_pipeline(PCA(20), quick()), {"spaceformclassifier__lr": [1e-4, 0.02]}, cv=2)
    assert search.fit(X, y).best_params_ == {"spaceformclassifier__lr": 0.02}
    assert search.score(X_test, y_test) > 0.9
    assert CalibratedClassifierCV(quick(), cv=2).fit(X, y).score(X_test, y_test) > 0.9


def test_the_random_state_decides_everything_in_any_process(digits) -> None:
    X, X_test, y, _ = digits
    torch.manual_seed(1)
    first = quick("vmf", max_epochs=2).fit(X, y).predict_proba(X_test)
    torch.manual_seed(2)
    before = torch.random.get_rng_state()
    models = joblib.Parallel(n_jobs=2, backend="threading")(
        joblib.delayed(lambda m: m.fit(X, y))(clone(quick("vmf", max_epochs=2))) for _ in range(2)
    )
    assert torch.equal(before, torch.random.get_rng_state())
    for model in models:
        np.testing.assert_array_equal(first, model.predict_proba(X_test))
    other = quick("vmf", max_epochs=2, random_state=1).fit(X, y).predict_proba(X_test)
    assert not np.allclose(first, other)


def test_processes_of_joblib_train_it(digits) -> None:
    X, X_test, y, y_test = digits
    search = GridSearchCV(quick(max_epochs=8), {"dim": [4, 16]}, cv=2, n_jobs=2).fit(X, y)
    assert search.score(X_test, y_test) > 0.9


def test_pickles_go_on_where_they_were(digits) -> None:
    X, X_test, y, _ = digits
    model = quick("vmf").partial_fit(X[:300], y[:300], classes=np.arange(10))
    copy = pickle.loads(pickle.dumps(model))
    for m in (model, copy):
        m.partial_fit(X[300:600], y[300:600])
    np.testing.assert_array_equal(model.predict_proba(X_test), copy.predict_proba(X_test))


def test_partial_fit_learns_and_names_its_errors(digits) -> None:
    X, X_test, y, y_test = digits
    model = quick()
    with pytest.raises(ValueError, match="first call of partial_fit needs classes="):
        model.partial_fit(X, y)
    for _ in range(10):
        model.partial_fit(X, y, classes=np.arange(10))
    assert model.score(X_test, y_test) > 0.9
    with pytest.raises(ValueError, match="did not name"):
        model.partial_fit(X, y + 5)
    with pytest.raises(ValueError, match="differ from those of the first call"):
        model.partial_fit(X, y, classes=[0, 1])


def test_sample_weight_decides_between_contradictions() -> None:
    X = np.tile([[-1.0], [1.0]], (200, 1))
    y = np.tile([0, 1], 200)
    X, y, weight = np.r_[X, X], np.r_[y, 1 - y], np.r_[np.full(400, 3.0), np.ones(400)]
    for head in ("standard", "vmf"):
        model = SpaceformClassifier(head, dim=4, lr=0.05, max_epochs=60, calibrate=False, random_state=0)
        p = model.fit(X, y, sample_weight=weight).predict_proba([[-1.0], [1.0]])
        assert np.abs(p.diagonal() - 0.75).max() < 0.06


def test_early_stopping_keeps_the_best_epoch(digits) -> None:
    X, _, y, _ = digits
    model = SpaceformClassifier("standard", lr=0.05, patience=4, max_epochs=100, random_state=0).fit(X, y)
    assert model.n_iter_ == len(model.loss_curve_) == int(np.argmin(model.loss_curve_)) + 1 + 4 < 100


def test_errors_name_the_remedy(digits) -> None:
    X, _, y, _ = digits
    with pytest.raises(ValueError, match="at least two classes, got one class"):
        quick().fit(X, np.zeros(len(X)))
    with pytest.raises(ValueError, match="NaN"):
        quick().fit(np.where(X > 15, np.nan, X), y)
    with pytest.raises(ValueError, match="'head' parameter"):
        SpaceformClassifier("vfm").fit(X, y)
