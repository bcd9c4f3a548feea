"""Training steps that try to break every head.

    python benchmarks/fuzz.py [--steps 10000] [--heads cosine vmf] [--seed 0]

Embeddings of size 1e-6 to 3e38 in float32, bfloat16 and float16, rates to 1, curvature 1e-6 to 10, β to
1,000, a new head every 25 steps. Prints how many steps of each head had a value, gradient, parameter or
probability that was not finite, and the first of them; writes results/benchmarks/fuzz.json. The gradient of
a float16 embedding may be infinite, which is what a GradScaler looks for, but not NaN.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "heads"))
from fuzz import HEADS, broken


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--heads", nargs="+", choices=list(HEADS), default=list(HEADS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/fuzz.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    heads = " ".join(options.heads)
    record: dict[str, Any] = {
        "command": f"benchmarks/fuzz.py --steps {options.steps} --seed {options.seed} --heads {heads}",
        "commit": commit.stdout.strip(),
        "torch": torch.__version__,
        "steps": options.steps,
        "broken": {},
    }
    worst = 0
    for name in options.heads:
        found = broken(name, options.steps, options.seed)
        worst = max(worst, len(found))
        print(f"{name}: {len(found)} of {options.steps} steps broke", *found[:1], sep="\n  ", flush=True)
        record["broken"][name] = {"steps": len(found), "first": found[:1]}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return worst > 0


if __name__ == "__main__":
    sys.exit(main())
