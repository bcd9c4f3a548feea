"""Two heads that another package registers go the way of ours: from a file of rows to an ONNX file.

The package is installed for real (an entry point in a site folder), and every step is a command of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from heads import foreign_heads

HEADS = ("centre", "blurred")
CLASSIFIER = """
import sys
import numpy as np
from spaceform.estimator import SpaceformClassifier
rows = np.load("rows.npz")
found = {}
for name in sys.argv[1:]:
    model = SpaceformClassifier(name, random_state=0).fit(rows["X"], rows["y"])
    p = model.predict_proba(rows["X"])
    assert np.allclose(p, model.predict_proba(rows["X"][::-1])[::-1], atol=1e-6)
    print(name, (model.predict(rows["X"]) == rows["y"]).mean())
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package is installed, beside rows of three classes."""
    folder = foreign_heads.registered(tmp_path_factory.mktemp("site"))
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    np.savez(folder / "rows.npz", X=rng.normal(size=(240, 6)) + 2.5 * np.eye(3, 6)[y], y=y)
    return folder


def python(site: Path, *arguments: str) -> str:
    """What the command wrote, where it ended well."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "200"}
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=site,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def spaceform(site: Path, *arguments: str) -> str:
    return python(site, "-m", "spaceform", *arguments)


@pytest.fixture(scope="module")
def study(site: Path) -> Path:
    """Both heads compared, with a search of their own options, and the report that comes with it."""
    spaceform(site, "compare", "rows.npz", "--heads", ",".join(HEADS), "--search", "3", "--seeds", "1")
    return site / "spaceform-rows"


def test_are_compared_searched_and_reported(study):
    page = (study / "report" / "report.html").read_text()
    assert "Centre" in page
    assert "Blurred" in page
    for name in HEADS:
        recipe = json.loads((study / "runs" / f"{name}-seed0" / "recipe.json").read_text())
        assert recipe["head"]["name"] == name
        metrics = json.loads((study / "runs" / f"{name}-seed0" / "metrics.json").read_text())
        assert metrics["accuracy"] > 0.85


@pytest.mark.parametrize("name", HEADS)
def test_are_predicted_and_exported_alike(name, site, study):
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'spaceform[export]'")
    run = str(study / "runs" / f"{name}-seed0")
    spaceform(site, "predict", run, "rows.npz", "--top", "3", "-o", f"{name}.csv")
    spaceform(site, "export", run, f"{name}.onnx")
    session = onnxruntime.InferenceSession(site / f"{name}.onnx", providers=["CPUExecutionProvider"])
    x = np.load(site / "rows.npz")["X"].astype(np.float32)
    outputs = [output.name for output in session.get_outputs()]
    p = dict(zip(outputs, session.run(None, {session.get_inputs()[0].name: x}), strict=True))["probabilities"]
    predicted = pd.read_csv(site / f"{name}.csv")
    np.testing.assert_allclose(np.sort(p)[:, -1], predicted["probability"], rtol=0, atol=2e-6)


def test_are_searched_on_pixels(site):
    """The search of nets that are trained end to end, by Optuna."""
    options = ("--trials", "2", "--set", "budget.epochs=1", "--set", "budget.episodes=2", "--out", "searched")
    spaceform(site, "search", "digits", "--head", ",".join(HEADS), *options)
    for name in HEADS:
        assert list((site / "searched").rglob(f"*{name}*.toml")), list((site / "searched").rglob("*"))


def test_are_classifiers_of_scikit_learn(site):
    right = dict(line.split() for line in python(site, "-c", CLASSIFIER, *HEADS).splitlines())
    assert set(right) == set(HEADS)
    assert all(float(share) > 0.85 for share in right.values()), right
