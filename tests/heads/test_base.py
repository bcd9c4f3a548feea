"""What the base gives every head, on a leaf made here."""

import math

import pytest
import torch
from jaxtyping import config
from torch import nn

from spaceform.geometry import Euclidean
from spaceform.heads import DeterministicHead, Head, ReparametrizedHead, StochasticHead
from spaceform.heads._kernels.fixed_noise import FixedNoise


class Plain(DeterministicHead):
    geometry = Euclidean()

    def __init__(self, dim, num_classes, *, class_chunk=None, beta=None, learn_beta=True):
        super().__init__(dim, num_classes, class_chunk=class_chunk)
        self.weight = nn.Parameter(torch.linspace(-1, 1, num_classes * dim).view(num_classes, dim))
        if beta is not None:
            self._add_temperature(beta, learn_beta)

    def _logits(self, z):
        return z @ self.weight.T.to(z.dtype)


class Spread(ReparametrizedHead):
    """Embeddings z + x with one normal number x along (1, −1): a prediction that is known by hand."""

    geometry = Euclidean()

    def __init__(self, dim, num_classes):
        super().__init__(dim, num_classes, noise=1)
        self.weight = nn.Parameter(torch.eye(num_classes, dim))

    def _embed(self, z, noise):
        return z + noise * torch.tensor([1.0, -1.0], dtype=z.dtype)

    def _logits(self, embedding):
        return embedding @ self.weight.T.to(embedding.dtype)


@pytest.fixture
def bad_input():
    """Shape checks off: bad input meets the sentences that users meet."""
    config.update("jaxtyping_disable", True)


@pytest.mark.parametrize("cls", [Head, DeterministicHead, StochasticHead, ReparametrizedHead])
def test_bases_are_abstract(cls):
    with pytest.raises(TypeError, match="abstract"):
        cls(3, 2)


@pytest.mark.usefixtures("bad_input")
@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"dim": 0}, "dim must be a positive integer, got 0"),
        ({"dim": True}, "dim must be a positive integer, got True"),
        ({"dim": 2.5}, "dim must be a positive integer, got 2.5"),
        ({"num_classes": -1}, "num_classes must be a positive integer, got -1"),
        ({"class_chunk": 0}, "class_chunk must be a positive integer, got 0"),
        ({"beta": 0.0}, "beta must be positive and finite, got 0.0"),
        ({"beta": math.inf}, "beta must be positive and finite, got inf"),
        ({"beta": math.nan}, "beta must be positive and finite, got nan"),
    ],
)
def test_bad_arguments(kwargs, sentence):
    with pytest.raises(ValueError, match=sentence):
        Plain(**{"dim": 3, "num_classes": 2} | kwargs)


@pytest.mark.usefixtures("bad_input")
@pytest.mark.parametrize(
    ("z", "y", "error", "sentence"),
    [
        (torch.ones(2, 4), torch.tensor([0, 1]), ValueError, r"z must have shape \(batch, 3\), got \(2, 4\)"),
        (torch.ones(3), torch.tensor([0]), ValueError, r"z must have shape \(batch, 3\), got \(3,\)"),
        (
            torch.ones(2, 3).numpy(),
            torch.tensor([0, 1]),
            TypeError,
            r"z must be a tensor, got ndarray: pass torch",
        ),
        (torch.ones(2, 3), [0, 1], TypeError, r"y must be a tensor, got list: pass torch\.as_tensor"),
        (
            torch.ones(2, 3).long(),
            torch.tensor([0, 1]),
            TypeError,
            "z must be floating point of 16 bits or more, got torch.int64",
        ),
        (
            torch.ones(2, 3).to(torch.float8_e4m3fn),
            torch.tensor([0, 1]),
            TypeError,
            r"z must be floating point of 16 bits or more, got torch\.float8_e4m3fn: pass z\.float\(\)",
        ),
        (
            torch.ones(2, 3).to_sparse(),
            torch.tensor([0, 1]),
            TypeError,
            r"z must be a dense tensor, got the layout torch\.sparse_coo: pass z\.to_dense\(\)",
        ),
        (
            torch.ones(2, 3),
            torch.tensor([0, 1], dtype=torch.uint64),
            TypeError,
            r"y must hold integer class labels of up to 63 bits, got torch\.uint64: pass y\.long\(\)",
        ),
        (
            torch.ones(2, 3),
            torch.tensor([0, 1]).to("meta"),
            ValueError,
            r"y must be where z is, on cpu, got one on meta: pass y\.to\(z\.device\)",
        ),
        (torch.ones(2, 3) / 0, torch.tensor([0, 1]), ValueError, "z must be finite, got 6 NaN or infinite"),
        (torch.tensor([[1.0, 2, math.nan]]), torch.tensor([0]), ValueError, "z must be finite, got 1 NaN"),
        (torch.ones(2, 3), torch.tensor([0, 2]), ValueError, r"y must lie in 0..1, got 2: .*num_classes=2"),
        (torch.ones(2, 3), torch.tensor([0, -1]), ValueError, r"y must lie in 0..1, got -1"),
        (torch.ones(2, 3), torch.tensor([0]), ValueError, r"y must have shape \(2,\).*got \(1,\)"),
        (
            torch.ones(2, 3),
            torch.tensor([0.0, 1]),
            TypeError,
            "y must hold integer class labels of up to 63 bits, got torch.float32",
        ),
        (
            torch.ones(2, 3),
            torch.tensor([True, False]),
            TypeError,
            "y must hold integer class labels of up to 63 bits, got torch.bool",
        ),
    ],
)
def test_bad_input_is_one_sentence(z, y, error, sentence):
    with pytest.raises(error, match=sentence) as caught:
        Plain(3, 2)(z, y)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("bad_input")
