"""What training costs beside a bare loop, and each head beside COSINE: ratios of CPU time on one thread.

    OMP_NUM_THREADS=1 python benchmarks/training.py

An epoch of the paper's MNIST protocol (250 episodes of 130) on random images of MNIST's shape and size, by
`train` with everything it does (episodes, Fabric, validation, history, checkpoints), against a bare loop over
ready-made tensors with the same net, head and optimiser. Then single steps of ResNet50 (CIFAR stem, batch of
256) under either head, and steps and predictions of every head on the small net. Interleaved; medians and
minima over the rounds.
"""

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from spaceform.data import Dataset, Split
from spaceform.run.allocator import keep_freed_memory
from spaceform.run.environment import environment
from spaceform.run.model import build_model
from spaceform.run.optim import parameter_groups
from spaceform.run.progress import Progress
from spaceform.run.recipe import PAPER, Recipe, replace
from spaceform.run.train import train
from spaceform.study.plan import named_heads

HEADS = named_heads("default")


def images() -> Dataset:
    """70,000 random images with MNIST's split."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (70_000, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.arange(70_000) % 10
    split = Split(torch.arange(60_000), test=torch.arange(60_000, 70_000))
    return Dataset("mnist", tuple("0123456789"), labels, inputs, official=split)


def bare(recipe: Recipe, batch: tuple[Tensor, Tensor], shape: tuple[int, ...], episodes: int) -> float:
    """CPU seconds an epoch of the loop that everybody writes."""
    torch.manual_seed(0)
    x, y = batch
    model = build_model(recipe, int(y.max()) + 1, shape)
    optimizer = torch.optim.SGD(parameter_groups(model.net, model.head, recipe.optim))
    began = time.process_time()
    for _ in range(episodes):
        optimizer.zero_grad()
        model(x, y).mean().backward()
        optimizer.step()
    return time.process_time() - began


def ours(recipe: Recipe, dataset: Dataset) -> float:
    """CPU seconds of an epoch of `train`: episodes, steps, validation, history, checkpoint."""
    ends: list[float] = []

    def listen(progress: Progress) -> None:
        if progress.done:
            ends.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        train(recipe, Path(folder) / "run", dataset=dataset, accelerator="cpu", listener=listen)
    return ends[-1] - ends[-2]


def mnist(rounds: int, episodes: int) -> dict[str, list[float]]:
    """An epoch of every head by `train`, of COSINE and vMF also by the bare loop, in turn."""
    dataset = images()
    batch = torch.rand(130, 1, 28, 28), torch.arange(130) % 10
    changes = {"budget.epochs": 2, "budget.episodes": episodes, "optim.lr": 0.01}
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for head in HEADS:
            recipe = replace(PAPER[f"mnist/{head}"], changes)
            if head in ("cosine", "vmf"):
                seconds.setdefault(f"{head} bare", []).append(bare(recipe, batch, (1, 28, 28), episodes))
            seconds.setdefault(f"{head} train", []).append(ours(recipe, dataset))
    return seconds


def resnet(rounds: int) -> dict[str, list[float]]:
    """A step of ResNet50 with the CIFAR stem on a batch of CIFAR-100's shape (32 classes of 8), in turn."""
    x, y = torch.rand(256, 3, 32, 32), torch.arange(256) % 100
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for head in ("cosine", "vmf"):
            recipe = PAPER[f"cifar100/{head}"]
            seconds.setdefault(f"{head} resnet50", []).append(bare(recipe, (x, y), (3, 32, 32), 1))
    return seconds


def runtime(rounds: int, steps: int = 20) -> dict[str, list[float]]:
    """Steps, and predictions of 2,000 test images, of every head on the paper's small net, in turn."""
    x, y, many = torch.rand(130, 1, 28, 28), torch.arange(130) % 10, torch.rand(2000, 1, 28, 28)
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for head in HEADS:
            recipe = PAPER[f"mnist/{head}"]
            seconds.setdefault(f"{head} steps", []).append(bare(recipe, (x, y), (1, 28, 28), steps))
            model = build_model(recipe, 10, (1, 28, 28)).eval()
            began = time.process_time()
            with torch.inference_mode():
                model.head.predict_proba(model.net(many))
            seconds.setdefault(f"{head} prediction", []).append(time.process_time() - began)
    return seconds


def main() -> None:
    """Print the ratios, and write them where `--json` says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=250)
    parser.add_argument("--json", type=Path, help="also write what was measured to this file")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    keep_freed_memory()  # for the bare loop as for ours
    seconds = {
        **mnist(options.rounds, options.episodes),
        **resnet(options.rounds),
        **runtime(5 * options.rounds),
    }
    measured = {}
    for title, over, under in (
        ("an epoch of train / bare loop, cosine", "cosine train", "cosine bare"),
        ("an epoch of train / bare loop, vmf", "vmf train", "vmf bare"),
        ("vmf / cosine, bare loop", "vmf bare", "cosine bare"),
        ("vmf / cosine, ResNet50 on CIFAR", "vmf resnet50", "cosine resnet50"),
        *((f"{head} / cosine, an epoch of train", f"{head} train", "cosine train") for head in HEADS),
        *((f"{head} / cosine, steps", f"{head} steps", "cosine steps") for head in HEADS),
        *((f"{head} / cosine, prediction", f"{head} prediction", "cosine prediction") for head in HEADS),
    ):
        a, b = seconds[over], seconds[under]
        measured[title] = {"median": median(a) / median(b), "minimum": min(a) / min(b)}
        print(f"{title:40} median {measured[title]['median']:.3f}  minimum {measured[title]['minimum']:.3f}")
    if options.json:
        record = {"made_with": environment(), "rounds": options.rounds, "measured": measured}
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
