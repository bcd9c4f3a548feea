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

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, ...]:
    X, y = load_digits(return_X_y=True)
    return tuple(train_test_split(X.astype(np.float32), y, test_size=1 / 3, stratify=y, random_state=0))


def quick(head: str = "cosine", **options: Any) -> SpaceformClassifier:
    return SpaceformClassifier(
        head,
        **{"max_epochs": 8, "lr": 0.02, "dim": 8, "hidden": 0, "dropout": 0.0, "random_state": 0} | options,
    )


@pytest.mark.compiled  # scikit-learn passes values of the wrong type on purpose
@pytest.mark.parametrize("head", HEADS)
def test_passes_every_check_of_scikit_learn(head: str) -> None:
    """All of them for every head, sample weights as repeated rows included."""
    options: dict[str, Any] = {"max_epochs": 20, "lr": 0.1, "dim": 4, "hidden": 0, "batch_size": 256}
    if head != "cosine":  # the default head alone holds rows out: that part is the same for all
        options |= {"validation_fraction": 0.0}
    if head in ("vmf", "power_spherical"):
        # Below 16 dimensions draws are inverted one by one, which takes most of the time.
        options |= {"head_options": {"samples": 2}, "max_epochs": 10, "dim": 16}
    made = SpaceformClassifier(head, dropout=0.0, **options)
    names = set()
    for estimator, check in estimator_checks_generator(made):
        with contextlib.suppress(SkipTest):  # one of sixty is about sparse or array-API input
            check(estimator)
            names.add(check.func.__name__)
    assert {"check_sample_weight_equivalence_on_dense_data", "check_classifiers_train"} <= names


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


def test_read_only_rows_are_learned_from_without_a_warning(digits) -> None:
    X, y = (a[:300].copy() for a in (digits[0], digits[2]))
    for array in (X, y):
        array.flags.writeable = False
    quick("cosine", max_epochs=1).fit(X, y)
    quick("cosine").partial_fit(X, y, classes=np.arange(10))


def test_partial_fit_learns_and_names_its_errors(digits) -> None:
    X, X_test, y, y_test = digits
    model = quick()
    with pytest.raises(ValueError, match="first call of partial_fit needs classes="):
        model.partial_fit(X, y)
    for _ in range(10):
        model.partial_fit(X, y, classes=np.arange(10))
    assert model.score(X_test, y_test) > 0.9
    model.partial_fit(X.astype(np.float64), y)  # the type of the first call is kept
    assert model.transform(X_test.astype(np.float64)).dtype == np.float32
    with pytest.raises(ValueError, match="did not name"):
        model.partial_fit(X, y + 5)
    with pytest.raises(ValueError, match="differ from those of the first call"):
        model.partial_fit(X, y, classes=[0, 1])


def test_sample_weight_decides_between_contradictions() -> None:
    X = np.tile([[-1.0], [1.0]], (200, 1))
    y = np.tile([0, 1], 200)
    X, y, weight = np.r_[X, X], np.r_[y, 1 - y], np.r_[np.full(400, 3.0), np.ones(400)]
    for head in ("standard", "vmf"):
        # Four distinct rows: one step an epoch.
        model = quick(head, dim=4, lr=0.05, max_epochs=200)
        p = model.fit(X, y, sample_weight=weight).predict_proba([[-1.0], [1.0]])
        assert np.abs(p.diagonal() - 0.75).max() < 0.06


def test_early_stopping_keeps_the_best_epoch(digits) -> None:
    X, _, y, _ = digits
    model = quick("standard", lr=0.05, patience=4, max_epochs=100).fit(X, y)
    best = int(np.argmin(model.loss_curve_))
    assert model.n_iter_ == best + 1
    assert len(model.loss_curve_) == best + 1 + 4 < 100


def test_a_weight_of_two_is_a_row_given_twice_in_every_part(digits) -> None:
    """Standardisation, held-out loss, temperature and draws included: to the last bit, in any order."""
    X, X_test, y, _ = digits
    X, y = X[:300], y[:300]
    weight = np.random.default_rng(0).integers(0, 3, len(X))
    rows = np.random.default_rng(1).permutation(np.repeat(np.arange(len(X)), weight))
    for head in ("cosine", "vmf"):
        weighted = quick(head, max_epochs=3).fit(X, y, sample_weight=weight)
        repeated = quick(head, max_epochs=3).fit(X[rows], y[rows])
        assert weighted.calibrator_.temperature == repeated.calibrator_.temperature != 1
        np.testing.assert_array_equal(weighted.predict_proba(X_test), repeated.predict_proba(X_test))


def test_the_layer_with_the_lower_held_out_loss_is_kept() -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(600, 2)).astype(np.float32)
    options = {"max_epochs": 12, "lr": 0.03, "random_state": 0}
    assert SpaceformClassifier(**options).fit(X, X.prod(1) > 0).hidden_ == 256  # not linear
    shifted = random.normal(size=(600, 40)).astype(np.float32)
    assert SpaceformClassifier(**options).fit(shifted, shifted.sum(1) > 0).hidden_ == 0


def test_wide_features_are_scaled_unless_a_dimension_is_asked_for() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    X = rng.normal(size=(90, 300)) + np.eye(3)[y] @ rng.normal(size=(3, 300))
    wide = SpaceformClassifier(hidden=0, max_epochs=5, random_state=0).fit(X, y)
    z, (w, b) = wide.transform(X), wide.net_.parameters()
    np.testing.assert_allclose(z, (X - wide.mean_) / wide.scale_ * w.detach().numpy() + b.detach().numpy())
    assert wide.score(X, y) == 1
    assert len(wide.get_feature_names_out()) == z.shape[1] == 300
    for options, width in (({"dim": 8}, 8), ({"hidden": 16}, 256)):
        model = SpaceformClassifier(**({"hidden": 0} | options), max_epochs=1, random_state=0).fit(X, y)
        assert model.transform(X).shape == (90, width)


def test_a_held_out_part_without_mistakes_leaves_the_temperature_in_reach() -> None:
    X = np.repeat([[-1.0], [1.0]], 60, axis=0) + np.linspace(0, 0.1, 120)[:, None]
    model = quick(max_epochs=20).fit(X, np.repeat([0, 1], 60))
    assert model.score(X, np.repeat([0, 1], 60)) == 1
    assert 0.2 < model.calibrator_.temperature < 5


def test_errors_name_the_remedy(digits) -> None:
    X, _, y, _ = digits
    with pytest.raises(ValueError, match="at least two classes, got one class"):
        quick().fit(X, np.zeros(len(X)))
    with pytest.raises(ValueError, match="NaN"):
        quick().fit(np.where(X > 15, np.nan, X), y)
    with pytest.raises(ValueError, match="'head' parameter"):
        SpaceformClassifier("vfm").fit(X, y)
