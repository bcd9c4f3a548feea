"""Every head against plain cosine and pytorch-metric-learning: time, memory, prediction, a million classes.

    python benchmarks/heads.py [--compile] [--keep-freed-memory] [--repeats 1.0] [--heads cosine vmf]
                               [--rows 0 1 2 3] [--only step memory prediction million fused]
                               [--json FILE]

One process, one thread, float32. Times are the thread's own, medians (and minima) of interleaved repeats of
forward + backward, ratios to *plain cosine* in the same run,
F.cross_entropy(β F.normalize(z) @ F.normalize(W).T, y). Stochastic heads draw 10 samples; they predict from
64 fixed draws and, where it says random, from 10 random ones. Sub-centre ArcFace, ours and theirs, has three
centres a class: as many products as ArcFace has with three times the classes, which then stands beside it.

Gradients are freed after every step, outside the time taken, so that no contestant's buffers stand in the
way of another's. Even so the last row depends on the C library: glibc gives the temporaries of a step back
to the system, and who allocates most, plain cosine, pays for clearing their pages anew. With
`--keep-freed-memory` it keeps them, for all contestants alike.

Memory is counted from the allocator's own record: the largest sum of live bytes during a step, beyond what
was there before it; at a million classes also by the system's, the peak of the process's resident memory.
The authors' code (2021) was timed once, by the clock; its ratios are quoted.

`--json` adds the run to the file, in the place of an earlier one of the same command.
"""

import argparse
import contextlib
import ctypes
import json
import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile

from records import git_commit
from spaceform.heads import HEADS, Head, StochasticHead, SubCentreArcFaceHead
from spaceform.run.allocator import keep_freed_memory

ROWS = [(3, 10, 130), (128, 100, 256), (512, 98, 128), (512, 9620, 64)]  # dim, classes, batch
FUSED = [(128, 10, 256), (128, 100, 256), (512, 9620, 64), (128, 100_000, 64)]
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
Times = dict[str, list[float]]


class PlainCosine(nn.Module):
    """The unit of measure."""

    def __init__(self, dim: int, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(classes, dim)))
        self.log_beta = nn.Parameter(torch.tensor(16.0).log())

    def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.log_beta.exp() * F.normalize(z) @ F.normalize(self.weight).T, y)


class FusedLinear(nn.Module):
    """torch's own product and cross entropy in one (2.13), as it is by default or in chunks."""

    def __init__(self, dim: int, classes: int, chunked: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(classes, dim)))
        self.options = nn.LinearCrossEntropyOptions() if chunked else None

    def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.linear_cross_entropy(z, self.weight, y, options=self.options)


def measure_fused(repeats: float) -> list[dict[str, Any]]:
    """STANDARD and COSINE beside `F.linear_cross_entropy`: ratios of time, and memory with the gradient."""
    rows = []
    for dim, classes, size in FUSED:
        z, y = batch(dim, classes, size)
        modules: dict[str, nn.Module] = {
            "fused": FusedLinear(dim, classes, chunked=False),
            "fused, chunked": FusedLinear(dim, classes, chunked=True),
            "standard": HEADS["standard"](dim, classes),
            "cosine": HEADS["cosine"](dim, classes),
        }
        steps = {name: TrainingStep(module, z, y) for name, module in modules.items()}
        times = take_turns(dict(steps), max(5, int(repeats * (15 if classes > 1000 else 150))))
        memory = {}
        for name, step in steps.items():
            memory[name] = peak_bytes(step) / MIB
            step.clear()
        row = {"dim": dim, "classes": classes, "batch": size, "fused_ms": median(times["fused"]) * 1e3}
        row |= {"ratio": ratios(times, median, "fused"), "ratio_of_minima": ratios(times, min, "fused")}
        rows.append(row | {"memory_mib": memory})
    return rows


def peers(dim: int, classes: int) -> dict[str, nn.Module]:
    """The losses of pytorch-metric-learning, where it is installed."""
    try:
        from pytorch_metric_learning import losses
    except ImportError:
        return {}
    return {
        "pml NormalizedSoftmax": losses.NormalizedSoftmaxLoss(classes, dim, temperature=1 / 16),
        "pml ArcFace": losses.ArcFaceLoss(classes, dim, scale=16),
        "pml CosFace": losses.CosFaceLoss(classes, dim, scale=16),
        "pml SubCenterArcFace": losses.SubCenterArcFaceLoss(
            num_classes=classes, embedding_size=dim, scale=16
        ),
    }


def batch(dim: int, classes: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, dim, requires_grad=True), torch.randint(classes, (size,))


