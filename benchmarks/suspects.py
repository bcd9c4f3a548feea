"""How many of the labels that `SubCentreArcFaceHead.suspects` lists are truly wrong?

    python benchmarks/suspects.py --noise 0.1 --seeds 5
    python benchmarks/suspects.py --noise 0.1 --seeds 5 --classifier

A tenth of the labels of digits (1,797 of scikit-learn) and of 5,000 MNIST images gets another class, at
random. A net of one hidden layer and the head learn from them by Adam in a plain loop, and the head is asked
for suspects among the same rows. `precision` is the share of suspects that are truly wrong, `recall` the
share of wrong labels among the suspects, both for angles of 60, 75 (the default) and 90 degrees. `at_k` is
the precision of the k most suspect rows, k the number of wrong labels: by the angle to the dominant centre,
by the angle of a head with one centre, and by the probability of the given label under `CosineHead`, which
anyone has without sub-centres. With `--classifier` the same labels are given to `SpaceformClassifier` with
the head "subcentre_arcface", as it comes and with its first net alone (`search=1`); `learned` is the share of
wrong labels that it predicts on these rows. Writes results/benchmarks/suspects.json, and keeps what is there
of the other way.
"""

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from records import git_commit, write_record
from spaceform import SpaceformClassifier, data
from spaceform.heads import CosineHead, Head, SubCentreArcFaceHead

CLASSES, HIDDEN, DIM, BATCH = 10, 128, 32, 64
ANGLES = (60, 75, 90)
ROWS = 5_000


def digits() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)


def mnist() -> tuple[Tensor, Tensor]:
    found = data.load("mnist")
    rows = torch.randperm(60_000, generator=torch.Generator().manual_seed(0))[:ROWS]
    return found.inputs[rows].flatten(1).float() / 255, found.labels[rows]


SETS = {"digits": digits, "mnist": mnist}


def noisy(y: Tensor, share: float, random: torch.Generator) -> Tensor:
    """The labels with this share of them moved to another class."""
    moved = torch.randperm(len(y), generator=random)[: round(share * len(y))]
    y = y.clone()
    y[moved] = (y[moved] + torch.randint(1, CLASSES, (len(moved),), generator=random)) % CLASSES
    return y


def embeddings(head: Head, x: Tensor, y: Tensor, epochs: int, random: torch.Generator) -> Tensor:
    """Train a net and the head, and embed the rows."""
    net = nn.Sequential(nn.Linear(x.shape[1], HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM))
    head.prepare(net(x).detach())
    optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=2e-3)
    for epoch in range(epochs):
        head.start_epoch(epoch)
        for rows in torch.randperm(len(x), generator=random).split(BATCH):
            loss = head(net(x[rows]), y[rows]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net(x).detach()


def run(x: Tensor, truth: Tensor, noise: float, epochs: int, seed: int) -> dict[str, float]:
    torch.manual_seed(seed)
    random = torch.Generator().manual_seed(seed)
    y = noisy(truth, noise, random)
    wrong = y != truth
    k = int(wrong.sum())
    found: dict[str, float] = {}
    head = SubCentreArcFaceHead(DIM, CLASSES, margin=0.3)
    z = embeddings(head, x, y, epochs, random)
    for angle in ANGLES:
        suspects = head.suspects(z, y, angle=math.radians(angle))
        found[f"suspects_{angle}"] = len(suspects)
        found[f"precision_{angle}"] = 100 * wrong[suspects].double().mean().item()
        found[f"recall_{angle}"] = 100 * wrong[suspects].sum().item() / k
    found["at_k"] = 100 * wrong[head.suspects(z, y, angle=0.0)[:k]].double().mean().item()
    one = SubCentreArcFaceHead(DIM, CLASSES, margin=0.3, centres=1)
    z = embeddings(one, x, y, epochs, random)
    found["at_k_one_centre"] = 100 * wrong[one.suspects(z, y, angle=0.0)[:k]].double().mean().item()
    cosine = CosineHead(DIM, CLASSES)
    z = embeddings(cosine, x, y, epochs, random)
    given = cosine.predict_proba(z).detach()[torch.arange(len(y)), y]
    found["at_k_probability"] = 100 * wrong[given.argsort()[:k]].double().mean().item()
    return found


def run_classifier(x: Tensor, truth: Tensor, noise: float, seed: int) -> dict[str, float]:
    y = noisy(truth, noise, torch.Generator().manual_seed(seed))
    wrong = (y != truth).numpy()
    found: dict[str, float] = {}
    for name, search in (("", "auto"), ("_one_candidate", 1)):
        model = SpaceformClassifier("subcentre_arcface", search=search, random_state=seed)
        model.fit(x.numpy(), y.numpy())
        suspects = model.suspects(x.numpy(), y.numpy())
        found[f"suspects_75{name}"] = len(suspects)
        found[f"precision_75{name}"] = 100 * float(wrong[suspects].mean())
        found[f"recall_75{name}"] = 100 * float(wrong[suspects].sum() / wrong.sum())
        found[f"learned{name}"] = 100 * float((model.predict(x.numpy()) == y.numpy())[wrong].mean())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--noise", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--classifier", action="store_true", help="the scikit-learn classifier alone")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/suspects.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    record: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    way = "classifier" if options.classifier else "sets"
    epochs = "" if options.classifier else f" --epochs {options.epochs}"
    made = {
        "command": f"benchmarks/suspects.py --noise {options.noise}{epochs} --seeds {options.seeds}"
        + (f" --classifier --sets {' '.join(options.sets)}" if options.classifier else ""),
        "commit": git_commit(),
        "torch": torch.__version__,
    }
    if options.classifier:
        record[way] = made | {"sets": {}}
        sets = record[way]["sets"]
    else:
        record |= made | {"sets": {}}
        sets = record["sets"]
    for name in options.sets:
        x, y = SETS[name]()
        runs = [
            run_classifier(x, y, options.noise, seed)
            if options.classifier
            else run(x, y, options.noise, options.epochs, seed)
            for seed in range(options.seeds)
        ]
        sets[name] = {
            key: {
                "mean": statistics.mean(one[key] for one in runs),
                "error": statistics.stdev([one[key] for one in runs]) / math.sqrt(len(runs)),
            }
            for key in runs[0]
        }
        text = "  ".join(f"{key} {value['mean']:.1f}" for key, value in sets[name].items())
        print(f"{name}: {text}", flush=True)
        write_record(options.out, record)


if __name__ == "__main__":
    main()
