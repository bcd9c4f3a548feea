"""`SpaceformClassifier` beside `LogisticRegression`: accuracy, calibration, and the time to fit.

    python benchmarks/estimator.py tune [--features cub200-resnet50.npz]
    python benchmarks/estimator.py report [--features cub200-resnet50.npz] [--heads cosine vmf] [--json FILE]

With `--features` (an .npz of X and y) on these, else on sets that come with scikit-learn. The defaults were
chosen on data that `report` never tests on; `tune` prints figures of that kind for the options weighed:

- digits: a stratified half of the rows. `report` tests on the other half.
- wine, breast cancer, and a synthetic set: `report` has none of them.
- features: every tenth class, and for the width of the embedding those with y % 5 == 2. `report` has other
  classes, those with y % 5 == 1.

`tune` fits on two thirds of such a part and scores the last third. `report` cross-validates in three folds:
each fold of the fresh half of digits is tested once, and all other rows train; of the features, all rows of
the fresh classes are tested once. An accuracy's standard error is that of a mean over the tested rows, and so
is that of the difference to LogisticRegression, row by row. Times are of the processor, in one process on one
thread. LogisticRegression has standardised features and its own defaults.
"""

import argparse
import json
import math
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import sklearn
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine, make_classification
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from spaceform import HEADS, SpaceformClassifier, __version__, metrics

HALVES = 2026  # the seed that parts digits into the half to tune on and the fresh half
OPTIONS = {"hidden": (0, "auto"), "dropout": (0.0, 0.3, 0.5), "lr": (0.001, 0.003, 0.01)}

Make = Callable[[int], object]
Split = tuple[np.ndarray, np.ndarray]


def logistic(_: int) -> object:
    """The peer."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))


def halves(y: np.ndarray) -> Split:
    """Rows to tune on, and fresh ones."""
    tuned, fresh = train_test_split(np.arange(len(y)), test_size=0.5, stratify=y, random_state=HALVES)
    return tuned, fresh


def features(path: Path) -> Split:
    """X, y."""
    with np.load(path) as archive:
        return archive["X"].astype(np.float32), archive["y"]


def to_tune_on(path: Path | None) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Data sets that `report` never tests on."""
    if path is not None:
        X, y = features(path)
        yield f"{path.name}, every tenth class", X[y % 10 == 0], y[y % 10 == 0]
        yield f"{path.name}, 40 further classes", X[y % 5 == 2], y[y % 5 == 2]
        return
    X, y = load_digits(return_X_y=True)
    tuned, _ = halves(y)
    yield "digits, one half", X[tuned].astype(np.float32), y[tuned]
    X, y = load_wine(return_X_y=True)
    yield "wine", X.astype(np.float32), y
    X, y = load_breast_cancer(return_X_y=True)
    yield "breast cancer", X.astype(np.float32), y
    X, y = make_classification(
        2000, 20, n_informative=10, n_classes=5, flip_y=0.05, class_sep=1.5, random_state=0
    )
    yield "synthetic", X.astype(np.float32), y


def to_report_on(path: Path | None) -> Iterator[tuple[str, np.ndarray, np.ndarray, list[Split]]]:
    """(name, X, y, [(train, test)])."""
    if path is not None:
        X, y = features(path)
        X, y = X[y % 5 == 1], y[y % 5 == 1]
        folds = StratifiedKFold(3, shuffle=True, random_state=7).split(X, y)
        yield f"{path.name}, {len(np.unique(y))} fresh classes", X, y, list(folds)
        return
    X, y = load_digits(return_X_y=True)
    tuned, fresh = halves(y)
    folds = StratifiedKFold(3, shuffle=True, random_state=7).split(fresh, y[fresh])
    yield (
        "digits, the fresh half",
        X.astype(np.float32),
        y,
        [(np.r_[tuned, fresh[a]], fresh[b]) for a, b in folds],
    )


def fit_and_predict(
    make: Make, X: np.ndarray, y: np.ndarray, train: np.ndarray, test: np.ndarray, seed: int
) -> tuple[np.ndarray, float]:
    """Probabilities of the test rows, and the processor's seconds of the fit."""
    model = make(seed)
    begun = time.process_time()
    model.fit(X[train], y[train])
    seconds = time.process_time() - begun
    return np.asarray(model.predict_proba(X[test]), dtype=np.float64), seconds