class TrainingStep(NamedTuple):
    """Forward and backward."""

    module: nn.Module
    z: torch.Tensor
    y: torch.Tensor

    def __call__(self) -> None:
        self.module(self.z, self.y).mean().backward()

    def clear(self) -> None:
        self.z.grad = None
        self.module.zero_grad()


def prediction(head: Head, z: torch.Tensor, generator: torch.Generator | None = None) -> Step:
    return torch.no_grad()(lambda: head.predict_proba(z, generator=generator))


def take_turns(steps: dict[str, Step], repeats: int, warm_up: int = 3) -> Times:
    """Seconds of the processor that each step takes, for every repeat.

    Each repeat has an order of its own: a step is faster right after one that runs the same code.
    """
    times: Times = {name: [] for name in steps}
    order, chance = list(steps.items()), random.Random(0)
    for i in range(warm_up + repeats):
        chance.shuffle(order)
        for name, step in order:
            start = time.thread_time()
            step()
            if i >= warm_up:
                times[name].append(time.thread_time() - start)
            if isinstance(step, TrainingStep):
                step.clear()
    return times


def ratios(times: Times, of: Callable[..., float], unit: str = "plain cosine") -> dict[str, float]:
    return {name: of(values) / of(times[unit]) for name, values in times.items()}


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


