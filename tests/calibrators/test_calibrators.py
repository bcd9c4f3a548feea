import math

import numpy as np
import pytest
import torch
from sklearn.isotonic import IsotonicRegression

from spaceform.calibrators import (
    CALIBRATORS,
    Isotonic,
    NormAwareTemperature,
    TemperatureScaling,
    VectorScaling,
)
from spaceform.calibrators import _fit as _calibration_fit


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(probs: torch.Tensor, seed: int = 1) -> torch.Tensor:
    return probs.multinomial(1, generator=torch.Generator().manual_seed(seed)).squeeze(-1)


def loss(log_probs: torch.Tensor, y: torch.Tensor) -> float:
    return torch.nn.functional.nll_loss(log_probs.double(), y).item()


def same(a, b) -> None:
    assert type(a) is type(b)
    for (name, x), (other, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert name == other
        torch.testing.assert_close(x, y, rtol=0, atol=0)


def mixed(n: int = 800, classes: int = 6, draws: int = 5):
    """Logits of a stochastic head whose temperature is 2.5 too low."""
    logits = 2 * gaussian(n, classes) + 0.8 * gaussian(draws, n, classes, seed=5)
    return 2.5 * logits, labels(torch.softmax(logits, -1).mean(0))


def norm_data(n: int = 3000, classes: int = 5, falls: bool = False):
    """The right inverse temperature rises (or falls) with the norm."""
    κ = gaussian(n, seed=3).exp()
    logits = 3 * gaussian(n, classes)
    β = 1 / (0.3 + κ) if falls else κ / (1 + κ)
    return logits, labels(torch.softmax(β[:, None] * logits, -1)), κ


def averaged(logits, β):
    """The definition: the temperature inside the Monte Carlo average."""
    return torch.softmax(β * logits, -1).mean(0).log()


@pytest.mark.parametrize("scale", [0.01, 1.0, 300.0])
@pytest.mark.parametrize(("n", "classes"), [(3, 2), (400, 10), (9_000, 3)])
def test_temperature_is_the_minimum_of_a_fine_grid(scale, n, classes):
    logits = 2 * gaussian(n, classes)
    y = labels(torch.softmax(0.6 * logits, -1))
    logits = scale * logits
    T = TemperatureScaling().fit(logits, y).temperature
    best = loss(torch.log_softmax(logits / T, -1), y)
    grid = T * torch.cat([torch.linspace(0.999, 1.001, 41), torch.logspace(-3, 3, 121)])
    for t in grid.double():
        assert best <= loss(torch.log_softmax(logits / t, -1), y) + 1e-13


def test_temperature_solves_the_equation_of_its_minimum():
    logits, y = 3 * gaussian(5000, 7), labels(torch.softmax(gaussian(5000, 7), -1))
    y = labels(torch.softmax(1.7 * gaussian(5000, 7), -1))
    β = torch.tensor(
        1 / TemperatureScaling().fit(logits, y).temperature, requires_grad=True, dtype=torch.float64
    )
    torch.nn.functional.cross_entropy(β * logits, y).backward()
    assert abs(β.grad.item()) < 1e-8


def test_temperature_inside_the_average_is_the_minimum_and_recovers_the_truth():
    logits, y = mixed(4000)
    fitted = TemperatureScaling().fit(logits, y)
    assert fitted.temperature == pytest.approx(2.5, rel=0.1)
    torch.testing.assert_close(fitted(logits), averaged(logits, 1 / fitted.temperature))
    best = loss(fitted(logits), y)
    for β in torch.cat([torch.linspace(0.98, 1.02, 21), torch.logspace(-2, 2, 41)]) / fitted.temperature:
        assert best <= loss(averaged(logits, β), y) + 1e-13
    # Outside the average the loss is another one: the draws' spread is not a matter of scale.
    outside = TemperatureScaling().fit(averaged(logits, 1.0), y)
    assert best < loss(outside(averaged(logits, 1.0)), y) - 1e-3


@pytest.mark.parametrize("draws", [1, 5])
def test_right_answers_alone_support_laplace_s_confidence_and_no_more(draws):
    """The loss falls for ever as T → 0; N right answers leave the next a chance of 1/(N + 2) to be wrong."""
    N, K = 38, 4
    y = torch.arange(N) % K
    logits = (0.3 * gaussian(draws, N, K)).clamp(-0.4, 0.4) + torch.eye(K, dtype=torch.float64)[y]
    κ = 1 + torch.arange(N, dtype=torch.float64)
    plain = TemperatureScaling().fit(logits, y)
    assert plain.temperature < 0.5
    p = plain(logits).exp().gather(1, y[:, None])
    assert p.mean().item() == pytest.approx((N + 1) / (N + 2), abs=1e-9)
    for other in (NormAwareTemperature(), VectorScaling()):
        torch.testing.assert_close(other.fit(logits, y, κ)(logits, κ), plain(logits))
    # What is as sure already stays as it is, and one wrong answer makes it a matter of the likelihood again.
    assert TemperatureScaling().fit(20 * logits, y).temperature == 1
    y[0] = 1
    wrong = TemperatureScaling().fit(logits, y)
    around = [loss(averaged(logits, f / wrong.temperature), y) for f in (0.99, 1.0, 1.01)]
    assert around[1] == min(around)


def test_degenerate_logits():
    y = torch.tensor([0, 1, 1])
    assert TemperatureScaling().fit(torch.zeros(3, 4), y).temperature == 1
    hopeless = TemperatureScaling().fit(torch.eye(2)[1 - y], y)  # and here as T → ∞
    assert loss(hopeless(torch.eye(2)[1 - y]), y) == pytest.approx(math.log(2), abs=1e-2)
    for kind in (VectorScaling(), Isotonic(), NormAwareTemperature()):
        assert bool(
            torch.isfinite(kind.fit(torch.eye(2)[y], y, torch.ones(3))(torch.eye(2), torch.ones(2))).all()
        )


@pytest.mark.parametrize("kind", ["temperature", "norm_aware_temperature", "vector"])
@pytest.mark.parametrize("size", [1e12, 1e20, 1e37])
def test_huge_logits_are_fitted_as_small_ones_are(kind, size):
    g = torch.Generator().manual_seed(0)
    logits, norm = torch.randn(300, 4, generator=g), torch.rand(300, generator=g) + 0.1
    guess = torch.randint(4, (300,), generator=g)
    y = torch.where(torch.rand(300, generator=g) < 0.7, logits.argmax(1), guess)
    small, huge = (CALIBRATORS[kind]().fit(s * logits, y, norm) for s in (1.0, size))
    torch.testing.assert_close(huge(size * logits, norm), small(logits, norm), atol=2e-3, rtol=0)
    with pytest.raises(ValueError, match=r"logits reach 1e\+200: the model has diverged"):
        CALIBRATORS[kind]().fit(logits.sign().double() * 1e200, y, norm)


@pytest.mark.parametrize("falls", [False, True])
def test_norm_aware_finds_the_function(falls):
    logits, y, κ = norm_data(20_000, falls=falls)
    plain = loss(TemperatureScaling().fit(logits, y)(logits), y)
    fitted = NormAwareTemperature().fit(logits, y, κ)
    assert loss(fitted(logits, κ), y) < plain - 0.02
    at = torch.tensor([0.3, 0.6, 1.0, 1.7, 3.0], dtype=torch.float64)
    truth = 0.3 + at if falls else (1 + at) / at
    torch.testing.assert_close(fitted.temperature(at), truth, rtol=0.15, atol=0)


@pytest.mark.parametrize("falls", [False, True])
@pytest.mark.parametrize("draws", [1, 3])
def test_norm_aware_is_at_its_minimum(falls, draws):
    """No monotone change of the values at the knots, however small, lowers the loss with its doubt."""
    logits, y, κ = norm_data(800, falls=falls)
    if draws > 1:
        logits = logits + 0.5 * gaussian(draws, *logits.shape, seed=9)
    fitted = NormAwareTemperature(knots=4).fit(logits, y, κ)
    plain = 1 / TemperatureScaling().fit(logits, y).temperature

    def objective(β):
        fitted.inverse_temperature = torch.from_numpy(β.copy())
        return loss(fitted(logits, κ), y) + ((β / plain - 1) ** 2).sum() / (2 * len(y))

    β = fitted.inverse_temperature.numpy()
    best = objective(β)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 1e-1, 1):
        for _ in range(25):
            moved = np.sort(np.abs(β * (1 + size * rng.standard_normal(4))) + 1e-6)
            moved = moved[::-1] if falls else moved
            assert best <= objective(moved) + 1e-12


