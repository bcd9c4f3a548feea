"""What training costs beside a bare loop, and vMF beside COSINE: ratios in one process on one thread.

    OMP_NUM_THREADS=1 python benchmarks/training.py

An epoch of the paper's MNIST protocol (250 episodes of 130) on random images of MNIST's shape and size, by
`train` with everything it does (episodes, Fabric, validation, history, checkpoints), against a bare loop over
ready-made tensors with the same net, head and optimiser. Interleaved; medians and minima over the rounds.
"""

import argparse
import logging
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from spaceform.data import Dataset, Split
from spaceform.recipe import PAPER, Recipe, replace
from spaceform.run import build_model
from spaceform.training import parameter_groups, train


def images() -> Dataset:
    """70,000 random images with MNIST's split."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (70_000, 1, 28, 28), generator=generator, dtype=torch.uint8)
    labels = torch.arange(70_000) % 10
    split = Split(torch.arange(60_000), test=torch.arange(60_000, 70_000))
    return Dataset("mnist", tuple("0123456789"), labels, inputs, official=split)


def bare(recipe: Recipe, episodes: int) -> float:
    """Seconds an epoch of the loop that everybody writes."""
    torch.manual_seed(0)
    model = build_model(recipe, 10, (1, 28, 28))
    optimizer = torch.optim.SGD(parameter_groups(model, recipe.optim))
    x, y = torch.rand(130, 1, 28, 28), torch.arange(130) % 10
    began = time.perf_counter()
    for _ in range(episodes):
        optimizer.zero_grad()
        model(x, y).mean().backward()
        optimizer.step()
    return time.perf_counter() - began


def ours(recipe: Recipe, dataset: Dataset) -> tuple[float, float]:
    """Seconds of an epoch: its training alone, and with validation, history and checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        history = train(recipe, Path(folder) / "run", dataset=dataset, accelerator="cpu").history
    return history[-1]["train_seconds"], history[-1]["seconds"]


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=250)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    torch.set_num_threads(1)
    dataset = images()
    changes = {"budget.epochs": 1, "budget.episodes": options.episodes}
    recipes = {
        head: replace(PAPER[f"mnist/{head}"], {**changes, "optim.lr": 0.01}) for head in ("cosine", "vmf")
    }
    seconds: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for head, recipe in recipes.items():
            steps, epoch = ours(recipe, dataset)
            for name, value in (("bare", bare(recipe, options.episodes)), ("steps", steps), ("epoch", epoch)):
                seconds.setdefault(f"{head} {name}", []).append(value)
    for title, over, under in (
        ("train's steps / bare loop, cosine", "cosine steps", "cosine bare"),
        ("train's whole epoch / bare loop, cosine", "cosine epoch", "cosine bare"),
        ("train's steps / bare loop, vmf", "vmf steps", "vmf bare"),
        ("vmf / cosine, steps", "vmf steps", "cosine steps"),
        ("vmf / cosine, whole epoch", "vmf epoch", "cosine epoch"),
    ):
        a, b = seconds[over], seconds[under]
        print(f"{title:42} median {median(a) / median(b):.3f}  minimum {min(a) / min(b):.3f}")


if __name__ == "__main__":
    main()
