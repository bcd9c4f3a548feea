"""ADAFACE: a margin that follows the norm; its equation, its running statistics, its poles."""

import math

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import config

from head_cases import margin_case
from spaceform.heads import AdaFaceHead, ArcFaceHead, CosFaceHead
from spaceform.heads._kernels.margin import Margin, with_margin


def case(dim=7, classes=23, batch=11, *, beta=8.0, **kwargs):
    """With short and long embeddings."""
    head, z, y = margin_case(AdaFaceHead, dim, classes, batch, beta=beta, **kwargs)
    size = torch.linspace(0.2, 3, batch, dtype=torch.float64)[:, None]
    return head, (size * z).detach().requires_grad_(), y


def literal(z, y, weight, beta, m, h, mean, std):
    """The equation as it is written, by acos."""
    cos = F.normalize(z) @ F.normalize(weight).T
    quality = torch.clip((z.detach().norm(dim=1) - mean) / (std / h), -1, 1)
    g_angle, g_add = -m * quality, m * quality + m
    theta = torch.acos(cos[torch.arange(len(y)), y]) + g_angle
    assert ((theta > 0) & (theta < math.pi)).all()
    logits = cos.clone()
    logits[torch.arange(len(y)), y] = torch.cos(theta) - g_add
    return F.cross_entropy(beta * logits, y, reduction="none")


@pytest.mark.parametrize("chunk", [None, 1, 5])
@pytest.mark.parametrize("margin", [0.2, 0.4])
def test_equals_the_literal_equation(margin, chunk):
    head, z, y = case(margin=margin, class_chunk=chunk)
    norms = z.detach().norm(dim=1)
    ours = head(z, y)
    expected = literal(z, y, head.weight, head.log_beta.exp(), margin, 0.333, norms.mean(), norms.std())
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    quality = 0.333 * (norms - norms.mean()) / norms.std()
    assert quality.min() < -0.3
    assert quality.max() > 0.3
    inputs, upstream = [z, *head.parameters()], torch.linspace(-1, 2, len(y), dtype=z.dtype)
    for a, b in zip(*(torch.autograd.grad(loss, inputs, upstream) for loss in (ours, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_statistics_follow_the_batches_and_stay_in_eval():
    head, z, y = case(momentum=0.4)
    mean = std = 0.0
    for k in range(1, 6):
        batch = z.detach() * k
        head(batch, y)
        rate = max(0.4, 1 / k)
        mean += rate * (batch.norm(dim=1).mean() - mean)
        std += rate * (batch.norm(dim=1).std() - std)
        torch.testing.assert_close((head.norm_mean, head.norm_std), (mean, std))
    head.eval()
    first = head(z, y)
    assert torch.equal(head(z, y), first)
    torch.testing.assert_close(head.norm_mean, mean)
    head.train()
    head(z[:1], y[:1])  # one example has no deviation
    torch.testing.assert_close(head.norm_std, std)
    head.prepare(z.detach())
    torch.testing.assert_close(head.norm_mean, z.detach().norm(dim=1).mean())


@pytest.mark.parametrize(("size", "other"), [(1e-3, ArcFaceHead), (1.0, CosFaceHead)])
def test_short_embeddings_meet_arcface_and_middling_ones_cosface(size, other):
    head, z, y = case(margin=0.4)
    head.eval()
    head.norm_mean.fill_(1.0)
    head.norm_std.fill_(0.1)
    z = size * F.normalize(z.detach())
    peer = other(head.dim, head.num_classes, margin=0.4).double()
    kept = {name: value for name, value in head.state_dict().items() if name in peer.state_dict()}
    peer.load_state_dict(kept)
    torch.testing.assert_close(head(z, y), peer(z, y))


@pytest.mark.parametrize("chunk", [None, 3])
def test_gradients_by_finite_differences(chunk):
    head, z, y = case(dim=3, classes=7, batch=5, class_chunk=chunk)
    head.eval()
    # At norms so far from the mean the margin does not change with z, as its gradient takes for granted.
    head.norm_mean.fill_(100.0)
    assert torch.autograd.gradcheck(lambda z, *_: head(z, y), (z, *head.parameters()))
    assert torch.autograd.gradgradcheck(lambda z: head(z, y), (z,))


@pytest.mark.parametrize("m", [-0.1, -0.5, -1.5])
def test_the_target_falls_with_the_angle_for_a_negative_margin_too(m):
    theta = torch.linspace(1e-3, math.pi - 1e-3, 20001, dtype=torch.float64)
    psi, slope = with_margin(theta.cos(), Margin(torch.tensor(m, dtype=torch.float64)))
    above = theta + m >= 0
    torch.testing.assert_close(psi[above], torch.cos(theta + m)[above])
    torch.testing.assert_close(psi[~above], 2 - torch.cos(theta + m)[~above])
    step = psi.diff()
    assert (step <= 1e-12).all()
    assert step.diff().abs().max() < 1e-7
    torch.testing.assert_close(slope, torch.sin(theta + m).abs() / torch.sin(theta), rtol=1e-7, atol=1e-7)


def test_prediction_leaves_the_margin_out():
    head, z, y = case()
    bare, *_ = case(margin=0.0)
    torch.testing.assert_close(head.predict_proba(z), bare.predict_proba(z))
    assert (head(z, y) > bare(z, y)).all()
    assert "concentration=0.333, momentum=0.01" in repr(head)


def test_norms_of_one_length_and_of_any_size_are_finite():
    for z in (torch.ones(4, 3), torch.full((4, 3), 3e38), torch.zeros(4, 3), torch.full((4, 3), 1e-40)):
        head = AdaFaceHead(3, 2)
        for scale in (1.0, 0.5):
            x = (z * scale).requires_grad_()
            loss = head(x, torch.tensor([0, 1, 0, 1]))
            assert loss.isfinite().all()
            assert torch.autograd.grad(loss.sum(), x)[0].isfinite().all()
        assert head.norm_mean.isfinite()
        assert head.norm_std.isfinite()


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"margin": 4.0}, r"margin must lie in \[0, π\), an angle in radians, got 4.0"),
        ({"concentration": 0.0}, "concentration must be positive and finite, got 0.0"),
        ({"momentum": 0.0}, r"momentum must lie in \(0, 1\], got 0.0"),
    ],
)
def test_bad_arguments(kwargs, sentence):
    config.update("jaxtyping_disable", True)
    with pytest.raises(ValueError, match=sentence):
        AdaFaceHead(3, 2, **kwargs)
