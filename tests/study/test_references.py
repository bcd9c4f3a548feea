"""References beside the heads: calibrated on the validation split, as heads are."""

import numpy as np
import pytest

from spaceform.run.recipe import Recipe
from spaceform.study import plan
from spaceform.study.references import FOLDER, read_references, reference_errands

pytestmark = pytest.mark.slow


@pytest.fixture
def recipe(tmp_path) -> Recipe:
    """Classes far apart: votes of ten neighbours are never sure enough."""
    rng = np.random.default_rng(0)
    y = np.arange(900) % 3
    X = rng.normal(size=(900, 120)) + 4 * np.eye(3, 120)[y]
    np.savez(tmp_path / "own.npz", X=X.astype(np.float32), y=y)
    return plan.recipes(str(tmp_path / "own.npz"), ["cosine"], plan.Conditions("quick"))["cosine"]


def test_references_are_calibrated_as_heads_are(recipe, tmp_path):
    datasets: dict = {}
    for errand in reference_errands(recipe, tmp_path, trials=2):
        errand.work(errand.job, errand.folder, None, datasets)
    found = {one.name: one for one in read_references(tmp_path)}
    assert set(found) == {"logistic", "neighbours", "features"}
    assert sorted(path.stem for path in (tmp_path / FOLDER).iterdir()) == sorted(found)
    for name in ("logistic", "neighbours"):
        one = found[name]
        before, after = one.measured["nll"], one.measured["calibrated.chosen.nll"]
        assert before is not None
        assert after is not None
        assert after < 1.01 * before
        assert one.outputs.chosen is not None
        assert one.outputs.probabilities is not None
        p = one.outputs.chosen[np.arange(len(one.outputs.chosen)), one.outputs.labels]
        assert abs(-np.log(p).mean() - after) < 1e-3
    better = found["neighbours"].measured
    assert better["calibrated.chosen.nll"] != better["nll"]
