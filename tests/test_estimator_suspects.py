"""The classifier lists labels that may be wrong."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from spaceform import SpaceformClassifier

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def noisy() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels that are names, and which of these are wrong: one in ten."""
    X, y = load_digits(return_X_y=True)
    wrong = np.arange(len(y)) % 10 == 3
    names = np.array([f"digit {k}" for k in range(10)])
    return X.astype(np.float32), names[np.where(wrong, (y + 1 + np.arange(len(y)) % 7) % 10, y)], wrong


MODEL = SpaceformClassifier("subcentre_arcface", epochs=12, pieces=0, random_state=0)


@pytest.fixture(scope="module")
def fitted(noisy) -> SpaceformClassifier:
    return clone(MODEL).fit(*noisy[:2])


def test_most_suspects_are_wrong_and_most_wrong_labels_are_suspect(fitted, noisy):
    X, y, wrong = noisy
    found = fitted.suspects(X, y, angle=60.0)
    assert len(set(found)) == len(found)
    assert wrong[found].sum() > 0.8 * wrong.sum()
    fewer = fitted.suspects(X, y)
    assert wrong[fewer].mean() > 0.8
    assert list(fewer) == list(found[: len(fewer)])
    assert 0 < len(fewer) < len(found)
    assert len(fitted.suspects(X, y, angle=180.0)) == 0
    with_names = clone(MODEL).set_output(transform="pandas").fit(X, y)
    assert list(with_names.suspects(X, y)) == list(fewer)


def test_other_heads_and_unknown_labels_are_refused(fitted, noisy):
    X, y, _ = noisy
    with pytest.raises(ValueError, match=r"y holds classes that fit did not see: .*'eleven'"):
        fitted.suspects(X[:2], ["eleven", y[1]])
    with pytest.raises(ValueError, match="angle must lie in 0 to 180, in degrees, got 200"):
        fitted.suspects(X, y, angle=200.0)
    other = clone(MODEL).set_params(head="cosine", epochs=1).fit(X[:200], y[:200])
    with pytest.raises(ValueError, match=r'suspects needs head="subcentre_arcface", got head=.cosine'):
        other.suspects(X, y)
