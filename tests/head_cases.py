"""Heads with embeddings and labels to try them on, and what several heads are asked."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spaceform.heads.base import Head


def case(kind, dim=7, classes=23, batch=11, dtype=torch.float64, **options):
    g = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    head = kind(dim, classes, **options).to(dtype)
    z = torch.randn(batch, dim, generator=g, dtype=dtype, requires_grad=True)
    return head, z, torch.randint(classes, (batch,), generator=g)


def margin_case(kind, dim=7, classes=23, batch=11, *, beta=8.0, **options):
    """In float64 to the last digit: margin and temperature are set anew after the cast."""
    head, z, y = case(kind, dim, classes, batch, beta=beta, **options)
    head.start_epoch(head.warmup_epochs)
    head.log_beta.data.fill_(math.log(beta))
    return head, z, y


def drawing_case(kind, dim: int, classes=6, batch=5, dtype=torch.float64, **options):
    """Of a head that draws embeddings."""
    torch.manual_seed(dim)
    head = kind(dim, classes, **{"beta": 4.0, **options}).to(dtype)
    z = (torch.randn(batch, dim, dtype=dtype) * 1.3).requires_grad_()
    head.prepare(z.detach())
    return head, z, torch.randint(classes, (batch,))


def agree(
    ours: Tensor, theirs: Tensor, inputs: list[Tensor], value: float, slope: tuple[float, float]
) -> None:
    """The losses to `value`, and their gradients with other weights for each example to rtol and atol."""
    torch.testing.assert_close(ours, theirs, rtol=value, atol=value)
    weights = torch.linspace(-1, 2, len(ours), dtype=ours.dtype)
    found, wanted = (torch.autograd.grad(loss, inputs, weights) for loss in (ours, theirs))
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=slope[0], atol=slope[1])


def margins_of_four_epochs(head: Head) -> list[float]:
    margins = []
    for epoch in range(4):
        head.start_epoch(epoch)
        margins.append(head.margin.item())
    return margins


def slope_of_the_expectation(head: Head, z: Tensor, y: Tensor) -> tuple[float, float, float]:
    """By differences, by the head's gradient, and the standard error of the two: 40,000 draws each."""
    copies, h = 4000, 1e-4
    y = y.repeat(copies)
    direction = torch.randn(1, z.shape[1], dtype=torch.float64)
    seeds = torch.Generator()
    ends = [
        head((z.detach() + s * h * direction).repeat(copies, 1), y, generator=seeds.manual_seed(0))
        for s in (1, -1)
    ]
    differences = ((ends[0] - ends[1]) / (2 * h)).detach()
    many = z.detach().repeat(copies, 1).requires_grad_()
    (slope,) = torch.autograd.grad(head(many, y, generator=seeds.manual_seed(1)).sum(), many)
    pathwise = slope @ direction[0]
    error = math.sqrt(float(differences.var() + pathwise.var()) / copies)
    return float(differences.mean()), float(pathwise.mean()), error


def law_scores(ours: Tensor, theirs: Tensor) -> Tensor:
    """How many standard errors lie between the means of logits, probabilities and products of logits."""

    def statistics(logits: Tensor) -> Tensor:
        products = (logits[..., :, None] * logits[..., None, :]).flatten(-2)
        return torch.cat([logits, logits.softmax(-1), products], -1).flatten(1)

    a, b, half = statistics(ours), statistics(theirs), len(ours) // 2
    a = (a[:half] + a[half:]) / 2  # the antithetic halves
    return (a.mean(0) - b.mean(0)) / (a.var(0) / len(a) + b.var(0) / len(b)).sqrt()


def bound_and_loss(head: Head, z: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The objective, the expected cross entropy of 4,000 draws, and the standard error of that."""
    bound = head(z, y, generator=torch.Generator().manual_seed(0)).detach()
    head.samples = 4000
    losses = -head.logit_samples(z, generator=torch.Generator().manual_seed(1)).detach().log_softmax(-1)
    losses = losses[:, torch.arange(len(y)), y]
    return bound, losses.mean(0), losses.std(0) / math.sqrt(len(losses))


def gamma_adds_the_divergence(
    make: Callable[..., tuple[Any, Tensor, Tensor]], dim: int, log_density: Callable[[Tensor, Tensor], Tensor]
) -> None:
    """The objective with γ is the plain one plus γ KL(law of z ‖ uniform), in value and gradient.

    `log_density(theta, kappa)` is that of the law with respect to the area of the sphere.
    """
    head, z, y = make(dim, gamma=0.3)
    generator = torch.Generator()
    loss = head(z, y, generator=generator.manual_seed(0))
    (slope,) = torch.autograd.grad(loss.sum(), z, retain_graph=True)
    head.gamma = 0.0
    plain = head(z, y, generator=generator.manual_seed(0))
    theta = torch.linspace(0, math.pi, 20_001, dtype=torch.float64)[1:-1]
    log_sin = (dim - 2) * theta.sin().log()
    log_p = log_density(theta, head.confidence(z)[:, None]) + log_sin
    log_p = log_p - log_p.logsumexp(1, keepdim=True)
    divergence = (log_p.exp() * (log_p - (log_sin - log_sin.logsumexp(0)))).sum(1)
    torch.testing.assert_close(loss - plain, 0.3 * divergence, rtol=1e-6, atol=1e-8)
    expected = torch.autograd.grad((plain + 0.3 * divergence).sum(), z)[0]
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-8)
