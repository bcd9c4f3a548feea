"""`SpaceformClassifier` beside what people would use instead: accuracy, calibration, and the time to fit.

    python benchmarks/estimator.py digits wine [--heads cosine vmf] [--repeats 3]
    python benchmarks/estimator.py --data FOLDER banking77 pendigits --out results/benchmarks/estimator.json

A set is one of scikit-learn's, or `FOLDER/name.npz` with X, y and test (a mask). Every model is fitted on the
other rows with its own defaults and tested on those: scikit-learn's `LogisticRegression` (max_iter=1000) and
`KNeighborsClassifier` on standardised features and, for tables, `HistGradientBoostingClassifier`. Models take
turns, `repeats` times with other seeds; metrics are means, seconds are the median of the processor's, in one
process on one thread. No probability is taken for less than 1e-6. The record says which sets no default was
chosen on, and keeps the sets that are not measured anew.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from records import git_commit, versions, write_record
from spaceform import HEADS, SpaceformClassifier, __version__, metrics
from spaceform.engine import Columns, Rows

Make = Callable[[int], Any]

FRESH = (
    *("dry_bean", "clinc150-small", "cars-second-half", "bank", "sonar", "churn", "mammography"),
    *("banknote", "pima", "abalone-age", "mfeat-zernike", "spambase", "page-blocks", "splice"),
)
"""No default was chosen on these."""

_BUILT_IN = {"digits": datasets.load_digits, "wine": datasets.load_wine}


def load(name: str, folder: Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """X, y and the mask of the test rows."""
    if folder is not None and (folder / f"{name}.npz").exists():
        found = np.load(folder / f"{name}.npz")
        return found["X"], found["y"], found["test"]
    X, y = _BUILT_IN[name](return_X_y=True)
    test = np.zeros(len(y), bool)
    test[train_test_split(np.arange(len(y)), test_size=0.25, stratify=y, random_state=0)[1]] = True
    return X.astype(np.float32), y, test


def models(table: bool, heads: list[str]) -> dict[str, Make]:
    """Makers of a model from a seed."""
    peers: dict[str, Make] = {
        "LogisticRegression": lambda _: make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "KNeighborsClassifier": lambda _: make_pipeline(StandardScaler(), KNeighborsClassifier()),
    }
    if table:
        peers["HistGradientBoostingClassifier"] = lambda s: HistGradientBoostingClassifier(random_state=s)
    ours: dict[str, Make] = {
        f"SpaceformClassifier({head!r})": lambda s, head=head: SpaceformClassifier(head, random_state=s)
        for head in heads
    }
    return peers | ours


def measure(make: Make, seed: int, X: np.ndarray, y: np.ndarray, test: np.ndarray) -> dict[str, float]:
    """One fit: the processor's seconds, and the metrics of the test rows."""
    model = make(seed)
    begun = time.process_time()
    model.fit(X[~test], y[~test])
    seconds = time.process_time() - begun
    begun = time.process_time()
    p = np.asarray(model.predict_proba(X[test]), dtype=np.float64)
    predicted = time.process_time() - begun
    probabilities, labels = torch.from_numpy(p), torch.from_numpy(y[test])
    return {
        "accuracy": float(metrics.accuracy(probabilities, labels)),
        "nll": float(metrics.nll(probabilities.clamp_min(1e-6).log(), labels)),
        "calibration_error_l2": float(metrics.calibration_error(probabilities, labels, norm="l2")),
        "fit_seconds": seconds,
        "predict_seconds": predicted,
    }


def report(name: str, folder: Path | None, heads: list[str], repeats: int) -> dict[str, Any]:
    """All models on one set, in turn."""
    X, y, test = load(name, folder)
    made = models(Columns.of(Rows.of(X[~test], y[~test])).table, heads)
    runs: dict[str, list[dict[str, float]]] = {model: [] for model in made}
    for seed in range(repeats):
        for model, make in made.items():
            runs[model].append(measure(make, seed, X, y, test))
    rows = {model: _summary(found) for model, found in runs.items()}
    for row in rows.values():
        row["fit_ratio"] = row["fit_seconds"] / rows["LogisticRegression"]["fit_seconds"]
    shape = {"rows": int((~test).sum()), "tested": int(test.sum()), "features": X.shape[1]}
    return {**shape, "classes": int(y.max()) + 1, "fresh": name in FRESH, "models": rows}


def _summary(runs: list[dict[str, float]]) -> dict[str, float]:
    def of(key: str) -> float:
        values = [run[key] for run in runs]
        return statistics.median(values) if key.endswith("seconds") else statistics.mean(values)

    return {key: of(key) for key in runs[0]}


def _earlier(out: Path | None) -> dict[str, Any]:
    """What the file says already: sets that are not measured anew stay."""
    if out is None or not out.exists():
        return {"sets": {}}
    found: dict[str, Any] = json.loads(out.read_text("utf-8"))
    return found


def _circumstances() -> dict[str, Any]:
    packages = versions("torch", "scikit-learn")
    return {"commit": git_commit(), "spaceform": __version__, **packages, "python": platform.python_version()}


def main() -> None:
    """Print a table; write the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--heads", nargs="+", choices=list(HEADS), default=["cosine", "vmf"])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = _earlier(options.out)
    for name in options.sets:
        found = report(name, options.data, options.heads, options.repeats)
        given = f"{name} --heads {' '.join(options.heads)} --repeats {options.repeats}"
        record["sets"][name] = {
            "command": f"python benchmarks/estimator.py --data FOLDER {given}",
            **_circumstances(),
            **found,
        }
        for model, row in record["sets"][name]["models"].items():
            print(
                f"{name:18} {model:32} {100 * row['accuracy']:6.2f} % NLL {row['nll']:.4f} "
                f"ECE {row['calibration_error_l2']:.4f} fit {row['fit_seconds']:7.2f} s "
                f"({row['fit_ratio']:.1f}) predict {row['predict_seconds']:.2f} s",
                flush=True,
            )
        if options.out is not None:
            write_record(options.out, record)


if __name__ == "__main__":
    main()
