"""Time of von Mises–Fisher draws, against torch.randn of the same shape and against scipy.

And of the angles that heads draw in training by their table, against the law's own inversion.

One thread, one process, interleaved repeats; the ratios are of the fastest repeats, in CPU time of the
thread, which on a quiet machine is the time that passes.

    OMP_NUM_THREADS=1 python benchmarks/distributions.py
"""

import json
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy import stats

from spaceform.distributions import PowerSpherical, VonMisesFisher
from spaceform.distributions.von_mises_fisher import VON_MISES_FISHER
from spaceform.heads._kernels.angle_table import AngleTable

BATCH, DRAWS = 128, 10


def fastest(
    functions: dict[str, Callable[[], object]], turns: dict[str, int], rounds: int
) -> dict[str, float]:
    """Shortest time of one call of each, in milliseconds: in every round each takes its turns."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, function in functions.items():
            for _ in range(turns.get(name, 1)):
                start = time.thread_time()
                function()
                best[name] = min(best[name], 1e3 * (time.thread_time() - start))
    return best


def batch(dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean directions and concentrations of a batch: from diffuse to peaked for the dimension."""
    g = torch.randn(BATCH, dim, generator=torch.Generator().manual_seed(dim))
    return torch.nn.functional.normalize(g, dim=-1), torch.linspace(0.2, 2.0, BATCH) * dim


def against_randn(dim: int) -> dict[str, float]:
    loc, k = batch(dim)
    law, peer = VonMisesFisher(loc, k), PowerSpherical(loc, k)
    leaf = VonMisesFisher(loc.clone().requires_grad_(), k.clone().requires_grad_())
    upstream = torch.randn(DRAWS, BATCH, dim)

    def forward_backward() -> None:
        z = leaf.rsample((DRAWS,))
        torch.autograd.grad(z, (leaf.loc, leaf.concentration), upstream)

    t = fastest(
        {
            "randn": lambda: torch.randn(DRAWS, BATCH, dim),
            "von_mises_fisher": lambda: law.rsample((DRAWS,)),
            "power_spherical": lambda: peer.rsample((DRAWS,)),
            "von_mises_fisher forward + backward": forward_backward,
        },
        {},
        rounds=300,
    )
    return {name: round(value / t["randn"], 2) for name, value in t.items() if name != "randn"}


def against_scipy(dim: int) -> float:
    loc, k = batch(dim)
    law = VonMisesFisher(loc, k)
    rng = np.random.default_rng(0)
    rows = list(zip(loc.double().numpy(), k.double().numpy(), strict=True))
    rows = [(mu / np.linalg.norm(mu), kappa) for mu, kappa in rows]

    def scipy() -> None:
        for mu, kappa in rows:
            stats.vonmises_fisher(mu, kappa, seed=rng).rvs(DRAWS)

    # scipy takes from 10 milliseconds to several seconds a call
    t = fastest(
        {"scipy": scipy, "ours": lambda: law.sample((DRAWS,))}, {"ours": 50}, rounds=3 if dim > 64 else 12
    )
    return round(t["scipy"] / t["ours"], 1)


def table_against_inversion(dim: int) -> float:
    """Angles of a training step with their derivative by κ: `AngleTable` against `AngularLaw.angle`."""
    _, k = batch(dim)
    angles, k = AngleTable(VON_MISES_FISHER, dim), k.requires_grad_()
    x = torch.randn(BATCH, DRAWS // 2, generator=torch.Generator().manual_seed(dim))
    level = torch.special.ndtr(torch.cat([-x, x], 1).T)

    def forward_backward(draw: Callable[[], tuple[torch.Tensor, torch.Tensor]]) -> None:
        torch.autograd.grad(sum(part.sum() for part in draw()), k)

    t = fastest(
        {
            "table": lambda: forward_backward(lambda: angles.antithetic(x, k)),
            "inversion": lambda: forward_backward(lambda: VON_MISES_FISHER.angle(level, k, dim)),
        },
        {},
        rounds=300,
    )
    return round(t["inversion"] / t["table"], 1)


def main() -> None:
    torch.set_num_threads(1)
    measured = {
        "shape": f"{DRAWS} draws for each of {BATCH} concentrations",
        "times torch.randn, n=512": against_randn(512),
        "angles in training, times faster by the table than by inversion": {
            dim: table_against_inversion(dim) for dim in (16, 64, 512)
        },
        "times faster than scipy.stats.vonmises_fisher": {
            dim: against_scipy(dim) for dim in (3, 8, 16, 64, 128, 512)
        },
    }
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
