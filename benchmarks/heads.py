"""Every head against plain cosine and pytorch-metric-learning: time, memory, prediction, a million classes.

    python benchmarks/heads.py [--compile] [--repeats 1.0] [--heads cosine vmf] [--only step] [--json FILE]

One process, one thread, float32. Times are the thread's own, medians of interleaved repeats of forward +
backward, ratios to *plain cosine* in the same run, F.cross_entropy(β F.normalize(z) @ F.normalize(W).T, y).
Stochastic heads draw 10 samples. Memory is counted from the allocator's own record: the largest sum of live
bytes during a step, beyond what was there before it. The authors' code (2021) was timed once, by the clock;
its ratios are quoted.
"""

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from spaceform.heads import HEADS, Head

ROWS = [(3, 10, 130), (128, 100, 256), (512, 98, 128), (512, 9620, 64)]  # dim, classes, batch
AUTHORS = {"vmf": [7.5, 27, 28, 4.6], "hyperbolic": [None, 130, 200, 300]}
TARGETS = {
    "vmf": [7, 10, 8, 2.5],
    "hyperbolic": [4, 4, 4, 3],
    "cosine": [None, None, None, 0.6],
    "arcface": [None, None, None, 0.6],
}
COMPILED_TARGETS = {"vmf": [3, 8, 7, 1.5], "hyperbolic": [1.5, 1.6, 1.3, 1.0]}
PREDICTION = [(128, 100), (512, 98)]
MILLION = {"dim": 128, "classes": 1_000_000, "batch": 64}
MILLION_TARGETS = {"cosine": 64, "arcface": 64, "vmf": 256}
MIB = 2**20

Step = Callable[[], Any]


class PlainCosine(nn.Module):
    """The unit of measure."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(classes, dim)))
        self.log_beta = nn.Parameter(torch.tensor(16.0).log())

    def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.log_beta.exp() * F.normalize(z) @ F.normalize(self.weight).T, y)


def peers(dim: int, classes: int) -> dict[str, nn.Module]:
    """The losses of pytorch-metric-learning, where it is installed."""
    try:
        from pytorch_metric_learning import losses
    except ImportError:
        return {}
    return {
        "pml NormalizedSoftmax": losses.NormalizedSoftmaxLoss(classes, dim, temperature=1 / 16),
        "pml ArcFace": losses.ArcFaceLoss(classes, dim, scale=16),
    }


def batch(dim: int, classes: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, dim, requires_grad=True), torch.randint(classes, (size,))


def training_step(module: nn.Module, z: torch.Tensor, y: torch.Tensor) -> Step:
    def step() -> None:
        z.grad = None
        module.zero_grad()
        module(z, y).mean().backward()

    return step


def prediction(head: Head, z: torch.Tensor) -> Step:
    return torch.no_grad()(lambda: head.predict_proba(z))


def medians(steps: dict[str, Step], repeats: int, warm_up: int = 3) -> dict[str, float]:
    """Seconds of the processor that each step takes: the median of repeats that take turns."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(warm_up + repeats):
        for name, step in steps.items():
            start = time.thread_time()
            step()
            if i >= warm_up:
                times[name].append(time.thread_time() - start)
    return {name: median(values) for name, values in times.items()}


