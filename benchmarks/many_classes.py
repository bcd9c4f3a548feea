"""How loose the bound of eq. 8 is in trained vMF heads, by the number of classes.

    python benchmarks/many_classes.py --classes 10 100 1000 10000
    python benchmarks/many_classes.py --features FOLDER/digits.npz FOLDER/cub.npz

The bound has E_z[log Σ_j E_w exp(β w_j·z)] where the expected loss has E_z E_w[log Σ_j exp(β w_j·z)]; their
second term, −β E[w_y]·E[z], is the same. So the difference needs no labels. Both take the same draws of z.

`second_order` is what an expansion gives for the difference: ½β² Σ_j p_j² v_j, the variance v_j of w_j·z over
w_j, the probability p_j of class j by the bound.

Made data: a class is a vMF law on the sphere of 128 dimensions about a random direction, κ so that the cosine
with it is about 0.6. Class weights start at the mean of eight rows of their class, so that few steps do; a
linear layer and the head then learn from fresh rows by Adam. Measured on 512 new rows: as the head was made,
and trained. Real data: X, y and a mask `test`; the engine trains its first candidate, and the test rows are
measured. Writes results/benchmarks/many_classes.json.
"""

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from engine import load
from records import git_commit, write_record
from spaceform import metrics, special
from spaceform.distributions import VonMisesFisher
from spaceform.engine import parts_of, rehearse, space
from spaceform.heads import VonMisesFisherHead

DIM, COSINE, ROWS, BATCH = 128, 0.6, 512, 256


