"""What training loops do with labels: soft ones, smoothing, weights of classes, labels to ignore."""

import pytest
import torch
import torch.nn.functional as F
from jaxtyping import config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from spaceform.heads import HEADS, DeterministicHead, Head
from spaceform.heads.margins import MarginHead

DIM, CLASSES, BATCH = 6, 9, 8
every_head = pytest.mark.parametrize("name", list(HEADS))
deterministic = pytest.mark.parametrize(
    "name", [name for name, head in HEADS.items() if issubclass(head, DeterministicHead)]
)
fused_and_streamed = pytest.mark.parametrize("chunk", [None, 4])
PLAIN = {"margin": 0.0, "riemannian_gradient": False}
"""Options with which the objective of a deterministic head is the cross entropy of its logits."""


def case(name, **kwargs):
    torch.manual_seed(0)
    head = HEADS[name](DIM, CLASSES, **kwargs).double().eval()
    g = torch.Generator().manual_seed(1)
    z = torch.randn(BATCH, DIM, generator=g, dtype=torch.float64, requires_grad=True)
    y = torch.randint(CLASSES, (BATCH,), generator=g)
    soft = torch.rand(BATCH, CLASSES, generator=g, dtype=torch.float64).square()
    return head, z, y, soft / soft.sum(1, keepdim=True), 0.5 + torch.rand(CLASSES, generator=g)


def plain_case(name, chunk):
    chosen = {key: value for key, value in PLAIN.items() if key in HEADS[name].options()}
    return case(name, class_chunk=chunk, **chosen)


def seeded():
    return torch.Generator().manual_seed(2)


def same(a, b, inputs, *, rtol=1e-9):
    """Equal values, and equal gradients for unequal upstream ones."""
    torch.testing.assert_close(a, b, rtol=rtol, atol=1e-10)
    upstream = torch.linspace(-1, 2, len(a), dtype=a.dtype)
    grads = (torch.autograd.grad(x, inputs, upstream, allow_unused=True) for x in (a, b))
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-7, atol=1e-9)


@deterministic
@fused_and_streamed
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_equals_cross_entropy(name, chunk, smoothing, weighted, kind):
    head, z, y, soft, weight = plain_case(name, chunk)
    weight, labels = weight.double() if weighted else None, soft if kind == "soft" else y
    ours = head(z, labels, label_smoothing=smoothing, class_weight=weight)
    theirs = F.cross_entropy(
        head.logits(z), labels, weight=weight, label_smoothing=smoothing, reduction="none"
    )
    same(ours, theirs, [z, *head.parameters()])


@deterministic
@fused_and_streamed
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_ignored_labels_equal_cross_entropy(name, chunk, smoothing):
    head, z, y, _, weight = plain_case(name, chunk)
    y = torch.where(torch.arange(BATCH) % 3 == 0, -100, y)
    ours = head(z, y, ignore_index=-100, label_smoothing=smoothing, class_weight=weight)
    theirs = F.cross_entropy(head.logits(z), y, weight.double(), label_smoothing=smoothing, reduction="none")
    same(ours, theirs, [z, *head.parameters()])
    ignored = head(z, y, ignore_index=-100, label_smoothing=smoothing)
    (dz,) = torch.autograd.grad(ignored.sum(), z)
    assert (dz[::3] == 0).all()
    assert (dz[1] != 0).any()


@every_head
@fused_and_streamed
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_ignored_labels_leave_the_others_alone(name, chunk, smoothing):
    """Of every head: an ignored example has the objective 0, the others have theirs, weighted or not."""
    head, z, y, _, weight = case(name, class_chunk=chunk)
    kept = torch.arange(BATCH) % 3 != 0
    options = {"label_smoothing": smoothing, "class_weight": weight}
    bare = head(z, y, generator=seeded(), **options)
    ours = head(z, torch.where(kept, y, -100), ignore_index=-100, generator=seeded(), **options)
    same(ours, torch.where(kept, bare, 0), [z, *head.parameters()])


