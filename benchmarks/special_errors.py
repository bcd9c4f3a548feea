"""Measured errors of the special functions against mpmath, as the table in docs/special-error.md.

    python benchmarks/special_errors.py

Needs mpmath and the oracles of tests/reference; about a minute.
"""

import sys
from pathlib import Path

import mpmath as mp
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from reference import bessel
from spaceform import special

DIMS = (2, 3, 8, 16, 128, 512, 2048)
MORE_DIMS = (
    4,
    5,
    6,
    7,
    9,
    12,
    17,
    25,
    33,
    64,
    100,
    203,
    300,
    777,
    1000,
    4097,
    10_000,
    30_001,
    65_535,
    65_536,
)
COLUMNS = (
    "A, float64",
    "A, float32",
    "A, bounds",
    "A', float64",
    "A', float32",
    "A', bounds",
    "log C, float64",
    "log C, float32",
    "log C, bounds",
    "differences, float32",
)


def grid(dim: int) -> Tensor:
    """Zero, 1e-6 to 1e8, and two decades about dim; rounded to float32 so that all dtypes see the same κ."""
    wide = torch.logspace(-6, 8, 57, dtype=torch.float64)
    near = dim * torch.logspace(-1, 1, 33, dtype=torch.float64)
    return torch.cat([torch.zeros(1, dtype=torch.float64), wide, near]).float().double().unique()


def absolute(computed: Tensor, true: list[mp.mpf]) -> Tensor:
    with mp.workdps(bessel.DIGITS):
        pairs = zip(computed.tolist(), true, strict=True)
        return torch.tensor([float(abs(mp.mpf(c) - t)) for c, t in pairs], dtype=torch.float64)


def floats(values: list[mp.mpf]) -> Tensor:
    return torch.tensor([float(v) for v in values], dtype=torch.float64)


def derivative(k: Tensor, dim: int, method: str) -> Tensor:
    k = k.clone().requires_grad_()
    return torch.autograd.grad(special.mean_resultant_length(k, dim, method=method).sum(), k)[0]


def measure(dim: int) -> dict[str, float]:
    k = grid(dim)
    values = [bessel.values(dim / 2 - 1, x) for x in k.tolist()]
    mean, slope = [v.mean for v in values], [v.slope for v in values]
    log_c = [bessel.log_normalizer(x, dim) for x in k.tolist()]
    # What rounding κ alone can do to log C, and the size of log C itself.
    scale = floats(log_c).abs().clamp_min(1) + k * floats(mean)
    worst = {}
    for name, x, method in (
        ("float64", k, "exact"),
        ("float32", k.float(), "exact"),
        ("bounds", k, "bounds"),
    ):
        a = absolute(special.mean_resultant_length(x, dim, method=method), mean) / floats(mean)
        worst[f"A, {name}"] = a[1:].max().item()
        worst[f"A', {name}"] = (absolute(derivative(x, dim, method), slope) / floats(slope)).max().item()
        if method == "exact":
            error = absolute(special.log_normalizer(x, dim), log_c) / scale
            worst[f"log C, {name}"] = error.max().item()
    with mp.workdps(bessel.DIGITS):
        rise = [c - log_c[0] for c in log_c]
        i, j = torch.triu_indices(len(k), len(k), offset=1)
        pairs = [log_c[a] - log_c[b] for a, b in zip(i.tolist(), j.tolist(), strict=True)]
    bound = special.log_normalizer(k, dim, method="bounds")
    worst["log C, bounds"] = absolute(bound - bound[0], rise)[k <= 1e4 * dim].max().item()
    single = special.log_normalizer_difference(k[i].float(), k[j].float(), dim)
    worst["differences, float32"] = (absolute(single, pairs) / (1 + floats(pairs).abs())).max().item()
    return worst


def main() -> None:
    torch.set_num_threads(1)
    table = {str(dim): measure(dim) for dim in DIMS}
    others = [measure(dim) for dim in MORE_DIMS]
    everything = [*table.values(), *others]
    count = len(everything)
    table[f"worst of {count} dims, 2 to 65,536"] = {c: max(row[c] for row in everything) for c in COLUMNS}
    print("| n | " + " | ".join(COLUMNS) + " |")
    print("| --- |" + " ---: |" * len(COLUMNS))
    for name, row in table.items():
        print(f"| {name} | " + " | ".join(f"{row[c]:.1e}" for c in COLUMNS) + " |", flush=True)


if __name__ == "__main__":
    main()
