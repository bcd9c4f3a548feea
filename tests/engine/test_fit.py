"""One candidate: it learns, repeats itself to the bit, stops, weighs rows, and says when it diverges."""

import copy
import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch.nn import functional as F

from spaceform.engine import (
    Candidate,
    CandidateDiverged,
    Rows,
    TrainingSplit,
    finish,
    fit,
    joined,
    refit,
    rehearse,
    temperature_of,
    weighted_nll,
)
from spaceform.engine.training import Training
from spaceform.heads import HEADS
from spaceform.heads.base import log_mean_softmax
from spaceform.nets.features import FeatureBody, Standardised
from spaceform.nets.pieces import Pieces

pytestmark = pytest.mark.slow

SHORT = Candidate(hidden=(32,), dim=8, dropout=0.1, lr=0.01, batch_size=32, epochs=6)


def digits(n: int = 600) -> tuple[Rows, Rows]:
    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32)
    return Rows.of(x[:n], y[:n]), Rows.of(x[n : n + 300], y[n : n + 300])


@pytest.mark.parametrize("head", HEADS)
def test_every_head_learns_digits(head):
    """Processors round differently, which moved an accuracy by two items; the bound is twelve items away."""
    train, held_out = digits()
    found = fit(head, replace(SHORT, epochs=10), train, held_out, seed=0, classes=10)
    assert found.accuracy > 0.8
    assert found.nll < 1.2
    assert found.history[-1].objective < found.history[0].objective


@pytest.mark.parametrize("head", ["cosine", "vmf"])
def test_the_same_seed_gives_the_same_bits_whatever_the_global_generator(head):
    train, held_out = digits(300)
    torch.manual_seed(1)
    first = fit(head, SHORT, train, held_out, seed=3, classes=10)
    torch.manual_seed(2)
    again = fit(head, SHORT, train, held_out, seed=3, classes=10)
    other = fit(head, SHORT, train, held_out, seed=4, classes=10)
    assert torch.equal(first.logits, again.logits)
    assert first.history == again.history
    assert not torch.equal(first.logits, other.logits)


def test_a_fit_leaves_the_global_generator_alone():
    train, held_out = digits(100)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    fit("vmf", replace(SHORT, epochs=1), train, held_out, seed=3, classes=10)
    assert torch.equal(before, torch.get_rng_state())


def test_the_best_epoch_is_kept_and_training_stops_when_the_loss_rises():
    train, held_out = digits()
    rng = np.random.default_rng(0)
    y = np.where(rng.random(600) < 0.5, rng.integers(0, 10, 600), train.y)  # learned first, then by heart
    train, candidate = (
        replace(train, y=torch.from_numpy(y)),
        replace(SHORT, hidden=(128,), epochs=60, dropout=0.0),
    )
    found = fit("standard", candidate, train, held_out, seed=0, classes=10)
    lowest = min(found.history, key=lambda look: look.calibrated_nll)
    kept = next(look for look in found.history if look.epoch == found.best_epoch)
    assert kept.calibrated_nll <= 1.01 * lowest.calibrated_nll
    assert found.best_epoch >= lowest.epoch
    assert found.history[-1].epoch < 60
    assert found.nll == pytest.approx(kept.held_out_nll, abs=1e-6)


def test_probabilities_that_grow_too_sure_do_not_end_training():
    """Rows come four times, and their labels are random in two cases of five. The net can learn every kind of
    row, but is soon too sure: the raw loss is least at the first look, the loss after one temperature later.
    """
    rng = np.random.default_rng(0)
    x, usual = rng.random((150, 6)).repeat(4, 0), rng.integers(0, 4, 150).repeat(4)
    y = np.where(rng.random(600) < 0.6, usual, rng.integers(0, 4, 600))
    rows = Rows.of(x.astype(np.float32), y)[torch.from_numpy(rng.permutation(600))]
    train, held_out = rows[torch.arange(400)], rows[torch.arange(400, 600)]
    candidate = Candidate(hidden=(64, 64), pieces=8, lr=0.01, batch_size=32, epochs=60)
    found = fit("standard", candidate, train, held_out, seed=0, classes=4)
    first, kept = found.history[0], next(look for look in found.history if look.epoch == found.best_epoch)
    assert first.held_out_nll == min(look.held_out_nll for look in found.history)
    assert kept.epoch > first.epoch
    assert kept.calibrated_nll < first.calibrated_nll
    calibrated = found.calibrator()(found.logits)
    assert weighted_nll(calibrated[None], *found.held_out) == pytest.approx(kept.calibrated_nll, abs=1e-6)