@deterministic
@fused_and_streamed
def test_a_weight_of_each_example_equals_the_weighted_mean(name, chunk):
    head, z, y, _, _ = plain_case(name, chunk)
    each = torch.linspace(0.1, 2, BATCH, dtype=z.dtype)
    ours = (each * head(z, y)).sum() / each.sum()
    log_p = head.logits(z).log_softmax(1)[torch.arange(BATCH), y]
    theirs = -(each * log_p).sum() / each.sum()
    same(ours[None], theirs[None], [z, *head.parameters()])


@every_head
@fused_and_streamed
def test_certain_soft_labels_are_labels(name, chunk):
    head, z, y, _, weight = case(name, class_chunk=chunk)
    certain = F.one_hot(y, CLASSES).double()
    same(head(z, certain, generator=seeded()), head(z, y, generator=seeded()), [z, *head.parameters()])
    same(
        head(z, certain, class_weight=weight, generator=seeded()),
        head(z, y, class_weight=weight, generator=seeded()),
        [z, *head.parameters()],
    )
    torch.testing.assert_close(
        head(z, y, class_weight=weight, generator=seeded()), weight[y] * head(z, y, generator=seeded())
    )


@every_head
def test_soft_labels_mean_the_objectives_of_the_classes(name):
    """Without a margin the objective is linear in the label; with one, the margin is shared out."""
    head, z, _, soft, _ = case(name, **({"margin": 0.0} if issubclass(HEADS[name], MarginHead) else {}))
    every = torch.stack([head(z, torch.full((BATCH,), c), generator=seeded()) for c in range(CLASSES)], 1)
    same(head(z, soft, generator=seeded()), (soft * every).sum(1), [z, *head.parameters()])
    smoothed = head(z, soft, label_smoothing=0.3, generator=seeded())
    torch.testing.assert_close(smoothed, ((0.7 * soft + 0.3 / CLASSES) * every).sum(1))


@pytest.mark.parametrize("name", [name for name, head in HEADS.items() if issubclass(head, MarginHead)])
def test_a_margin_is_shared_out_by_soft_labels_and_left_to_the_label_by_smoothing(name):
    head, z, y, _, _ = case(name)
    label = F.one_hot(y, CLASSES).bool()
    logits = head._training_logits(z)(label.double(), slice(0, CLASSES))
    torch.testing.assert_close(logits[~label], head.logits(z)[~label])
    assert (logits[label] < head.logits(z)[label]).all()
    torch.testing.assert_close(
        head(z, y, label_smoothing=0.1), F.cross_entropy(logits, y, label_smoothing=0.1, reduction="none")
    )


@pytest.mark.parametrize("kind", ["hard", "soft"])
@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {}) for name in HEADS]
    + [(n, {"learn_curvature": True}) for n, h in HEADS.items() if "learn_curvature" in h.options()],
)
def test_streaming_over_classes_changes_neither_value_nor_gradient(name, options, kind):
    head, z, y, soft, weight = case(name, **options)
    labels = soft if kind == "soft" else y

    def objective(chunk):
        head.class_chunk = chunk
        return head(z, labels, label_smoothing=0.2, class_weight=weight, generator=seeded())

    same(objective(4), objective(None), [z, *head.parameters()])
    same(objective(1), objective(None), [z, *head.parameters()])


class Largest(TorchDispatchMode):
    """Remembers how many numbers each tensor has that is made under it."""

    def __init__(self):
        super().__init__()
        self.sizes = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.sizes |= {t.numel() for t in tree_leaves(out) if isinstance(t, torch.Tensor)}
        return out


