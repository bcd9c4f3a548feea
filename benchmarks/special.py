"""Cost of the exact special functions over the paper's bounds, in one process on one thread.

    python benchmarks/special.py [--json FILE] [--elements N] [--repeats N]

Each ratio is the fastest of interleaved repeats of the exact function over that of the bounds.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from spaceform import special

DIMS = (2, 3, 8, 16, 128, 512, 2048)
METHODS = ("exact", "bounds")
FUNCTIONS = {"log_normalizer": special.log_normalizer, "mean_resultant_length": special.mean_resultant_length}
TARGETS = {"forward": 4.0, "forward, n >= 128": 2.0, "forward + backward": 2.5}


def fastest(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Least seconds of each call, the calls taking turns."""
    best = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def measure(dim: int, dtype: torch.dtype, elements: int, repeats: int) -> list[dict[str, object]]:
    generator = torch.Generator().manual_seed(0)
    k = dim * 10 ** (2 * torch.rand(elements, dtype=dtype, generator=generator) - 1)
    leaf = k.clone().requires_grad_()
    upstream = torch.ones_like(k)
    rows = []
    for name, function in FUNCTIONS.items():

        def forward(method: str, function=function) -> object:
            return function(k, dim, method=method)

        def both(method: str, function=function) -> object:
            return torch.autograd.grad(function(leaf, dim, method=method), leaf, upstream)

        for part, call in (("forward", forward), ("forward + backward", both)):
            times = fastest({m: lambda m=m, call=call: call(m) for m in METHODS}, repeats)
            target = TARGETS["forward, n >= 128" if part == "forward" and dim >= 128 else part]
            rows.append(
                {
                    "function": name,
                    "dim": dim,
                    "dtype": str(dtype).removeprefix("torch."),
                    "part": part,
                    "nanoseconds_per_element": {m: 1e9 * t / elements for m, t in times.items()},
                    "ratio": times["exact"] / times["bounds"],
                    "target": target,
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    parser.add_argument("--elements", type=int, default=131_072)
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    torch.set_num_threads(1)

    rows = []
    print(f"{options.elements:,} elements, torch {torch.__version__}, one thread; ns per element")
    print("function               dtype      dim part                  exact  bounds  ratio target")
    for dtype in (torch.float32, torch.float64):
        for dim in DIMS:
            for row in measure(dim, dtype, options.elements, options.repeats):
                rows.append(row)
                ns = row["nanoseconds_per_element"]
                print(
                    f"{row['function']:<22} {row['dtype']:<8} {row['dim']:>5} {row['part']:<19}",
                    f"{ns['exact']:>7.2f} {ns['bounds']:>7.2f} {row['ratio']:>6.2f} {row['target']:>6.1f}",
                    flush=True,
                )
    if options.json:
        record = {"elements": options.elements, "torch": torch.__version__, "threads": 1, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
