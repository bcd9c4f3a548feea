"""Same or not, on classes that nothing was fitted to: ours beside the cosine with logistic calibration.

    python benchmarks/verification.py --data FOLDER cub-second-half omniglot clinc150 cars-second-half

A set is `FOLDER/name.npz` with X and y: embeddings of a pretrained net (benchmarks/decisions_data.py). A
random half of the classes calibrates, the other half judges. Cllr is the cost of the stated ratios, its least
value what the best monotone map of them would cost. A rate of false accepts has a binomial interval only if
pairs are independent: it is also counted on pairs of two classes that share no item, each item in one pair.
If `psda` can be imported (bsxfan/PSDA), its ratios stand beside ours where the two models coincide. Writes
results/benchmarks/verification.json.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import binom
from sklearn.linear_model import LogisticRegression

from records import git_commit, versions, write_record
from spaceform.decisions import VonMisesFisherPairs
from spaceform.decisions._pairs_fit import pair_rows
from spaceform.metrics import accept_threshold, cllr, eer, min_cllr

_RATES = (0.01, 0.001)


def cosine_ratio(z: torch.Tensor, y: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Cosines of pairs, and which are same."""
    first, second, same = pair_rows(y)
    unit = torch.nn.functional.normalize(z, dim=-1)
    return (unit[first] * unit[second]).sum(-1).numpy(), same.numpy()


def disjoint_pairs(y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Random pairs of two classes in which no item occurs twice."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    first, second = order[: len(y) // 2], order[len(y) // 2 : 2 * (len(y) // 2)]
    apart = y[first] != y[second]
    return first[apart], second[apart]


def interval(rate: float, n: int) -> list[float]:
    """Where the share of n independent accepts lies in 95 of 100 cases."""
    return [float(k / n) for k in binom.interval(0.95, n, rate)]


def psda_difference() -> float | None:
    """The furthest that a ratio is from PSDA's, of single items and of enrolments of three."""
    try:
        from psda.psdamodel import PSDA
        from psda.vmf import VMF
    except ImportError:
        return None
    g = torch.Generator().manual_seed(0)
    furthest = 0.0
    for dim, w in ((3, 5.0), (64, 40.0), (256, 300.0)):
        x = torch.nn.functional.normalize(torch.randn(4, 50, dim, generator=g, dtype=torch.float64), dim=-1)
        model = PSDA(w, VMF(1e-9 * np.eye(dim)[0]))  # classes spread uniformly
        ours = VonMisesFisherPairs()
        ours.shape = torch.tensor([np.log(w), 0.0, 0.0], dtype=torch.float64)
        ours.line = torch.tensor([1.0, 0.0], dtype=torch.float64)
        enrolled = x[:3].transpose(0, 1)
        for mine, theirs in (
            (ours(x[0], x[3]), model.llr_vector(x[0].numpy(), x[3].numpy())),
            (ours(enrolled, x[3]), model.llr_vector(x[:3].sum(0).numpy(), x[3].numpy())),
        ):
            furthest = max(furthest, float((mine - torch.from_numpy(theirs)).abs().max()))
    return furthest


def measured(ratio: torch.Tensor, same: torch.Tensor, different: torch.Tensor) -> dict[str, Any]:
    found: dict[str, Any] = {
        "cllr": float(cllr(ratio, same)),
        "min_cllr": float(min_cllr(ratio, same)),
        "eer": float(eer(ratio, same)),
    }
    found["cllr_over_min"] = found["cllr"] / found["min_cllr"]
    n = int((~same).sum())
    for rate in _RATES:
        k = int((ratio[~same] >= accept_threshold(different, rate)).sum())
        found[f"false_accept_at_{rate:g}"] = k / n
    return found


def set_row(path: Path) -> dict[str, Any]:
    with np.load(path) as saved:
        z, y = torch.from_numpy(saved["X"].astype(np.float64)), torch.from_numpy(saved["y"])
    classes = int(y.max()) + 1
    chosen = torch.randperm(classes, generator=torch.Generator().manual_seed(0))[: classes // 2]
    seen = torch.isin(y, chosen)
    began = time.process_time()
    ours = VonMisesFisherPairs().fit(z[seen], y[seen])
    seconds = time.process_time() - began
    ratio, same = ours.of_labelled(z[~seen], y[~seen])
    x, known = cosine_ratio(z[seen], y[seen])
    usual = LogisticRegression(C=1e6, class_weight="balanced").fit(x[:, None], known)
    new, _ = cosine_ratio(z[~seen], y[~seen])
    lines = [torch.from_numpy(usual.decision_function(v[:, None])) for v in (new, x[~known])]
    first, second = disjoint_pairs(y[~seen])
    apart = ours(z[~seen][first], z[~seen][second])
    return {
        "classes": classes,
        "same_pairs": int(same.sum()),
        "different_pairs": int((~same).sum()),
        "fit_seconds": seconds,
        "exponent_of_the_norm": float(ours.shape[1].clamp_min(0)),
        "ours": measured(ratio, same, ours.different),
        "cosine with logistic calibration": measured(lines[0], same, lines[1]),
        "false_accepts_of_disjoint_pairs": {
            f"{rate:g}": {
                "pairs": len(apart),
                "rate": float((apart >= ours.threshold(rate)).double().mean()),
                "binomial_interval": interval(rate, len(apart)),
            }
            for rate in _RATES
        },
    }


def summary(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What was promised, over the sets."""
    usual = "cosine with logistic calibration"
    rates = [one for row in rows.values() for one in row["false_accepts_of_disjoint_pairs"].values()]
    return {
        "sets": len(rows),
        "largest_cllr_over_min": max(row["ours"]["cllr_over_min"] for row in rows.values()),
        "sets_with_cllr_at_most_that_of_the_cosine": sum(
            row["ours"]["cllr"] <= row[usual]["cllr"] for row in rows.values()
        ),
        "rates_inside_their_binomial_interval": sum(
            one["binomial_interval"][0] <= one["rate"] <= one["binomial_interval"][1] for one in rates
        ),
        "rates": len(rates),
        "furthest_from_psda": psda_difference(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/verification.json"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    for name in given.sets:
        rows[name] = set_row(given.data / f"{name}.npz")
        print(name, json.dumps(rows[name], indent=1), flush=True)
    written = {
        "command": f"python benchmarks/verification.py --data FOLDER {' '.join(given.sets)}",
        "commit": git_commit(),
        "versions": versions("torch", "scikit-learn"),
        "summary": summary(rows),
        "sets": rows,
    }
    write_record(given.out, written)
    print(json.dumps(written["summary"], indent=1))


if __name__ == "__main__":
    main()
