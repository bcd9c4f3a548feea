"""STANDARD is F.cross_entropy of z·w_j, whole or streamed."""

import math

import pytest
import torch
import torch.nn.functional as F

from spaceform.geometry import Euclidean
from spaceform.heads import StandardHead


def case(dim=7, classes=23, batch=11, dtype=torch.float64):
    g = torch.Generator().manual_seed(0)
    head = StandardHead(dim, classes).to(dtype)
    z = torch.randn(batch, dim, generator=g, dtype=dtype, requires_grad=True)
    return head, z, torch.randint(classes, (batch,), generator=g)


def test_hand_value():
    head = StandardHead(2, 2)
    head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    loss = head(torch.tensor([[2.0, 1.0]]), torch.tensor([1]))
    assert loss.item() == pytest.approx(math.log(1 + math.e))
    assert isinstance(head.geometry, Euclidean)


@pytest.mark.parametrize("chunk", [None, 1, 5, 22, 23, 100])
def test_equals_cross_entropy(chunk):
    head, z, y = case()
    head.class_chunk = chunk
    weights = torch.linspace(-1, 2, len(y), dtype=z.dtype)
    ours, peer = head(z, y), F.cross_entropy(z @ head.weight.T, y, reduction="none")
    torch.testing.assert_close(ours, peer, rtol=1e-12, atol=1e-12)
    for a, b in zip(
        *(torch.autograd.grad(loss, [z, head.weight], weights) for loss in (ours, peer)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_streaming_is_right_by_finite_differences():
    head, z, y = case(dim=3, classes=7, batch=5)
    head.class_chunk = 3
    assert torch.autograd.gradcheck(lambda z, _: head(z, y), (z, head.weight))


def test_streaming_survives_logits_far_apart():
    head, z, y = case(dtype=torch.float32)
    head.class_chunk = 5
    with torch.no_grad():
        z *= 1e4
    torch.testing.assert_close(head(z, y), F.cross_entropy(z @ head.weight.T, y, reduction="none"))


def test_starts_xavier_uniform():
    torch.manual_seed(0)
    weight, bound = StandardHead(100, 300).weight, math.sqrt(6 / 400)
    assert weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.01)


@pytest.mark.parametrize("chunk", [None, 1])
def test_embeddings_of_any_size_have_finite_products(chunk):
    head, y = StandardHead(3, 2, class_chunk=chunk), torch.tensor([1, 0])
    for size in (1e14, 1e32, 3e38):
        z = torch.full((2, 3), size, requires_grad=True)
        loss = head(z, y)
        assert loss.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(loss.sum(), [z, head.weight]))
    bounded = torch.full((2, 3), 1e15)
    torch.testing.assert_close(head.logits(torch.full((2, 3), 3e38)), head.logits(bounded))
