"""SUB-CENTRE ARCFACE: the nearest of several centres, wrong labels found; one centre is ARCFACE."""

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import config

import head_cases
from head_cases import agree
from reference.peers import peer
from spaceform.heads import ArcFaceHead, SubCentreArcFaceHead
from spaceform.heads._kernels.composed import composed
from spaceform.heads._kernels.margin import Margin

case = partial(head_cases.margin_case, SubCentreArcFaceHead)


def theirs(head, margin):
    losses = peer("pytorch_metric_learning.losses")
    loss = losses.SubCenterArcFaceLoss(
        num_classes=head.num_classes,
        embedding_size=head.dim,
        sub_centers=head.centres,
        margin=math.degrees(margin),
        scale=head.beta.item(),
    ).double()
    # Theirs has a column for each centre, those of a class side by side.
    loss.W.data = head.weight.data.transpose(0, 1).flatten(0, 1).T.clone()
    return loss


@pytest.mark.parametrize("chunk", [None, 1, 5])
@pytest.mark.parametrize("centres", [1, 2, 3])
@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_equals_pytorch_metric_learning(margin, centres, chunk):
    head, z, y = case(margin=margin, centres=centres, class_chunk=chunk, beta=64.0)
    nearest = F.cosine_similarity(z, head.weight[:, y], dim=-1).amax(0)
    assert (nearest > -math.cos(margin)).all()  # past π theirs continues the cosine otherwise
    loss = theirs(head, margin)
    ours, expected = head(z, y).mean(), loss(z, y)
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)
    found = torch.autograd.grad(ours, [z, head.weight])
    wanted = torch.autograd.grad(expected, [z, loss.W])
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-8, atol=1e-9)
    columns = found[1].transpose(0, 1).flatten(0, 1).T
    torch.testing.assert_close(columns, wanted[1], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("chunk", [None, 5])
def test_one_centre_is_arcface(chunk):
    head, z, y = case(centres=1, margin=0.5, class_chunk=chunk)
    arcface = ArcFaceHead(head.dim, head.num_classes, margin=0.5, class_chunk=chunk).double()
    arcface.load_state_dict(head.state_dict() | {"weight": head.weight.data[0]})
    torch.testing.assert_close(head(z, y), arcface(z, y))
    torch.testing.assert_close(head.logits(z), arcface.logits(z))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", [None, 3])
def test_gradients_by_finite_differences(chunk):
    head, z, y = case(dim=3, classes=7, batch=5, margin=0.5, class_chunk=chunk)
    assert torch.autograd.gradcheck(lambda z, *_: head(z, y), (z, *head.parameters()))
    assert torch.autograd.gradgradcheck(lambda z: head(z, y), (z,))


@pytest.mark.parametrize("chunk", [None, 2])
def test_equal_centres_share_the_gradient(chunk):
    head, z, y = case(dim=3, classes=4, batch=5, centres=2, class_chunk=chunk)
    alone = SubCentreArcFaceHead(3, 4, centres=1, beta=8.0).double()
    alone.load_state_dict(head.state_dict() | {"weight": head.weight.data[:1]})
    with torch.no_grad():
        head.weight[1] = head.weight[0]
    (both,) = torch.autograd.grad(head(z, y).sum(), head.weight)
    (one,) = torch.autograd.grad(alone(z, y).sum(), alone.weight)
    torch.testing.assert_close(both[0], both[1])
    torch.testing.assert_close(both.sum(0), one[0])


@pytest.mark.parametrize("classes", [20, 6000])
def test_few_and_many_logits_have_the_gradients_of_ordinary_operations(classes):
    """Few logits are kept, many are computed twice; of some classes two centres are the nearest."""
    head, z, y = case(dim=5, classes=classes, batch=12, margin=0.4)
    with torch.no_grad():
        head.weight[1, ::3] = head.weight[0, ::3]
    margin = Margin(angle=head.margin)
    expected = composed(z, head.weight, y, head.log_beta, margin)
    agree(head(z, y), expected, [z, *head.parameters()], 1e-10, (1e-8, 1e-10))


def noisy(head):
    """Examples at the second centre of their class, a tenth of them labelled as the next class."""
    g = torch.Generator().manual_seed(1)
    truth = torch.arange(200) % head.num_classes
    noise = 0.1 * torch.randn(200, head.dim, generator=g, dtype=torch.float64)
    z = 5 * (F.normalize(head.weight[1][truth].detach(), dim=1) + noise)
    wrong = torch.arange(200) % 10 == 0
    return z, torch.where(wrong, (truth + 1) % head.num_classes, truth), wrong


def test_wrong_labels_lie_far_from_the_dominant_centre():
    head, *_ = case(dim=16, classes=7)
    z, y, wrong = noisy(head)
    assert (head.dominant_centres(z, y) == 1).all()
    found = head.suspects(z, y, angle=math.radians(45))
    assert set(found.tolist()) == set(wrong.nonzero()[:, 0].tolist())
    cos = F.cosine_similarity(z, head.weight[1][y])
    assert (cos[found].diff() >= 0).all()
    assert len(head.suspects(z, y, angle=math.pi)) == 0


def test_suspects_are_those_of_pytorch_metric_learning():
    head, *_ = case(dim=16, classes=7)
    z, y, _ = noisy(head)
    rows, centres = theirs(head, 0.5).get_outliers(z, y, threshold=75)
    assert sorted(head.suspects(z, y).tolist()) == sorted(rows.tolist())
    ours = head.weight[head.dominant_centres(z, y), torch.arange(7)]
    torch.testing.assert_close(ours.detach(), centres.T)


def test_angles_to_the_dominant_centres_of_other_examples():
    head, *_ = case(dim=16, classes=7)
    z, y, wrong = noisy(head)
    centres = head.dominant_centres(z, y)
    some, own = z[wrong], y[wrong]
    expected = F.cosine_similarity(some, head.weight[1][own]).detach().arccos()
    torch.testing.assert_close(head.angles(some, own, centres=centres), expected)
    torch.testing.assert_close(head.angles(z, y)[wrong], expected)
    found = head.suspects(some, own, angle=1.2, centres=centres)
    assert found.tolist() == [i for i in expected.argsort(descending=True).tolist() if expected[i] > 1.2]
    zeroth = torch.zeros_like(centres)
    expected = F.cosine_similarity(some, head.weight[0][own]).detach().arccos()
    torch.testing.assert_close(head.angles(some, own, centres=zeroth), expected)


def test_a_class_without_examples_and_no_example():
    head, z, y = case()
    assert head.dominant_centres(z[:0], y[:0]).tolist() == [0] * 23
    assert head.suspects(z[:0], y[:0]).tolist() == []


def test_prediction_leaves_the_margin_out():
    head, z, y = case(margin=0.5)
    bare, *_ = case(margin=0.0)
    torch.testing.assert_close(head.predict_proba(z), bare.predict_proba(z))
    assert (head(z, y) > bare(z, y)).all()
    assert "centres=3" in repr(head)
    assert head.numbers() == {"beta": pytest.approx(8.0), "margin": 0.5, "centres": 3}


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"centres": 0}, "centres must be a positive integer, got 0"),
        ({"margin": 4.0}, r"margin must lie in \[0, π\), an angle in radians, got 4.0"),
    ],
)
def test_bad_arguments(kwargs, sentence):
    config.update("jaxtyping_disable", True)
    with pytest.raises(ValueError, match=sentence):
        SubCentreArcFaceHead(3, 2, **kwargs)
    with pytest.raises(ValueError, match=r"angle must lie in \[0, π\], in radians, got 75"):
        SubCentreArcFaceHead(3, 2).suspects(torch.ones(1, 3), torch.tensor([0]), angle=75)
