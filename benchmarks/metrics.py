"""Metrics and temperature scaling against their peers: ratios of times in one process on one thread.

Run: OMP_NUM_THREADS=1 python benchmarks/metrics.py [--quick] [calibration temperature bootstrap retrieval]

Every number is the median over interleaved repeats of (ours / theirs); below 1 is faster. Needs torchmetrics,
torch-uncertainty, netcal, pytorch-metric-learning and faiss-cpu.
"""

import argparse
import json
import logging
import statistics
import time
import warnings
from collections.abc import Callable

import torch

from spaceform.calibrators import TemperatureScaling
from spaceform.foundation.torchvision import ensure_torchvision
from spaceform.geometry import Euclidean, PoincareBall, Sphere
from spaceform.metrics import accuracy, bootstrap, calibration_error, retrieval

warnings.simplefilter("ignore")
torch.set_num_threads(1)

Results = dict[str, float]


def medians(contestants: dict[str, Callable[[], object]], repeats: int) -> Results:
    """Median time of each, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}


def ratios(times: Results, ours: str) -> Results:
    """Ours over each of the others."""
    return {f"{ours} / {name}": round(times[ours] / t, 3) for name, t in times.items() if name != ours}


def calibration(quick: bool) -> Results:
    """Calibration error, N = 1,000,000, 100 classes."""
    from netcal.metrics import ECE
    from torch_uncertainty.metrics.classification import AdaptiveCalibrationError
    from torchmetrics.functional.classification import multiclass_calibration_error

    N, C = (100_000 if quick else 1_000_000), 100
    p = torch.softmax(2 * torch.randn(N, C), -1)
    y = torch.randint(C, (N,))

    def torch_uncertainty() -> None:
        metric = AdaptiveCalibrationError(task="multiclass", num_classes=C, num_bins=15, norm="l2")
        metric.update(p, y)
        metric.compute()

    mass = medians({"ours": lambda: calibration_error(p, y), "torch-uncertainty": torch_uncertainty}, 5)
    width = medians(
        {
            "ours": lambda: calibration_error(p, y, 15, "equal_width", "l1"),
            "torchmetrics": lambda: multiclass_calibration_error(p, y, C, 15, "l1"),
        },
        5,
    )
    l1 = medians(
        {
            "ours": lambda: calibration_error(p, y, norm="l1"),
            "netcal": lambda: ECE(15, equal_intervals=False).measure(p.numpy(), y.numpy()),
        },
        3,
    )
    return {
        **ratios(mass, "ours"),
        **ratios(width, "ours"),
        **ratios(l1, "ours"),
        "seconds": round(mass["ours"], 3),
    }


def temperature(quick: bool) -> Results:
    """Temperature scaling, N = 50,000, 100 classes: time, and the loss reached."""
    from netcal.scaling import TemperatureScaling as Netcal
    from torch.utils.data import DataLoader, TensorDataset
    from torch_uncertainty.post_processing import TemperatureScaler

    N, C = (10_000 if quick else 50_000), 100
    logits = 2 * torch.randn(N, C)
    y = torch.softmax(logits, -1).multinomial(1).squeeze(-1)
    logits = 1.7 * logits
    p = torch.softmax(logits, -1).numpy()
    ours, theirs, netcal = TemperatureScaling(), TemperatureScaler(), Netcal()

    def fit_theirs() -> None:
        theirs.set_temperature(1.0)
        theirs.fit(DataLoader(TensorDataset(logits, y), batch_size=N), progress=False)

    contestants = {
        "ours": lambda: ours.fit(logits, y),
        "torch-uncertainty": fit_theirs,
        "netcal": lambda: netcal.fit(p, y.numpy()),
    }
    times = medians({name: contestants[name] for name in ("ours", "netcal")}, 9)
    times |= {"torch-uncertainty": medians({"_": fit_theirs}, 1)["_"]}

    def loss(log_probs: torch.Tensor) -> float:
        return torch.nn.functional.nll_loss(log_probs, y).item()

    best = loss(ours(logits.double()))
    return {
        **ratios(times, "ours"),
        "loss above torch-uncertainty": best
        - loss(torch.log_softmax(logits.double() / theirs.temperature[0].item(), -1)),
        "loss above netcal": best - loss(torch.from_numpy(netcal.transform(p)).double().log()),
    }


def resampling(quick: bool) -> Results:
    """Seconds for 1,000 resamples of 10,000 examples."""
    p = torch.softmax(2 * torch.randn(10_000, 10), -1)
    y = p.multinomial(1).squeeze(-1)
    n = 100 if quick else 1000
    contestants = {
        "accuracy": lambda: bootstrap(accuracy, p, y, n=n),
        "calibration_error": lambda: bootstrap(calibration_error, p, y, n=n),
        "calibration_error, one by one": lambda: bootstrap(lambda a, b: calibration_error(a, b), p, y, n=n),
    }
    return {name: round(t, 3) for name, t in medians(contestants, 3).items()}


def search(quick: bool) -> Results:
    """mAP@R and Recall@1, dim 512: 12,000 items of 100 classes; 30,000 items of 5,600 classes."""
    import faiss
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    faiss.omp_set_num_threads(1)
    found: Results = {}
    for N, C in ((3000, 25), (6000, 1100)) if quick else ((12_000, 100), (30_000, 5600)):
        y = torch.randint(C, (N,))
        z = 0.3 * torch.randn(C, 512)[y] + torch.randn(N, 512)
        unit = torch.nn.functional.normalize(z, dim=-1)
        out = torch.empty(1024, N)

        def gemm(unit: torch.Tensor = unit, out: torch.Tensor = out) -> None:
            for rows in unit.split(1024):
                torch.mm(rows, unit.T, out=out[: len(rows)])

        def peer(z: torch.Tensor = z, y: torch.Tensor = y) -> None:
            names = ("mean_average_precision_at_r", "precision_at_1")
            calculator = AccuracyCalculator(include=names, k="max_bin_count", device=torch.device("cpu"))
            calculator.get_accuracy(torch.nn.functional.normalize(z, dim=-1), y)

        def ours(
            geometry: Sphere | Euclidean | PoincareBall, z: torch.Tensor = z, y: torch.Tensor = y
        ) -> None:
            retrieval(z, y, geometry, k=(1,))

        times = medians(
            {
                "cosine": lambda: ours(Sphere()),
                "pytorch-metric-learning": peer,
                "full gemm": gemm,
                "poincare": lambda: ours(PoincareBall(1.0)),
                "euclidean": lambda: ours(Euclidean()),
                "cosine, all k": lambda: retrieval(z, y),  # noqa: B023
            },
            3 if N <= 12_000 else 2,
        )
        at = f"N={N}, {C} classes: "
        for name in ("pytorch-metric-learning", "full gemm"):
            found[f"{at}cosine / {name}"] = round(times["cosine"] / times[name], 3)
        for name in ("poincare", "euclidean", "cosine, all k"):
            found[f"{at}{name} / cosine"] = round(times[name] / times["cosine"], 3)
    return found


PARTS = {"calibration": calibration, "temperature": temperature, "bootstrap": resampling, "retrieval": search}


def main() -> None:
    """Print one JSON object per part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"any of {', '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    arguments = parser.parse_args()
    ensure_torchvision()
    logging.getLogger().setLevel(logging.ERROR)
    for name in arguments.parts or PARTS:
        torch.manual_seed(0)
        print(json.dumps({name: PARTS[name](arguments.quick)}, indent=2), flush=True)


if __name__ == "__main__":
    main()
