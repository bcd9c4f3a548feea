"""Run by the tests in an interpreter of its own: the checks of shapes that tests run under cannot be traced.

Every head compiled to one graph gives what it gives uncompiled; writes one line for each case that holds.
"""

import sys
import warnings

import torch

from spaceform.heads import HEADS, DeterministicHead

# Heads share what streams the classes: one of each kind in chunks is enough.
CASES = [(name, 3, None) for name in HEADS]
CASES += [(name, 64, 4) for name in ("hyperbolic", "arcface", "vmf")]
TO_MACHINE_CODE = "cosine"
# torch warns about what its own tracer does with an autograd.Function.
warnings.filterwarnings("ignore", message=".*should not be instantiated", category=DeprecationWarning)


def outcome(run, head, z, y):
    torch.manual_seed(0)
    loss = run(z, y)
    upstream = torch.linspace(-1, 2, len(y))
    return [loss.detach(), *torch.autograd.grad(loss, [z, *head.parameters()], upstream)]


def check(name: str, dim: int, chunk: int | None, backend: str) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend  # takes seconds, and tests import this file

    torch._dynamo.reset()
    torch.manual_seed(dim)
    # In train() every call moves the statistics of AdaFace, and the second of two differs.
    head = HEADS[name](dim, 6, class_chunk=chunk).train(name != "adaface")
    z, y = torch.randn(5, dim, requires_grad=True), torch.arange(5)
    head.prepare(z.detach())
    graphs = CompileCounterWithBackend(backend)
    # For a batch of any size; to machine code and in chunks, of one size, which is sooner done.
    compiled = torch.compile(head, backend=graphs, fullgraph=True, dynamic=False)
    if backend == "inductor":
        check_machine_code(compiled, head, z, y)
    else:
        once = 0
        for batch in (5, 12) if chunk is None else (5,):
            x, labels = z.detach().repeat(3, 1)[:batch].requires_grad_(), y.repeat(3)[:batch]
            if chunk is None:
                torch._dynamo.mark_dynamic(x, 0)
                torch._dynamo.mark_dynamic(labels, 0)
            pairs = zip(outcome(compiled, head, x, labels), outcome(head, head, x, labels), strict=True)
            for graph, eager in pairs:
                torch.testing.assert_close(graph, eager, rtol=1e-4, atol=1e-5)
            once = once or graphs.frame_count
        assert graphs.frame_count == once, "compiled again for a batch of another size"
        if chunk is None:
            with torch.no_grad():
                probabilities = torch.compile(head.predict_proba, backend=backend, fullgraph=True)(z)
            torch.testing.assert_close(probabilities.sum(1), torch.ones(5))
            if isinstance(head, DeterministicHead):
                torch.testing.assert_close(probabilities, head.predict_proba(z))
    print(f"{name} {dim} {chunk} {backend}", flush=True)


def check_machine_code(compiled, head, z, y) -> None:
    """Inductor draws other numbers; that they have the right law, a mean over examples tells."""
    copies = 1 if isinstance(head, DeterministicHead) else 200
    z, y = z.detach().repeat(copies, 1).requires_grad_(), y.repeat(copies)
    graph, eager = (
        [loss.mean(), *grads[1:]] for loss, *grads in (outcome(f, head, z, y) for f in (compiled, head))
    )
    for a, b in zip(graph, eager, strict=True):
        bound = 1e-4 if copies == 1 else 0.05
        torch.testing.assert_close(a, b, rtol=bound, atol=bound * float(b.abs().max()))


def main(backends: list[str]) -> None:
    torch.set_num_threads(1)
    for backend in backends:
        for name, dim, chunk in CASES:
            if backend == "inductor" and (name, chunk) != (TO_MACHINE_CODE, None):
                continue
            try:
                check(name, dim, chunk, backend)
            except Exception as error:
                print(f"{name} {dim} {chunk} {backend}: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
