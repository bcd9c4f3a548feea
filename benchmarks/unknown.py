"""Unknown items: how well each score finds them, beside pytorch-ood's.

    python benchmarks/unknown.py --data FOLDER clinc150 fashion-mnist cub --heads cosine vmf

A set is `FOLDER/name.npz` with X, y, test (a mask) and `unknown`, rows of no known class. The engine trains
on the known rows; a tenth of them is held out, and `choose_unknown` takes a score by these alone. AUROC and
the share of unknown rows that is let through where 95 % of the known ones are (FPR95) are those of the test
rows and the unknown ones. Writes results/benchmarks/unknown.json.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split

from records import git_commit, write_record
from spaceform.decisions import UNKNOWN_SCORES, Known, Refusal, choose_unknown
from spaceform.engine import Rows, fit, space
from spaceform.engine.training import set_draws
from spaceform.foundation.torchvision import ensure_torchvision
from spaceform.metrics import ood_auroc
from spaceform.run.predictor import blocks_of_embeddings

_DRAWS = 16


def measured(known: torch.Tensor, unknown: torch.Tensor) -> dict[str, float]:
    """Both higher for known."""
    threshold = known.double().quantile(0.05)
    return {
        "auroc": ood_auroc(known, unknown).item(),
        "fpr95": (unknown.double() >= threshold).double().mean().item(),
    }


def peers(z: dict[str, torch.Tensor], logits: dict[str, torch.Tensor], y: torch.Tensor) -> dict[str, Any]:
    """pytorch-ood's scores are higher for unknown."""
    try:
        from pytorch_ood.detector import (
            GEN,
            KNN,
            RMD,
            EnergyBased,
            Entropy,
            Mahalanobis,
            MaxLogit,
            MaxSoftmax,
        )
    except ImportError:
        return {}
    found: dict[str, Any] = {}
    for kind in (MaxSoftmax, MaxLogit, EnergyBased, Entropy, GEN):
        found[kind.__name__] = [-kind(None).predict_logits(logits[part]) for part in ("test", "unknown")]
    for kind in (KNN, Mahalanobis, RMD):
        fitted = kind(torch.nn.Identity()).fit_features(z["train"], y)
        found[kind.__name__] = [-fitted.predict_features(z[part]) for part in ("test", "unknown")]
    return {f"pytorch-ood {name}": measured(*map(torch.as_tensor, pair)) for name, pair in found.items()}


def set_row(path: Path, head: str) -> dict[str, Any]:
    with np.load(path) as saved:
        x, y, test = saved["X"].astype(np.float32), saved["y"], saved["test"]
        foreign = saved["unknown"].astype(np.float32)
    rest = np.flatnonzero(~test)
    train, held_out = train_test_split(rest, test_size=0.1, stratify=y[rest], random_state=0)
    classes = int(y.max()) + 1
    parts = {
        "train": Rows.of(x[train], y[train]),
        "held_out": Rows.of(x[held_out], y[held_out]),
        "test": Rows.of(x[test], y[test]),
        "unknown": Rows.of(foreign, np.zeros(len(foreign), np.int64)),
    }
    candidate = space(head, x.shape[1], classes, len(train), size=1)[0]
    model = fit(head, candidate, parts["train"], parts["held_out"], seed=0, classes=classes).models[0]
    set_draws(model.head, _DRAWS)
    z, logits, κ, far = {}, {}, {}, {}
    with torch.inference_mode():
        for name, rows in parts.items():
            seen = rows.seen_by(model.net.inputs).features
            z[name], far[name] = model.net.body(seen), model.net.inputs.reach(rows.features)
            κ[name] = model.head.confidence(z[name])
            if name != "train":
                said = [
                    model.head.logit_samples(block) for block in blocks_of_embeddings(model.head, z[name])
                ]
                logits[name] = torch.cat(said, 1)
    labels_of = {name: rows.y for name, rows in parts.items()}
    labels = labels_of["train"]
    held = Known(*(part["held_out"] for part in (z, labels_of, logits, κ, far)))
    geometry = model.head.geometry
    chosen = choose_unknown(z["train"], labels, held, geometry)
    row: dict[str, Any] = {"classes": classes, "unknown": len(foreign), "chosen": chosen.score.name}
    row["chosen_by"] = chosen.auroc
    for name, kind in UNKNOWN_SCORES.items():
        score = kind(geometry).fit(z["train"], labels, held)
        s = {part: score(z[part], logits[part], κ[part], far[part]) for part in logits}
        row[name] = measured(s["test"], s["unknown"])
        row[name]["refused_of_known_at_5_percent"] = (
            Refusal(0.05).fit(s["held_out"])(s["test"]).double().mean().item()
        )
    mean = {part: value.mean(0) for part, value in logits.items()}
    return row | peers(z, mean, labels)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--heads", nargs="+", default=["cosine", "vmf"])
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/unknown.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    ensure_torchvision()
    rows = {}
    for name in given.sets:
        for head in given.heads:
            rows[f"{name} {head}"] = set_row(given.data / f"{name}.npz", head)
            print(name, head, json.dumps(rows[f"{name} {head}"], indent=1), flush=True)
    written = {
        "command": f"python benchmarks/unknown.py --data FOLDER {' '.join(given.sets)} "
        f"--heads {' '.join(given.heads)}",
        "commit": git_commit(),
        "runs": rows,
    }
    write_record(given.out, written)


if __name__ == "__main__":
    main()
