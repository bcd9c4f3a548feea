"""Why a hyperbolic head learns worse than STANDARD: one thing changed at a time, an equal search each.

    python benchmarks/hyperbolic.py FOLDER/cub-first-half.npz FOLDER/cub-second-half.npz --seeds 3

A file has X, y and test, a mask. Every row is searched with the engine's 16 candidates, which differ between
rows in the options of the head alone, and trained with each seed. Prints accuracy, NLL and NLL after one
temperature on the test rows, and R = √c‖z‖ of the middle test embedding, which says how curved the head's
space is where the data lie; writes results/benchmarks/hyperbolic.json.
"""

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from engine import load, measure
from records import git_commit, write_record
from spaceform.engine import Rows, finish, joined, parts_of, rehearse, search, space

CURVATURES = (1e-4, 1e-6, 1e-2)
ROWS: dict[str, tuple[str, dict[str, tuple[Any, ...]]]] = {
    "standard": ("standard", {}),
    "eq. 2": ("hyperbolic", {"curvature": CURVATURES, "scale": (4.0,)}),
    "scale 1": ("hyperbolic", {"curvature": CURVATURES, "scale": (1.0,)}),
    "scale 1, plain gradient": (
        "hyperbolic",
        {"curvature": CURVATURES, "scale": (1.0,), "riemannian_gradient": (False,)},
    ),
    "scale 1, clipped": (
        "hyperbolic",
        {"curvature": CURVATURES, "scale": (1.0,), "clip": (None, 10.0, 30.0)},
    ),
    "scale 1, c learned": (
        "hyperbolic",
        {"curvature": CURVATURES, "scale": (1.0,), "learn_curvature": (True,)},
    ),
    "scale 1, c = 1e-6": ("hyperbolic", {"curvature": (1e-6,), "scale": (1.0,)}),
    "scale 1, c = 1e-3": ("hyperbolic", {"curvature": (1e-3,), "scale": (1.0,)}),
    "scale 1, c = 1e-2": ("hyperbolic", {"curvature": (1e-2,), "scale": (1.0,)}),
    "lorentz": ("lorentz", {"curvature": CURVATURES}),
}
"""Title, head, and the values of its options, the first for every other candidate."""


def row(
    head: str,
    options: dict[str, tuple[Any, ...]],
    data: tuple[Rows, Rows, Rows, int],
    seeds: int,
    trials: int,
) -> dict[str, Any]:
    train, held_out, test, classes = data
    parts = parts_of(train, held_out, seed=0)
    rows = len(parts[0].train)
    candidates = space(head, train.x.shape[1], classes, rows, size=trials, searched=options)
    found = search(head, candidates, parts, classes=classes, seed=0)
    runs, radii = [], []
    for seed in range(seeds):
        fitted = rehearse(head, found.candidate, parts, seed=seed, classes=classes)
        model = finish(head, found.candidate, fitted, joined(train, held_out), seed=seed, classes=classes)
        runs.append(measure(model.logits(test.x), test, fitted.calibrator()))
        curvature = model.head.numbers().get("curvature", 0.0)
        radii.append(math.sqrt(curvature) * float(model.head.confidence(model.embed(test.x)).median()))
    errors = {
        f"{key}_error": statistics.stdev([run[key] for run in runs]) / math.sqrt(seeds)
        for key in runs[0]
        if seeds > 1
    }
    return {
        **{key: statistics.mean(run[key] for run in runs) for key in runs[0]},
        **errors,
        "held_out_nll": found.best.calibrated_nll,
        "radius": statistics.mean(radii),
        "candidate": found.candidate.to_dict(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("features", nargs="+", type=Path)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/hyperbolic.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    files = " ".join(f"FOLDER/{path.name}" for path in options.features)
    record: dict[str, Any] = {
        "command": f"benchmarks/hyperbolic.py {files} --seeds {options.seeds} --trials {options.trials} "
        f"--rows {' '.join(map(repr, options.rows))}",
        "commit": git_commit(),
        "seeds": options.seeds,
        "trials": options.trials,
        "sets": {},
    }
    if options.out.exists():  # what hyperbolic_pixels.py has found stays
        record |= {k: v for k, v in json.loads(options.out.read_text()).items() if k == "pixels"}
    for path in options.features:
        data = load(path.stem, path.parent)
        for title in options.rows:
            head, values = ROWS[title]
            began = time.process_time()
            found = row(head, values, data, options.seeds, options.trials)
            record["sets"].setdefault(path.stem, {})[title] = found
            print(
                f"{path.stem:18} {title:26} {found['accuracy']:6.2f} % NLL {found['nll']:.4f} "
                f"{found['calibrated_nll']:.4f} R {found['radius']:.2f} {found['candidate']['options']} "
                f"{time.process_time() - began:.0f} s",
                flush=True,
            )
            write_record(options.out, record)


if __name__ == "__main__":
    main()
