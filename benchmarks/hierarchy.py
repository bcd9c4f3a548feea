"""How far from the right class mistakes lie where classes form a tree, for each head after an equal search.

    python benchmarks/hierarchy.py FEATURES.npz GROUPS.json --seeds 3

FEATURES.npz has X, y (from 0, in the order of the sorted names) and test, a mask. GROUPS.json has a group's
name and its classes' names, as `data/domains.json` of clinc/oos-eval (CC BY 3.0). Classes of one group are 2
edges apart, others 4. Prints for each head accuracy, the share of mistakes that stay within the group, the
mean distance of mistakes and the expected distance of the probability from the right class, each a mean over
seeds with its standard error; writes results/benchmarks/hierarchy.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from engine import load
from spaceform import metrics
from spaceform.engine import Rows, finish, joined, parts_of, rehearse, search, space
from spaceform.heads.base import log_mean_softmax
from spaceform.study.plan import named_heads


def groups_of(path: Path) -> list[tuple[str]]:
    """The group of each class, in the order of the classes' names."""
    found = {name: (group,) for group, names in json.loads(path.read_text()).items() for name in names}
    return [found[name] for name in sorted(found)]


def measure(log_p: torch.Tensor, y: torch.Tensor, distances: torch.Tensor) -> dict[str, float]:
    severity = float(metrics.mistake_distance(log_p, y, distances))
    return {
        "accuracy": 100 * float(metrics.accuracy(log_p, y)),
        "within_group": 100 * (4 - severity) / 2,
        "mistake_distance": severity,
        "expected_distance": float(metrics.expected_tree_distance(log_p.exp(), y, distances)),
    }


def head_row(
    head: str, data: tuple[Rows, Rows, Rows, int], distances: torch.Tensor, seeds: int, trials: int
) -> dict[str, Any]:
    train, held_out, test, classes = data
    parts = parts_of(train, held_out, seed=0)
    candidates = space(head, train.x.shape[1], classes, len(parts[0].train), size=trials)
    found = search(head, candidates, parts, classes=classes, seed=0)
    runs = []
    for seed in range(seeds):
        fitted = rehearse(head, found.candidate, parts, seed=seed, classes=classes)
        rows = joined(train, held_out)
        model = finish(head, found.candidate, fitted, rows, seed=seed, classes=classes)
        calibrated = fitted.calibrator()(model.logits(test.x))
        runs.append(measure(log_mean_softmax(calibrated[None]), test.y, distances))
    return {
        "head": head,
        "candidate": found.candidate.to_dict(),
        **{
            key: {
                "mean": statistics.mean(run[key] for run in runs),
                "error": statistics.stdev([run[key] for run in runs]) / seeds**0.5 if seeds > 1 else None,
            }
            for key in runs[0]
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("features", type=Path)
    parser.add_argument("groups", type=Path)
    parser.add_argument("--heads", nargs="+", default=[*named_heads("default"), "lorentz"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/hierarchy.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = load(options.features.stem, options.features.parent)
    groups = groups_of(options.groups)
    if len(groups) != data[3]:
        raise SystemExit(f"{options.groups} names {len(groups)} classes, the features have {data[3]}")
    distances = metrics.tree_distances(groups)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    command = f"benchmarks/hierarchy.py {options.features.name} {options.groups.name}"
    record: dict[str, Any] = {
        "command": f"{command} --heads {' '.join(options.heads)} "
        f"--seeds {options.seeds} --trials {options.trials}",
        "commit": commit.stdout.strip(),
        "seeds": options.seeds,
        "trials": options.trials,
        "rows": [],
    }
    for head in options.heads:
        row = head_row(head, data, distances, options.seeds, options.trials)
        record["rows"].append(row)
        text = "  ".join(
            f"{key} {value['mean']:.3f}" + (f" ± {value['error']:.3f}" if value["error"] is not None else "")
            for key, value in row.items()
            if isinstance(value, dict) and "mean" in value
        )
        print(f"{head:16} {text}", flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
