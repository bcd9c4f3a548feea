"""What can be measured of data before a head is trained: size, balance, and how the features lie.

And what the trained heads make of items of another set, which are of no class that they know.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spaceform import data
from spaceform.decisions.unknown import energy
from spaceform.heads import Head
from spaceform.metrics import ood_auroc
from spaceform.run.finished import Run
from spaceform.study.judge import JudgedRun

BLOCK = 500
"""Rows whose logits are held at once."""
POINTS, ROUNDS = 250, 8
"""Of a sample for the hyperbolicity, and how many samples there are."""
MOST = 4_000
"""Rows of the sample for the other measures."""
UNKNOWN = 1_000
"""Items of the other set."""


def measures(path: Path) -> dict[str, float]:
    """Of the training rows of a file of features; the columns are standardised for the distances."""
    found = data.load(path)
    assert isinstance(found.inputs, torch.Tensor)
    train = data.split(found).train
    x, y = found.inputs[train].double().numpy(), found.labels[train].numpy()
    counts = np.bincount(y)
    counts = counts[counts > 0]
    rng = np.random.default_rng(0)
    some = rng.permutation(len(train))[:MOST]
    x, y = x[some], y[some]
    spread = x.std(0)
    x = (x - x.mean(0))[:, spread > 0] / spread[spread > 0]
    norms = np.linalg.norm(x, axis=1)
    share = counts / counts.sum()
    within = sum(((x[y == c] - x[y == c].mean(0)) ** 2).sum() for c in np.unique(y))
    moments = x.T @ x if x.shape[1] < len(x) else x @ x.T  # with the same eigenvalues, but for zeros
    return {
        "classes": float(len(counts)),
        "columns": float(found.inputs.shape[1]),
        "rows": float(len(train)),
        "rows_a_class": float(len(train) / len(counts)),
        "imbalance": float(counts.max() / counts.min()),
        "evenness": float(-(share * np.log(share)).sum() / np.log(len(counts))),
        "delta": float(np.mean([relative_delta(_sample(x, rng)) for _ in range(ROUNDS)])),
        "norm_spread": float(norms.std() / norms.mean()),
        "between": float(1 - within / (x**2).sum()),
        "dimension": float(np.trace(moments) ** 2 / (moments**2).sum()),
    }


def _sample(x: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    return x[rng.permutation(len(x))[:POINTS]]


def relative_delta(x: NDArray[np.float64]) -> float:
    """2δ / diameter of points: 0 for a tree, at most 1 (Fournier et al. 2015), seen from one point.

    δ is the largest of min((x|y), (y|z)) − (x|z) over triples, with (x|y) half of d(x,w) + d(y,w) − d(x,y).
    """
    squares = (x**2).sum(1)
    distances = np.sqrt(np.maximum(squares[:, None] + squares - 2 * x @ x.T, 0))
    np.fill_diagonal(distances, 0)
    products = (distances[:1] + distances[:, :1] - distances) / 2
    most = np.stack([np.minimum(row, products).max(1) for row in products])
    return float(2 * (most - products).max() / distances.max()) if distances.max() else 0.0


def add_unknown(rows: Sequence[dict[str, Any]], runs: Sequence[JudgedRun], other: Path) -> None:
    """Give the row of each run its AUROC of telling its test items from those of another set.

    `unknown_energy` is that of the energy, by which `spaceform predict --unknown` refuses, and
    `unknown_confidence` that of the norm.
    """
    foreign = data.load(other).inputs
    assert isinstance(foreign, torch.Tensor)
    some = torch.from_numpy(np.random.default_rng(0).permutation(len(foreign))[:UNKNOWN])
    for row, one in zip(rows, runs, strict=False):  # the references follow
        run = Run.load(one.folder)
        head = run.model.head
        with np.load(one.folder / "outputs.npz", allow_pickle=False) as kept:
            own = torch.from_numpy(kept["embeddings"])
        with torch.inference_mode():
            z = run.embed(foreign[some])
            energies = [_energy(head, part) for part in (own, z)]
            norms = [head.confidence(part) for part in (own, z)]
        row["unknown_energy"] = float(ood_auroc(*energies))
        row["unknown_confidence"] = float(ood_auroc(*norms))


def _energy(head: Head, z: torch.Tensor) -> torch.Tensor:
    return torch.cat([energy(head.logit_samples(part)) for part in z.split(BLOCK)])
