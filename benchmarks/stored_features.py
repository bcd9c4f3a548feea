"""Features on the disk beside features in memory: seconds of an epoch, and resident memory.

    python benchmarks/stored_features.py [--gib 4] [--dim 512] [--small-gib 0.5] [--folder FOLDER]

One process, one thread. First a file of `--gib` is written, trained on for an epoch by COSINE (100 classes,
batches of 256) and gone through once in order; said is the most resident memory beyond that of the start.
Then an epoch of `--small-gib`, which fits in memory, from the disk and from memory, by turns. The system may
keep the file in its own cache: what is measured is what the process holds, and the time with a warm cache.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import torch

from spaceform.data.stored_features import StoredFeatures
from spaceform.heads import CosineHead

CLASSES, BATCH, FILE = 100, 256, 65_536  # rows of a file


def write(folder: Path, rows: int, dim: int) -> None:
    random = np.random.default_rng(0)
    for i, first in enumerate(range(0, rows, FILE)):
        size = min(FILE, rows - first)
        np.save(folder / f"X-{i:03}.npy", random.standard_normal((size, dim), dtype=np.float32))
        np.save(folder / f"y-{i:03}.npy", random.integers(CLASSES, size=size))


def resident() -> float:
    """MiB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def epoch(head: CosineHead, batches: Iterator[tuple[torch.Tensor, torch.Tensor]]) -> tuple[float, float]:
    """Seconds, and the most resident memory."""
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    began, most = time.perf_counter(), 0.0
    for step, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        head(x, y).mean().backward()
        optimizer.step()
        if step % 16 == 0:
            most = max(most, resident())
    return time.perf_counter() - began, most


def from_memory(x: torch.Tensor, y: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for index in torch.randperm(len(x)).split(BATCH):
        yield x[index], y[index]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--small-gib", type=float, default=0.5)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's own place")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    head = CosineHead(options.dim, CLASSES)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        write(Path(folder), int(options.gib * 2**30 / options.dim / 4), options.dim)
        stored = StoredFeatures(folder)
        epoch(
            head, from_memory(torch.randn(4 * BATCH, options.dim), torch.zeros(4 * BATCH, dtype=torch.long))
        )
        before = resident()
        found["gib"] = options.gib
        found["resident_at_start_mib"] = before
        found["epoch_seconds"], most = epoch(head, stored.shuffled(BATCH, seed=0))
        for x, _ in stored.blocks():
            head.predict_proba(x)
            most = max(most, resident())
        found["extra_resident_mib"] = most - before
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        write(Path(folder), int(options.small_gib * 2**30 / options.dim / 4), options.dim)
        stored = StoredFeatures(folder)
        x = torch.cat([block.x for block in stored.blocks()])
        times: dict[str, list[float]] = {"disk": [], "memory": []}
        for i in range(4):
            times["disk"].append(epoch(head, stored.shuffled(BATCH, seed=0, epoch=i))[0])
            times["memory"].append(epoch(head, from_memory(x, stored.labels))[0])
        found |= {f"{name}_seconds": median(values) for name, values in times.items()}
        found["speed_of_disk_over_memory"] = found["memory_seconds"] / found["disk_seconds"]
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
