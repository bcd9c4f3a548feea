"""Split conformal sets: thresholds by their literal definitions, coverage as promised, graphs, refusals."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy.stats import betabinom
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from spaceform.decisions import (
    SETS,
    AdaptiveSets,
    LeastAmbiguousSets,
    NormAwareSets,
    PredictionSets,
    RegularizedAdaptiveSets,
)
from spaceform.metrics import set_coverage, set_size


def items(n: int, classes: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Probabilities that are right for a norm of 1, too sure below it and not sure enough above."""
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, classes, generator=g, dtype=torch.float64)
    κ = torch.randn(n, generator=g, dtype=torch.float64).exp()
    y = torch.softmax(κ[:, None] * logits, -1).multinomial(1, generator=g)[:, 0]
    return torch.softmax(logits, -1), y, κ


@pytest.fixture(scope="module")
def digits() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Probabilities and labels of 1,397 digits that a plain model of 400 others never saw, and its norms."""
    x, y = load_digits(return_X_y=True)
    x = x / 16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it stops early
        model = LogisticRegression(C=0.02, max_iter=30).fit(x[:400], y[:400])
    p = torch.from_numpy(model.predict_proba(x[400:]))
    return (
        p,
        torch.from_numpy(y[400:]),
        torch.from_numpy(np.linalg.norm(model.decision_function(x[400:]), axis=1)),
    )


# Definitions


def usual_score(kind: str, row: list[float], j: int) -> float:
    """The score of the literature for class j: low for likely."""
    if kind == "lac":
        return 1 - row[j]
    ranked = sorted(range(len(row)), key=lambda k: (-row[k], k))
    rank = ranked.index(j) + 1
    score = math.fsum(row[k] for k in ranked[:rank])
    return score + 0.03 * max(0, rank - 2) if kind == "raps" else score


def usual_threshold(scores: list[float], coverage: float) -> float:
    return sorted(scores)[math.ceil(round((len(scores) + 1) * coverage, 9)) - 1]


def made(kind: str, coverage: float, by_class: bool = False) -> PredictionSets:
    options = {"penalty": 0.03, "free_ranks": 2} if kind == "raps" else {}
    return SETS[kind](coverage, by_class=by_class, **options)


@pytest.mark.parametrize("coverage", [0.5, 0.7, 0.9, 0.95])
@pytest.mark.parametrize("n", [19, 100, 501])
@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
def test_thresholds_and_sets_are_the_literal_ones(kind, n, coverage):
    p, y, _ = items(n)
    new, _, _ = items(40, seed=1)
    fitted = made(kind, coverage).fit(p, y)
    t = usual_threshold(
        [usual_score(kind, r, j) for r, j in zip(p.tolist(), y.tolist(), strict=True)], coverage
    )
    assert 1 - fitted.threshold.item() == pytest.approx(t, abs=1e-6)
    literal = [[usual_score(kind, row, j) <= t + 1e-12 for j in range(6)] for row in new.tolist()]
    assert fitted(new).tolist() == literal
    assert fitted(new.float().numpy()).float().sub(torch.tensor(literal).float()).abs().mean() < 0.01


@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
def test_each_class_has_the_threshold_of_its_own_items(kind):
    p, y, _ = items(400)
    fitted = made(kind, 0.8, by_class=True).fit(p, y)
    assert fitted.threshold.shape == (6,)
    for j in range(6):
        scores = [usual_score(kind, row, j) for row in p[y == j].tolist()]
        assert 1 - fitted.threshold[j].item() == pytest.approx(usual_threshold(scores, 0.8), abs=1e-6)


def test_equal_probabilities_count_in_the_order_of_the_classes():
    p, y = torch.full((19, 4), 0.25), torch.full((19,), 1)
    assert AdaptiveSets(0.9).fit(p, y).threshold.item() == 0.5
    assert AdaptiveSets(0.9).fit(p, y)(p[:1]).tolist() == [[True, True, False, False]]
    assert RegularizedAdaptiveSets(0.9, penalty=0.0).fit(p, y).threshold.item() == 0.5


def test_a_sure_model_keeps_small_sets_in_single_precision():
    """1 − 1e-9 is 1 in float32, so sums from the top would put every class into every set."""
    rest = 10 ** (-9 - 6 * torch.rand(99, 9, generator=torch.Generator().manual_seed(0)))
    p = torch.cat([1 - rest.sum(1, keepdim=True), rest], 1)
    for kind in (AdaptiveSets, RegularizedAdaptiveSets):
        wide, narrow = (kind(0.9).fit(q, torch.zeros(99).long())(q) for q in (p.double(), p))
        assert torch.equal(wide, narrow)
        assert 0.9 < set_size(narrow).item() < 3


# Coverage


@pytest.mark.parametrize("kind", SETS)
def test_coverage_over_random_splits_of_digits(kind, digits):
    """100 splits, 699 items for the threshold and 698 to see: mean coverage within one point of 90 %.

    Over random splits of these very items the expected coverage is 90 %. One split has a standard error of
    1.6 points (2.0 for NormAwareSets, whose threshold has half of the items), the mean of 100 at most 0.2: it
    is off by a point with a probability of 6e-7.
    """
    p, y, κ = digits
    g = torch.Generator().manual_seed(2)
    covered = []
    for _ in range(100):
        order = torch.randperm(len(y), generator=g)
        fit, new = order[:699], order[699:]
        sets = SETS[kind](0.9).fit(p[fit], y[fit], κ[fit])(p[new], κ[new])
        covered.append(set_coverage(sets, y[new]).item())
    assert np.mean(covered) == pytest.approx(0.9, abs=0.01)


def test_one_split_has_the_law_of_the_theory():
    """The true classes covered are Beta-binomial. Its 1e-4 tails are left 1 time in 5,000."""
    p, y, _ = items(2199)
    sets = LeastAmbiguousSets(0.9).fit(p[:199], y[:199])(p[199:])
    law = betabinom(2000, 180, 20)
    covered = round(2000 * set_coverage(sets, y[199:]).item())
    assert law.ppf(1e-4) <= covered <= law.ppf(1 - 1e-4)


def test_by_class_covers_each_class():
    p, y, _ = items(6000)
    p = p * torch.tensor([4.0, 1, 1, 1, 1, 0.25]).double()  # likes class 0, dislikes class 5
    p = p / p.sum(1, keepdim=True)
    plain, each = (
        LeastAmbiguousSets(0.8, by_class=b).fit(p[:3000], y[:3000])(p[3000:]) for b in (False, True)
    )
    of = [y[3000:] == j for j in range(6)]
    assert set_coverage(plain[of[5]], y[3000:][of[5]]).item() < 0.7
    for rows in of:  # about 500 items each: four standard errors are 7 points or 10 with the threshold's own
        assert set_coverage(each[rows], y[3000:][rows]).item() == pytest.approx(0.8, abs=0.1)


def test_the_norm_evens_out_coverage():
    p, y, κ = items(12_000)
    fit, new = slice(0, 4000), slice(4000, None)
    gaps = []
    for kind in (LeastAmbiguousSets, NormAwareSets):
        sets = kind(0.9).fit(p[fit], y[fit], κ[fit])(p[new], κ[new])
        fifths = κ[new].argsort().tensor_split(5)
        gaps.append(max(abs(set_coverage(sets[rows], y[new][rows]).item() - 0.9) for rows in fifths))
    assert gaps[0] > 0.1
    assert gaps[1] < 0.04


def test_few_items_or_equal_norms_leave_the_line_level():
    p, y, κ = items(60)
    for norms in (κ, torch.full_like(κ, 3.0), torch.zeros_like(κ)):
        fitted = NormAwareSets(0.9).fit(p, y, norms)
        assert fitted.line[0] == fitted.line[-1]
        assert fitted(p, norms).dtype == torch.bool
    p, y, _ = items(4000)
    assert NormAwareSets(0.9).fit(p, y, torch.full_like(p[:, 0], 3.0)).line.diff().tolist() == [0]


# State and graphs


@pytest.mark.parametrize("by_class", [False, True])
@pytest.mark.parametrize("kind", SETS)
def test_the_state_is_all_there_is(kind, by_class):
    p, y, κ = items(400)
    fitted = made(kind, 0.8, by_class).fit(p, y, κ)
    again = made(kind, 0.8, by_class)
    assert not again.fitted
    again.load_state_dict(fitted.state_dict())
    assert torch.equal(again(p, κ), fitted(p, κ))
    assert "coverage=0.8" in repr(again)
    again.load_state_dict(made(kind, 0.8, not by_class).fit(p, y, κ).state_dict())  # of another size


@pytest.mark.compiled
@pytest.mark.parametrize("kind", SETS)
def test_a_graph_gives_the_same_sets(kind):
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'spaceform[export]'")
    p, y, κ = (x.float() if x.is_floating_point() else x for x in items(400))
    fitted = made(kind, 0.8).fit(p, y, κ).eval()
    batch = torch.export.Dim("batch", min=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        program = torch.export.export(
            fitted, (p[:3].clone(), κ[:3].clone()), dynamic_shapes=({0: batch}, {0: batch}), strict=False
        )
        graph = torch.onnx.export(program, dynamo=True, input_names=["p", "k"], verbose=False)
    session = onnxruntime.InferenceSession(graph.model_proto.SerializeToString())
    for rows in (slice(0, 1), slice(None)):
        fed = {"p": p[rows].numpy(), "k": κ[rows].numpy()}
        (found,) = session.run(None, {i.name: fed[i.name] for i in session.get_inputs()})
        for other in (program.module()(p[rows], κ[rows]).numpy(), found):
            # A class within rounding of the threshold may go either way.
            assert (other != fitted(p[rows], κ[rows]).numpy()).mean() <= 0.001


# Wrong use


@pytest.mark.parametrize("coverage", [0.0, 1.0, -0.1, 90.0, math.nan])
def test_a_coverage_of_nothing_or_all_is_refused(coverage):
    with pytest.raises(ValueError, match="coverage must lie between 0 and 1, both excluded"):
        LeastAmbiguousSets(coverage)


def probabilities(n: int, classes: int = 3) -> torch.Tensor:
    return torch.full((n, classes), 1 / classes)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: LeastAmbiguousSets(0.9).fit(probabilities(8), torch.zeros(8).long()),
            "at least 9 held-out items, got 8",
        ),
        (lambda: AdaptiveSets(0.99).fit(probabilities(98), torch.zeros(98).long()), "at least 99 held-out"),
        (
            lambda: NormAwareSets(0.9).fit(probabilities(17), torch.zeros(17).long(), torch.ones(17)),
            "at least 9 held-out items beside the 9 that the norm takes, got 8",
        ),
        (
            lambda: LeastAmbiguousSets(0.9, by_class=True).fit(probabilities(30), torch.arange(30) % 2),
            "at least 9 held-out items of each, but class 2 has 0",
        ),
        (
            lambda: AdaptiveSets(0.95, by_class=True).fit(probabilities(30), torch.arange(30) % 2),
            "class 0 has 15 and 2 more classes have too few",
        ),
        (lambda: NormAwareSets().fit(probabilities(50), torch.zeros(50).long()), "needs confidence="),
        (
            lambda: NormAwareSets().fit(probabilities(50), torch.zeros(50).long(), torch.ones(3)),
            "confidence has 3 entries for 50 items",
        ),
        (lambda: LeastAmbiguousSets()(probabilities(2)), "lac sets have not been fitted"),
        (lambda: LeastAmbiguousSets().fit(torch.zeros(9, 3), torch.zeros(9).long()), "pass softmax"),
        (
            lambda: LeastAmbiguousSets(0.5, by_class=True).fit(probabilities(9), torch.arange(9) % 3)(
                probabilities(2, 4)
            ),
            "have 4 classes, but the sets were fitted to 3",
        ),
        (lambda: RegularizedAdaptiveSets(penalty=-1.0), "penalty must be finite and not negative, got -1.0"),
        (lambda: RegularizedAdaptiveSets(free_ranks=-1), "free_ranks must be a whole number"),
        (
            lambda: AdaptiveSets().load_state_dict({"threshold": torch.tensor(math.nan)}),
            "threshold of the aps sets must be finite",
        ),
        (lambda: set_size(torch.ones(3, 4)), "sets must be booleans of shape"),
    ],
)
def test_wrong_use_is_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_exactly_enough_items_are_enough():
    assert LeastAmbiguousSets(0.9).fit(probabilities(9), torch.zeros(9).long()).fitted
    assert LeastAmbiguousSets(0.99).fit(probabilities(99), torch.zeros(99).long()).fitted


def test_coverage_and_size_by_hand():
    sets = torch.tensor([[True, True, False], [False, False, False], [False, False, True]])
    y = torch.tensor([1, 0, 2])
    assert set_coverage(sets, y).item() == pytest.approx(2 / 3)
    assert set_size(sets.numpy()).item() == 1
    counts = torch.tensor([[1, 0, 0], [0, 3, 1]])
    assert set_coverage(sets, y, counts=counts).tolist() == [1, 0.25]
    assert set_size(sets, counts=counts).tolist() == [2, 0.25]
