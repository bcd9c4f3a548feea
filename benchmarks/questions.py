"""The paper's open questions as small studies: the same recipe with one thing changed, over several seeds.

    python benchmarks/questions.py samples normalizer --data digits --seeds 5 --out questions

Every question is a study of its own in OUT/DATA-QUESTION: the same command again goes on where it stopped.
Prints mean ± s.e.m. of each variant and writes OUT/DATA-QUESTION.json with the command, commit and versions.
"""

import argparse
import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any, final
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from spaceform.heads._kernels.angle_table import AngleTable
from spaceform.run.environment import environment
from spaceform.run.recipe import PAPER, QUICK, Recipe, replace
from spaceform.study.folder import Job, StudyFolder
from spaceform.study.place import Event, Watcher, perform, unwatched
from spaceform.study.plan import named_heads
from spaceform.study.processes import Processes
from spaceform.verbs.runs import carry_out

Changes = dict[str, Any]
METRICS = (
    "accuracy",
    "nll",
    "calibration_error_l2",
    "calibrated.temperature.nll",
    "calibrated.temperature.calibration_error_l2",
    "calibrated.norm_aware_temperature.nll",
    "calibrated.norm_aware_temperature.calibration_error_l2",
    "auroc_confidence",
    "epochs",
)


def each(head: str, key: str, *values: Any, **more: Any) -> dict[str, tuple[str, Changes]]:
    """A variant for each value of one option."""
    return {f"{head} {key.partition('.')[2]}={v:g}": (head, {key: v, **more}) for v in values}


QUESTIONS: dict[str, dict[str, tuple[str, Changes]]] = {
    "normalizer": {
        f"vmf {name}, n={dim}": ("vmf", {"head.normalizer": name, "net.dim": dim})
        for dim in (3, 8)
        for name in ("exact", "bounds")
    },
    "sampler": {
        f"vmf {name}": ("vmf", {"head.normalizer": "exact", "net.dim": 128, "head.init_ratio": 0.4})
        for name in ("right sampler, n=128", "published sampler, n=128")
    },
    "temperature": {head: (head, {}) for head in ("cosine", "arcface", "vmf", "power_spherical")},
    "laws": {head: (head, {}) for head in ("vmf", "power_spherical")},
    "samples": each("vmf", "head.samples", 1, 3, 10, 30),
    "bottleneck": {
        **each("vmf", "head.gamma", 0.0, 0.001, 0.01, 0.1),
        **each("power_spherical", "head.gamma", 0.0, 0.001, 0.01, 0.1),
    },
    "noise": {head: (head, {"data.label_noise": 0.2}) for head in named_heads("default")},
    "imbalance": {head: (head, {"data.imbalance": 100.0}) for head in named_heads("default")},
}


def published_draw(shape: Any, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The cosine to the mean direction, and its sine, as the public code of the paper draws it.

    From its description: rejection as in Davidson et al. (2018), after Ulrich and Wood, but beyond κ = 11
    with b = (n − 1)/4κ. That is right for κ ≫ n alone: elsewhere the acceptance, whose other constants are
    exact, no longer corrects what is proposed. The gradient in κ is that of the proposal alone.
    """
    m = dim - 1
    root = (4 * kappa**2 + m**2).sqrt()
    b = torch.where(kappa > 11, m / (4 * kappa.clamp_min(1e-6)), m / (2 * kappa + root))
    with torch.no_grad():
        a = (m + 2 * kappa + root) / 4
        d = 4 * a * b / (1 + b) - m * math.log(m)
        z = torch.empty(shape, dtype=kappa.dtype)
        todo = torch.ones(shape, dtype=torch.bool)
        while todo.any():
            new = torch.distributions.Beta(m / 2, m / 2).sample(shape).to(kappa.dtype)
            t = 2 * a * b / (1 - (1 - b) * new)
            accept = m * t.log() - t + d >= torch.rand(shape).log()
            z = torch.where(todo & accept, new, z)
            todo &= ~accept
    w = (1 - (1 + b) * z) / (1 - (1 - b) * z)
    return w, (1 - w * w).clamp_min(1e-12).sqrt()


def published_antithetic(self: AngleTable, x: Tensor, kappa: Tensor) -> tuple[Tensor, Tensor]:
    """In the place of `AngleTable.antithetic`; its draws are independent."""
    return published_draw((len(kappa), 2 * x.shape[1]), kappa[:, None], self.dim)


def base(data: str, head: str, epochs: int | None) -> Recipe:
    """The recipe that the question starts from."""
    recipe = (QUICK if data == "digits" else PAPER)[f"{data}/{head}"]
    return replace(recipe, {"budget.epochs": epochs}) if epochs else recipe


def plan(question: str, data: str, seeds: int, epochs: int | None) -> list[Job]:
    """All runs, seed by seed."""
    return [
        Job(f"{label.replace(' ', '-').replace(',', '')}-seed{seed}", label,
            replace(base(data, head, epochs), {**changes, "seed": seed}))
        for seed in range(seeds)
        for label, (head, changes) in QUESTIONS[question].items()
    ]  # fmt: skip


def answer(question: str, options: argparse.Namespace) -> pd.DataFrame:
    """Run what is not there yet; one row for each run."""
    return carry_out(
        options.out / f"{options.data}-{question}",
        plan(question, options.data, options.seeds, options.epochs),
        on=PublishedSampler() if question == "sampler" else Processes(options.processes),
        say=print,
    ).table


@final
class PublishedSampler:
    """This process, in which some runs draw as the published code does: another process would not see it."""

    def finish(self, study: StudyFolder, watch: Watcher = unwatched, *, workers: int | None = None) -> None:
        torch.set_num_threads(1)
        datasets: dict[Any, Any] = {}
        published = {
            "antithetic": published_antithetic,
            "draw": lambda self, x, kappa: published_draw(x.shape, kappa, self.dim),
        }
        for job in study.unfinished():
            with patch.multiple(AngleTable, **published) if "published" in job.label else nullcontext():
                perform(job, study.path(job), lambda _: None, datasets, workers=workers or 0)
            watch(Event(job, "finished"))


def summary(table: pd.DataFrame) -> dict[str, dict[str, list[float]]]:
    """Mean and standard error of each metric, by variant, and the number of runs."""
    found: dict[str, dict[str, list[float]]] = {}
    for label, rows in table[table.state == "finished"].groupby("label", sort=False):
        found[str(label)] = {
            name: [float(rows[name].mean()), float(rows[name].std(ddof=1) / np.sqrt(len(rows)))]
            for name in METRICS
            if name in rows
        } | {"runs": [len(rows), 0.0]}
    return found


def main() -> None:
    """Answer the questions named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("questions", nargs="+", choices=[*QUESTIONS, "all"])
    parser.add_argument("--data", default="digits", help="digits, or a data set of the paper")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="at most so many")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--out", type=Path, default=Path("spaceform-questions"))
    options = parser.parse_args()
    for question in QUESTIONS if "all" in options.questions else options.questions:
        found = summary(answer(question, options))
        record = {"question": question, "data": options.data, "made_with": environment(), "measured": found}
        path = options.out / f"{options.data}-{question}.json"
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
        print(f"\n{question} ({options.data})")
        for label, measured in found.items():
            print(f"  {label}")
            for name, (mean, sem) in measured.items():
                print(f"    {name:55} {mean:9.4f} ± {sem:.4f}")


if __name__ == "__main__":
    main()
