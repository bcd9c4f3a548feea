"""Features on the disk beside features in memory: the memory of every command, and the speed of training.

    python benchmarks/stored_features.py [--gib 4] [--small-gib 0.5] [--dim 512] [--memory 1GB]
                                         [--folder FOLDER] [--only memory speed] [--json FILE]

Memory: a folder of `--gib` GiB of made features (100 classes) is trained on for an epoch (COSINE, the
engine's own net), measured, searched (two candidates), compared (two heads, two candidates each, one seed,
one epoch), and trained on and measured for retrieval (two epochs), each by the command line with
SPACEFORM_MEMORY set to `--memory`. Kept are the peak of resident memory of each command or of its largest
process, as the system counts it, and its seconds of CPU. The system may keep files in its own cache; that is
not counted.

Speed: a folder of `--small-gib`, from the disk and from memory by turns in one process on one thread, the
files being in the system's cache: seconds of an epoch of the engine, and of a retrieval epoch's batches.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from spaceform import data
from spaceform.data.formats.stored_features import rows_of_arrays
from spaceform.engine import Rows, Training, space
from spaceform.engine.fit import falling
from spaceform.engine.rows import inputs_of
from spaceform.run.environment import environment
from spaceform.study.optuna_search import to_toml
from spaceform.study.plan import Conditions, recipes

CLASSES, FILE = 100, 65_536  # rows of a file


def write(folder: Path, gib: float, dim: int) -> int:
    """Features of classes that overlap, neighbours on the disk being of any class; gives the rows."""
    random, rows = np.random.default_rng(0), int(gib * 2**30 / dim / 4)
    centres = random.standard_normal((CLASSES, dim), dtype=np.float32) / 4
    for i, first in enumerate(range(0, rows, FILE)):
        y = random.integers(CLASSES, size=min(FILE, rows - first))
        x = random.standard_normal((len(y), dim), dtype=np.float32)
        x += centres[y]
        np.save(folder / f"X-{i:03}.npy", x)
        np.save(folder / f"y-{i:03}.npy", y)
    return rows


def command(arguments: list[str], memory: str) -> dict[str, float]:
    """Peak of resident memory (MiB) and seconds of CPU of a command and its processes."""
    environ = {**os.environ, "SPACEFORM_MEMORY": memory, "OMP_NUM_THREADS": "1"}
    code = "from spaceform.cli.app import main; main()"
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, "-c", code, *arguments], env=environ, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{arguments} ended with {child.returncode}")
    return {
        "peak_resident_mib": used.ru_maxrss / 1024,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "seconds": time.monotonic() - began,
    }


def memory(options: argparse.Namespace, place: Path, keep: Callable[[dict[str, Any]], None]) -> None:
    folder = place / "large"
    folder.mkdir()
    found: dict[str, Any] = {"rows": write(folder, options.gib, options.dim), "dim": options.dim}
    found["gib"] = sum(path.stat().st_size for path in folder.iterdir()) / 2**30
    found["SPACEFORM_MEMORY"] = os.environ["SPACEFORM_MEMORY"] = options.memory
    plans = {
        "classification": Conditions(settings={"optim.epochs": 1}),
        "retrieval": Conditions(task="retrieval", settings={"budget.epochs": 2}),
    }
    for task, conditions in plans.items():
        recipe = place / f"{task}.toml"
        recipe.write_text(to_toml(recipes(str(folder), ["cosine"], conditions)["cosine"]))
        found[f"train, {task}"] = command(["train", str(recipe), "--out", str(place / task)], options.memory)
        keep(found)
        found[f"evaluate, {task}"] = command(["evaluate", str(place / task)], options.memory)
        said = json.loads((place / task / "metrics.json").read_text())
        kept = ("items", "of_items", "outputs", "accuracy", "nll", "map_at_r", "recall_at_1")
        found[f"evaluate, {task}"] |= {name: said[name] for name in kept if name in said}
        keep(found)
        if task == "classification":
            searched = ["search", str(folder), "--head", "cosine", "--trials", "2", "--processes", "1"]
            found["search"] = command([*searched, "--out", str(place / "search")], options.memory)
            found["search"]["about"] = (place / "search" / "cosine.toml").read_text().splitlines()[0]
            keep(found)
            compared = ["compare", str(folder), "--heads", "standard,cosine", "--seeds", "1", "--search", "2"]
            compared += ["--set", "optim.epochs=1", "--processes", "1", "--out", str(place / "compare")]
            found["compare"] = command(compared, options.memory)
            keep(found)


def speed(options: argparse.Namespace, place: Path, keep: Callable[[dict[str, Any]], None]) -> None:
    folder = place / "small"
    folder.mkdir()
    write(folder, options.small_gib, options.dim)
    os.environ["SPACEFORM_MEMORY"] = "100GB"
    dataset, stored = data.load(folder), rows_of_arrays(folder)
    candidate = space("cosine", options.dim, CLASSES, len(dataset))[0]
    kinds = {"memory": Rows.of(dataset.inputs, dataset.labels), "disk": Rows.of(stored, dataset.labels)}
    inputs = inputs_of(kinds["memory"])
    kinds = {name: rows.seen_by(inputs) for name, rows in kinds.items()}
    runs = {
        name: Training("cosine", candidate, rows, seed=0, classes=CLASSES) for name, rows in kinds.items()
    }
    times: dict[str, list[float]] = {
        f"{what}, {name}": [] for what in ("epoch", "episodes") for name in kinds
    }
    for i in range(options.repeats):
        for name, rows in kinds.items():
            began = time.process_time()
            runs[name].epoch(rows, falling(candidate.lr, i, options.repeats, runs[name].batches(rows)))
            times[f"epoch, {name}"].append(time.process_time() - began)
            times[f"episodes, {name}"].append(episodes(stored if name == "disk" else dataset.inputs, i))
    found: dict[str, Any] = {"gib": options.small_gib, "rows": len(dataset), "candidate": repr(candidate)}
    found |= {f"{name}, seconds of CPU": values for name, values in times.items()}
    for what in ("epoch", "episodes"):
        ratios = [m / d for m, d in zip(times[f"{what}, memory"], times[f"{what}, disk"], strict=True)]
        found[f"speed of {what} from disk over from memory"] = median(ratios)
    keep(found)


def episodes(inputs: Any, seed: int, steps: int = 200, batch: int = 128) -> float:
    """Seconds of CPU of a retrieval epoch: random rows, and a net and a head of 512 dimensions."""
    net, head = torch.nn.Linear(inputs.shape[1], 512), torch.nn.Linear(512, CLASSES)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.01)
    generator = torch.Generator().manual_seed(seed)
    began = time.process_time()
    for _ in range(steps):
        x = inputs[torch.randint(len(inputs), (batch,), generator=generator)]
        optimizer.zero_grad()
        head(net(x)).square().mean().backward()
        optimizer.step()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gib", type=float, default=4.0)
    parser.add_argument("--small-gib", type=float, default=0.5)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's own place")
    parser.add_argument("--only", nargs="+", choices=["memory", "speed"], default=["speed", "memory"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Any] = {"made_with": environment()}
    if options.json and options.json.exists():
        found = json.loads(options.json.read_text()) | found

    def keep(part: str, measured: dict[str, Any]) -> None:
        found[part] = measured
        text = json.dumps(found, indent=1)
        print(text, flush=True)
        if options.json:
            options.json.write_text(text + "\n")

    for part in options.only:
        with tempfile.TemporaryDirectory(dir=options.folder) as place:
            {"memory": memory, "speed": speed}[part](options, Path(place), partial(keep, part))


if __name__ == "__main__":
    main()
