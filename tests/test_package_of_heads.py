"""Two heads that another package registers go the way of ours: from a file of rows to an ONNX file.

The package is installed for real: an entry point in a site folder, which all processes have on their path.
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from heads import foreign_heads

pytestmark = pytest.mark.slow

onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'spaceform[export]'")

HEADS = ("centre", "blurred")
# All in one interpreter: each would take seconds to start.
WORK = """
import sys
import numpy as np
from spaceform.__main__ import main
from spaceform.estimator import SpaceformClassifier
from spaceform.study.processes import lasting

def spaceform(*arguments):
    sys.argv = ["spaceform", *arguments]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (arguments, end.code)

if __name__ == "__main__":
    heads = sys.argv[1:]
    names, one = ",".join(heads), ("--processes", "1")
    short = "--set", "budget.epochs=1", "--set", "budget.episodes=2"
    with lasting():  # one process for both
        spaceform("compare", "rows.npz", "--heads", names, "--search", "3", "--seeds", "1", *one)
        spaceform("search", "digits", "--head", names, "--trials", "2", *short, *one, "--out", "searched")
    rows = np.load("rows.npz")
    for name in heads:
        run = f"spaceform-rows/runs/{name}-seed0"
        spaceform("predict", run, "rows.npz", "--top", "3", "-o", f"{name}.csv")
        spaceform("export", run, f"{name}.onnx")
        model = SpaceformClassifier(name, search=2, epochs=12, random_state=0).fit(rows["X"], rows["y"])
        np.savez(f"{name}-classifier.npz", p=model.predict_proba(rows["X"]), classes=model.classes_)
"""


def taken(folder: Path) -> Path:
    """Where the package is installed, after every command has taken its two heads."""
    foreign_heads.registered(folder)
    rng = np.random.default_rng(0)
    y = np.arange(240) % 3
    np.savez(folder / "rows.npz", X=rng.normal(size=(240, 6)) + 2.5 * np.eye(3, 6)[y], y=y)
    (folder / "work.py").write_text(WORK)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, "work.py", *HEADS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return folder


def compared_searched_and_reported(name: str, site: Path) -> None:
    study = site / "spaceform-rows"
    assert name.title() in (study / "report" / "report.html").read_text()
    assert len((study / "search" / f"{name}.jsonl").read_text().splitlines()) > 3
    recipe = json.loads((study / "runs" / f"{name}-seed0" / "recipe.json").read_text())
    assert recipe["head"]["name"] == name
    metrics = json.loads((study / "runs" / f"{name}-seed0" / "metrics.json").read_text())
    assert metrics["accuracy"] > 0.85


def searched_on_pixels(name: str, site: Path) -> None:
    """By Optuna, as nets that are trained end to end are."""
    recipe = tomllib.loads((site / "searched" / f"{name}.toml").read_text())
    assert (recipe["head"]["name"], recipe["data"]["name"]) == (name, "digits")


def predicted_and_exported_alike(name: str, site: Path) -> None:
    session = onnxruntime.InferenceSession(site / f"{name}.onnx", providers=["CPUExecutionProvider"])
    x = np.load(site / "rows.npz")["X"].astype(np.float32)
    (p,) = session.run(["probabilities"], {session.get_inputs()[0].name: x})
    predicted = pd.read_csv(site / f"{name}.csv")
    np.testing.assert_allclose(np.sort(p)[:, -1], predicted["probability"], rtol=2e-6, atol=1e-6)
    assert list(predicted["class"]) == list(p.argmax(1))


def classifies(name: str, site: Path) -> None:
    found, y = np.load(site / f"{name}-classifier.npz"), np.load(site / "rows.npz")["y"]
    assert (found["classes"][found["p"].argmax(1)] == y).mean() > 0.85


def test_both_go_the_whole_way(tmp_path):
    """One test, so that the commands run once."""
    site = taken(tmp_path)
    for name in HEADS:
        compared_searched_and_reported(name, site)
        searched_on_pixels(name, site)
        predicted_and_exported_alike(name, site)
        classifies(name, site)
