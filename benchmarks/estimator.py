"""`SpaceformClassifier` beside `LogisticRegression`: accuracy, calibration, and the time to fit.

    python benchmarks/estimator.py [features.npz]

Digits come with scikit-learn; a second data set is an .npz of features X and labels y. A stratified third is
the test part. `LogisticRegression` is given standardised features, its default C and the C of the best
validated log-loss of {0.01, 0.1, 1}; the time of that search is not counted. Times are minima over the seeds,
in one process on one thread, as a ratio to LogisticRegression with its default C.
"""

import argparse
import time
import warnings

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from spaceform import HEADS, SpaceformClassifier, metrics


def compare(name: str, X: np.ndarray, y: np.ndarray, heads: list[str], seeds: int) -> None:
    """Print one table."""
    print(f"\n{name}: {X.shape[0]:,} x {X.shape[1]:,}, {len(np.unique(y))} classes, {seeds} seeds\n")
    print("| model | accuracy | NLL | calibration error, l2 | l1 | fit, ratio | fit, s |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    parts = [train_test_split(X, y, test_size=1 / 3, stratify=y, random_state=seed) for seed in range(seeds)]

    def logistic(C: float) -> object:
        return make_pipeline(StandardScaler(), LogisticRegression(C=C, max_iter=2000))

    x, _, target, _ = parts[0]
    inner = train_test_split(x, target, test_size=0.2, stratify=target, random_state=0)
    scores = {
        C: log_loss(inner[3], logistic(C).fit(inner[0], inner[2]).predict_proba(inner[1]))
        for C in (0.01, 0.1, 1)
    }
    best = min(scores, key=scores.get)
    models = {"LogisticRegression()": lambda _: logistic(1.0)}
    if best != 1:
        models[f"LogisticRegression(C={best})"] = lambda _: logistic(best)
    for head in heads:
        models[f"SpaceformClassifier({head!r})"] = lambda seed, head=head: SpaceformClassifier(
            head, random_state=seed
        )
    rows: dict[str, list[tuple[float, ...]]] = {model: [] for model in models}
    for seed, (x, x_test, target, truth) in enumerate(parts):
        for model, make in models.items():
            estimator = make(seed)
            begun = time.perf_counter()
            estimator.fit(x, target)
            seconds = time.perf_counter() - begun
            p = torch.from_numpy(np.asarray(estimator.predict_proba(x_test), dtype=np.float64))
            t = torch.from_numpy(np.searchsorted(np.unique(y), truth))
            errors = [metrics.calibration_error(p, t, norm=norm) for norm in ("l2", "l1")]
            rows[model].append(
                (metrics.accuracy(p, t), metrics.nll(p.clamp_min(1e-15).log(), t), *errors, seconds)
            )
    base = min(row[-1] for row in rows["LogisticRegression()"])
    for model, found in rows.items():
        a = np.array([[float(v) for v in row] for row in found])
        m, s = a.mean(0), a.std(0) / len(a) ** 0.5
        print(
            f"| `{model}` | {m[0]:.4f} ± {s[0]:.4f} | {m[1]:.3f} | {m[2]:.4f} | {m[3]:.4f} "
            f"| {a[:, -1].min() / base:.2f} | {a[:, -1].min():.1f} |",
            flush=True,
        )


def main() -> None:
    """Digits, and the given features."""
    parser = argparse.ArgumentParser()
    parser.add_argument("features", nargs="?")
    parser.add_argument("--heads", nargs="*", default=list(HEADS))
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    X, y = load_digits(return_X_y=True)
    compare("digits", X.astype(np.float32), y, options.heads, options.seeds)
    if options.features:
        with np.load(options.features) as archive:
            compare(
                options.features.rsplit("/", 1)[-1],
                archive["X"].astype(np.float32),
                archive["y"],
                options.heads,
                options.seeds,
            )


if __name__ == "__main__":
    main()
