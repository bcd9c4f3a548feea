"""COSINE is the softmax of β cos θ: against the plain composition, a peer, finite differences, its laws."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import head_cases
from head_cases import agree
from spaceform.geometry import Sphere
from spaceform.heads import ArcFaceHead, CosineHead, StandardHead
from spaceform.heads._kernels.softmax import chunk_size

case = partial(head_cases.case, CosineHead)


def plain(head, z, y):
    cos = F.normalize(z) @ F.normalize(head.weight).T
    return F.cross_entropy(head.log_beta.exp() * cos, y, reduction="none")


@pytest.mark.parametrize("chunk", [None, 1, 5, 22, 100])
@pytest.mark.parametrize("beta", [1.0, 16.0, 1e4])
def test_equals_the_plain_composition(chunk, beta):
    head, z, y = case(class_chunk=chunk, beta=beta)
    agree(head(z, y), plain(head, z, y), [z, *head.parameters()], 1e-11, (1e-9, 1e-9 * beta))


@pytest.mark.parametrize("chunk", [None, 3])
def test_gradients_by_finite_differences(chunk):
    head, z, y = case(dim=3, classes=7, batch=5, class_chunk=chunk)
    assert torch.autograd.gradcheck(lambda z, *_: head(z, y), (z, *head.parameters()))


def test_logits_are_beta_cosines():
    head, z, y = case(beta=3.0)
    torch.testing.assert_close(head.logits(z), 3 * Sphere().pairwise(z, head.weight))
    torch.testing.assert_close(F.nll_loss(head.log_probs(z), y, reduction="none"), head(z, y))


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("cls", [CosineHead, ArcFaceHead, StandardHead])
def test_second_derivatives(cls, chunk):
    _, z, y = case(dim=3, classes=5, batch=4)
    head = cls(3, 5, class_chunk=chunk).double()
    assert torch.autograd.gradgradcheck(lambda z, *_: head(z, y % 5), (z, *head.parameters()))


def test_equals_pytorch_metric_learning():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    head, z, y = case(beta=20.0)
    peer = losses.NormalizedSoftmaxLoss(head.num_classes, head.dim, temperature=1 / 20).double()
    peer.W.data = head.weight.data.T.clone()
    torch.testing.assert_close(head(z, y).mean(), peer(z, y))


def test_relations_that_need_no_peer():
    head, z, y = case()
    loss = head(z, y)
    dz, dw, _ = torch.autograd.grad(loss.sum(), [z, *head.parameters()])
    # Only directions count, so a gradient has no part along its own vector.
    torch.testing.assert_close((dz * z).sum(1), torch.zeros(len(z), dtype=z.dtype), atol=1e-12, rtol=0)
    torch.testing.assert_close(
        (dw * head.weight).sum(1), torch.zeros(head.num_classes, dtype=z.dtype), atol=1e-12, rtol=0
    )


@settings(deadline=None, max_examples=30)
@given(exponents=st.lists(st.floats(-30, 30), min_size=11, max_size=11), chunk=st.sampled_from([None, 4]))
@pytest.mark.parametrize("cls", [CosineHead, ArcFaceHead])
def test_spherical_heads_ignore_the_norm(cls, exponents, chunk):
    _, z, y = case(dtype=torch.float32)
    head = cls(7, 23, class_chunk=chunk)
    scaled = z.detach() * (10.0 ** torch.tensor(exponents, dtype=torch.float64)).float()[:, None]
    torch.testing.assert_close(head(scaled, y), head(z, y), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(head.predict_proba(scaled), head.predict_proba(z), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("beta", [1.0, 1e2, 1e4])
def test_float32_error(chunk, beta):
    head, z, y = case(dim=64, classes=200, batch=32, class_chunk=chunk, beta=beta)
    exact = head(z, y)
    exact.mean().backward()
    single, z32 = CosineHead(64, 200, class_chunk=chunk, beta=beta), z.detach().float().requires_grad_()
    single.weight.data = head.weight.data.float()
    loss = single(z32, y)
    loss.mean().backward()
    # β eps is the rounding of the logits themselves.
    assert (loss - exact).abs().max() < 1e-6 * (1 + beta)
    for ours, true in ((z32.grad, z.grad), (single.weight.grad, head.weight.grad)):
        assert (ours - true).abs().max() < 1e-6 * (1 + beta) * true.abs().max()


@pytest.mark.parametrize("chunk", [None, 2])
def test_a_zero_class_weight_is_finite(chunk):
    head, z, y = case(class_chunk=chunk)
    head.weight.data[3] = 0
    loss = head(z, y)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert head.weight.grad.isfinite().all()
    assert head.logits(z)[:, 3].eq(0).all()


def test_frozen_parts_get_no_gradient():
    head, z, y = case(learn_beta=False)
    head.weight.requires_grad_(False)
    head(z, y).sum().backward()
    assert head.weight.grad is None
    assert z.grad.abs().sum() > 0


def test_chunks_are_chosen_where_the_logits_are_large():
    assert chunk_size(64, 9620, None) == 9620
    assert chunk_size(64, 1_000_000, None) == 16384
    assert chunk_size(64, 1000, 10) == 10
    assert chunk_size(64, 1000, 5000) == 1000
    assert chunk_size(2**21, 100, None) == 1
