"""Descent finds the least value, as Newton's method does."""

import torch

from spaceform.calibrators._descent import descend


def logistic(seed: int, n: int = 400, p: int = 30):
    """A penalised logistic regression: its value and gradient, and its matrix of second derivatives."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(n, p, dtype=torch.float64, generator=g) * torch.logspace(-1, 1, p, dtype=torch.float64)
    y = (torch.rand(n, dtype=torch.float64, generator=g) < torch.sigmoid(X[:, 0] * 5)).double()

    def evaluate(t):
        f = X @ t
        value = torch.nn.functional.softplus(f).mean() - (f * y).mean() + t.square().sum() / n
        return float(value), X.T @ (torch.sigmoid(f) - y) / n + 2 * t / n

    def curvature(t):
        s = torch.sigmoid(X @ t)
        return (X * (s * (1 - s))[:, None]).T @ X / n + 2 * torch.eye(p, dtype=torch.float64) / n

    return evaluate, curvature, torch.zeros(p, dtype=torch.float64)


def test_descent_ends_where_newtons_method_does():
    for seed in range(5):
        evaluate, curvature, start = logistic(seed)
        newton = start
        for _ in range(30):
            newton = newton - torch.linalg.solve(curvature(newton), evaluate(newton)[1])
        assert evaluate(newton)[1].abs().max() < 1e-12
        found = descend(evaluate, start, 300, slope=1e-9, last=0.0)
        torch.testing.assert_close(found, newton, rtol=1e-5, atol=1e-6)


def test_few_steps_never_make_it_worse():
    evaluate, _, start = logistic(7)
    values = [evaluate(descend(evaluate, start, steps))[0] for steps in (0, 1, 2, 4, 8, 16, 32)]
    assert values == sorted(values, reverse=True)
    assert values[0] == evaluate(start)[0]
    assert values[-1] < 0.95 * values[0]
