import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import metric_loops as loops
from spaceform.metrics import calibration_error, reliability

NORMS = ("l1", "l2", "max")
BINNINGS = ("equal_mass", "equal_width")


def data(n: int, classes: int, seed: int = 0, sharpness: float = 2.0):
    g = torch.Generator().manual_seed(seed)
    logits = sharpness * torch.randn(n, classes, generator=g, dtype=torch.float64)
    y = torch.softmax(logits / 2, -1).multinomial(1, generator=g).squeeze(-1)
    return torch.softmax(logits, -1), y


def adversarial():
    p, y = data(60, 4)
    constant = torch.full((30, 4), 0.25, dtype=torch.float64)
    one_hot = torch.eye(4, dtype=torch.float64)[y]
    return {
        "all ties": (constant, y[:30]),
        "perfect": (one_hot, y),
        "all wrong": (one_hot, (y + 1) % 4),
        "one class": (torch.ones(20, 1, dtype=torch.float64), torch.zeros(20, dtype=torch.long)),
        "three examples": (p[:3], y[:3]),
        "half saturated": (
            torch.cat([one_hot[:30], p[:30]]),
            torch.cat([(y[:30] + (y[:30] == 1)) % 4, y[:30]]),
        ),
        "few values": (torch.softmax((4 * p).round(), -1), y),
    }


def slow(p, y, bins, binning, norm, debias=False):
    pairs = loops.top_label(p.tolist(), y.tolist())
    if binning == "equal_mass":
        binned = loops.equal_mass_bins(pairs, bins)
    else:
        binned = loops.equal_width_bins(pairs, bins, torch.linspace(0, 1, bins + 1, dtype=p.dtype).tolist())
    return loops.binned_error(binned, norm, debias)


@pytest.mark.parametrize("binning", BINNINGS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("bins", [1, 2, 7, 15, 100])
def test_agrees_with_loops(binning, norm, bins):
    cases = {"random": data(173, 5), "binary": data(64, 2, 1), **adversarial()}
    for name, (p, y) in cases.items():
        ours = calibration_error(p, y, bins, binning, norm).item()
        assert ours == pytest.approx(slow(p, y, bins, binning, norm), abs=1e-12), name


@pytest.mark.parametrize("binning", BINNINGS)
def test_debiased_agrees_with_loops_and_removes_the_bias(binning):
    for p, y in (data(173, 5), *adversarial().values()):
        ours = calibration_error(p, y, 15, binning, "l2", debias=True).item()
        assert ours == pytest.approx(slow(p, y, 15, binning, "l2", True), abs=1e-9)
    # A calibrated model: the plain value stays near √(15/N)/2, the debiased square averages to nothing.
    plain, debiased = [], []
    for seed in range(40):
        g = torch.Generator().manual_seed(seed)
        p = torch.softmax(2 * torch.randn(300, 5, generator=g, dtype=torch.float64), -1)
        y = p.multinomial(1, generator=g).squeeze(-1)
        plain.append(calibration_error(p, y, binning=binning).item() ** 2)
        debiased.append(calibration_error(p, y, binning=binning, debias=True).item() ** 2)
    assert np.mean(debiased) < 0.3 * np.mean(plain)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("binning", BINNINGS)
def test_classwise_is_the_norm_over_classes(norm, binning):
    p, y = data(150, 4)
    each = []
    for j in range(4):
        pairs = list(zip(p[:, j].tolist(), (y == j).tolist(), strict=True))
        if binning == "equal_mass":
            binned = loops.equal_mass_bins(pairs, 10)
        else:
            edges = torch.linspace(0, 1, 11, dtype=torch.float64).tolist()
            binned = loops.equal_width_bins(pairs, 10, edges)
        each.append(loops.binned_error(binned, norm))
    expected = {"l1": np.mean(each), "l2": np.sqrt(np.mean(np.square(each))), "max": np.max(each)}[norm]
    assert calibration_error(p, y, 10, binning, norm, classwise=True).item() == pytest.approx(
        expected, abs=1e-12
    )


def test_hand_value():
    p = torch.tensor([[0.6, 0.4], [0.7, 0.3], [0.8, 0.2], [0.9, 0.1]], dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 0])
    # Two bins: accuracy 1/2 against 0.65, 1 against 0.85.
    assert calibration_error(p, y, 2, norm="l1").item() == pytest.approx(0.15)
    assert calibration_error(p, y, 2, norm="l2").item() == pytest.approx(0.15)
    assert calibration_error(p, y, 2, norm="max").item() == pytest.approx(0.15)
    # All in [0.5, 1]: 3/4 against 0.75.
    assert calibration_error(p, y, 2, "equal_width", "l1").item() == pytest.approx(0, abs=1e-12)


def test_confidence_zero_and_one_belong_to_the_outer_bins():
    p = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.95, 0.05]])
    r = reliability(p, torch.tensor([0, 0, 1]), 10, "equal_width")
    assert r.size.tolist() == [3]
    assert (r.lower.item(), r.upper.item()) == (pytest.approx(0.9), 1.0)
    zero = calibration_error(p, torch.tensor([0, 0, 1]), 10, "equal_width", "max", classwise=True)
    assert zero.item() == pytest.approx(abs(2 / 3 - 2.95 / 3))


def test_ties_stay_together_in_the_bin_of_their_last():
    p = torch.tensor([0.6, 0.7, 0.7, 0.7, 0.8, 0.9], dtype=torch.float64)
    r = reliability(torch.stack([p, 1 - p], -1), torch.tensor([0, 0, 1, 0, 0, 0]), 3)
    assert r.size.tolist() == [1, 3, 2]
    assert r.lower.tolist() == [0.6, 0.7, 0.8]
    assert r.upper.tolist() == [0.6, 0.7, 0.9]


