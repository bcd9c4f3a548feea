"""HYPERBOLIC learns by plain steps, and compiles."""

import shutil

import pytest
import torch
import torch.nn.functional as F

from reference.poincare import gradients
from spaceform.heads.hyperbolic import HyperbolicHead

# torch.compile makes an instance of every autograd function it meets, against torch's own advice.
torch_instantiates = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


@pytest.mark.parametrize("c", [1e-5, 1.0])
def test_plain_sgd_separates_three_classes(c: float):
    g = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    y = torch.arange(90) % 3
    x = F.one_hot(y, 3).float() @ torch.tensor([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]]) + 0.3 * torch.randn(
        90, 2, generator=g
    )
    net, head = torch.nn.Linear(2, 3), HyperbolicHead(3, 3, curvature=c)
    optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.03, momentum=0.9)
    for _ in range(100):
        optimizer.zero_grad()
        head(net(x), y).mean().backward()
        optimizer.step()
    assert (head.predict_proba(net(x)).argmax(-1) == y).all()
    assert head(net(x), y).mean() < 0.05


@pytest.mark.compiled
@torch_instantiates
@pytest.mark.parametrize("chunk", [None, 3])
def test_compiles_in_one_graph(chunk: int | None):
    head = HyperbolicHead(6, 8, curvature=0.1, class_chunk=chunk)
    compiled = torch.compile(head, backend="aot_eager", fullgraph=True)
    z, y = torch.randn(5, 6, requires_grad=True), torch.arange(5)
    inputs = [z, *head.parameters()]
    torch.testing.assert_close(compiled(z, y), head(z, y))
    torch.testing.assert_close(gradients(compiled(z, y), *inputs), gradients(head(z, y), *inputs))


@pytest.mark.compiled
@torch_instantiates
@pytest.mark.skipif(
    shutil.which("g++") is None, reason="the compiler of torch.compile on CPUs, g++, is not installed"
)
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
def test_compiles_to_machine_code():
    head = HyperbolicHead(6, 8, curvature=0.1)
    compiled = torch.compile(head, fullgraph=True)
    z, y = torch.randn(5, 6, requires_grad=True), torch.arange(5)
    inputs = [z, *head.parameters()]
    torch.testing.assert_close(
        gradients(compiled(z, y), *inputs), gradients(head(z, y), *inputs), rtol=1e-4, atol=1e-5
    )