@pytest.mark.parametrize("method", ["logits", "logit_samples", "log_probs", "predict_proba", "confidence"])
def test_every_method_checks_the_embedding(method):
    with pytest.raises(ValueError, match="z must have shape"):
        getattr(Plain(3, 2), method)(torch.ones(2, 4))


def test_huge_embeddings_pass_the_finite_check():
    assert torch.full((1, 3), 2e38).sum().isinf()
    assert Plain(3, 2).logits(torch.full((1, 3), 2e38)).shape == (1, 2)


def test_prediction_is_one_softmax_of_the_logits():
    head, z = Plain(3, 4), torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(head.predict_proba(z), head.logits(z).softmax(-1))
    torch.testing.assert_close(head.log_probs(z), head.logits(z).log_softmax(-1))
    assert torch.equal(head.logit_samples(z)[0], head.logits(z))


def test_prediction_averages_softmaxes_over_draws():
    """E[σ(d + 2x)] by the trapezoid rule; 64 strata leave less than 1e-3, ten random draws less than 0.5."""
    head, z = Spread(2, 2), torch.tensor([[0.7, 0.2], [3.0, 1.0], [0.0, 0.0]])
    x = torch.linspace(-8, 8, 4001)
    weight = torch.exp(-x * x / 2) / torch.exp(-x * x / 2).sum()
    expected = (torch.sigmoid((z[:, :1] - z[:, 1:]) + 2 * x) * weight).sum(1)
    assert head.logit_samples(z).shape == (64, 3, 2)
    torch.testing.assert_close(head.predict_proba(z)[:, 0], expected, rtol=0, atol=1e-3)
    torch.testing.assert_close(head.log_probs(z).exp(), head.predict_proba(z))
    head.samples = 100_000
    random = head.predict_proba(z, generator=torch.Generator().manual_seed(0))
    # Five standard errors of at most 0.5/√100,000.
    torch.testing.assert_close(random[:, 0], expected, rtol=0, atol=0.008)


def test_the_objective_of_reparametrised_draws_is_their_mean_cross_entropy():
    head, z, y = Spread(2, 2), torch.tensor([[0.7, 0.2], [3.0, 1.0]]), torch.tensor([0, 1])
    loss = head(z, y, generator=torch.Generator().manual_seed(3))
    draws = head.sample(z, 10, generator=torch.Generator().manual_seed(3))
    by_hand = torch.stack([nn.functional.cross_entropy(e, y, reduction="none") for e in draws]).mean(0)
    torch.testing.assert_close(loss, by_hand)


def test_fixed_noise_is_normal_and_mirrored():
    noise = FixedNoise(64, 5).noise[:, 0]
    torch.testing.assert_close(noise[:32], -noise[32:])
    levels = (torch.arange(64, dtype=torch.float64) + 0.5) / 64
    for column in noise.T:
        torch.testing.assert_close(torch.special.ndtr(column.sort().values), levels)
    assert torch.corrcoef(noise[:32].T).fill_diagonal_(0).abs().max() < 0.6


def test_sample_is_the_generators():
    head, z = Spread(2, 2), torch.ones(3, 2)
    one, two = (head.sample(z, 4, generator=torch.Generator().manual_seed(1)) for _ in range(2))
    assert one.shape == (4, 3, 2)
    assert torch.equal(one, two)
    with pytest.raises(ValueError, match="n must be a positive integer, got 0"):
        head.sample(z, 0)


@pytest.mark.parametrize("learn", [True, False])
def test_temperature_is_a_parameter_or_a_buffer_of_one_name(learn):
    head = Plain(3, 2, beta=16.0, learn_beta=learn)
    assert head.beta.item() == pytest.approx(16)
    assert "log_beta" in head.state_dict()
    groups = {group["name"]: group["params"] for group in head.parameter_groups()}
    assert groups["class_weights"] == [head.weight]
    assert ("temperature" in groups) == learn == (len(list(head.parameters())) == 2)


def test_any_integer_labels_and_an_empty_batch():
    head, z = Plain(3, 2), torch.randn(2, 3)
    expected = head(z, torch.tensor([0, 1]))
    for dtype in (torch.uint8, torch.int32, torch.int16, torch.uint16, torch.uint32):
        assert torch.equal(head(z, torch.tensor([0, 1], dtype=dtype)), expected)
    assert head(z[:0], torch.tensor([], dtype=torch.long)).shape == (0,)
    assert head.predict_proba(z[:0]).shape == (0, 2)


@pytest.mark.parametrize(
    ("embedding", "weights", "expected"),
    [
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float16, torch.float16, torch.float32),
        (torch.float32, torch.float64, torch.float64),
        (torch.float64, torch.float32, torch.float64),
    ],
)
def test_computed_in_the_widest_type_and_never_below_float32(embedding, weights, expected):
    head = Plain(3, 2).to(weights)
    loss = head(torch.ones(2, 3, dtype=embedding), torch.tensor([0, 1]))
    assert loss.dtype == expected
    loss.sum().backward()
    assert head.weight.grad.dtype == weights


def test_repr_says_what_it_is():
    assert repr(Plain(3, 2, beta=16.0, class_chunk=5)) == (
        "Plain(dim=3, num_classes=2, beta=16, learn_beta=True, class_chunk=5)"
    )