def measure_steps(names: list[str], which: list[int], compiled: bool, repeats: float) -> list[dict[str, Any]]:
    rows = []
    for dim, classes, size in (ROWS[i] for i in which):
        if compiled:
            torch.compiler.reset()  # or the sizes of the next row would make it compile for any size
        torch.manual_seed(0)
        z, y = batch(dim, classes, size)
        modules: dict[str, nn.Module] = {"plain cosine": PlainCosine(dim, classes)}
        for name in names:
            head = HEADS[name](dim, classes)
            modules[name] = torch.compile(head) if compiled else head
            if isinstance(head, SubCentreArcFaceHead) and not compiled:
                modules[f"arcface, {head.centres} × classes"] = HEADS["arcface"](dim, head.centres * classes)
        modules |= peers(dim, classes)
        steps: dict[str, Step] = {name: TrainingStep(module, z, y) for name, module in modules.items()}
        times = take_turns(steps, max(5, int(repeats * (15 if classes > 1000 else 150))))
        rows.append(
            {"dim": dim, "classes": classes, "batch": size, "plain_ms": median(times["plain cosine"]) * 1e3}
            | {"ratio": ratios(times, median), "ratio_of_minima": ratios(times, min)}
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
        step = TrainingStep(module, z, y)
        step()
        step.clear()
        found[name] = peak_bytes(step) / MIB
    return found


def measure_prediction(names: list[str], repeats: float) -> list[dict[str, Any]]:
    rows = []
    for dim, classes in PREDICTION:
        torch.manual_seed(0)
        z, y = batch(dim, classes, 128)
        steps: dict[str, Step] = {"plain cosine": TrainingStep(PlainCosine(dim, classes), z, y)}
        for name in names:
            head = HEADS[name](dim, classes)
            steps[name] = prediction(head, z)
            if isinstance(head, StochasticHead):
                steps[f"{name}, random"] = prediction(head, z, torch.Generator().manual_seed(0))
        ratio = ratios(take_turns(steps, max(5, int(60 * repeats))), median)
        rows.append({"dim": dim, "classes": classes, "batch": 128, "ratio": ratio})
    return rows


def resident(field: str) -> int:
    """Bytes of this process in memory: now (VmRSS), or at most since the mark was reset (VmHWM); Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))


def peak_resident(step: Step) -> int:
    """How far the process's resident memory rises during the step."""
    ctypes.CDLL(None).malloc_trim(0)  # what earlier steps have freed would serve again, uncounted
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = resident("VmRSS")
    step()
    return resident("VmHWM") - before


def measure_million(names: list[str]) -> dict[str, dict[str, float]]:
    """MiB beyond the parameters and their gradients, and seconds, of a step of plain SGD."""
    torch.manual_seed(0)
    dim, classes, size = MILLION["dim"], MILLION["classes"], MILLION["batch"]
    found = {}
    for name in names:
        z, y = batch(dim, classes, size)
        head = HEADS[name](dim, classes)
        optimiser = torch.optim.SGD(head.parameters(), lr=0.1)
        gradients = 4 * (z.numel() + sum(p.numel() for p in head.parameters()))
        train = TrainingStep(head, z, y)

        def step(train: Step = train, optimiser: torch.optim.Optimizer = optimiser) -> None:
            train()
            optimiser.step()

        start = time.thread_time()
        risen = peak_resident(step)
        seconds = time.thread_time() - start
        train.clear()
        found[name] = {
            "extra_mib": (peak_bytes(step) - gradients) / MIB,
            "resident_extra_mib": (risen - gradients) / MIB,
            "seconds": seconds,
        }
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
        body: list[list[Any]] = []
        for row in rows:
            i = ROWS.index((row["dim"], row["classes"], row["batch"]))
            goals = [f"{n} ≤ {t[i]}" for n, t in targets.items() if n in names and t[i] is not None]
            quoted = [f"{n} {t[i]}" for n, t in AUTHORS.items() if t[i] is not None]
            shape = f"{row['dim']}, {row['classes']}, {row['batch']}"
            body.append(
                [
                    shape,
                    row["plain_ms"],
                    *(f"{row['ratio'][c]:.3g} ({row['ratio_of_minima'][c]:.3g})" for c in columns),
                    "; ".join(goals),
                    "; ".join(quoted),
                ]
            )
        yield f"Training step, ratio to plain cosine of medians (of minima){', compiled' if compiled else ''}"
        header = ["dim, classes, batch", "plain, ms", *columns, "aim", "authors' code"]
        yield table(header, body)
    if memory := results.get("memory"):
        plain = memory["plain cosine"]
        yield f"Peak memory of a step at {ROWS[-1]}, gradient included"
        yield table(["", "MiB", "ratio"], [[name, mib, mib / plain] for name, mib in memory.items()])
    if rows := results.get("prediction"):
        yield "predict_proba, batch 128, ratio to a plain cosine step (aim: vmf ≤ 10; authors' code > 1000)"
        columns = [c for c in rows[0]["ratio"] if c != "plain cosine"]
        body = [[f"{row['dim']}, {row['classes']}", *(row["ratio"][c] for c in columns)] for row in rows]
        yield table(["dim, classes", *columns], body)
    if rows := results.get("fused"):
        yield "A step beside F.linear_cross_entropy: ratio of medians (of minima), MiB with the gradient"
        columns, parts = list(rows[0]["ratio"]), ("ratio", "ratio_of_minima", "memory_mib")
        body = [
            [f"{row['dim']}, {row['classes']}, {row['batch']}", row["fused_ms"]]
            + ["{:.3g} ({:.3g}), {:.3g} MiB".format(*(row[part][c] for part in parts)) for c in columns]
            for row in rows
        ]
        yield table(["dim, classes, batch", "fused, ms", *columns], body)
    if million := results.get("million"):
        yield "A step at one million classes, dim 128, batch 64: beyond the parameters and their gradient"
        body = [
            [n, v["extra_mib"], v["resident_extra_mib"], MILLION_TARGETS.get(n), v["seconds"]]
            for n, v in million.items()
        ]
        yield table(["", "MiB", "MiB resident", "aim", "seconds of the processor"], body)


def save(results: dict[str, Any], file: Path) -> None:
    """Add what was measured, with what it belongs to."""
    run = {
        "command": " ".join(["python", *sys.argv]),
        "commit": git_commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    runs = json.loads(file.read_text()) if file.exists() else []
    runs = [other for other in runs if other["command"] != run["command"]]
    file.write_text(json.dumps([*runs, run | results], indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--compile", action="store_true", help="compile the heads (not the peers)")
    parser.add_argument("--keep-freed-memory", action="store_true", help="for all contestants alike")
    parser.add_argument("--repeats", type=float, default=1.0, help="scales the number of repeats")
    parser.add_argument("--heads", nargs="+", choices=list(HEADS), default=list(HEADS))
    every = list(range(len(ROWS)))
    parser.add_argument("--rows", nargs="+", type=int, choices=every, default=every, help="sizes of the step")
    parts = ["step", "memory", "prediction", "million"]
    parts += ["fused"] if hasattr(F, "linear_cross_entropy") else []
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--json", type=Path, help="add what was measured to this file")
    options = parser.parse_args()

    torch.set_num_threads(1)
    if options.keep_freed_memory:
        keep_freed_memory()
    measures: dict[str, Callable[[], Any]] = {
        "step": lambda: measure_steps(options.heads, options.rows, options.compile, options.repeats),
        "memory": lambda: measure_memory(options.heads),
        "prediction": lambda: measure_prediction(options.heads, options.repeats),
        "million": lambda: measure_million(options.heads),
        "fused": lambda: measure_fused(options.repeats),
    }
    results = {part: measures[part]() for part in options.only}
    print("\n\n".join(report(results, options.heads, options.compile)))
    if options.json:
        save(results, options.json)


if __name__ == "__main__":
    main()