@torch.no_grad()
def measured(head: VonMisesFisherHead, z: Tensor, y: Tensor, draws: int, seed: int) -> dict[str, Any]:
    """The bound, the expected loss and their difference, means over examples; what a head is like."""
    head.samples, before = 8, head.samples
    kappa, norm = head.confidence(z), head.weight[y].norm(dim=1)
    cos = torch.cosine_similarity(z, head.weight[y])
    agreement = head.beta * cos
    for size in (kappa, norm):
        agreement = agreement * special.mean_resultant_length(size.double(), head.dim).to(z)
    bound, expected = [], []
    for i in range(draws // head.samples):
        # The same seed: both draw z first, so their draws of z are the same.
        one, two = (torch.Generator().manual_seed(1000 * seed + i) for _ in range(2))
        bound.append(head(z, y, generator=one))
        expected.append(head.logit_samples(z, generator=two).logsumexp(-1).mean(0) - agreement)
    head.samples = before
    mean_bound, mean_expected = torch.stack(bound).mean(0), torch.stack(expected).mean(0)
    gap = mean_bound - mean_expected
    return {
        "bound": mean_bound.mean().item(),
        "expected_loss": mean_expected.mean().item(),
        "gap": gap.mean().item(),
        "error": gap.std().item() / math.sqrt(len(gap)),
        "second_order": second_order(head, z, seed),
        "accuracy": 100 * float(metrics.accuracy(head.predict_proba(z), y)),
        "kappa": kappa.mean().item(),
        "weight_norm": head.weight.norm(dim=1).mean().item(),
        "beta": head.beta.item(),
    }


@torch.no_grad()
def second_order(head: VonMisesFisherHead, z: Tensor, seed: int, draws: int = 4) -> float:
    """½β² Σ_j p_j² v_j, the mean over examples and draws of z."""
    beta, n = head.beta, head.dim
    length = head.weight.norm(dim=1)
    mean = special.mean_resultant_length(length.double(), n).to(z)
    across = mean / length
    along = 1 - mean.square() - (n - 1) * across
    torch.manual_seed(seed)
    found = []
    for u in VonMisesFisher(nn.functional.normalize(z), head.confidence(z)).sample((draws,)):
        cos = u @ nn.functional.normalize(head.weight).T
        spread = beta.square() * (across * (1 - cos.square()) + along * cos.square())
        p = (beta * mean * cos + spread / 2).softmax(1)
        found.append((p.square() * spread).sum(1).mean() / 2)
    return torch.stack(found).mean().item()


def made(classes: int, steps: int, draws: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    means = nn.functional.normalize(torch.randn(classes, DIM))
    kappa = special.concentration_from_mean_resultant_length(torch.tensor(COSINE, dtype=torch.float64), DIM)

    def rows(n: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(classes, (n,))
        x = VonMisesFisher(means[y], torch.full((n,), float(kappa))).sample()
        return math.sqrt(DIM) * x, y

    net, head = nn.Linear(DIM, DIM), VonMisesFisherHead(DIM, classes, samples=1)
    nn.init.eye_(net.weight)
    x, y = rows(ROWS)
    head.prepare(net(x).detach())
    untrained = measured(head, net(x).detach(), y, draws, seed)
    with torch.no_grad():
        size, order = head.weight.norm(dim=1, keepdim=True), torch.arange(classes)
        seen = VonMisesFisher(means[order], torch.full((classes,), float(kappa))).sample((8,))
        head.weight.copy_(size * nn.functional.normalize(seen.mean(0)))
    # Class weights are concentrations, about 1,000 long: Adam's steps have the size of its rate.
    rates = {"class_weights": 2.0, "temperature": 1e-2}
    groups = [{"params": g["params"], "lr": rates[g["name"]]} for g in head.parameter_groups()]
    optimizer = torch.optim.Adam([{"params": [*net.parameters()], "lr": 1e-3}, *groups])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        x_batch, y_batch = rows(BATCH)
        loss = head(net(x_batch), y_batch).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    trained = measured(head, net(x).detach(), y, draws, seed)
    return {"data": "made", "classes": classes, "steps": steps, "untrained": untrained, "trained": trained}


def real(path: Path, draws: int, seed: int) -> dict[str, Any]:
    train, held_out, test, classes = load(path.stem, path.parent)
    parts = parts_of(train, held_out, seed=0)
    candidate = space("vmf", train.x.shape[1], classes, len(parts[0].train))[0]
    (model, *_) = rehearse("vmf", candidate, parts, seed=seed, classes=classes).models
    head = model.head
    assert isinstance(head, VonMisesFisherHead)
    found = measured(head, model.embed(test.x[:ROWS]), test.y[:ROWS], draws, seed)
    return {"data": path.stem, "classes": classes, "dim": head.dim, "trained": found}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", nargs="*", type=int, default=[10, 100, 1000, 10_000])
    parser.add_argument("--steps", nargs="*", type=int, default=[200, 300, 600, 600])
    parser.add_argument("--features", nargs="*", type=Path, default=[])
    parser.add_argument("--draws", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/many_classes.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = " ".join(f"FOLDER/{path.name}" for path in options.features)
    numbers = f"--classes {' '.join(map(str, options.classes))} --steps {' '.join(map(str, options.steps))}"
    record: dict[str, Any] = {
        "command": f"benchmarks/many_classes.py {numbers} --features {names} --draws {options.draws}",
        "commit": git_commit(),
        "rows": [],
    }
    jobs = [
        *((real, (path, options.draws, options.seed)) for path in options.features),
        *(
            (made, (classes, steps, options.draws, options.seed))
            for classes, steps in zip(options.classes, options.steps, strict=True)
        ),
    ]
    for work, arguments in jobs:
        began = time.process_time()
        row = work(*arguments)
        row["seconds"] = time.process_time() - began
        record["rows"].append(row)
        for state in ("untrained", "trained"):
            if state in row:
                text = "  ".join(f"{key} {value:.4g}" for key, value in row[state].items())
                print(
                    f"{row['data']:18} {row['classes']:6} {state:9} {text}  {row['seconds']:.0f} s",
                    flush=True,
                )
        write_record(options.out, record)


if __name__ == "__main__":
    main()