def test_the_model_predicts_from_features_as_they_came():
    train, held_out = digits(300)
    found = fit("vmf", SHORT, train, held_out, seed=0, classes=10)
    model = found.models[0]
    assert len(model.logits(held_out.x)) == 64
    model.head.draws = len(found.logits)
    torch.testing.assert_close(model.logits(held_out.x), found.logits)
    torch.testing.assert_close(model.logits(held_out.x[:7]), found.logits[:, :7], rtol=1e-4, atol=1e-4)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(twin.logits(held_out.x), model.logits(held_out.x))
    assert all(name.split(".")[0] in ("inputs", "net", "head") for name in model.state_dict())


def test_refit_follows_the_same_schedule_for_as_many_epochs():
    train, held_out = digits(300)
    candidate = replace(SHORT, epochs=3)
    found = fit("cosine", candidate, train, held_out, seed=0, classes=10)
    assert found.best_epoch == 3
    model = refit("cosine", candidate, train, epochs=3, seed=0, classes=10)
    assert torch.equal(model.logits(held_out.x), found.logits)


@pytest.mark.parametrize("head", ["cosine", "vmf"])
def test_finishing_learns_from_the_rows_that_were_held_out_and_leaves_the_rehearsal_alone(head):
    train, held_out = digits(300)
    found = fit(head, SHORT, train, held_out, seed=0, classes=10)
    before = found.models[0].logits(held_out.x)
    model = finish(head, SHORT, found, joined(train, held_out), seed=0, classes=10)
    assert torch.equal(found.models[0].logits(held_out.x), before)
    after = weighted_nll(model.logits(held_out.x), held_out.y, held_out.weight)
    assert after < weighted_nll(before, held_out.y, held_out.weight)


@pytest.mark.parametrize("head", ["standard", "hyperbolic", "vmf"])
def test_finishing_has_the_rates_that_training_began_with(head):
    """Weights that have grown do not take larger steps for it; a few per cent are another random start."""
    train, held_out = digits(300)
    model = fit(head, replace(SHORT, epochs=1), train, held_out, seed=0, classes=10).models[0]
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.mul_(10)
    rows = train.seen_by(model.net.inputs)
    new, on = (Training(head, SHORT, rows, seed=0, classes=10, start=start) for start in (None, model))
    begun, now = ([group.relative for group in one.optimizer._groups] for one in (new, on))
    assert now == pytest.approx(begun, rel=0.1)


def test_after_folds_a_new_model_learns_all_rows():
    train, held_out = digits(300)
    parts = [TrainingSplit.of(train, held_out), TrainingSplit.of(held_out, train)]
    found = rehearse("cosine", SHORT, parts, seed=0, classes=10)
    rows = joined(train, held_out)
    model = finish("cosine", SHORT, found, rows, seed=0, classes=10)
    anew = refit("cosine", SHORT, rows, epochs=found.best_epoch, seed=0, classes=10)
    assert torch.equal(model.logits(rows.x), anew.logits(rows.x))


def test_parts_take_turns_in_step():
    train, held_out = digits(300)
    parts = [TrainingSplit.of(train, held_out), TrainingSplit.of(held_out, train)]
    found = rehearse("cosine", SHORT, parts, seed=0, classes=10)
    assert len(found.models) == 2
    assert found.logits.shape == (1, 600, 10)
    assert torch.equal(found.held_out[0], torch.cat([held_out.y, train.y]))


def test_rows_of_weight_zero_are_not_learned_from():
    train, held_out = digits()
    wrong = Rows(train.x, (train.y + 1) % 10, torch.zeros_like(train.weight))
    both = Rows(
        *(torch.cat(pair) for pair in ((train.x, wrong.x), (train.y, wrong.y), (train.weight, wrong.weight)))
    )
    found = fit("cosine", SHORT, both, held_out, seed=0, classes=10)
    assert found.accuracy > 0.75