def test_norm_aware_stays_modest_where_large_norms_have_no_error():
    """Every error lies among the small norms: the data would let β of the others grow for ever."""
    right = torch.arange(200) >= 20
    y = torch.arange(200) % 4
    logits = 4.0 * torch.nn.functional.one_hot(torch.where(right, y, (y + 1) % 4), 4).double()
    κ = 1 + torch.arange(200).double()
    fitted, plain = NormAwareTemperature().fit(logits, y, κ), TemperatureScaling().fit(logits, y)
    T = fitted.temperature(κ)
    assert T[0] > plain.temperature > T[-1]
    doubt = 1 - fitted(logits, κ).exp()[torch.arange(200), y][-50:]
    assert doubt.min() > 1e-4, "50 of 50 right is not certainty"
    assert doubt.max() < 0.02


@pytest.mark.parametrize("seed", range(6))
def test_norm_aware_is_never_worse_than_plain_and_monotone(seed):
    logits, y = 2 * gaussian(2, 150, 4, seed=seed), labels(torch.softmax(gaussian(150, 4, seed=seed), -1))
    κ = gaussian(150, seed=seed + 50).abs() * (torch.arange(150) % 7 > 0)  # some norms are 0
    plain = loss(TemperatureScaling().fit(logits, y)(logits), y)
    fitted = NormAwareTemperature().fit(logits, y, κ)
    assert loss(fitted(logits, κ), y) <= plain + 1e-12
    T = fitted.temperature(torch.linspace(0, 5, 200, dtype=torch.float64))
    assert bool((T > 0).all())
    assert bool((T.diff() >= -1e-12).all()) or bool((T.diff() <= 1e-12).all())
    far = fitted.temperature(torch.tensor([1e-9, 1e9]).double())
    torch.testing.assert_close(far, T[[0, -1]])  # constant outside the data


