"""NLL on new items after each calibrator, ours and those of other packages, and how long a fit takes.

    python benchmarks/calibration.py --data FOLDER --cache CACHE dry_bean clinc150-small --heads cosine vmf

A set is `FOLDER/name.npz` with X, y and test (a mask). Of the other rows a fifth is held out; the engine
trains on the rest, with its first two candidates (one seed each), and what the model says of both parts is
kept in CACHE. Calibrators see the held-out fifth and are judged on the test rows. Peers: probmetrics
(temperature, SVS, SMS, scikit-learn's isotonic regression), netcal, torch-uncertainty; those that are not
installed are left out. Times are of the processor. Writes results/benchmarks/calibration.json after each run;
the same command again goes on where it was stopped.
"""

import argparse
import itertools
import json
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import train_test_split

from records import git_commit, versions, write_record
from spaceform.calibrators import CALIBRATORS
from spaceform.engine import Rows, fit, space
from spaceform.engine.training import set_draws
from spaceform.foundation.torchvision import ensure_torchvision
from spaceform.geometry import Sphere
from spaceform.heads import HEADS
from spaceform.heads.base import log_mean_softmax
from spaceform.run.predictor import blocks_of_embeddings

_DRAWS = 16
Fitted = Callable[[np.ndarray], np.ndarray]
Peer = Callable[[np.ndarray, np.ndarray], Fitted]


def said(name: str, head: str, seed: int, data: Path, cache: Path) -> dict[str, np.ndarray]:
    """Logits, labels and confidence of held-out rows (val) and of new ones (test)."""
    path = cache / f"{name}-{head}-{seed}.npz"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(path, **_trained(name, head, seed, data))
    with np.load(path) as saved:
        return {key: saved[key] for key in saved.files}


def _trained(name: str, head: str, seed: int, data: Path) -> dict[str, np.ndarray]:
    with np.load(data / f"{name}.npz") as saved:
        x, y, test = saved["X"].astype(np.float32), saved["y"], saved["test"]
    rest = np.flatnonzero(~test)
    train, held_out = train_test_split(rest, test_size=0.2, stratify=y[rest], random_state=seed)
    rows = {"val": Rows.of(x[held_out], y[held_out]), "test": Rows.of(x[test], y[test])}
    classes = int(y.max()) + 1
    candidate = space(head, x.shape[1], classes, len(train), size=4)[seed]
    found = fit(head, candidate, Rows.of(x[train], y[train]), rows["val"], seed=seed, classes=classes)
    model = found.models[0]
    set_draws(model.head, _DRAWS)
    said: dict[str, np.ndarray] = {}
    with torch.inference_mode():
        for part, own in rows.items():
            z = model.net.body(own.seen_by(model.net.inputs).x)
            logits = torch.cat(
                [model.head.logit_samples(block) for block in blocks_of_embeddings(model.head, z)], 1
            )
            said |= {f"L_{part}": logits.numpy(), f"y_{part}": own.y.numpy()}
            said[f"k_{part}"] = model.head.confidence(z).numpy()
    return said


def probmetrics(kind: str) -> Peer:
    from probmetrics.calibrators import get_calibrator

    def peer(p: np.ndarray, y: np.ndarray) -> Fitted:
        found = get_calibrator(kind)
        found.fit(p, y)
        return found.predict_proba

    return peer


def netcal() -> Peer:
    from netcal.scaling import TemperatureScaling

    def peer(p: np.ndarray, y: np.ndarray) -> Fitted:
        found = TemperatureScaling()
        found.fit(p, y)
        return found.transform

    return peer


def torch_uncertainty() -> Peer:
    from torch.utils.data import DataLoader, TensorDataset
    from torch_uncertainty.post_processing import TemperatureScaler

    def peer(p: np.ndarray, y: np.ndarray) -> Fitted:
        found = TemperatureScaler(model=torch.nn.Identity(), device="cpu")
        logits = logits_of(p)
        found.fit(DataLoader(TensorDataset(logits, torch.from_numpy(y)), batch_size=len(y)), progress=False)
        return lambda q: torch.softmax(found(logits_of(q)), -1).detach().numpy()

    def logits_of(p: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.log(np.clip(p, 1e-30, 1))).float()

    return peer


PEERS: dict[str, Callable[[], Peer]] = {
    "probmetrics temperature": lambda: probmetrics("temp-scaling"),
    "probmetrics SVS": lambda: probmetrics("svs"),
    "probmetrics SMS": lambda: probmetrics("sms"),
    "scikit-learn isotonic": lambda: probmetrics("isotonic"),
    "netcal temperature": netcal,
    "torch-uncertainty temperature": torch_uncertainty,
}
JUDGED_BY = tuple(PEERS)[:4]
"""The best peers and the usual one: on how many runs is ours below all four?"""


