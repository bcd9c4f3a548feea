"""Same or not, on classes that nothing was fitted to: ours beside the cosine with logistic calibration.

    python benchmarks/verification.py --data FOLDER cub-second-half cars-second-half clinc150-small banking77

A set is `FOLDER/name.npz` with X and y: embeddings of a pretrained net. The first half of the classes
calibrates, the second half judges. Cllr is the cost of the stated ratios, its least value what the best
monotone map of them would cost. Writes results/benchmarks/verification.json.
"""

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from spaceform.decisions import VonMisesFisherPairs
from spaceform.decisions._pairs_fit import pair_rows
from spaceform.metrics import accept_threshold, cllr, eer, min_cllr

_RATES = (0.01, 0.001)


def cosine_ratio(z: torch.Tensor, y: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Cosines of pairs, and which are same."""
    first, second, same = pair_rows(y)
    unit = torch.nn.functional.normalize(z, dim=-1)
    return (unit[first] * unit[second]).sum(-1).numpy(), same.numpy()


def measured(ratio: torch.Tensor, same: torch.Tensor, different: torch.Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cllr": float(cllr(ratio, same)),
        "min_cllr": float(min_cllr(ratio, same)),
        "eer": float(eer(ratio, same)),
    }
    found["cllr_over_min"] = found["cllr"] / found["min_cllr"]
    n = int((~same).sum())
    for rate in _RATES:
        k = int((ratio[~same] >= accept_threshold(different, rate)).sum())
        found[f"false_accept_at_{rate:g}"] = k / n
    return found


def set_row(path: Path) -> dict[str, Any]:
    with np.load(path) as saved:
        z, y = torch.from_numpy(saved["X"].astype(np.float64)), torch.from_numpy(saved["y"])
    seen = y < (int(y.max()) + 1) // 2
    began = time.process_time()
    ours = VonMisesFisherPairs().fit(z[seen], y[seen])
    seconds = time.process_time() - began
    ratio, same = ours.of_labelled(z[~seen], y[~seen])
    x, known = cosine_ratio(z[seen], y[seen])
    usual = LogisticRegression(C=1e6, class_weight="balanced").fit(x[:, None], known)
    new, _ = cosine_ratio(z[~seen], y[~seen])
    lines = [torch.from_numpy(usual.decision_function(v[:, None])) for v in (new, x[~known])]
    return {
        "classes": int(y.max()) + 1,
        "same_pairs": int(same.sum()),
        "different_pairs": int((~same).sum()),
        "fit_seconds": seconds,
        "exponent_of_the_norm": float(ours.shape[1].clamp_min(0)),
        "ours": measured(ratio, same, ours.different),
        "cosine with logistic calibration": measured(lines[0], same, lines[1]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/verification.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name in given.sets:
        rows[name] = set_row(given.data / f"{name}.npz")
        print(name, json.dumps(rows[name], indent=1), flush=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    written = {
        "command": f"python benchmarks/verification.py --data FOLDER {' '.join(given.sets)}",
        "commit": commit,
        "sets": rows,
    }
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