@settings(max_examples=60, deadline=None)
@given(
    levels=st.lists(st.integers(0, 6), min_size=1, max_size=40),
    bins=st.integers(1, 20),
    binning=st.sampled_from(BINNINGS),
    classwise=st.booleans(),
    seed=st.integers(0, 99),
)
def test_laws(levels, bins, binning, classwise, seed):
    """Order is irrelevant even with ties, 0 ≤ l1 ≤ l2 ≤ max ≤ 1, debiasing never adds, counts repeat
    examples.
    """
    g = torch.Generator().manual_seed(seed)
    logits = torch.tensor(levels, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.3, -0.5]).double()
    p, y = torch.softmax(logits, -1), torch.randint(3, (len(levels),), generator=g)
    error = functools.partial(calibration_error, bins=bins, binning=binning, classwise=classwise)
    l1, l2, largest = (error(p, y, norm=n).item() for n in NORMS)
    assert 0 <= l1 <= l2 + 1e-12
    assert l2 <= largest + 1e-12 <= 1 + 1e-9
    assert error(p, y, debias=True).item() <= l2 + 1e-12
    shuffle = torch.randperm(len(y), generator=g)
    assert error(p[shuffle], y[shuffle]).item() == pytest.approx(l2, abs=1e-9)
    counts = torch.randint(4, (3, len(y)), generator=g)
    counts[:, 0] += 1
    repeated = [error(p.repeat_interleave(c, 0), y.repeat_interleave(c)).item() for c in counts]
    assert error(p, y, counts=counts).tolist() == pytest.approx(repeated, abs=1e-9)


def test_numpy_half_precision_and_reliability_add_up():
    p, y = data(200, 3)
    assert calibration_error(p.numpy(), y.numpy()).item() == calibration_error(p, y).item()
    assert calibration_error(p.bfloat16(), y).item() == pytest.approx(
        calibration_error(p, y).item(), abs=0.02
    )
    for binning in BINNINGS:
        r = reliability(p, y, 10, binning)
        assert r.size.sum() == 200
        rebuilt = (r.size.double() / 200 * (r.accuracy - r.confidence).abs()).sum().item()
        assert rebuilt == pytest.approx(calibration_error(p, y, 10, binning, "l1").item(), abs=1e-12)
        assert bool(((r.accuracy_low <= r.accuracy) & (r.accuracy <= r.accuracy_high)).all())
        assert bool(((r.lower <= r.confidence) & (r.confidence <= r.upper)).all())


def test_wilson_interval_of_the_accuracy():
    p = torch.full((10, 2), 0.5, dtype=torch.float64)
    r = reliability(p, torch.tensor([0] * 8 + [1] * 2), 1)
    assert r.accuracy_low.item() == pytest.approx(0.4901625, abs=1e-6)
    assert r.accuracy_high.item() == pytest.approx(0.9433178, abs=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p, y: (p * 1.1, y), "must sum to one in every row, but row . sums to 1.1;"),
        (lambda p, y: (torch.log(p), y), "pass softmax"),
        (lambda p, y: (torch.where(p == p.max(), torch.nan, p), y), "must not hold NaN"),
        (lambda _, y: (torch.tensor([[1.5, -0.5]]), y[:1]), "must not be negative, got -0.5"),
        (lambda p, y: (p, y[:-1]), "y has 9 entries for 10 examples"),
        (lambda p, y: (p[:0], y[:0]), "probs is empty"),
        (lambda p, y: (p, y + 3), "y must lie in 0..2"),
        (lambda p, y: (p, y - 9), "y must lie in 0..2, got -"),
        (lambda p, y: (p[0], y), "probs must have 2 axes"),
    ],
)
def test_bad_input_is_one_clear_sentence(change, message):
    p, y = data(10, 3)
    with pytest.raises(ValueError, match=message) as error:
        calibration_error(*change(p, y))
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("unchecked")
def test_bad_options_and_types():
    p, y = data(10, 3)
    with pytest.raises(TypeError, match="probs must be a tensor or a numpy array, got list"):
        calibration_error([[0.5, 0.5]], y)
    with pytest.raises(ValueError, match="unknown binning 'mass'; choose from equal_mass, equal_width"):
        calibration_error(p, y, binning="mass")
    with pytest.raises(ValueError, match="unknown norm 'l3'"):
        calibration_error(p, y, norm="l3")
    with pytest.raises(ValueError, match="bins must be a positive integer, got 0"):
        calibration_error(p, y, bins=0)
    with pytest.raises(ValueError, match="debias is defined for norm='l2'"):
        calibration_error(p, y, norm="l1", debias=True)
    with pytest.raises(TypeError, match="y must hold integer labels, got torch"):
        calibration_error(p, y.float())
    with pytest.raises(TypeError, match="probs must hold floating-point numbers"):
        calibration_error((p > 0.5).long(), y)
    with pytest.raises(ValueError, match="counts has shape"):
        calibration_error(p, y, counts=torch.ones(3, 9, dtype=torch.long))
    with pytest.raises(TypeError, match="counts must be integers"):
        calibration_error(p, y, counts=torch.ones(10))
    with pytest.raises(ValueError, match="counts must be non-negative"):
        calibration_error(p, y, counts=torch.zeros(10, dtype=torch.long))