def test_float64_features_are_standardised_in_float64_and_learned_from_in_float32():
    train, held_out = digits()
    far = 1e9  # float32 would round all features to one value
    found = fit(
        "standard",
        SHORT,
        *(Rows.of(rows.x.double() + far, rows.y) for rows in (train, held_out)),
        seed=0,
        classes=10,
    )
    assert found.accuracy > 0.75
    assert found.logits.dtype == torch.float32
    wide = copy.deepcopy(found.models[0]).double()
    logits = wide.logits(held_out.x.double() + far)
    assert logits.dtype == torch.float64
    torch.testing.assert_close(logits.float(), found.logits, atol=1e-3, rtol=1e-3)


def test_a_candidate_that_diverges_says_so():
    train, held_out = digits(200)
    with pytest.raises(CandidateDiverged, match=r"finite|nan|inf"):
        fit("standard", replace(SHORT, lr=1e30, hidden=()), train, held_out, seed=0, classes=10)


def test_standardised_features_have_mean_zero_and_spread_one_and_constants_vanish():
    x = torch.stack([torch.arange(5.0), torch.full((5,), 7.0)], 1)
    inputs = Standardised(2).fit(x, torch.tensor([1.0, 1, 1, 1, 0]))
    z = inputs(x)
    assert z[:4, 0].mean().item() == pytest.approx(0, abs=1e-6)
    assert z[:4, 0].square().mean().item() == pytest.approx(1, abs=1e-6)
    assert torch.equal(z[:, 1], torch.zeros(5))


def test_the_reach_is_that_of_the_farthest_feature_and_constant_features_have_a_unit():
    """Spreads of 1 and 4 have the geometric mean 2; the constants 7 and 0 take it, 0.5 its own size."""
    x = torch.tensor([[0.0, 1.0, 7.0, 0.0, 0.5], [2.0, 9.0, 7.0, 0.0, 0.5]])
    inputs = Standardised(5).fit(x, torch.ones(2))
    assert inputs.reach(x).tolist() == [1, 1]
    for column, expected in enumerate((10 / 1, 10 / 4, 10 / 2, 10 / 2, 10 / 0.5)):
        row = x.mean(0, keepdim=True)
        row[0, column] -= 10
        assert inputs.reach(row).item() == pytest.approx(expected)
    alone = Standardised(2).fit(x[:, 2:4], torch.ones(2))
    assert alone.reach(torch.tensor([[7.0, 0.0], [8.0, 0.0], [7.0, 1e30]])).tolist() == pytest.approx(
        [0, 1, 1e15]
    )


def test_the_temperature_undoes_a_scale():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 4000, 5, generator=g) * 2
    y = torch.multinomial(logits[0].softmax(1), 1, generator=g)[:, 0]
    w = torch.ones(4000)
    calibrator = temperature_of(logits * 3, y, w)
    assert pytest.approx(3, rel=0.06) == calibrator.temperature
    assert weighted_nll(calibrator(logits * 3)[None], y, w) <= weighted_nll(logits * 3, y, w)
    few = temperature_of(logits[:, :1] * 30, logits[0, :1].argmax(1), torch.ones(1))
    assert 0.3 < few.temperature < 3  # one right answer says little
    # by hand: two classes at log 3 : log 1 have probability 3/4
    half = torch.tensor([[[math.log(3), 0.0]]])
    assert weighted_nll(half, torch.tensor([0]), torch.ones(1)) == pytest.approx(math.log(4 / 3))
    assert log_mean_softmax(half).exp()[0, 0].item() == pytest.approx(0.75)


def test_a_candidate_is_a_line_of_json():
    candidate = replace(SHORT, options={"beta": 8.0})
    assert Candidate.from_dict(json.loads(json.dumps(candidate.to_dict()))) == candidate


def test_pieces_are_the_progress_between_quantiles():
    block = Pieces(2, 2)
    x = torch.tensor([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0], [6.0, 5.0]])
    block.fit(x, torch.ones(4))
    assert block.edges[0].tolist() == [0.0, 1.0, 6.0]  # by hand: the lowest, the lower median, the highest
    assert block.width == 6
    out = block(torch.tensor([[0.5, 5.0], [3.5, 5.0], [9.0, 5.0]]))
    assert out[:, 2:4].tolist() == [[0.5, 0.0], [1.0, 0.5], [1.0, 1.0]]
    assert torch.equal(out[:, 4:], torch.zeros(3, 2))  # a constant has no range
    # a row of weight two is that row twice
    other = Pieces(2, 2)
    other.fit(torch.cat([x, x[:2]]), torch.ones(6))
    block.fit(x, torch.tensor([2.0, 2, 1, 1]))
    assert torch.equal(block.edges, other.edges)


