"""Run by the tests: the stochastic heads compiled to one graph give what they give uncompiled."""

import torch

from spaceform.heads.von_mises_fisher import VonMisesFisherHead


def outcome(run, head, z, y):
    torch.manual_seed(0)
    loss = run(z, y)
    upstream = torch.linspace(-1, 2, len(y))
    return [loss.detach(), *torch.autograd.grad(loss, [z, head.weight, head.log_beta], upstream)]


for make in (VonMisesFisherHead,):
    for dim in (3, 64):
        torch.manual_seed(dim)
        head = make(dim, 6, beta=4.0, gamma=0.1)
        z, y = torch.randn(5, dim, requires_grad=True), torch.arange(5)
        head.prepare(z.detach())
        compiled = torch.compile(head, backend="aot_eager", fullgraph=True)
        for a, b in zip(outcome(head, head, z, y), outcome(compiled, head, z, y), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        predict = torch.compile(head.predict_proba, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(predict(z).sum(1), torch.ones(5))
