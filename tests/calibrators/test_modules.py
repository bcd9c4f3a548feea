"""A calibrator is a module: state, weights, gradients, and graphs that other programs run."""

import io
import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression

from spaceform.calibrators import (
    CALIBRATORS,
    Isotonic,
    NormAwareTemperature,
    StructuredScaling,
    TemperatureScaling,
    VectorScaling,
    _fit,
)
from spaceform.calibrators.isotonic import isotonic_corners

N, K, DRAWS = 240, 4, 3


@pytest.fixture(scope="module")
def examples() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of three draws, labels, confidence."""
    g = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(N, K, generator=g) + torch.randn(DRAWS, N, K, generator=g)
    κ = torch.randn(N, generator=g).exp()
    β = κ / (1 + κ)
    y = torch.softmax(β[:, None] * logits, -1).mean(0).multinomial(1, generator=g)[:, 0]
    return logits.double(), y, κ.double()


# Weights


@pytest.mark.parametrize("kind", CALIBRATORS)
def test_a_weight_is_how_often_an_example_is_given(kind, examples):
    logits, y, κ = examples
    counts = torch.arange(N) % 4
    weighted = CALIBRATORS[kind]().fit(logits, y, κ, counts.double())
    often = torch.repeat_interleave(torch.arange(N), counts)
    repeated = CALIBRATORS[kind]().fit(logits[:, often], y[often], κ[often])
    torch.testing.assert_close(weighted(logits, κ), repeated(logits, κ), rtol=1e-6, atol=1e-6)
    plain = CALIBRATORS[kind]().fit(logits, y, κ)
    assert (weighted(logits, κ) - plain(logits, κ)).abs().max() > 1e-3


def test_right_answers_count_by_their_weight():
    y = torch.arange(20) % 2
    logits = 0.1 * torch.eye(2, dtype=torch.float64)[y]
    p = TemperatureScaling().fit(logits, y, weight=torch.full((20,), 5.0))(logits).exp()
    assert p.amax(1).mean().item() == pytest.approx(101 / 102, abs=1e-9)


def test_fewer_examples_leave_more_as_trained(examples):
    logits, y, κ = examples
    many, few = (StructuredScaling().fit(logits, y, κ, torch.full((N,), w)) for w in (1.0, 0.1))
    assert few.as_trained > many.as_trained + 0.05  # 24 examples say less than 240


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (torch.ones(3), f"weight has 3 entries for {N} examples"),
        (torch.zeros(N), "not all zero"),
        (-torch.ones(N), "must not be negative and not all zero, got -1"),
        (torch.full((N,), torch.nan), "weight must be finite"),
    ],
)
def test_bad_weights_are_one_sentence(weight, message, examples):
    with pytest.raises(ValueError, match=message):
        TemperatureScaling().fit(*examples, weight)


# A prior


@pytest.mark.parametrize("draws", [1, DRAWS])
def test_temperature_with_a_prior_is_the_minimum_of_its_objective(draws, examples):
    logits, y, _ = examples
    logits, w = 4 * logits[:draws], (torch.arange(N) % 3).double()

    def objective(t: float) -> float:
        p = torch.softmax(math.exp(-t) * logits, -1).mean(0).gather(1, y[:, None])[:, 0]
        return float(-w @ p.log()) + t * t / (2 * 0.2**2)

    t = math.log(TemperatureScaling(prior_spread=0.2).fit(logits, y, weight=w).temperature)
    assert 0.1 < t < math.log(TemperatureScaling().fit(logits, y, weight=w).temperature)
    assert all(objective(t) <= objective(t + step) + 1e-10 for step in (-1, -0.1, -1e-3, 1e-3, 0.1, 1))


def test_a_prior_keeps_few_right_answers_near_one():
    y = torch.arange(6) % 3
    logits = torch.eye(3, dtype=torch.float64)[y]
    T = [TemperatureScaling(prior_spread=s).fit(logits, y).temperature for s in (1e-3, 0.1, 0.5)]
    assert T[0] == pytest.approx(1, abs=1e-4)
    assert 1 > T[0] > T[1] > T[2] > 0.2
    with pytest.raises(ValueError, match="prior_spread must be positive"):
        TemperatureScaling(prior_spread=0.0)


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_few_right_answers_need_few_steps(scale, monkeypatch):
    """Every right answer asks for more, the prior for less."""
    seen, evaluate = [], _fit._at_one_temperature
    monkeypatch.setattr(_fit, "_at_one_temperature", lambda *a: seen.append(1) or evaluate(*a))
    y = torch.arange(6) % 3
    TemperatureScaling(prior_spread=0.5).fit(scale * torch.eye(3)[y], y)
    assert 0 < len(seen) < 27


# State


def test_the_state_is_named_and_part_of_a_larger_module(examples):
    logits, y, κ = examples
    whole = torch.nn.Sequential(TemperatureScaling().fit(logits, y))
    assert list(whole.state_dict()) == ["0.inverse_temperature"]
    again = torch.nn.Sequential(TemperatureScaling())
    assert not again[0].fitted
    again.load_state_dict(whole.state_dict())
    assert torch.equal(again(logits), whole(logits))
    assert TemperatureScaling(2.0).temperature == 2
    file = io.BytesIO()
    torch.save(NormAwareTemperature(knots=5).fit(logits, y, κ).state_dict(), file)
    file.seek(0)
    loaded = NormAwareTemperature()
    loaded.load_state_dict(torch.load(file))
    assert loaded.inverse_temperature.shape == (5,)


@pytest.mark.parametrize(
    ("kind", "state", "message"),
    [
        ("temperature", {"inverse_temperature": [1.0]}, "with 0 axes, got shape"),
        ("temperature", {"inverse_temperature": -1.0}, "is -1, not positive"),
        ("temperature", {"inverse_temperature": math.inf}, "must be finite"),
        ("norm_aware_temperature", {"log_confidence": [0.0, 1], "inverse_temperature": [1.0]}, "2 knots"),
        ("norm_aware_temperature", {"log_confidence": [1.0, 0], "inverse_temperature": [1.0, 1]}, "increase"),
        (
            "norm_aware_temperature",
            {"log_confidence": [0.0, 1], "inverse_temperature": [1.0, 0]},
            "is 0, not",
        ),
        ("vector", {"scale": [1.0, 1], "offset": [0.0]}, "2 scales and 1 offsets"),
        ("vector", {"scale": [], "offset": []}, "with 1 axes"),
        ("isotonic", {"x": [[0.0, 1]], "y": [[0.5]]}, "corners have shapes"),
        ("isotonic", {"x": [[1.0, 0]], "y": [[0.1, 0.2]]}, "not in order"),
        ("isotonic", {"x": [[0.0, 1]], "y": [[0.0, 0.2]]}, "reaches zero"),
    ],
)
def test_a_wrong_state_is_refused(kind, state, message):
    tensors = {name: torch.tensor(value, dtype=torch.float64) for name, value in state.items()}
    with pytest.raises(ValueError, match=message):
        CALIBRATORS[kind]().load_state_dict(tensors)


@pytest.mark.parametrize("kind", CALIBRATORS)
def test_the_module_follows_the_logits_and_passes_gradients(kind, examples):
    logits, y, κ = examples
    fitted = CALIBRATORS[kind]().fit(logits, y, κ)
    wide = fitted(logits, κ)
    narrow = fitted(logits.float(), κ.float())
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    close = {"atol": 1e-3 if kind == "isotonic" else 3e-6, "rtol": 0}  # its curves are steep in places
    torch.testing.assert_close(narrow.double().exp(), wide.exp(), **close)
    torch.testing.assert_close(fitted.float()(logits.float(), κ.float()).exp(), narrow.exp(), **close)
    L = logits.clone().requires_grad_()
    fitted(L, κ)[:, 0].sum().backward()
    assert L.grad.isfinite().all()
    assert L.grad.abs().max() > 0


# Graphs


@pytest.mark.compiled
@pytest.mark.parametrize("kind", CALIBRATORS)
def test_a_graph_holds_the_module_itself(kind, examples):
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'spaceform[export]'")
    logits, y, κ = (x.float() if x.is_floating_point() else x for x in examples)
    fitted = CALIBRATORS[kind]().fit(logits, y, κ).float().eval()
    expected = fitted(logits, κ).exp()
    batch = torch.export.Dim("batch", min=1)
    shapes = ({1: batch}, {0: batch})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        program = torch.export.export(
            fitted, (logits[:, :3].contiguous(), κ[:3].contiguous()), dynamic_shapes=shapes, strict=False
        )
        made = torch.onnx.export(program, dynamo=True, input_names=["l", "k"], verbose=False)
    session = onnxruntime.InferenceSession(made.model_proto.SerializeToString())
    for rows in (slice(0, 1), slice(None)):
        fed = {"l": logits[:, rows].numpy(), "k": κ[rows].numpy()}
        (found,) = session.run(None, {i.name: fed[i.name] for i in session.get_inputs()})
        for other in (program.module()(logits[:, rows], κ[rows]).exp(), np.exp(found)):
            off = np.abs(np.asarray(other) - expected[rows].numpy())
            assert off.mean() < 1e-7
            # A curve is steep where two examples that it was fitted to nearly agree.
            assert off.max() < (1e-4 if kind == "isotonic" else 1e-6)


# Pool adjacent violators


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("n", [1, 2, 30, 3000])
def test_the_corners_are_scikit_learns(seed, n):
    rng = np.random.default_rng(seed)
    x = rng.random(n)
    x[rng.random(n) < 0.3] = 0.5  # ties
    target, weight = rng.random(n) < x, rng.integers(1, 4, n).astype(float)
    peer = IsotonicRegression(out_of_bounds="clip").fit(x, target, weight)
    at = np.concatenate([x, rng.random(50)])
    corners = isotonic_corners(x, target, weight)
    np.testing.assert_allclose(np.interp(at, *corners), peer.predict(at), rtol=0, atol=1e-12)
    assert len(corners[0]) <= len(peer.X_thresholds_)


def test_curves_hold_at_and_beyond_their_ends():
    curve = Isotonic()
    curve.load_state_dict(
        {
            "x": torch.tensor([[0.2, 0.4, 0.4], [0.1, 0.5, 0.9]]).double(),
            "y": torch.tensor([[0.1, 0.3, 0.3], [0.2, 0.6, 0.8]]).double(),
        }
    )
    p = torch.tensor([[0.05, 0.95], [0.2, 0.8], [0.3, 0.7], [0.4, 0.6], [1.0, 0.0]]).double()
    q = torch.tensor([[0.1, 0.8], [0.1, 0.75], [0.2, 0.7], [0.3, 0.65], [0.3, 0.2]]).double()
    found = curve(p.clamp_min(1e-300).log()).exp()
    torch.testing.assert_close(found, q / q.sum(1, keepdim=True))


def test_vector_scaling_of_one_class_too_many(examples):
    logits, y, _ = examples
    with pytest.raises(
        ValueError, match=f"logits have {K + 1} classes, but the calibrator was fitted to {K}"
    ):
        VectorScaling().fit(logits, y)(torch.zeros(2, K + 1))