def nll(p: np.ndarray, y: np.ndarray) -> float:
    # What isotonic regression calls impossible would cost infinitely much.
    return float(-np.log(np.clip(p[np.arange(len(y)), y].astype(np.float64), 1e-12, 1)).mean())


def run_row(found: dict[str, np.ndarray], peers: dict[str, Peer], ours: Sequence[str]) -> dict[str, Any]:
    """NLL and seconds of a fit, for each calibrator."""
    val, test = (torch.from_numpy(found[f"L_{part}"]) for part in ("val", "test"))
    p, q = (log_mean_softmax(x.double()).exp().numpy() for x in (val, test))
    y, labels = found["y_val"], found["y_test"]
    row: dict[str, Any] = {"held_out": len(y), "classes": p.shape[1]}
    row["nll"], row["seconds"] = {"as trained": nll(q, labels)}, {}
    for name in ours:
        began = time.process_time()
        own = CALIBRATORS[name]().fit(val, y, found["k_val"])
        row["seconds"][name] = time.process_time() - began
        row["nll"][name] = nll(own(test, found["k_test"]).exp().numpy(), labels)
    for name, peer in peers.items():
        began = time.process_time()
        fitted = peer(p, y)
        row["seconds"][name] = time.process_time() - began
        row["nll"][name] = nll(fitted(q), labels)
    return row


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Of runs of spherical heads."""
    spherical = [r for name, r in rows.items() if isinstance(HEADS[name.split(" ")[1]].geometry, Sphere)]
    judged = [name for name in JUDGED_BY if all(name in r["nll"] for r in spherical)]
    ours = [r["nll"]["structured"] for r in spherical]
    above = [r["nll"]["structured"] / r["nll"]["as trained"] - 1 for r in rows.values()]
    return {
        "spherical_runs": len(spherical),
        "below_all_of": judged,
        "share_below_all": float(
            np.mean([v < min(r["nll"][n] for n in judged) for v, r in zip(ours, spherical, strict=True)])
        ),
        "mean_nll": {
            name: float(np.mean([r["nll"][name] for r in spherical]))
            for name in spherical[0]["nll"]
            if all(name in r["nll"] for r in spherical)
        },
        "share_below": {
            name: float(np.mean([v < r["nll"][name] for v, r in zip(ours, spherical, strict=True)]))
            for name in judged
        },
        "most_above_as_trained_percent": 100 * max(above),
        "fit_time_ratio_to": {
            name: statistics.median(r["seconds"]["structured"] / r["seconds"][name] for r in rows.values())
            for name in judged
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--heads", nargs="+", default=["cosine", "arcface", "vmf", "power_spherical"])
    parser.add_argument("--seeds", type=int, default=2, help="at most 4: the candidates of the engine")
    parser.add_argument("--ours", nargs="+", default=list(CALIBRATORS), choices=list(CALIBRATORS))
    parser.add_argument("--as", dest="kind", default="held out", help="tuning or held out")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/calibration.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    ensure_torchvision()
    peers: dict[str, Peer] = {}
    for name, make in PEERS.items():
        try:
            peers[name] = make()
        except ImportError as error:
            print(f"{name} is left out: {error}")
    written = json.loads(given.out.read_text()) if given.out.exists() else {}
    rows: dict[str, dict[str, Any]] = written.get(given.kind, {}).get("runs", {})
    for name, head, seed in itertools.product(given.sets, given.heads, range(given.seeds)):
        key = f"{name} {head} {seed}"
        if key in rows:
            continue
        rows[key] = run_row(said(name, head, seed, given.data, given.cache), peers, given.ours)
        print(key, {k: round(v, 4) for k, v in rows[key]["nll"].items()}, flush=True)
        written[given.kind] = {
            "command": f"python benchmarks/calibration.py --data FOLDER --cache CACHE {' '.join(given.sets)} "
            f"--heads {' '.join(given.heads)} --ours {' '.join(given.ours)}",
            "commit": git_commit(),
            "versions": versions("torch", "probmetrics", "netcal", "torch-uncertainty", "scikit-learn"),
            "summary": summary(rows),
            "runs": rows,
        }
        write_record(given.out, written)
    print(json.dumps(written[given.kind]["summary"], indent=1))


if __name__ == "__main__":
    main()