@pytest.mark.parametrize("name", [n for n in HEADS if n not in ("vmf", "power_spherical")])
def test_smoothed_labels_are_streamed(name):
    """Besides parameters and gradients, no tensor is larger than a block of classes."""
    classes, chunk, batch = 1000, 50, 16
    head = HEADS[name](4, classes, class_chunk=chunk)
    z, y = torch.randn(batch, 4, requires_grad=True), torch.arange(batch)
    own = {p.numel() for p in head.parameters()} | {classes, classes * (4 + 1)}
    with Largest() as seen:
        head(z, y, label_smoothing=0.1).sum().backward()
    centres = getattr(head, "centres", 1)
    assert max(seen.sizes - own) <= centres * chunk * batch


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vmf", "power_spherical"])
def test_smoothed_labels_of_stochastic_heads_are_streamed(name):
    """The larger of a block of draws and the weights: far below batch times classes."""
    classes, batch = 4000, 64
    head = HEADS[name](4, classes, class_chunk=50)
    z, y = torch.randn(batch, 4, requires_grad=True), torch.arange(batch)
    with Largest() as seen:
        head(z, y, label_smoothing=0.1).sum().backward()
    assert max(seen.sizes) < classes * batch / 4


def test_two_halves_of_a_label_have_half_of_the_margin_each():
    head = HEADS["cosface"](2, 3, margin=0.5, beta=2.0).double()
    head.weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    loss = head(torch.tensor([[4.0, 0.0]], dtype=torch.float64), torch.tensor([[0.5, 0.5, 0.0]]))
    logits = 2 * torch.tensor([[1 - 0.25, -0.25, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(loss, -logits.log_softmax(1)[:, :2].mean(1), rtol=1e-6, atol=1e-6)


@every_head
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_soft_labels_under_autocast_are_computed_in_float32(name, dtype):
    head, z, _, soft, weight = case(name)
    head, z = head.float(), z.detach().to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        loss = head(z, soft.to(dtype), label_smoothing=0.1, class_weight=weight, generator=seeded())
        loss.mean().backward()
    assert loss.dtype == torch.float32
    assert z.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in head.parameters())


def test_a_head_that_says_nothing_of_soft_labels_refuses_them():
    class Bare(Head):
        geometry = HEADS["cosine"].geometry

        def __init__(self):
            super().__init__(DIM, CLASSES)
            self.weight = torch.nn.Parameter(torch.zeros(()))

        def _objective(self, z, y, generator):  # noqa: ARG002
            return z.sum(1) * self.weight

        def _logit_samples(self, z, generator):  # noqa: ARG002
            return z[None]

    z, y = torch.ones(2, DIM), torch.tensor([0, 1])
    assert Bare()(z, y).shape == (2,)
    with pytest.raises(TypeError, match="Bare takes no soft labels and no smoothing"):
        Bare()(z, y, label_smoothing=0.1)


@pytest.mark.parametrize(
    ("labels", "options", "sentence"),
    [
        ("hard", {"label_smoothing": 1.0}, r"label_smoothing must lie in \[0, 1\), got 1.0"),
        ("hard", {"class_weight": torch.ones(3)}, r"class_weight must have shape \(9,\).* got \(3,\)"),
        ("soft", {"ignore_index": -100}, "ignore_index=-100 needs labels y that are integers"),
        ("short", {}, r"soft labels y must have shape \(8, 9\), one .* got \(8, 8\)"),
        ("large", {}, r"soft labels y must lie in \[0, 1\], got 3: pass probabilities"),
        ("hard", {"ignore_index": 3, "label_smoothing": 0.1}, None),
    ],
)
def test_bad_labels_are_named(labels, options, sentence):
    config.update("jaxtyping_disable", True)
    head, z, y, soft, _ = case("cosine")
    given = {"hard": y, "soft": soft, "short": soft[:, 1:], "large": 3 * torch.ones_like(soft)}[labels]
    if sentence is None:
        assert (head(z, given, **options)[y == 3] == 0).all()
        return
    with pytest.raises(ValueError, match=sentence) as caught:
        head(z, given, **options)
    assert "\n" not in str(caught.value)
