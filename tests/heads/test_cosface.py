"""COSFACE: the margin on the cosine, its warm-up; margin 0 is COSINE."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import config

import head_cases
from head_cases import agree, margins_of_four_epochs
from reference.peers import peer
from spaceform.heads import CosFaceHead, CosineHead

case = partial(head_cases.margin_case, CosFaceHead)


def literal(head, z, y):
    """The equation as it is written."""
    cos = F.normalize(z) @ F.normalize(head.weight).T
    moved = cos - head.margin * F.one_hot(y, head.num_classes)
    return F.cross_entropy(head.log_beta.exp() * moved, y, reduction="none")


def test_hand_value():
    head = CosFaceHead(2, 2, margin=0.5, beta=2.0)
    head.weight.data = torch.tensor([[3.0, 0.0], [0.0, 0.1]])
    # cos θ = 1 for the target and 0 for the other: logits 2 (1 − 0.5) and 0.
    loss = head(torch.tensor([[5.0, 0.0]]), torch.tensor([0]))
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)), rel=1e-6)


@pytest.mark.parametrize("chunk", [None, 1, 5])
@pytest.mark.parametrize("margin", [0.1, 0.35, 3.0])
def test_equals_the_literal_equation(chunk, margin):
    head, z, y = case(margin=margin, class_chunk=chunk)
    agree(head(z, y), literal(head, z, y), [z, *head.parameters()], 1e-12, (1e-10, 1e-11))


@pytest.mark.parametrize("chunk", [None, 5])
@pytest.mark.parametrize("margin", [0.0, 0.35])
def test_equals_pytorch_metric_learning(margin, chunk):
    losses = peer("pytorch_metric_learning.losses")
    head, z, y = case(margin=margin, class_chunk=chunk, beta=64.0)
    theirs = losses.CosFaceLoss(head.num_classes, head.dim, margin=margin, scale=64).double()
    theirs.W.data = head.weight.data.T.clone()
    ours, expected = head(z, y).mean(), theirs(z, y)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    found = torch.autograd.grad(ours, [z, head.weight])
    wanted = torch.autograd.grad(expected, [z, theirs.W])
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[1], wanted[1].T, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("chunk", [None, 3])
def test_gradients_by_finite_differences(chunk):
    head, z, y = case(dim=3, classes=7, batch=5, margin=0.35, class_chunk=chunk)
    assert torch.autograd.gradcheck(lambda z, *_: head(z, y), (z, *head.parameters()))
    assert torch.autograd.gradgradcheck(lambda z: head(z, y), (z,))


def test_margin_zero_is_cosine_and_prediction_leaves_the_margin_out():
    head, z, y = case(margin=0.35)
    cosine = CosineHead(head.dim, head.num_classes).double()
    cosine.load_state_dict({name: value for name, value in head.state_dict().items() if name != "margin"})
    torch.testing.assert_close(head.predict_proba(z), cosine.predict_proba(z))
    assert (head(z, y) > cosine(z, y)).all()
    head.margin.zero_()
    torch.testing.assert_close(head(z, y), cosine(z, y))


def test_warm_up_and_its_checkpoint():
    head, z, y = case(margin=0.25, warmup_epochs=2)
    assert margins_of_four_epochs(head) == [0.0, 0.0, 0.25, 0.25]
    again = CosFaceHead(head.dim, head.num_classes, margin=0.25, warmup_epochs=2).double()
    assert again.margin == 0
    again.load_state_dict(head.state_dict())
    torch.testing.assert_close(again(z, y), head(z, y))
    assert "margin=0.25, warmup_epochs=2" in repr(head)


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"margin": -0.1}, "margin must be finite and at least 0, got -0.1"),
        ({"margin": math.inf}, "margin must be finite and at least 0, got inf"),
        ({"warmup_epochs": -1}, "warmup_epochs must not be negative, got -1"),
    ],
)
def test_bad_arguments(kwargs, sentence):
    config.update("jaxtyping_disable", True)
    with pytest.raises(ValueError, match=sentence):
        CosFaceHead(3, 2, **kwargs)