def test_norm_aware_scales_with_the_norm_and_falls_back_to_plain():
    logits, y, κ = norm_data(500)
    a, b = NormAwareTemperature().fit(logits, y, κ), NormAwareTemperature().fit(logits, y, 1000 * κ)
    torch.testing.assert_close(a(logits, κ), b(logits, 1000 * κ))
    for flat in (torch.ones(500), torch.zeros(500)):
        plain = TemperatureScaling().fit(logits, y)(logits)
        torch.testing.assert_close(NormAwareTemperature().fit(logits, y, flat)(logits, flat), plain)


@pytest.mark.parametrize("draws", [1, 4])
def test_vector_scaling_solves_the_equations_of_its_minimum(draws):
    logits = 2 * gaussian(draws, 900, 5)
    truth = torch.tensor([1.0, 0.5, 0.7, 0.2, 1.5]).double()
    y = labels(torch.softmax(truth * logits + truth.flip(0), -1).mean(0))
    fitted = VectorScaling().fit(logits, y)
    w, b = fitted.scale.clone().requires_grad_(), fitted.offset.clone().requires_grad_()
    T = TemperatureScaling().fit(logits, y).temperature
    objective = torch.nn.functional.nll_loss(torch.softmax(w * logits + b, -1).mean(0).log(), y)
    objective = objective + 1e-4 / 2 * ((T * w - 1).square().sum() + b.square().sum())
    objective.backward()
    assert w.grad.abs().max() < 1e-7
    assert b.grad.abs().max() < 1e-7
    assert loss(fitted(logits), y) < loss(TemperatureScaling().fit(logits, y)(logits), y) - 0.01


def test_vector_scaling_survives_a_class_without_examples():
    logits = gaussian(200, 4)
    fitted = VectorScaling().fit(logits, torch.arange(200) % 3)
    assert bool(torch.isfinite(fitted(logits)).all())


def test_isotonic_is_scikit_learns_per_class():
    logits, y = mixed()
    fitted, new = Isotonic().fit(logits, y), 2 * gaussian(5, 50, 6, seed=8)
    p, q = averaged(logits, 1.0).exp().numpy(), averaged(new, 1.0).exp().numpy()
    curves = [IsotonicRegression(out_of_bounds="clip").fit(p[:, j], y.numpy() == j) for j in range(6)]
    expected = np.stack([np.maximum(c.predict(q[:, j]), 1 / 1600) for j, c in enumerate(curves)], 1)
    # The floor acts on the corners, before the interpolation: it moves a value by at most the floor itself.
    found = fitted(new).exp().numpy()
    np.testing.assert_allclose(found, expected / expected.sum(1, keepdims=True), atol=2e-3)
    assert loss(fitted(logits), y) < loss(averaged(logits, 1.0), y)