def test_features_with_few_values_are_not_cut():
    random = torch.Generator().manual_seed(0)
    x = torch.rand(50, 4, generator=random)
    x[:, 1] = (x[:, 1] > 0.5).float()
    x[:, 3] = 7.0
    part, whole = Pieces(4, 3, uncut=2), Pieces(2, 3)
    part.fit(x, torch.ones(50))
    whole.fit(x[:, [0, 2]], torch.ones(50))
    assert part.cut.tolist() == [0, 2]
    assert part.width == 4 + 2 * 3
    found, told = part(x), whole(x[:, [0, 2]])
    assert torch.equal(found[:, [0, 2]], told[:, :2])
    assert torch.equal(found[:, 4:], told[:, 2:])
    assert part.spread(torch.arange(4.0)).tolist() == [0, 1, 2, 3, 0, 0, 0, 2, 2, 2]
    again = Pieces(4, 3, uncut=2)
    again.load_state_dict(part.state_dict())
    assert torch.equal(again(x), found)


def test_a_net_of_pieces_learns_what_a_linear_one_cannot():
    x = torch.linspace(-2, 2, 400)[:, None].repeat(1, 2) + torch.tensor([0.0, 1.0])
    rows = Rows.of(x, (x[:, 0].abs() > 1).long())
    plain = Candidate(dim=4, lr=0.03, batch_size=32, epochs=10)
    found = [
        fit("standard", replace(plain, pieces=n), rows, rows, seed=0, classes=2).accuracy for n in (0, 8)
    ]
    assert found[0] < 0.8
    assert found[1] > 0.95


def test_pieces_of_a_feature_with_few_values_are_between_these_and_a_frequent_value_takes_one():
    codes = torch.tensor([0.0, 0, 0, 0, 0, 0, 0, 1, 2, 5])[:, None]
    block = Pieces(1, 4)
    block.fit(codes, torch.ones(10))
    assert block.edges[0].tolist() == [0.0, 1.0, 2.0, 5.0, 5.0]  # a category that is rare has a piece, too
    zeros = torch.cat([torch.zeros(900), torch.linspace(1, 100, 100)])[:, None]
    block.fit(zeros, torch.ones(1000))
    # By hand: the zeros have one piece, and each of the others a third of the hundred.
    assert block.edges[0].tolist() == pytest.approx([0, 0, 34, 67, 100], abs=1)


def test_members_learn_alone_and_the_embedding_is_the_mean_of_theirs():
    body = FeatureBody(5, 3, (8, 8), members=4, gates=True)
    x = torch.randn(16, 5, generator=torch.Generator().manual_seed(0))
    body.prepare(x, torch.ones(16))
    each = body.each(x).view(16, 4, 3)
    torch.testing.assert_close(body(x), each.mean(1))
    assert (each.std(1) > 0.1).any()
    # One of them by hand, from its own slices of the weights.
    linear, norm, _, _, second, norm2, _, _, last = body.body
    layer = F.linear(x, linear.weight[8:16])
    layer = F.relu((layer - norm.running_mean[8:16]) / (norm.running_var[8:16] + norm.eps).sqrt())
    layer = layer @ second.weight[1]
    layer = F.relu((layer - norm2.running_mean[8:16]) / (norm2.running_var[8:16] + norm2.eps).sqrt())
    torch.testing.assert_close(each[:, 1], layer @ last.weight[1] * body.factor)


def test_gates_of_features_that_say_nothing_fade():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(600, 20, generator=generator)
    rows = Rows.of(x, (x[:, 0] * x[:, 1] > 0).long())
    candidate = Candidate(hidden=(32,), pieces=4, gates=True, lr=6e-3, batch_size=64, epochs=20)
    (model,) = fit("cosine", candidate, rows, rows, seed=0, classes=2).models
    gates = model.net.body.gates.weight.abs()
    assert gates[:2].min() > 2 * gates[2:].mean()
