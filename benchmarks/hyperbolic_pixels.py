"""HYPERBOLIC beside STANDARD on a part of CIFAR-10: the same net, an equal search on the validation images.

    python benchmarks/hyperbolic_pixels.py --epochs 2 5 --seeds 3

The small residual net, trained from scratch on 8,500 images of `data_batch_1` (1,500 validate), by SGD with
Nesterov's momentum; the rate rises for a tenth of the steps and falls to 0 as a cosine. Every row tries six
candidates, three rates times two choices of options, for the first number of epochs. The one with the lowest
NLL on the validation images is trained anew for the second number of epochs with each seed and judged on the
10,000 test images. R = √c‖z‖ of the middle test embedding says how curved the head's space is there. Goes on
where it was stopped; writes "pixels" in results/benchmarks/hyperbolic.json.
"""

import argparse
import itertools
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from records import git_commit, write_record
from spaceform import data, metrics
from spaceform.data.augment import pixels_for
from spaceform.heads import HEADS, Head
from spaceform.nets import NETS
from spaceform.run.optim import Sgd, parameter_groups

RATES = (0.02, 0.06, 0.18)
DIM, BATCH, DECAY = 32, 120, 1e-4
ROWS: dict[str, tuple[str, tuple[dict[str, Any], ...]]] = {
    "standard": ("standard", ({"weight_decay": 1e-4}, {"weight_decay": 1e-3})),
    "eq. 2": ("hyperbolic", ({"scale": 4.0, "curvature": 1e-5}, {"scale": 4.0, "curvature": 1e-3})),
    "scale 1": (
        "hyperbolic",
        ({"scale": 1.0, "curvature": 1e-5}, {"scale": 1.0, "curvature": 1e-2, "clip": 10.0}),
    ),
    "scale 1, decay": (
        "hyperbolic",
        (
            {"scale": 1.0, "curvature": 1e-5, "weight_decay": 1e-4},
            {"scale": 1.0, "curvature": 1e-5, "weight_decay": 1e-3},
        ),
    ),
}
"""Title, head, and two choices: options of the head, and the weight decay."""


def trained(
    row: str,
    choice: int,
    rate: float,
    epochs: int,
    seed: int,
    pictures: tuple[data.Dataset, data.Split],
    *,
    test: bool,
) -> dict[str, Any]:
    """One run, judged on the validation images and, if it is no candidate, on the test images."""
    dataset, split = pictures
    name, choices = ROWS[row]
    options = dict(choices[choice])
    decay = options.pop("weight_decay", DECAY)
    torch.manual_seed(seed)
    net = NETS["residual"](name="residual", dim=DIM).build(tuple(dataset.inputs.shape[1:]))
    head = HEADS[name](DIM, len(dataset.classes), **options)
    how = pixels_for(dataset.name, dataset.inputs)
    random = torch.Generator().manual_seed(seed)
    optim = Sgd(lr=rate, weight_decay=decay, nesterov=True)
    optimizer = optim.build(parameter_groups(net, head, optim))
    batches = len(split.train) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, rate, epochs * batches, pct_start=0.1, cycle_momentum=False, div_factor=10
    )
    began = time.process_time()
    for _ in range(epochs):
        net.train()
        order = split.train[torch.randperm(len(split.train), generator=random)]
        for i in range(batches):
            items = order[i * BATCH : (i + 1) * BATCH]
            images = dataset.inputs[items]
            x = how.train(images, how.draw(len(items), *images.shape[-2:], generator=random))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                z = net(x)
            loss = head(z.float(), dataset.labels[items]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    seconds = time.process_time() - began
    return {
        "row": row,
        "choice": choice,
        "rate": rate,
        "epochs": epochs,
        "seed": seed,
        "seconds": seconds,
        "validation": judged(net, head, dataset, split.val, how),
        **({"test": judged(net, head, dataset, split.test, how)} if test else {}),
    }


@torch.no_grad()
def judged(
    net: torch.nn.Module, head: Head, dataset: data.Dataset, items: Tensor, how: Any
) -> dict[str, float]:
    net.eval()
    z = torch.cat([net(how.evaluate(dataset.inputs[part])) for part in items.split(500)])
    y, log_p = dataset.labels[items], head.log_probs(z)
    curvature = head.numbers().get("curvature", 0.0)
    return {
        "accuracy": 100 * float(metrics.accuracy(log_p, y)),
        "nll": float(torch.nn.functional.nll_loss(log_p, y)),
        "norm": float(z.norm(dim=1).median()),
        "radius": math.sqrt(curvature) * float(head.confidence(z).median()),
    }


def summary(runs: list[dict[str, Any]], epochs: list[int]) -> dict[str, Any]:
    """For each row what the search chose, and means over seeds with their standard errors."""
    found = {}
    for row in ROWS:
        finals = [run for run in runs if run["row"] == row and run["epochs"] == epochs[1]]
        if not finals:
            continue
        one = finals[0]
        found[row] = {
            "rate": one["rate"],
            "options": ROWS[row][1][one["choice"]],
            **{
                key: {
                    "mean": statistics.mean(run["test"][key] for run in finals),
                    "error": statistics.stdev([run["test"][key] for run in finals]) / len(finals) ** 0.5
                    if len(finals) > 1
                    else None,
                }
                for key in one["test"]
            },
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--epochs", nargs=2, type=int, default=[2, 5], help="of the search, of the seeds")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/hyperbolic.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = data.load("cifar10")
    pictures = dataset, data.split(dataset)
    whole = json.loads(options.out.read_text()) if options.out.exists() else {}
    runs = whole.get("pixels", {}).get("runs", [])

    def done(row: str, choice: int, rate: float, epochs: int, seed: int) -> dict[str, Any]:
        key = {"row": row, "choice": choice, "rate": rate, "epochs": epochs, "seed": seed}
        for run in runs:
            if key.items() <= run.items():
                return run
        run = trained(row, choice, rate, epochs, seed, pictures, test=epochs == options.epochs[1])
        runs.append(run | {"commit": git_commit()})
        record = {
            "command": f"benchmarks/hyperbolic_pixels.py --epochs {options.epochs[0]} {options.epochs[1]} "
            f"--seeds {options.seeds}",
            "commit": git_commit(),
            "torch": torch.__version__,
            "rows": summary(runs, options.epochs),
            "runs": runs,
        }
        write_record(options.out, whole | {"pixels": record})
        parts = [run[part] for part in ("validation", "test") if part in run]
        measured = [f"{part['accuracy']:.2f} % {part['nll']:.4f} R {part['radius']:.2f}" for part in parts]
        print(*key.values(), *measured, f"{run['seconds']:.0f} s", flush=True)
        return run

    for row in options.rows:
        search, judge = options.epochs
        tried = [done(row, i, rate, search, 0) for i, rate in itertools.product((0, 1), RATES)]
        finite = [run for run in tried if math.isfinite(run["validation"]["nll"])]
        best = min(finite, key=lambda run: run["validation"]["nll"])
        for seed in range(options.seeds):
            done(row, best["choice"], best["rate"], judge, seed)


if __name__ == "__main__":
    main()
