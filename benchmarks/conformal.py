"""Sets of classes: how often they hold the true one, and how large they are, beside MAPIE's and TorchCP's.

    python benchmarks/conformal.py --data FOLDER --cache CACHE digits mnist banking77

A set is `FOLDER/name.npz` as benchmarks/decisions_data.py makes it; CACHE keeps what heads say of its test
rows, as benchmarks/calibration.py does. These rows are split at random 100 times; half of them gives the
threshold for a coverage of 90 %, the other half judges. Of MAPIE and TorchCP those that are not installed are
left out. Writes results/benchmarks/conformal.json.
"""

import argparse
import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin

from calibration import said
from records import git_commit, versions, write_record
from spaceform.decisions import SETS
from spaceform.foundation.torchvision import ensure_torchvision
from spaceform.heads.base import log_mean_softmax

_SPLITS, _COVERAGE, _LEVEL = 100, 0.9, 1e-3
"""Sizes within a thousandth are equal."""


def torchcp_scores() -> dict[str, Any]:
    try:
        from torchcp.classification.score import APS, LAC, RAPS
    except ImportError:
        return {}
    raps = RAPS(randomized=False, penalty=0.01, kreg=5)
    return {"TorchCP LAC": LAC(), "TorchCP APS": APS(randomized=False), "TorchCP RAPS": raps}


class Said(ClassifierMixin, BaseEstimator):
    """For MAPIE: a model whose probabilities are its inputs."""

    def __init__(self, classes: int) -> None:
        self.classes = classes
        self.classes_ = np.arange(classes)

    def fit(self, X: np.ndarray, y: np.ndarray) -> "Said":  # noqa: ARG002
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        return X

    def predict(self, X: np.ndarray) -> np.ndarray:
        return X.argmax(1)

    def __sklearn_is_fitted__(self) -> bool:
        return True


def mapie_sets(p: torch.Tensor, y: torch.Tensor, new: torch.Tensor) -> dict[str, torch.Tensor]:
    try:
        from mapie.classification import SplitConformalClassifier
    except ImportError:
        return {}
    found = {}
    for kind in ("lac", "aps", "raps"):
        model = SplitConformalClassifier(
            Said(p.shape[1]), confidence_level=_COVERAGE, conformity_score=kind, prefit=True, random_state=0
        )
        try:
            model.conformalize(p.numpy(), y.numpy())
        except ValueError:  # its RAPS puts a fifth of the items aside, which needs one of each class
            continue
        found[f"MAPIE {kind.upper()}"] = torch.from_numpy(model.predict_set(new.numpy())[1][:, :, 0])
    return found


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of `predict --coverage`, which takes LAC, and of the norm-aware sets."""
    kinds = dict.fromkeys(kind for row in rows.values() for kind in row)
    theirs = [kind for kind in kinds if kind.startswith(("MAPIE", "TorchCP"))]
    least = (
        {run: min(row[n]["size"] for n in theirs if n in row) for run, row in rows.items()} if theirs else {}
    )

    own = {kind: [row for row in rows.values() if kind in row] for kind in kinds}
    return {
        "runs": len(rows),
        "furthest_from_coverage": {
            kind: max(abs(row[kind]["coverage"] - _COVERAGE) for row in found) for kind, found in own.items()
        },
        "share_no_larger_than_the_least_of_theirs": {
            kind: float(np.mean([rows[run][kind]["size"] <= least[run] * (1 + _LEVEL) for run in least]))
            for kind in SETS
        },
        "share_no_larger_than_each_of_theirs": {
            n: float(np.mean([row["lac"]["size"] <= row[n]["size"] * (1 + _LEVEL) for row in own[n]]))
            for n in theirs
        },
        "mean_size": {
            kind: float(np.mean([row[kind]["size"] for row in found])) for kind, found in own.items()
        },
    }


def split_row(
    p: torch.Tensor, y: torch.Tensor, κ: torch.Tensor, order: torch.Tensor, peers: dict[str, Any]
) -> dict[str, tuple[float, float]]:
    """Coverage and mean size, for each kind of sets."""
    known, new = order[: len(order) // 2], order[len(order) // 2 :]
    members: dict[str, torch.Tensor] = {}
    for name, kind in SETS.items():
        members[name] = kind(_COVERAGE).fit(p[known], y[known], κ[known])(p[new], κ[new])
    for name, score in peers.items():
        from torchcp.classification.predictor import SplitPredictor

        predictor = SplitPredictor(score, alpha=1 - _COVERAGE)
        predictor.calculate_threshold(p[known].log(), y[known], 1 - _COVERAGE)
        members[name] = predictor.predict_with_logits(p[new].log()).bool()
    members |= mapie_sets(p[known], y[known], p[new])
    held = {name: m.gather(1, y[new, None]).double().mean().item() for name, m in members.items()}
    return {name: (held[name], m.sum(1).double().mean().item()) for name, m in members.items()}


def run_row(found: dict[str, np.ndarray], peers: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Means over the splits."""
    p = log_mean_softmax(torch.from_numpy(found["L_test"]).double()).exp()
    p = p / p.sum(1, keepdim=True)
    y, κ = (torch.from_numpy(found[key]) for key in ("y_test", "k_test"))
    g = torch.Generator().manual_seed(0)
    splits = [split_row(p, y, κ, torch.randperm(len(y), generator=g), peers) for _ in range(_SPLITS)]
    means = {kind: np.mean([s[kind] for s in splits], 0).tolist() for kind in splits[0]}
    return {kind: dict(zip(("coverage", "size"), mean, strict=True)) for kind, mean in means.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--heads", nargs="+", default=["cosine", "vmf"])
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/conformal.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ensure_torchvision()
    peers = torchcp_scores()
    written = json.loads(given.out.read_text()) if given.out.exists() else {}
    rows: dict[str, dict[str, Any]] = written.get("runs", {})
    for name, head in itertools.product(given.sets, given.heads):
        if f"{name} {head}" in rows:
            continue
        row = run_row(said(name, head, 0, given.data, given.cache), peers)
        rows[f"{name} {head}"] = row
        print(name, head, {k: f"{v['coverage']:.4f} {v['size']:.3f}" for k, v in row.items()}, flush=True)
        written = {
            "command": f"python benchmarks/conformal.py --data FOLDER --cache CACHE {' '.join(given.sets)} "
            f"--heads {' '.join(given.heads)}",
            "commit": git_commit(),
            "versions": versions("torch", "mapie", "torchcp"),
            "coverage": _COVERAGE,
            "splits": _SPLITS,
            "summary": summary(rows),
            "runs": rows,
        }
        write_record(given.out, written)
    print(json.dumps(written["summary"], indent=1))


if __name__ == "__main__":
    main()