def peak_bytes(step: Step) -> int:
    """The most bytes alive at once during the step, beyond those before it, by the allocator's record."""
    with _quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        kept = step()
    events = [e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    del kept
    return most


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The profiler writes two lines to the standard error stream, whatever its settings."""
    saved, sink = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(sink)


def measure_steps(names: list[str], compiled: bool, repeats: float) -> list[dict[str, Any]]:
    rows = []
    for dim, classes, size in ROWS:
        torch.manual_seed(0)
        z, y = batch(dim, classes, size)
        modules: dict[str, nn.Module] = {"plain cosine": PlainCosine(dim, classes)}
        for name in names:
            head = HEADS[name](dim, classes)
            modules[name] = torch.compile(head) if compiled else head
        modules |= peers(dim, classes)
        steps = {name: training_step(module, z, y) for name, module in modules.items()}
        found = medians(steps, max(5, int(repeats * (15 if classes > 1000 else 150))))
        plain = found["plain cosine"]
        rows.append(
            {"dim": dim, "classes": classes, "batch": size, "plain_ms": plain * 1e3}
            | {"ratio": {name: seconds / plain for name, seconds in found.items()}}
        )
    return rows


def measure_memory(names: list[str]) -> dict[str, float]:
    """MiB at the last row, gradients included."""
    torch.manual_seed(0)
    dim, classes, size = ROWS[-1]
    z, y = batch(dim, classes, size)
    found = {}
    for name in ["plain cosine", *names, *peers(1, 1)]:
        if name in HEADS:
            module = HEADS[name](dim, classes)
        else:
            module = PlainCosine(dim, classes) if name == "plain cosine" else peers(dim, classes)[name]
        step = training_step(module, z, y)
        step()
        z.grad = None
        module.zero_grad()
        found[name] = peak_bytes(step) / MIB
    return found


def measure_prediction(names: list[str], repeats: float) -> list[dict[str, Any]]:
    rows = []
    for dim, classes in PREDICTION:
        torch.manual_seed(0)
        z, y = batch(dim, classes, 128)
        steps: dict[str, Step] = {"plain cosine": training_step(PlainCosine(dim, classes), z, y)}
        for name in names:
            steps[name] = prediction(HEADS[name](dim, classes), z)
        found = medians(steps, max(5, int(60 * repeats)))
        ratio = {name: found[name] / found["plain cosine"] for name in names}
        rows.append({"dim": dim, "classes": classes, "batch": 128, "ratio": ratio})
    return rows


def measure_million(names: list[str]) -> dict[str, dict[str, float]]:
    """MiB beyond the parameters and their gradients, and seconds, of a step of plain SGD."""
    torch.manual_seed(0)
    dim, classes, size = MILLION["dim"], MILLION["classes"], MILLION["batch"]
    z, y = batch(dim, classes, size)
    found = {}
    for name in names:
        head = HEADS[name](dim, classes)
        optimiser = torch.optim.SGD(head.parameters(), lr=0.1)
        gradients = 4 * (z.numel() + sum(p.numel() for p in head.parameters()))
        z.grad = None

        def step(head: nn.Module = head, optimiser: torch.optim.Optimizer = optimiser) -> None:
            head(z, y).mean().backward()
            optimiser.step()

        start = time.thread_time()
        step()
        seconds = time.thread_time() - start
        head.zero_grad()
        z.grad = None
        found[name] = {"extra_mib": (peak_bytes(step) - gradients) / MIB, "seconds": seconds}
    return found


def table(header: list[str], rows: list[list[Any]]) -> str:
    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)

    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines)


def report(results: dict[str, Any], names: list[str], compiled: bool) -> Iterator[str]:
    targets = COMPILED_TARGETS if compiled else TARGETS
    if rows := results.get("step"):
        columns = [c for c in rows[0]["ratio"] if c != "plain cosine"]
        body = []
        for i, row in enumerate(rows):
            goals = [f"{n} ≤ {t[i]}" for n, t in targets.items() if n in names and t[i] is not None]
            quoted = [f"{n} {t[i]}" for n, t in AUTHORS.items() if t[i] is not None]
            shape = f"{row['dim']}, {row['classes']}, {row['batch']}"
            body.append(
                [
                    shape,
                    row["plain_ms"],
                    *(row["ratio"][c] for c in columns),
                    "; ".join(goals),
                    "; ".join(quoted),
                ]
            )
        yield f"Training step, ratio to plain cosine{', compiled' if compiled else ''}"
        header = ["dim, classes, batch", "plain, ms", *columns, "aim", "authors' code"]
        yield table(header, body)
    if memory := results.get("memory"):
        plain = memory["plain cosine"]
        yield f"Peak memory of a step at {ROWS[-1]}, gradient included"
        yield table(["", "MiB", "ratio"], [[name, mib, mib / plain] for name, mib in memory.items()])
    if rows := results.get("prediction"):
        yield "predict_proba, batch 128, ratio to a plain cosine step (aim: vmf ≤ 10; authors' code > 1000)"
        body = [[f"{row['dim']}, {row['classes']}", *row["ratio"].values()] for row in rows]
        yield table(["dim, classes", *rows[0]["ratio"]], body)
    if million := results.get("million"):
        yield "A step at one million classes, dim 128, batch 64: beyond the parameters and their gradient"
        body = [[n, v["extra_mib"], MILLION_TARGETS.get(n), v["seconds"]] for n, v in million.items()]
        yield table(["", "MiB", "aim", "seconds of the processor"], body)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile", action="store_true", help="compile the heads (not the peers)")
    parser.add_argument("--repeats", type=float, default=1.0, help="scales the number of repeats")
    parser.add_argument("--heads", nargs="+", choices=list(HEADS), default=list(HEADS))
    parts = ["step", "memory", "prediction", "million"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()

    torch.set_num_threads(1)
    measures: dict[str, Callable[[], Any]] = {
        "step": lambda: measure_steps(options.heads, options.compile, options.repeats),
        "memory": lambda: measure_memory(options.heads),
        "prediction": lambda: measure_prediction(options.heads, options.repeats),
        "million": lambda: measure_million(options.heads),
    }
    results = {"torch": torch.__version__, "compiled": options.compile}
    results |= {part: measures[part]() for part in options.only}
    print("\n\n".join(report(results, options.heads, options.compile)))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
