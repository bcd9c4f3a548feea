"""Few weights on the CPU take a way of their own: it gives what the way of many weights gives."""

import pytest
import torch

from spaceform.heads import HEADS
from spaceform.heads._kernels import cosine_softmax, few_weights

# AdaFace's margin follows z without a gradient: finite differences are another matter (test_adaface.py).
NAMES = ["standard", "cosine", "arcface", "cosface", "subcentre_arcface", "adaface"]


@pytest.fixture
def many(monkeypatch):
    """From the call on, no weights and no logits count as few."""

    def none_is_few():
        for module in (few_weights, cosine_softmax):
            monkeypatch.setattr(module, "_FEW", -1)

    return none_is_few


def case(name, classes, dtype=torch.float64, dim=6, batch=9, **options):
    torch.manual_seed(0)
    head = HEADS[name](dim, classes, **options).to(dtype).eval()  # AdaFace's running mean stays
    z = torch.randn(batch, dim, dtype=dtype)
    return head, z, torch.randint(classes, (batch,))


def objective_and_gradients(head, z, y):
    z = z.detach().requires_grad_()
    objective = head(z, y)
    upstream = torch.linspace(-1, 2, len(y), dtype=objective.dtype)
    return objective, *torch.autograd.grad(objective, [z, *head.parameters()], upstream)


def assert_equal(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("classes", [2, 7, 70])
@pytest.mark.parametrize("name", NAMES)
def test_both_ways_are_equal(name, classes, many):
    head, z, y = case(name, classes)
    few = objective_and_gradients(head, z, y)
    many()
    assert_equal(few, objective_and_gradients(head, z, y), 1e-10)


@pytest.mark.parametrize("name", NAMES[1:])
def test_gradients_made_for_some_classes_at_a_time(name, many, monkeypatch):
    head, z, y = case(name, 23)
    few = objective_and_gradients(head, z, y)
    many()
    monkeypatch.setattr(cosine_softmax, "_PART", 5 * len(z))
    assert_equal(few, objective_and_gradients(head, z, y), 1e-10)


@pytest.mark.parametrize("name", ["arcface", "adaface"])
def test_where_the_margin_passes_a_pole(name, many):
    head, z, y = case(name, 3, dim=2, batch=400, margin=1.5)
    few = objective_and_gradients(head, z, y)
    many()
    assert_equal(few, objective_and_gradients(head, z, y), 1e-9)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
@pytest.mark.parametrize("name", NAMES[1:])
def test_norms_beyond_the_squares_of_float32(name, size, many):
    head, z, y = case(name, 7, torch.float32)
    z[3] *= size
    with torch.no_grad():
        head.weight[..., 2, :] *= size
    few = objective_and_gradients(head, z, y)
    many()
    assert_equal(few, objective_and_gradients(head, z, y), 1e-5)


def test_standard_counts_large_coordinates_as_the_largest():
    head, z, y = case("standard", 7, torch.float32)
    z[0, 0], z[1, 1] = 3e38, -1e15
    objective, d_z, d_weight = objective_and_gradients(head, z, y)
    assert objective.isfinite().all()
    assert d_z[0, 0] == 0
    assert d_z[1, 1] != 0
    torch.testing.assert_close(objective, head(z.clamp(-1e15, 1e15), y))
    assert d_weight.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_embeddings_and_weights_that_are_not_contiguous(name):
    head, z, y = case(name, 7)
    expected = objective_and_gradients(head, z, y)
    wide = torch.zeros(9, 12, dtype=z.dtype)
    wide[:, ::2] = z
    weight = head.weight.detach()
    head.weight = torch.nn.Parameter(weight.mT.contiguous().mT)
    assert not head.weight.is_contiguous()
    assert_equal(objective_and_gradients(head, wide[:, ::2], y), expected, 1e-12)
    same = head(z[:1].expand(9, -1), y)
    torch.testing.assert_close(same, head(z[:1].repeat(9, 1), y))


@pytest.mark.parametrize("way", ["few", "many", "chunk"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_finite_is_refused(name, value, way, many):
    head, z, y = case(name, 7, class_chunk=3 if way == "chunk" else None)
    if way == "many":
        many()
    z[4, 2] = value
    with pytest.raises(ValueError, match="z must be finite, got 1 NaN or infinite values of 54"):
        head(z, y)
    with pytest.raises(ValueError, match="z must be finite, got 1 NaN or infinite values of 54"):
        head(z, y, label_smoothing=0.1)


@pytest.mark.parametrize("name", NAMES[:-1])
def test_second_derivatives_of_many_weights(name, many):
    many()
    head, z, y = case(name, 4, dim=3, batch=4)
    assert torch.autograd.gradgradcheck(lambda z, *_: head(z, y), (z.requires_grad_(), *head.parameters()))


@pytest.mark.parametrize("classes", [4, 65])
@pytest.mark.parametrize("name", NAMES[:-1])
def test_second_derivatives_of_few_weights(name, classes):
    head, z, y = case(name, classes, dim=3, batch=4)
    assert torch.autograd.gradgradcheck(lambda z: head(z, y), z.requires_grad_())
    (first,) = torch.autograd.grad(head(z, y).sum(), head.weight, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), z)
    assert second.abs().max() > 0


@pytest.mark.parametrize("classes", [7, 70])
@pytest.mark.parametrize("name", NAMES)
def test_autocast_does_not_round_the_gradient(name, classes):
    head, z, y = case(name, classes, torch.float32)
    expected = objective_and_gradients(head, z, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_equal(objective_and_gradients(head, z, y), expected, 1e-6)


@pytest.mark.parametrize("way", ["few", "many"])
def test_centres_that_are_equal_share_the_gradient(way, many):
    head, z, y = case("subcentre_arcface", 4)
    with torch.no_grad():
        head.weight[:, 2] = torch.eye(6)[0]  # whose products have no rounding: they are equal to the bit
        head.weight[2, 2] *= -1
    if way == "many":
        many()
    z.requires_grad_()
    parameters = [z, *head.parameters()]
    upstream = torch.linspace(-1, 2, len(y), dtype=z.dtype)
    expected = torch.autograd.grad(head(z, y), parameters, upstream, create_graph=True)  # of plain operators
    assert_equal(torch.autograd.grad(head(z, y), parameters, upstream), expected, 1e-10)


@pytest.mark.parametrize("way", ["few", "many"])
@pytest.mark.parametrize("name", NAMES[1:])
def test_a_backward_pass_can_be_repeated(name, way, many):
    head, z, y = case(name, 7)
    if way == "many":
        many()
    loss, inputs = head(z.requires_grad_(), y).sum(), [z, *head.parameters()]
    once = torch.autograd.grad(loss, inputs, retain_graph=True)
    assert_equal(torch.autograd.grad(loss, inputs), once, 1e-12)
