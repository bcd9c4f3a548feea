"""Descent finds the least value, as Newton's method does."""

import pytest
import torch

from spaceform.calibrators import _fit
from spaceform.calibrators._descent import descend


def logistic(seed: int, n: int = 400, p: int = 30):
    """A penalised logistic regression: its value and gradient, and its matrix of second derivatives."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, p, dtype=torch.float64, generator=g) * torch.logspace(-1, 1, p, dtype=torch.float64)
    y = (torch.rand(n, dtype=torch.float64, generator=g) < torch.sigmoid(X[:, 0] * 5)).double()

    def evaluate(t):
        f = X @ t
        value = torch.nn.functional.softplus(f).mean() - (f * y).mean() + t.square().sum() / n
        return value, X.T @ (torch.sigmoid(f) - y) / n + 2 * t / n

    def curvature(t):
        s = torch.sigmoid(X @ t)
        return (X * (s * (1 - s))[:, None]).T @ X / n + 2 * torch.eye(p, dtype=torch.float64) / n

    return evaluate, curvature, torch.zeros(p, dtype=torch.float64)


def together(functions):
    """Several functions as one, as descent takes them."""

    def evaluate(t):
        found = [function(row) for function, row in zip(functions, t, strict=True)]
        return torch.stack([value for value, _ in found]), torch.stack([g for _, g in found])

    return evaluate


def test_descent_ends_where_newtons_method_does():
    """Five functions at a time, each at its own minimum."""
    made = [logistic(seed) for seed in range(5)]
    minima = []
    for evaluate, curvature, newton in made:
        for _ in range(30):
            newton = newton - torch.linalg.solve(curvature(newton), evaluate(newton)[1])
        assert evaluate(newton)[1].abs().max() < 1e-12
        minima.append(newton)
    start = torch.zeros(5, 30, dtype=torch.float64)
    found, _ = descend(together([evaluate for evaluate, _, _ in made]), start, 300, slope=1e-10, last=-1.0)
    torch.testing.assert_close(found, torch.stack(minima), rtol=1e-5, atol=1e-6)


def test_few_steps_never_make_it_worse():
    evaluate, _, start = logistic(7)
    one = together([evaluate])
    values = [one(descend(one, start[None], steps)[0])[0].item() for steps in (0, 1, 2, 4, 8, 16, 32)]
    assert values == sorted(values, reverse=True)
    assert values[0] == evaluate(start)[0].item()
    assert values[-1] < 0.95 * values[0]


def test_known_curvature_spares_steps():
    """From a minimum to that of the same function, moved."""
    evaluate, _, start = logistic(3)
    one = together([evaluate])
    minimum, curvature = descend(one, start[None], 40)
    least = one(minimum)[0].item()
    moved = together([lambda t: evaluate(t - 0.05)] * 2)
    knowing, not_knowing = (
        moved(descend(moved, minimum.expand(2, -1), 3, past)[0])[0] for past in (curvature, None)
    )
    assert torch.equal(knowing[0], knowing[1])
    assert knowing[0] - least < 0.7 * (not_knowing[0] - least)


@pytest.mark.parametrize(("draws", "block"), [(1, 1 << 17), (3, 1 << 17), (3, 50)])
def test_a_scan_of_temperatures_gives_the_losses_that_newtons_method_sees(draws, block, monkeypatch):
    """For one draw and for several, in blocks of any size."""
    monkeypatch.setattr(_fit, "_BLOCK", block)
    random = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(draws, 40, 7, generator=random)
    weight = torch.rand(40, generator=random, dtype=torch.float64) + 0.1
    examples = _fit.Examples(logits, torch.randint(7, (40,), generator=random), weight)
    βs = torch.logspace(-3, 3, 13, dtype=torch.float64)
    alone = torch.tensor([_fit.loss(examples, β.expand(40)).value for β in βs], dtype=torch.float64)
    torch.testing.assert_close(_fit.losses(examples, βs), alone, rtol=1e-6, atol=0)
