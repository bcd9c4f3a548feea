"""Sets of classes: how often they hold the true one, and how large they are, beside TorchCP's.

    python benchmarks/conformal.py --cache CACHE

CACHE is what benchmarks/calibration.py keeps: what heads say of the test rows of real data sets. These rows
are split at random 100 times; half of them gives the threshold for a coverage of 90 %, the other half judges.
Without TorchCP its columns are left out. Writes results/benchmarks/conformal.json.
"""

import argparse
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import torch

from spaceform.decisions import SETS
from spaceform.heads.base import log_mean_softmax

_SPLITS, _COVERAGE = 100, 0.9


def torchcp_scores() -> dict[str, Any]:
    try:
        from torchcp.classification.score import APS, LAC, RAPS
    except ImportError:
        return {}
    raps = RAPS(randomized=False, penalty=0.01, kreg=5)
    return {"TorchCP LAC": LAC(), "TorchCP APS": APS(randomized=False), "TorchCP RAPS": raps}


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
    held = {name: m.gather(1, y[new, None]).double().mean().item() for name, m in members.items()}
    return {name: (held[name], m.sum(1).double().mean().item()) for name, m in members.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--heads", nargs="+", default=["cosine", "vmf"])
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/conformal.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    peers, rows = torchcp_scores(), {}
    paths = [given.cache / path.name for path in sorted(given.cache.glob("*-0.npz"))]
    for path in paths:
        name, head, _ = path.stem.rsplit("-", 2)
        if head not in given.heads:
            continue
        with np.load(path) as saved:
            p = log_mean_softmax(torch.from_numpy(saved["L_test"]).double()).exp()
            y, κ = (torch.from_numpy(saved[key]) for key in ("y_test", "k_test"))
        g = torch.Generator().manual_seed(0)
        splits = [split_row(p, y, κ, torch.randperm(len(y), generator=g), peers) for _ in range(_SPLITS)]
        rows[f"{name} {head}"] = {
            kind: dict(zip(("coverage", "size"), np.mean([s[kind] for s in splits], 0).tolist(), strict=True))
            for kind in splits[0]
        }
        said = {k: f"{v['coverage']:.4f} {v['size']:.3f}" for k, v in rows[f"{name} {head}"].items()}
        print(name, head, len(y), said, flush=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    written = {
        "command": f"python benchmarks/conformal.py --cache CACHE --heads {' '.join(given.heads)}",
        "commit": commit,
        "coverage": _COVERAGE,
        "splits": _SPLITS,
        "furthest_from_coverage": max(
            abs(r["coverage"] - _COVERAGE)
            for row in rows.values()
            for k, r in row.items()
            if k in ("lac", "norm_aware")
        ),
        "runs": rows,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