@pytest.mark.parametrize("kind", CALIBRATORS)
@pytest.mark.parametrize("draws", [None, 3])
def test_contract_of_every_calibrator(kind, draws):
    shape = (300, 4) if draws is None else (draws, 300, 4)
    logits, κ = 3 * gaussian(*shape), gaussian(300, seed=2).abs()
    y = labels(torch.softmax(logits / 2, -1).reshape(-1, 300, 4).mean(0))
    fitted = CALIBRATORS[kind]().fit(logits, y, κ)
    out = fitted(logits, κ)
    assert out.shape == (300, 4)
    torch.testing.assert_close(out.logsumexp(-1), torch.zeros(300).double())
    again = CALIBRATORS[kind]()
    again.load_state_dict(fitted.state_dict())
    same(again, fitted)
    assert torch.equal(again(logits, κ), out)
    torch.testing.assert_close(fitted(logits.numpy(), κ.numpy()), out)
    single = CALIBRATORS[kind]().fit(logits.float().numpy(), y.numpy(), κ.float().numpy())
    assert single(logits.float(), κ.float()).dtype == torch.float32
    torch.testing.assert_close(single(logits, κ), out, atol=1e-3, rtol=1e-3)
    shifted = CALIBRATORS[kind]().fit(logits + 7, y, κ)  # softmax ignores a constant
    if kind != "vector":  # a scale per class does not
        torch.testing.assert_close(shifted(logits + 7, κ), out, atol=1e-6, rtol=1e-6)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    permuted = CALIBRATORS[kind]().fit(logits[..., order, :], y[order], κ[order])
    torch.testing.assert_close(permuted(logits, κ), out, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", ["temperature", "norm_aware_temperature", "vector"])
def test_the_fit_does_not_depend_on_the_block_size(kind, monkeypatch):
    logits, y = mixed(1000)
    κ = gaussian(1000, seed=2).abs()
    whole = CALIBRATORS[kind]().fit(logits, y, κ)(logits, κ)
    monkeypatch.setattr(_calibration_fit, "_BLOCK", 100 * 5 * 6)
    torch.testing.assert_close(CALIBRATORS[kind]().fit(logits, y, κ)(logits, κ), whole)


@pytest.mark.parametrize("kind", CALIBRATORS)
def test_bad_input_is_one_clear_sentence(kind):
    logits, y, κ = gaussian(10, 3), torch.arange(10) % 3, torch.ones(10).double()
    new = CALIBRATORS[kind]
    for wrong, message in (
        (lambda: new()(logits, κ), "has not been fitted|holds"),
        (lambda: new().fit(logits, y[:9], κ), "y has 9 entries for 10 examples"),
        (lambda: new().fit(logits[:0], y[:0], κ[:0]), "logits is empty"),
        (lambda: new().fit(logits * torch.nan, y, κ), "logits must be finite"),
        (lambda: new().fit(logits, y + 1, κ), r"y must lie in 0\.\.2, got 3"),
        (lambda: new().fit(logits[0], y, κ), "logits must have 2 or 3 axes"),
    ):
        with pytest.raises(ValueError, match=message) as error:
            wrong()
        assert "\n" not in str(error.value)


def test_bad_options():
    logits, y = gaussian(10, 3), torch.arange(10) % 3
    with pytest.raises(ValueError, match="NormAwareTemperature needs confidence="):
        NormAwareTemperature().fit(logits, y)
    with pytest.raises(ValueError, match="confidence has 9 entries for 10 examples"):
        NormAwareTemperature().fit(logits, y, torch.ones(9))
    with pytest.raises(ValueError, match="confidence must not be negative, got -1"):
        NormAwareTemperature().fit(logits, y, -torch.ones(10))
    with pytest.raises(ValueError, match="temperature must be positive"):
        TemperatureScaling(0.0)
    with pytest.raises(ValueError, match="ridge must not be negative"):
        VectorScaling(-1.0)
    with pytest.raises(ValueError, match="knots must be"):
        NormAwareTemperature(1)
    for kind in ("vector", "isotonic"):
        with pytest.raises(ValueError, match="logits have 2 classes, but the calibrator was fitted to 3"):
            CALIBRATORS[kind]().fit(logits, y)(logits[:, :2])
