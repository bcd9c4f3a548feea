"""The optimiser takes the steps of torch's own."""

import torch
from torch import nn

from spaceform.engine.adamw import FusedAdamW, RatedParameters


def test_the_steps_are_those_of_torch():
    g = torch.Generator().manual_seed(0)
    start = [torch.randn(5, 3, generator=g), torch.randn(3, generator=g)]
    ours, theirs = ([nn.Parameter(t.clone()) for t in start] for _ in range(2))
    mine = FusedAdamW(
        [
            RatedParameters(ours[:1], 1.0, 0.1),
            RatedParameters(ours[1:], 7.0, 0.2),
            RatedParameters([], 1.0, 0.0),
        ]
    )
    peer = torch.optim.AdamW(
        [{"params": theirs[:1], "weight_decay": 0.1}, {"params": theirs[1:], "weight_decay": 0.2 / 7}]
    )
    for step in range(20):
        rate = 0.01 * (1 + step)
        gradients = [torch.randn(t.shape, generator=g) for t in start]
        for parameters in (ours, theirs):
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient.clone()
        for group, relative in zip(peer.param_groups, (1.0, 7.0), strict=True):
            group["lr"] = rate * relative
        mine.step(rate)
        peer.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_a_parameter_without_a_gradient_stays():
    still, moved = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = FusedAdamW([RatedParameters([still, moved], 1.0, 0.5)])
    moved.grad = torch.ones(2)
    optimizer.step(0.1)
    assert torch.equal(still, torch.ones(2))
    assert (moved < 1).all()
    optimizer.zero_grad()
    assert moved.grad is None
