"""The loop of docs/drop-in.md on MNIST: what `prepare` and a calibrator are worth to a newcomer.

    python benchmarks/drop_in.py vmf power_spherical arcface adaface standard --steps 400

A net of one hidden layer and the head learn from 50,000 images in batches of 64 by Adam at 1e-3, once without
`prepare` and once with it. Prints the accuracy on the test images after 100 steps and at the end, and their
calibration error (l2, 15 bins) and NLL as trained and after `StructuredScaling`, fitted on 3,000 others;
writes results/benchmarks/drop_in.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from records import git_commit, write_record
from spaceform import data, metrics
from spaceform.calibrators import StructuredScaling
from spaceform.heads import HEADS

HIDDEN, DIM, BATCH, EARLY, EPOCH = 128, 32, 64, 100, 200


def judged(p: Tensor, y: Tensor) -> dict[str, float]:
    error = metrics.calibration_error(p, y, bins=15, binning="equal_mass", norm="l2")
    return {"l2": 100 * float(error), "nll": float(nn.functional.nll_loss(p.log(), y))}


def run(name: str, images: Tensor, labels: Tensor, prepare: bool, steps: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM))
    head = HEADS[name](DIM, 10)
    if prepare:
        head.prepare(net(images[:512]).detach())
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=1e-3)
    random = torch.Generator().manual_seed(seed)
    test, truth = images[60_000:], labels[60_000:]
    accuracy = {}
    for step in range(steps):
        if step % EPOCH == 0:
            head.start_epoch(step // EPOCH)
        rows = torch.randint(50_000, (BATCH,), generator=random)
        loss = head(net(images[rows]), labels[rows]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step + 1 in (EARLY, steps):
            with torch.no_grad():
                right = head.predict_proba(net(test)).argmax(1) == truth
            accuracy[step + 1] = 100 * right.double().mean().item()
    with torch.no_grad():
        held, z = net(images[50_000:53_000]), net(test)
        calibrator = StructuredScaling()
        calibrator.fit(head.logit_samples(held), labels[50_000:53_000], head.confidence(held))
        return {
            "accuracy": accuracy,
            "as_trained": judged(head.predict_proba(z), truth),
            "calibrated": judged(calibrator(head.logit_samples(z), head.confidence(z)).exp(), truth),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("heads", nargs="*", choices=list(HEADS), default=list(HEADS))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/drop_in.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = {
        "command": f"benchmarks/drop_in.py {' '.join(options.heads)} --steps {options.steps} "
        f"--seed {options.seed}",
        "commit": git_commit(),
        "torch": torch.__version__,
        "heads": {},
    }
    mnist = data.load("mnist")
    images = mnist.inputs.float().div(255)
    for name in options.heads:
        found = record["heads"].setdefault(name, {})
        for prepare in (False, True):
            key = "with_prepare" if prepare else "without_prepare"
            found[key] = run(name, images, mnist.labels, prepare, options.steps, options.seed)
            print(name, key, json.dumps(found[key]), flush=True)
        write_record(options.out, record)


if __name__ == "__main__":
    main()
