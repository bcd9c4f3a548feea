"""ARCFACE: the margin, its continuation past π, its warm-up; margin 0 is COSINE."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import config

import head_cases
from head_cases import agree, margins_of_four_epochs
from spaceform.heads import ArcFaceHead, CosineHead
from spaceform.heads._kernels.margin import Margin, with_margin

case = partial(head_cases.case, ArcFaceHead)


def literal(head, z, y):
    """Eq. 4 as it is written, by acos; ours too while θ + m ≤ π."""
    cos = F.normalize(z) @ F.normalize(head.weight).T
    target = torch.cos(torch.acos(cos.gather(1, y[:, None])) + head.margin)
    return F.cross_entropy(head.log_beta.exp() * cos.scatter(1, y[:, None], target), y, reduction="none")


@pytest.mark.parametrize("chunk", [None, 1, 5])
@pytest.mark.parametrize("margin", [0.1, 0.5])
def test_equals_the_literal_equation(chunk, margin):
    head, z, y = case(margin=margin, class_chunk=chunk, beta=8.0)
    agree(head(z, y), literal(head, z, y), [z, *head.parameters()], 1e-10, (1e-8, 1e-10))


@pytest.mark.parametrize("chunk", [None, 1, 5])
@pytest.mark.parametrize("margin", [0.5, 2.5])
def test_literal_is_the_equation_past_pi_too(chunk, margin):
    head, z, y = case(dim=3, margin=margin, class_chunk=chunk, beta=8.0, literal=True)
    with torch.no_grad():
        z[0] = 1e-2 * z[0] - head.weight[y[0]]
    past = torch.acos(F.cosine_similarity(z, head.weight[y])) + margin > math.pi
    assert 0 < past.sum() < len(y)
    ours = head(z, y)
    agree(ours, literal(head, z, y), [z, *head.parameters()], 1e-10, (1e-8, 1e-10))
    monotone = ArcFaceHead(head.dim, head.num_classes, margin=margin, beta=8.0).double()
    monotone.load_state_dict(head.state_dict())
    differs = (monotone(z, y) - ours).abs() > 1e-6
    assert torch.equal(differs, past)
    assert "literal=True" in repr(head)


@pytest.mark.parametrize("chunk", [None, 3])
def test_second_derivative_of_the_literal_equation(chunk):
    head, z, y = case(dim=3, classes=4, batch=3, margin=2.5, class_chunk=chunk, literal=True)
    assert torch.autograd.gradgradcheck(lambda z: head(z, y), (z,))


@pytest.mark.parametrize("chunk", [None, 3])
@pytest.mark.parametrize("margin", [0.1, 2.5])
def test_gradients_by_finite_differences(chunk, margin):
    head, z, y = case(dim=3, classes=7, batch=5, margin=margin, class_chunk=chunk)
    wrapped = F.cosine_similarity(z, head.weight[y]) < -math.cos(margin)
    assert wrapped.any() == (margin > 1)
    assert torch.autograd.gradcheck(lambda z, *_: head(z, y), (z, *head.parameters()))


@pytest.mark.parametrize("chunk", [None, 5])
def test_margin_zero_is_cosine(chunk):
    head, z, y = case(margin=0.0, class_chunk=chunk, dtype=torch.float32)
    cosine = CosineHead(head.dim, head.num_classes, class_chunk=chunk)
    cosine.weight.data = head.weight.data
    # Aligned and opposite embeddings too, where an arc cosine would lose the last digits.
    with torch.no_grad():
        z[0], z[1] = head.weight[y[0]], -head.weight[y[1]]
    ours, theirs = head(z, y), cosine(z, y)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        *(torch.autograd.grad(loss.sum(), z)[0] for loss in (ours, theirs)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("margin", [0.0, 0.3, 0.5])
def test_equals_pytorch_metric_learning(margin):
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    head, z, y = case(margin=margin, beta=16.0)
    peer = losses.ArcFaceLoss(head.num_classes, head.dim, margin=math.degrees(margin), scale=16).double()
    peer.W.data = head.weight.data.T.clone()
    assert (F.cosine_similarity(z, head.weight[y]) > -math.cos(margin)).all()
    torch.testing.assert_close(head(z, y).mean(), peer(z, y), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("m", [0.0, 0.1, 0.5, 1.5, 3.0])
def test_the_target_falls_with_the_angle_smoothly(m):
    theta = torch.linspace(1e-3, math.pi - 1e-3, 20001, dtype=torch.float64)
    psi, slope = with_margin(theta.cos(), Margin(torch.tensor(m, dtype=torch.float64)))
    below = theta + m <= math.pi
    torch.testing.assert_close(psi[below], torch.cos(theta + m)[below])
    torch.testing.assert_close(psi[~below], -2 - torch.cos(theta + m)[~below])
    step = psi.diff()
    assert (step <= 1e-12).all()
    assert step.diff().abs().max() < 1e-7
    torch.testing.assert_close(
        slope, (torch.sin(theta + m).abs() / torch.sin(theta)).to(slope), rtol=1e-7, atol=1e-7
    )


@pytest.mark.parametrize("m", [0.1, 0.5, 1.5])
def test_the_target_moves_little_at_the_poles(m):
    """As sin θ is bounded below, ψ moves by at most 1e-3 sin m, and only within 1e-3 of 0 and π."""
    theta = torch.linspace(0, 2e-3, 2001, dtype=torch.float64)
    psi, _ = with_margin(theta.cos().float(), Margin(torch.tensor(m)))
    moved = (psi - torch.cos(theta + m)).abs()
    assert moved.max() <= 1.001e-3 * math.sin(m)
    assert moved[theta > 1.2e-3].max() <= 1.5e-4 * math.sin(m)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_margin_is_finite_at_the_poles(dtype):
    cos = torch.tensor([-1.0000001, -1, -1 + 1e-7, 0, 1 - 1e-7, 1, 1.0000001], dtype=dtype)
    for m in (0.0, 0.5, 3.0):
        psi, slope = with_margin(cos, Margin(torch.tensor(m)))
        assert psi.isfinite().all()
        assert slope.isfinite().all()
        assert slope.min() >= -1e-6


def test_aligned_and_opposite_embeddings_have_finite_gradients():
    head, z, y = case(dtype=torch.float32, beta=1e4)
    with torch.no_grad():
        z[::2], z[1::2] = head.weight[y[::2]], -head.weight[y[1::2]]
    loss = head(z, y)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert z.grad.isfinite().all()
    assert head.weight.grad.isfinite().all()
    # |dψ/dθ| ≤ 1, so at unit norm no gradient exceeds 2β.
    assert (z.grad.norm(dim=1) * z.detach().norm(dim=1)).max() < 2.1e4


def test_prediction_leaves_the_margin_out():
    head, z, y = case(margin=0.5)
    cosine = CosineHead(head.dim, head.num_classes).double()
    cosine.weight.data = head.weight.data
    torch.testing.assert_close(head.predict_proba(z), cosine.predict_proba(z))
    assert (head(z, y) > cosine(z, y)).all()


def test_warm_up_and_its_checkpoint():
    head, z, y = case(margin=0.5, warmup_epochs=2)
    assert head.margin == 0
    assert margins_of_four_epochs(head) == [0.0, 0.0, 0.5, 0.5]
    again = ArcFaceHead(head.dim, head.num_classes, margin=0.5, warmup_epochs=2).double()
    again.load_state_dict(head.state_dict())
    torch.testing.assert_close(again(z, y), head(z, y), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"margin": -0.1}, r"margin must lie in \[0, π\), an angle in radians, got -0.1"),
        ({"margin": 28.6}, r"margin must lie in \[0, π\), an angle in radians, got 28.6"),
        ({"margin": math.nan}, r"margin must lie in \[0, π\)"),
        ({"warmup_epochs": -1}, "warmup_epochs must not be negative, got -1"),
    ],
)
def test_bad_arguments(kwargs, sentence):
    config.update("jaxtyping_disable", True)
    with pytest.raises(ValueError, match=sentence):
        ArcFaceHead(3, 2, **kwargs)