def figures(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Of probabilities `p` of the sorted classes."""
    probabilities, labels = torch.from_numpy(p), torch.from_numpy(np.searchsorted(np.unique(y), y))
    return {
        "accuracy": float(metrics.accuracy(probabilities, labels)),
        "nll": float(metrics.nll(probabilities.clamp_min(1e-15).log(), labels)),
        "calibration_error_l2": float(metrics.calibration_error(probabilities, labels, norm="l2")),
        "calibration_error_l1": float(metrics.calibration_error(probabilities, labels, norm="l1")),
    }


def tune(path: Path | None) -> None:
    """Print accuracy and log-loss of every choice of the options, by data set."""
    choices: dict[str, Make] = {"LogisticRegression()": logistic}
    for values in product(*OPTIONS.values()):
        chosen = dict(zip(OPTIONS, values, strict=True))
        choices[str(chosen)] = lambda seed, chosen=chosen: SpaceformClassifier(random_state=seed, **chosen)
    for dim in (64, 256, 512) if path is not None else ():
        choices[f"{{'hidden': 0, 'dim': {dim}}}"] = lambda seed, dim=dim: SpaceformClassifier(
            random_state=seed, hidden=0, dim=dim
        )
    for name, X, y in to_tune_on(path):
        print(f"\n{name}: {X.shape[0]:,} x {X.shape[1]:,}\n\n| options | accuracy | NLL |")
        print("| --- | ---: | ---: |")
        for choice, make in choices.items():
            found = []
            for seed in range(3):
                rows = train_test_split(np.arange(len(y)), test_size=1 / 3, stratify=y, random_state=seed)
                found.append(figures(fit_and_predict(make, X, y, *rows, seed)[0], y[rows[1]]))
            accuracy, nll = (np.mean([f[key] for f in found]) for key in ("accuracy", "nll"))
            print(f"| {choice} | {accuracy:.4f} | {nll:.3f} |", flush=True)


def report(path: Path | None, heads: list[str]) -> dict[str, object]:
    """Print a table for each data set, and return the figures."""
    models: dict[str, Make] = {"LogisticRegression()": logistic}
    for head in heads:
        models[f"SpaceformClassifier({head!r})"] = lambda seed, head=head: SpaceformClassifier(
            head, random_state=seed
        )
    results: dict[str, object] = {}
    for name, X, y, folds in to_report_on(path):
        truth = np.concatenate([y[test] for _, test in folds])
        size = f"{len(truth):,} rows tested, {len(folds[0][0]):,} trained on, {X.shape[1]:,} features"
        print(f"\n{name}: {size}\n")
        print("| model | accuracy | difference | NLL | calibration error, l2 | l1 | fit, ratio | fit, s |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        classes = np.unique(y)
        table: dict[str, dict[str, float]] = {}
        peer = np.empty(0)
        for model, make in models.items():
            found = [fit_and_predict(make, X, y, *fold, 100 + i) for i, fold in enumerate(folds)]
            p, seconds = np.concatenate([part for part, _ in found]), sum(s for _, s in found)
            right = (classes[p.argmax(1)] == truth).astype(float)
            peer = peer if table else right
            n = math.sqrt(len(right))
            row = figures(p, truth) | {
                "accuracy_standard_error": right.std() / n,
                "difference": (right - peer).mean(),
                "difference_standard_error": (right - peer).std() / n,
                "fit_seconds": seconds / len(folds),
            }
            table[model] = {key: round(float(value), 5) for key, value in row.items()}
            ratio = row["fit_seconds"] / table["LogisticRegression()"]["fit_seconds"]
            table[model]["fit_ratio"] = round(ratio, 1)
            print(
                f"| `{model}` | {row['accuracy']:.4f} ± {row['accuracy_standard_error']:.4f} "
                f"| {row['difference']:+.4f} ± {row['difference_standard_error']:.4f} | {row['nll']:.3f} "
                f"| {row['calibration_error_l2']:.4f} | {row['calibration_error_l1']:.4f} "
                f"| {ratio:.1f} | {row['fit_seconds']:.2f} |",
                flush=True,
            )
        results[name] = {"rows": len(truth), "models": table}
    return results


def main() -> None:
    """Tune, or report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["tune", "report"])
    parser.add_argument("--features", type=Path)
    parser.add_argument("--heads", nargs="*", default=list(HEADS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.what == "tune":
        tune(options.features)
        return
    results = report(options.features, options.heads)
    if options.json is None:
        return
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    named = [options.features.name if a == str(options.features) else a for a in sys.argv[1:]]
    run = {
        "command": " ".join(["python benchmarks/estimator.py", *named]),
        "commit": git.stdout.strip(),
        "versions": {
            "spaceform": __version__,
            "torch": torch.__version__,
            "scikit-learn": sklearn.__version__,
            "python": platform.python_version(),
        },
        **results,
    }
    earlier = json.loads(options.json.read_text()) if options.json.exists() else []
    kept = [other for other in earlier if other["command"] != run["command"]]
    options.json.write_text(json.dumps([*kept, run], indent=1) + "\n")


if __name__ == "__main__":
    main()
