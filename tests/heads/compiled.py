"""Run by the tests in an interpreter of its own: the checks of shapes that tests run under cannot be traced.

Every head compiled to one graph gives what it gives uncompiled; writes one line for each case that holds.
"""

import sys
import warnings

import torch

from spaceform.heads import HEADS, DeterministicHead

CASES = [(name, dim, chunk) for name in HEADS for dim, chunk in ((3, None), (20, 4))]
# torch warns about what its own tracer does with an autograd.Function.
warnings.filterwarnings("ignore", message=".*should not be instantiated", category=DeprecationWarning)


def outcome(run, head, z, y):
    torch.manual_seed(0)
    loss = run(z, y)
    upstream = torch.linspace(-1, 2, len(y))
    return [loss.detach(), *torch.autograd.grad(loss, [z, *head.parameters()], upstream)]


def check(name: str, dim: int, chunk: int | None, backend: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(dim)
    head = HEADS[name](dim, 6, class_chunk=chunk)
    z, y = torch.randn(5, dim, requires_grad=True), torch.arange(5)
    head.prepare(z.detach())
    # A batch of any size in the first case, of one size in the second.
    compiled = torch.compile(
        head, backend=backend, fullgraph=True, dynamic=chunk is None and backend != "inductor"
    )
    eager, graph = outcome(head, head, z, y), outcome(compiled, head, z, y)
    if backend == "inductor" and not isinstance(head, DeterministicHead):
        # Inductor draws other numbers; that they have the right law, a mean over examples tells.
        wide, labels = z.detach().repeat(200, 1), y.repeat(200)
        with torch.no_grad():
            torch.testing.assert_close(
                compiled(wide, labels).mean(), head(wide, labels).mean(), rtol=0.02, atol=0.0
            )
        assert all(g.isfinite().all() for g in graph)
    else:
        for a, b in zip(graph, eager, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    if chunk is None and backend != "inductor":
        predict = torch.compile(head.predict_proba, backend=backend, fullgraph=True)
        probabilities = predict(z)
        torch.testing.assert_close(probabilities.sum(1), torch.ones(5))
        if isinstance(head, DeterministicHead):
            torch.testing.assert_close(probabilities, head.predict_proba(z))
    print(f"{name} {dim} {chunk} {backend}", flush=True)


def main(backend: str, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name, dim, chunk in CASES:
        if name in names and (backend != "inductor" or chunk is None):
            try:
                check(name, dim, chunk, backend)
            except Exception as error:
                print(f"{name} {dim} {chunk} {backend}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or list(HEADS))
