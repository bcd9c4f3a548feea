"""Structured scaling: it finds what is there, and leaves alone what it cannot improve."""

import pytest
import torch
import torch.nn.functional as F

from spaceform.calibrators import StructuredScaling, TemperatureScaling
from spaceform.calibrators._descent import descend
from spaceform.calibrators._objective import DesignRows, Objective, PriorSpreads, stacked
from spaceform.calibrators._structured import sizes
from spaceform.heads.base import log_mean_softmax


def gaussian(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(logits: torch.Tensor, seed: int = 1) -> torch.Tensor:
    """Labels for which the softmax of the logits is true."""
    p = torch.softmax(logits, -1)
    return p.multinomial(1, generator=torch.Generator().manual_seed(seed)).squeeze(-1)


def nll(log_probs: torch.Tensor, y: torch.Tensor) -> float:
    return F.nll_loss(log_probs, y).item()


def halves(truth: torch.Tensor, logits: torch.Tensor, κ: torch.Tensor):
    """Items to fit to, new items, and the new items' least loss."""
    y, n = drawn(truth), len(truth) // 2
    return (
        (logits[:n], y[:n], κ[:n]),
        (logits[n:], κ[n:]),
        y[n:],
        nll(torch.log_softmax(truth[n:], -1), y[n:]),
    )


@pytest.mark.slow
def test_a_calibrated_model_is_left_nearly_alone():
    """Of 20 calibrated models no one gets more than 0.5 % worse, and the mean change is below 0.1 %."""
    worse = []
    for seed in range(20):
        logits = 2 * gaussian(1200, 5, seed=seed)
        y, κ = drawn(logits, seed=seed + 50), gaussian(1200, seed=seed + 100).exp()
        fitted = StructuredScaling().fit(logits[:600], y[:600], κ[:600])
        before = nll(torch.log_softmax(logits[600:], -1), y[600:])
        worse.append(nll(fitted(logits[600:], κ[600:]), y[600:]) / before - 1)
    assert max(worse) < 5e-3
    assert sum(worse) / len(worse) < 1e-3


def test_the_norm_offsets_and_a_mixed_up_class_are_found():
    """More than four fifths of what plain scaling leaves to the least loss are gained."""
    n, K = 8000, 5
    logits, x = 2 * gaussian(n, K), gaussian(n, seed=3)
    mixed = torch.eye(K, dtype=torch.float64)
    mixed[0, 1] = mixed[1, 0] = 0.4
    truth = (1.2 + 0.4 * x.clamp(-2, 2))[:, None] * (logits @ mixed) + torch.arange(K) * 0.3
    known, new, y, least = halves(truth, logits, x.exp())
    plain = nll(TemperatureScaling().fit(known[0], known[1])(new[0]), y)
    found = nll(StructuredScaling().fit(*known)(*new), y)
    assert plain > least + 0.03
    assert found < least + 0.2 * (plain - least)


def test_many_classes_have_scales_and_no_matrix():
    logits = 2 * gaussian(600, 130)
    y = drawn(1.5 * logits)
    fitted = StructuredScaling().fit(logits, y)
    assert fitted.matrix.shape == (1, 130)
    assert nll(fitted(logits), y) < nll(torch.log_softmax(logits, -1), y)


@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_few_examples_give_finite_probabilities_and_one_changes_nothing(n):
    logits = gaussian(n, 4)
    y = (logits.argmax(1) + 1) % 4  # all wrong
    new = gaussian(50, 4, seed=9)
    found = StructuredScaling().fit(logits, y, torch.ones(n))(new, torch.ones(50))
    torch.testing.assert_close(found.logsumexp(-1), torch.zeros(50).double())
    if n == 1:
        torch.testing.assert_close(found, torch.log_softmax(new, -1))


def test_every_right_answer_supports_no_certainty():
    """100 right answers of 100: Laplace's rule leaves the next one a doubt of 1/102."""
    y = torch.arange(100) % 4
    fitted = StructuredScaling().fit(3 * F.one_hot(y, 4).double(), y)
    doubt = 1 - fitted(3 * torch.eye(4, dtype=torch.float64)).amax().exp().item()
    assert doubt == pytest.approx(1 / 102, abs=1e-9)


def test_draws_are_averaged_first():
    samples = 2 * gaussian(7, 400, 5)
    y, κ = drawn(samples.mean(0)), gaussian(400, seed=4).exp()
    fitted = StructuredScaling().fit(samples, y, κ)
    averaged = StructuredScaling().fit(log_mean_softmax(samples), y, κ)
    torch.testing.assert_close(fitted(samples, κ), averaged(log_mean_softmax(samples), κ), atol=1e-9, rtol=0)


def test_without_a_confidence_it_needs_none_and_with_one_it_asks_for_it():
    logits, x = 2 * gaussian(2000, 4), gaussian(2000, seed=5)
    y = drawn((1 + 0.4 * x.clamp(-2, 2))[:, None] * logits)
    without = StructuredScaling().fit(logits, y)
    torch.testing.assert_close(without(logits), without(logits, x.exp()))
    with_norm = StructuredScaling().fit(logits, y, x.exp())
    with pytest.raises(ValueError, match="fitted with confidence=, one number per example; pass head"):
        with_norm(logits)
    with pytest.raises(ValueError, match="logits have 3 classes, but the calibrator was fitted to 4"):
        with_norm(logits[:, :3], x.exp())


@pytest.mark.parametrize("spreads", sizes(4))
def test_the_fit_solves_the_equations_of_its_minimum(spreads: PriorSpreads):
    """By the gradient of the loss with its prior, from autograd."""
    X, u, weight = (
        torch.log_softmax(gaussian(300, 4), -1),
        gaussian(300, 2, seed=2),
        gaussian(300, seed=3).exp(),
    )
    y = drawn(1.4 * X)
    objective = Objective(stacked(DesignRows(X, u, y, weight), torch.ones(1, 300) > 0, spreads), spreads)
    t, _ = descend(objective, torch.zeros_like(objective.spread)[None], 100, last=1e-9)
    found = objective.coefficients(t[0])
    line, scale, offset = (x.clone().requires_grad_() for x in (found.line, found.scale, found.offset))
    off = torch.zeros(4, 4).double() if found.matrix is None else found.matrix
    off = off.clone().requires_grad_()
    f = (line[0] + u @ line[1:])[:, None] * X + scale * X + offset + X @ off.T
    loss = (weight * F.cross_entropy(f, y, reduction="none")).sum() + (t.square().sum() / 2).detach()
    step = (line - torch.tensor([1.0, 0, 0])) / torch.tensor([0.3, 0.2, 0.1])
    loss = loss + step.square().sum() / 2
    for x, spread in ((scale, spreads.vector), (offset, spreads.vector), (off, spreads.matrix)):
        loss = loss + ((x / spread).square().sum() / 2 if spread else 0)
    loss.backward()
    wanted = [line.grad] + [x.grad for x in (scale, offset) if spreads.vector]
    wanted += [off.grad * (1 - torch.eye(4))] if spreads.matrix else []
    for gradient in wanted:  # of a sum over 300 rows, where it is about 100 far from the minimum
        assert gradient.abs().max() < 0.05


@pytest.mark.parametrize("spreads", sizes(4))
def test_the_objective_is_the_loss_with_its_prior_and_its_gradient(spreads: PriorSpreads):
    """Of each set of rows by itself, against cross_entropy and autograd; rows are float32 inside."""
    X, u = torch.log_softmax(gaussian(90, 4), -1), gaussian(90, 2, seed=2)
    y, weight = drawn(X), gaussian(90, seed=3).exp()
    kept = gaussian(3, 90, seed=5) > torch.tensor([-1.0, 0.0, 0.5])[:, None]
    objective = Objective(stacked(DesignRows(X, u, y, weight), kept, sizes(4)[-1]), spreads)
    t = gaussian(3, len(objective.spread), seed=6)
    values, slopes = objective(t)
    for rows, at, value, slope in zip(kept, t, values, slopes, strict=True):
        free = at.clone().requires_grad_()
        f, w = objective.coefficients(free)(X[rows], u[rows]), weight[rows]
        loss = (w @ F.cross_entropy(f, y[rows], reduction="none") + free.square().sum() / 2) / w.sum()
        loss.backward()
        assert value.item() == pytest.approx(loss.item(), rel=1e-6)
        torch.testing.assert_close(slope, free.grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("spreads", sizes(40))
def test_single_precision_gives_nearly_the_same_loss_and_gradient(spreads: PriorSpreads):
    X, u = torch.log_softmax(3 * gaussian(200, 40), -1), gaussian(200, 2, seed=2)
    rows = DesignRows(X, u, drawn(X), gaussian(200, seed=3).exp())
    kept = gaussian(2, 200, seed=5) > 0
    exact, single = (Objective(stacked(r, kept, sizes(40)[-1]), spreads) for r in (rows, rows.single))
    t = gaussian(2, len(exact.spread), seed=6)
    for one, other in zip(exact(t), single(t.float()), strict=True):
        torch.testing.assert_close(other.double(), one, atol=1e-5, rtol=1e-5)
    assert single.coefficients(t[0].float()).line.dtype == torch.float64


def test_a_larger_model_begins_where_a_smaller_one_ended():
    X, y = torch.log_softmax(gaussian(50, 4), -1), torch.arange(50) % 4
    rows = DesignRows(X, gaussian(50, 2), y, torch.ones(50).double())
    stack = stacked(rows, torch.ones(1, 50) > 0, sizes(4)[-1])
    small, large = (Objective(stack, spreads) for spreads in sizes(4)[1:3])
    t = gaussian(1, len(small.spread), seed=7)
    same = large.coefficients(large.start(t * small.spread)[0])
    torch.testing.assert_close(same(X, rows.u), small.coefficients(t[0])(X, rows.u))
