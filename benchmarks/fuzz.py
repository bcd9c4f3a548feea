"""Training steps that try to break every head.

    python benchmarks/fuzz.py [--steps 10000] [--heads cosine vmf] [--seed 0]

Embeddings of norm 1e-6 to 1e6 and with coordinates of 3e38, SGD and Adam at rates to 1, curvature 1e-6 to 10,
β to 1,000, one to three centres, labels that are hard, soft, smoothed, weighted or ignored, classes whole or
in blocks, a new head every 25 steps: `--steps` of them in float32, as many under bfloat16 autocast and as
many under float16 autocast. Prints how many steps of each head had a value, gradient, parameter or
probability that was not finite, and the first of them; writes results/benchmarks/fuzz.json, and goes on where
it was stopped. The gradient of a float16 embedding may be infinite, which is what a GradScaler looks for, but
not NaN.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from records import git_commit, write_record

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "heads"))
from fuzz import DTYPES, HEADS, broken


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10_000, help="of each head and dtype")
    parser.add_argument("--heads", nargs="+", choices=list(HEADS), default=list(HEADS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/fuzz.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "command": f"benchmarks/fuzz.py --steps {options.steps} --seed {options.seed}",
        "commit": git_commit(),
        "torch": torch.__version__,
        "heads": {},
    }
    if options.out.exists():
        before = json.loads(options.out.read_text())
        if all(before[key] == record[key] for key in ("command", "commit", "torch")):
            record = before
    worst = 0
    for name in options.heads:
        for dtype in DTYPES:
            cell = record["heads"].setdefault(name, {})
            if dtype not in cell:
                bad = broken(name, dtype, options.steps, options.seed)
                cell[dtype] = {"steps": options.steps, "broken": len(bad), "first": bad[:1]}
                write_record(options.out, record)
            worst = max(worst, cell[dtype]["broken"])
            line = f"{name}, {dtype}: {cell[dtype]['broken']} of {options.steps} steps broke"
            print(line, *cell[dtype]["first"], sep="\n  ", flush=True)
    return worst > 0


if __name__ == "__main__":
    sys.exit(main())
