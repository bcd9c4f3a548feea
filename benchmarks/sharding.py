"""A million classes over four processes: memory, bytes on the wire, and what a sample of classes costs.

    python benchmarks/sharding.py [--classes 1000000] [--dim 128] [--batch 64] [--heads cosine arcface vmf]
                                  [--only memory bytes sampled paper] [--json FILE]

Gloo processes on one machine, one thread each, float32; all of them share the batch. Memory is counted by the
allocator's own record, the largest sum of live bytes during a step, and by the system's, the peak of resident
memory; both beyond the weights and their gradient. Bytes are those of the loopback device, all ranks
together, beside the formula of `spaceform.heads._kernels.class_shard`; TCP's own headers and whatever else
this machine tells itself meanwhile are in them. The last part is arithmetic.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from heads import peak_bytes
from spaceform.heads import HEADS, Head, StochasticHead
from spaceform.heads.sharding import shard
from spaceform.run.environment import environment

RANKS, MIB = 4, 2**20


def resident() -> float:
    """Resident memory now, in MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / MIB


def peak_resident() -> float:
    """The most since `reset_peak`, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def extra_memory(head: Head, z: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """MiB of a step beyond weights and gradient."""
    weights = sum(p.nbytes for p in (_own(q) for q in head.parameters())) / MIB

    def step() -> None:
        head(z, y).mean().backward()

    step()  # once before, so that nothing is made for the first time
    head.zero_grad()
    before = resident()
    reset_peak()
    began = time.perf_counter()
    step()
    seconds = time.perf_counter() - began
    peak = peak_resident() - before - weights
    head.zero_grad()
    return {
        "weights_mib": weights,
        "extra_mib": peak_bytes(step) / MIB - weights,
        "resident_extra_mib": peak,
        "seconds": seconds,
    }


def _own(p: torch.Tensor) -> torch.Tensor:
    return p.to_local() if hasattr(p, "to_local") else p


def batch(dim: int, classes: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(rows, dim, generator=generator)
    return z, torch.randint(classes, (rows,), generator=generator)


def loopback() -> int:
    """Bytes that the loopback device has received."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


def formula(rows: int, dim: int, draws: int) -> float:
    """Bytes that all ranks together receive in a step, batches of equal size."""
    e, share = 4, (RANKS - 1) / RANKS
    a_rank = share * rows * (2 * dim * e + e + 8) + 2 * share * rows * (2 * draws + 1) * e + 2 * share * e
    return RANKS * a_rank


def work(rank: int, folder: Path, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,))
    z, y = batch(options.dim, options.classes, options.batch)
    own = slice(rank * options.batch // RANKS, (rank + 1) * options.batch // RANKS)
    z, y = z[own].clone().requires_grad_(), y[own]
    found: dict[str, Any] = {"memory": {}, "bytes": {}, "sampled": {}}
    for name in options.heads:
        if "memory" in options.only:
            head = shard(HEADS[name](options.dim, 2), mesh, num_classes=options.classes)
            found["memory"][name] = extra_memory(head, z, y)
            del head
        if "bytes" in options.only:
            found["bytes"][name] = wire(shard(HEADS[name](options.dim, 4000), mesh, equal_batches=True), z, y)
    if "sampled" in options.only:
        found["sampled"] = sampled(mesh, rank)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def wire(head: Head, z: torch.Tensor, y: torch.Tensor, steps: int = 50) -> dict[str, float]:
    """Bytes a step of all ranks together."""
    y = y % head.num_classes
    for count in (3, steps):
        dist.barrier()
        before = loopback()
        for _ in range(count):
            head(z, y).mean().backward()
        dist.barrier()
    draws = head.samples if isinstance(head, StochasticHead) else 1
    return {"counted": (loopback() - before) / steps, "formula": formula(RANKS * len(z), head.dim, draws)}


def sampled(mesh: Any, rank: int, classes: int = 20_000, dim: int = 64, rows: int = 128) -> dict[str, Any]:
    """Objective and gradient of a share of the classes beside those of all, before and in training."""
    found = {}
    for stage, spread in (("start", 0.0), ("trained", 6.0)):
        torch.manual_seed(0)
        whole = HEADS["cosine"](dim, classes)
        y = torch.randint(classes, (rows,))
        z = torch.randn(rows, dim) + spread * torch.nn.functional.normalize(whole.weight.detach()[y])
        own = slice(rank * rows // RANKS, (rank + 1) * rows // RANKS)
        results: dict[float, dict[str, list[Any]]] = {}
        for share in (1.0, 0.5, 0.1, 0.01):
            head = shard(whole, mesh, sample=share)
            losses, gradients, seconds = [], [], []
            for _ in range(8):
                mine = z[own].clone().requires_grad_()
                began = time.perf_counter()
                loss = head(mine, y[own]).mean()
                loss.backward()
                seconds.append(time.perf_counter() - began)
                value = loss.detach()
                dist.all_reduce(value)
                losses.append(float(value) / RANKS)
                gradients.append(mine.grad)
                head.zero_grad()
            results[share] = {"losses": losses, "gradients": gradients, "seconds": seconds}
        exact = results[1.0]["gradients"][0]
        found[stage] = {
            share: {
                "objective": sum(r["losses"]) / 8,
                "bias": sum(r["losses"]) / 8 - results[1.0]["losses"][0],
                "cosine_of_gradients": _cosine(torch.stack(r["gradients"]).mean(0), exact),
                "length_of_gradients": float(torch.stack(r["gradients"]).mean(0).norm() / exact.norm()),
                "seconds": median(r["seconds"]),
            }
            for share, r in results.items()
        }
    return found


def _cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0))


def on_paper() -> list[dict[str, float]]:
    """Memory and traffic of one GPU by the formula: SGD with momentum, float32, 128 rows a GPU, dim 512."""
    rows = []
    cases = ((10_000_000, 8), (10_000_000, 64), (29_000_000, 64), (100_000_000, 8), (100_000_000, 64))
    for classes, gpus in cases:
        B, n, e, share = 128 * gpus, 512, 4, (gpus - 1) / gpus
        rows.append(
            {
                "classes": classes,
                "gpus": gpus,
                "weights, gradient, momentum, GiB": 3 * classes / gpus * n * e / 2**30,
                "received a step, MiB": share * B * (2 * n * e + e + 8 + 6 * e) / MIB,
                "products a step, Tflop": 4 * 2 * B * classes / gpus * n / 1e12,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--heads", nargs="+", default=["cosine", "arcface", "vmf"])
    parts = ["memory", "bytes", "sampled", "paper"]
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {"made_with": environment()}
    if "paper" in options.only:
        results["paper"] = on_paper()
    if set(options.only) - {"paper"}:
        results["ranks"] = four(options)
    if "memory" in options.only:
        results["one process"] = {}
        for name in options.heads:
            z, y = batch(options.dim, options.classes, options.batch)
            head = HEADS[name](options.dim, options.classes)
            results["one process"][name] = extra_memory(head, z.requires_grad_(), y)
            del head
    text = json.dumps(results, indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")


def four(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What each rank found."""
    fork = multiprocessing.get_context("fork")  # torch is imported once, before there are threads
    with tempfile.TemporaryDirectory() as folder:
        processes = [fork.Process(target=work, args=(r, Path(folder), options)) for r in range(RANKS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(RANKS)]


if __name__ == "__main__":
    main()
