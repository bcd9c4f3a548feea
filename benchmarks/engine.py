"""Every head on features after an equal search, beside what people would use instead.

    python benchmarks/engine.py digits wine --seeds 5
    python benchmarks/engine.py --data FOLDER banking77 --heads cosine vmf

A set is one of scikit-learn's, or `FOLDER/name.npz` with X, y and test (a mask). Of the other rows a tenth is
held out for the search. Prints accuracy, NLL as predicted and after one temperature, CPU seconds of search
and of one fit; writes the same to results/benchmarks/engine.json.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets
from sklearn.model_selection import train_test_split

from records import git_commit, write_record
from spaceform.calibrators import TemperatureScaling
from spaceform.engine import (
    REFERENCES,
    Rows,
    finish,
    joined,
    parts_of,
    reference,
    rehearse,
    search,
    space,
    temperature_of,
    weighted_nll,
)
from spaceform.heads.base import log_mean_softmax
from spaceform.study.plan import named_heads

_BUILT_IN = {"digits": datasets.load_digits, "wine": datasets.load_wine}


def load(name: str, folder: Path | None) -> tuple[Rows, Rows, Rows, int]:
    """Training, held-out and test rows, and the number of classes."""
    if folder is not None and (folder / f"{name}.npz").exists():
        found = np.load(folder / f"{name}.npz")
        x, y, test = found["X"], found["y"], found["test"]
    else:
        x, y = _BUILT_IN[name](return_X_y=True)
        x, test = x.astype(np.float32), np.zeros(len(y), bool)
        test[train_test_split(np.arange(len(y)), test_size=0.25, stratify=y, random_state=0)[1]] = True
    rest = np.flatnonzero(~test)
    train, held_out = train_test_split(rest, test_size=0.1, stratify=y[rest], random_state=0)
    rows = [Rows.of(x[i], y[i]) for i in (train, held_out, np.flatnonzero(test))]
    return rows[0], rows[1], rows[2], int(y.max()) + 1


def measure(logits: torch.Tensor, rows: Rows, calibrator: TemperatureScaling) -> dict[str, float]:
    right = log_mean_softmax(logits).argmax(1) == rows.y
    return {
        "accuracy": 100 * float(right.float().mean()),
        "nll": weighted_nll(logits, rows.y, rows.weight),
        "calibrated_nll": weighted_nll(calibrator(logits)[None], rows.y, rows.weight),
    }


def head_row(head: str, data: tuple[Rows, Rows, Rows, int], seeds: int, trials: int) -> dict[str, Any]:
    train, held_out, test, classes = data
    parts = parts_of(train, held_out, seed=0)
    candidates = space(head, train.x.shape[1], classes, len(parts[0].train), size=trials)
    started = time.process_time()
    found = search(head, candidates, parts, classes=classes, seed=0)
    searched = time.process_time() - started
    runs, fits = [], []
    for seed in range(seeds):
        started = time.process_time()
        fitted = rehearse(head, found.candidate, parts, seed=seed, classes=classes)
        rows = joined(train, held_out)
        model = finish(head, found.candidate, fitted, rows, seed=seed, classes=classes)
        fits.append(time.process_time() - started)
        runs.append(measure(model.logits(test.x), test, fitted.calibrator()))
    return {
        "name": head,
        **{key: statistics.mean(run[key] for run in runs) for key in runs[0]},
        "deviation": statistics.pstdev([run["accuracy"] for run in runs]),
        "search_seconds": searched,
        "fit_seconds": statistics.mean(fits),
        "candidate": found.candidate.to_dict(),
        "trials": [trial.to_dict() for trial in found.trials],
    }


def reference_row(name: str, data: tuple[Rows, Rows, Rows, int], trials: int) -> dict[str, Any]:
    train, held_out, test, classes = data
    parts = parts_of(train, held_out, seed=0)
    started = time.process_time()
    found = reference(name, parts, test.x, classes=classes, trials=trials)
    seconds = time.process_time() - started
    y = torch.cat([part.held_out.y for part in parts])
    held_out_logits = torch.from_numpy(found.held_out_probabilities).log()[None]
    temperature = temperature_of(held_out_logits, y, torch.ones(len(y)))
    return {
        "name": name,
        **measure(torch.from_numpy(found.probabilities).log()[None], test, temperature),
        "deviation": 0.0,
        "search_seconds": seconds,
        "fit_seconds": found.fit_seconds,
        "candidate": found.best.options,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--heads", nargs="+", default=named_heads("default"))
    parser.add_argument("--references", nargs="*", default=list(REFERENCES))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/engine.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    what = f"{' '.join(options.sets)} --heads {' '.join(options.heads)} --seeds {options.seeds}"
    record: dict[str, Any] = {
        "command": f"benchmarks/engine.py --data FOLDER {what} --trials {options.trials}",
        "commit": git_commit(),
        "seeds": options.seeds,
        "trials": options.trials,
        "sets": {},
    }
    print(f"{'set':18} {'what':16} {'acc %':>13} {'NLL':>7} {'cal.':>7} {'search s':>9} {'fit s':>7}")
    for name in options.sets:
        data = load(name, options.data)
        rows = record["sets"][name] = []
        for what in [*options.references, *options.heads]:
            if what == "boosting" and data[0].x.shape[1] > 100:
                continue
            if what in REFERENCES:
                row = reference_row(what, data, options.trials)
            else:
                row = head_row(what, data, options.seeds, options.trials)
            rows.append(row)
            print(
                f"{name:18} {what:16} {row['accuracy']:6.2f} ± {row['deviation']:4.2f} {row['nll']:7.4f} "
                f"{row['calibrated_nll']:7.4f} {row['search_seconds']:9.1f} {row['fit_seconds']:7.2f}  "
                f"{ {k: v for k, v in row['candidate'].items() if k != 'batch_size'} }",
                flush=True,
            )
            write_record(options.out, record)


if __name__ == "__main__":
    main()
