import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference import metric_loops as loops
from spaceform.metrics import accuracy, aurc, auroc, brier, mean, nll, ood_auroc, ood_fpr, risk_coverage

scored = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=30)


def test_accuracy_nll_brier_by_hand():
    p = torch.tensor([[0.5, 0.5], [0.2, 0.8]], dtype=torch.float64)
    y = torch.tensor([1, 1])
    assert accuracy(p, y).item() == 0.5  # the first of equal scores is the prediction
    assert accuracy(100 * p - 7, y).item() == 0.5
    assert nll(p.log(), y).item() == pytest.approx(-(math.log(0.5) + math.log(0.8)) / 2)
    assert brier(p, y).item() == pytest.approx((0.5 + 0.08) / 2)
    assert brier(torch.eye(2), torch.tensor([1, 0])).item() == 2
    assert nll(torch.tensor([[0.0, -torch.inf]]), torch.tensor([1])).item() == math.inf


def test_brier_keeps_its_digits_near_zero():
    p = torch.tensor([[1 - 2.0**-20, 2.0**-20]])
    assert brier(p, torch.tensor([0])).item() == pytest.approx(2 * 2.0**-40, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(scored, st.integers(0, 99))
def test_score_laws(pairs, seed):
    """Loops agree; order is irrelevant; counts repeat examples; a strictly rising map of the score changes
    nothing.
    """
    g = torch.Generator().manual_seed(seed)
    s = torch.tensor([float(a) for a, _ in pairs])
    c = torch.tensor([b for _, b in pairs])
    counts = torch.randint(3, (4, len(s)), generator=g)
    counts[:, 0] += 1
    shuffle = torch.randperm(len(s), generator=g)
    for metric, slow in ((auroc, loops.auroc), (aurc, loops.aurc)):
        value = metric(s, c).item()
        assert value == pytest.approx(slow(s.tolist(), c.tolist()), abs=1e-12, nan_ok=True)
        assert metric(s[shuffle], c[shuffle]).item() == pytest.approx(value, abs=1e-12, nan_ok=True)
        assert metric(s.exp().numpy(), c.numpy()).item() == pytest.approx(value, abs=1e-12, nan_ok=True)
        repeated = [metric(s.repeat_interleave(n), c.repeat_interleave(n)).item() for n in counts]
        assert metric(s, c, counts=counts).tolist() == pytest.approx(repeated, abs=1e-12, nan_ok=True)
        assert math.isnan(value) or 0 <= value <= 1


@settings(max_examples=30, deadline=None)
@given(scored, st.integers(0, 99))
def test_counts_repeat_examples(pairs, seed):
    g = torch.Generator().manual_seed(seed)
    logits = torch.tensor([[0.0, float(a)] for a, _ in pairs], dtype=torch.float64)
    y = torch.tensor([int(b) for _, b in pairs])
    counts = torch.randint(3, (2, len(y)), generator=g)
    counts[:, -1] += 1
    log_p = torch.log_softmax(logits, -1)
    for metric, x in ((accuracy, logits), (nll, log_p), (brier, log_p.exp())):
        repeated = [metric(x.repeat_interleave(n, 0), y.repeat_interleave(n)).item() for n in counts]
        assert metric(x, y, counts=counts).tolist() == pytest.approx(repeated, abs=1e-12)
    n = counts.double()
    assert mean(logits[:, 1], counts=counts).tolist() == pytest.approx((n @ logits[:, 1] / n.sum(1)).tolist())


def test_risk_coverage_by_hand():
    score = torch.tensor([0.9, 0.8, 0.8, 0.1])
    correct = torch.tensor([True, False, True, False])
    curve = risk_coverage(score, correct)
    assert curve.coverage.tolist() == [0.25, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0, 1 / 3, 1 / 2])
    assert curve.threshold.tolist() == pytest.approx([0.9, 0.8, 0.1])
    assert aurc(score, correct).item() == pytest.approx((0 + 0.25 + 1 / 3 + 1 / 2) / 4)


def test_out_of_distribution():
    inside, outside = torch.arange(1.0, 101.0), torch.tensor([0.0, 5.5, 50.0, 200.0])
    # 95 of 100 known examples score at least 6: two of the four foreign ones do.
    assert ood_fpr(inside, outside).item() == 0.5
    assert ood_fpr(inside, outside, tpr=1.0).item() == 0.75
    assert ood_auroc(inside, outside).item() == pytest.approx((100 + 95 + 50.5 + 0) / 400)
    assert ood_auroc(inside, inside).item() == pytest.approx(0.5)
    assert ood_fpr(inside.numpy(), inside.numpy()).item() == 0.95


@pytest.mark.parametrize("correct", [True, False])
def test_auroc_without_a_right_or_a_wrong_example_is_undefined(correct):
    assert math.isnan(auroc(torch.rand(5), torch.full((5,), correct)).item())


def test_bad_input_is_one_clear_sentence():
    s, c = torch.rand(5), torch.tensor([True, False, True, True, False])
    with pytest.raises(ValueError, match="score must be finite, but entry 2"):
        auroc(torch.tensor([0.0, 1.0, torch.nan]), c[:3])
    with pytest.raises(ValueError, match="correct has shape"):
        auroc(s, c[:4])
    with pytest.raises(ValueError, match="correct must hold booleans"):
        aurc(s, torch.arange(5))
    with pytest.raises(ValueError, match="score is empty"):
        risk_coverage(s[:0], c[:0])
    with pytest.raises(ValueError, match="tpr must lie in"):
        ood_fpr(s, s, tpr=0.0)
    with pytest.raises(
        ValueError, match=r"log_probs must be normalised, but row 0 has a logsumexp of 1\.099"
    ):
        nll(torch.zeros(2, 3), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="scores must be finite"):
        accuracy(torch.full((2, 2), torch.inf), torch.tensor([0, 1]))
    with pytest.raises(TypeError, match="y must hold numbers, got <U4; number the classes"):
        accuracy(torch.rand(2, 2), np.array(["bird", "cat"]))


@pytest.mark.filterwarnings("error")
def test_numpy_arrays_of_every_kind_are_read():
    p, y = np.array([[0.6, 0.4], [0.7, 0.3], [0.1, 0.9]]), np.array([0, 1, 1])
    fixed = p.copy()
    fixed.flags.writeable = False
    for scores in (fixed, p.astype(">f8"), np.asfortranarray(p), p[::-1][::-1], p.astype(np.float16)):
        for labels in (y, y.astype(np.uint8), y.astype(np.uint16), y.astype(">i4")):
            assert accuracy(scores, labels).item() == pytest.approx(2 / 3)
