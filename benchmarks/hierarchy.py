"""How far from the right class mistakes lie where classes form a tree, for each head after an equal search.

    python benchmarks/hierarchy.py FOLDER/tree.npz FOLDER/trec50.npz FOLDER/clinc150.npz --seeds 3 --trials 8

NAME.npz has X, y (from 0, in the order of the sorted names) and test, a mask; NAME.json the groups of each
class from the root down (benchmarks/hierarchy_data.py makes both). Classes of one group are 2 edges apart.
`dims` are coordinates of the embedding: 0 leaves them to the search, any other number holds for all of its
candidates. For each row: accuracy, the share of mistakes that go to a class of the same group, the mean
distance of mistakes, and the expected distance of the probability from the right class, each a mean over
seeds with its standard error; R = √c‖z‖ of the middle test embedding says how curved the space is there.
`at_random` is the mean distance of a mistake that falls on any other class. Goes on where it was stopped;
writes results/benchmarks/hierarchy.json.
"""

import argparse
import json
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from engine import load
from records import git_commit, write_record
from spaceform import metrics
from spaceform.engine import Rows, finish, joined, parts_of, rehearse, search, space
from spaceform.heads.base import log_mean_softmax

CURVED = {"curvature": (1.0, 0.1), "clip": (None, 2.0)}
ROWS: dict[str, tuple[str, dict[str, tuple[Any, ...]] | None]] = {
    "standard": ("standard", None),
    "hyperbolic": ("hyperbolic", None),
    "hyperbolic, curved": ("hyperbolic", {**CURVED, "scale": (1.0,)}),
    "lorentz": ("lorentz", None),
    "lorentz, curved": ("lorentz", CURVED),
    "cosine": ("cosine", None),
    "arcface": ("arcface", None),
    "vmf": ("vmf", None),
}
"""Title, head, and the values of its options that are searched; None: what `compare` searches."""


def measure(log_p: torch.Tensor, y: torch.Tensor, distances: torch.Tensor) -> dict[str, float]:
    found = log_p.argmax(1)
    wrong = found != y
    return {
        "accuracy": 100 * float(metrics.accuracy(log_p, y)),
        "same_group": 100 * float((distances[found[wrong], y[wrong]] == 2).double().mean()),
        "mistake_distance": float(metrics.mistake_distance(log_p, y, distances)),
        "expected_distance": float(metrics.expected_tree_distance(log_p.exp(), y, distances)),
    }


def row_of(
    title: str,
    data: tuple[Rows, Rows, Rows, int],
    distances: torch.Tensor,
    dim: int,
    seeds: int,
    trials: int,
) -> dict[str, Any]:
    head, searched = ROWS[title]
    train, held_out, test, classes = data
    parts = parts_of(train, held_out, seed=0)
    rows = len(parts[0].train)
    candidates = space(head, train.x.shape[1], classes, rows, size=trials, searched=searched)
    if dim:
        candidates = [replace(candidate, dim=dim) for candidate in candidates]
    found = search(head, candidates, parts, classes=classes, seed=0)
    runs = []
    for seed in range(seeds):
        fitted = rehearse(head, found.candidate, parts, seed=seed, classes=classes)
        model = finish(head, found.candidate, fitted, joined(train, held_out), seed=seed, classes=classes)
        calibrated = fitted.calibrator()(model.logits(test.x))
        run = measure(log_mean_softmax(calibrated[None]), test.y, distances)
        curvature = model.head.numbers().get("curvature", 0.0)
        run["radius"] = math.sqrt(curvature) * float(model.head.confidence(model.embed(test.x)).median())
        runs.append(run)
    return {
        "row": title,
        "dim": dim,
        "held_out_nll": found.best.calibrated_nll,
        "candidate": found.candidate.to_dict(),
        **{
            key: {
                "mean": statistics.mean(run[key] for run in runs),
                "error": statistics.stdev([run[key] for run in runs]) / seeds**0.5 if seeds > 1 else None,
            }
            for key in runs[0]
        },
    }


def said(row: dict[str, Any]) -> str:
    means = [
        f"{key} {value['mean']:.3f}" + (f" ± {value['error']:.3f}" if value["error"] is not None else "")
        for key, value in row.items()
        if isinstance(value, dict) and "mean" in value
    ]
    return f"{row['row']:20} {row['dim']:3} {'  '.join(means)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("features", nargs="+", type=Path)
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--dims", nargs="+", type=int, default=[0, 8])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/hierarchy.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "command": f"benchmarks/hierarchy.py {' '.join(f'FOLDER/{path.name}' for path in options.features)} "
        f"--dims {' '.join(map(str, options.dims))} --seeds {options.seeds} --trials {options.trials}",
        "commit": git_commit(),
        "torch": torch.__version__,
        "sets": {},
    }
    if options.out.exists():
        record["sets"] = json.loads(options.out.read_text())["sets"]
    for dim in options.dims:
        for path in options.features:
            data = load(path.stem, path.parent)
            groups = json.loads(path.with_suffix(".json").read_text())
            distances = metrics.tree_distances([groups[name] for name in sorted(groups)])
            others = distances[~torch.eye(len(distances), dtype=torch.bool)]
            found = record["sets"].setdefault(path.stem, {"at_random": float(others.mean()), "rows": []})
            for title in options.rows:
                if any(row["row"] == title and row["dim"] == dim for row in found["rows"]):
                    continue
                found["rows"].append(row_of(title, data, distances, dim, options.seeds, options.trials))
                print(f"{path.stem:10} {said(found['rows'][-1])}", flush=True)
                write_record(options.out, record)


if __name__ == "__main__":
    main()
