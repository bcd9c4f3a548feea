"""The space is equal for all heads; the search halves, goes on, keeps to its time, drops what diverges."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_wine

from spaceform.engine import (
    Candidate,
    Columns,
    NothingTrained,
    Rows,
    Trial,
    folds,
    parts_of,
    rehearse,
    search,
    space,
)
from spaceform.heads import HEADS, Choice

pytestmark = pytest.mark.slow

SMALL = [
    Candidate(dim=8, lr=lr, batch_size=64, epochs=8, options={"beta": beta})
    for beta in (16.0, 8.0)
    for lr in (3e-2, 1e-2, 3e-4)
]


def digits_parts(held_out: int = 400):
    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32)
    return parts_of(
        Rows.of(x[:500], y[:500]), Rows.of(x[500 : 500 + held_out], y[500 : 500 + held_out]), seed=0
    )


@pytest.mark.parametrize(("features", "rows"), [(13, 100), (384, 9000), (2048, 10_000)])
@pytest.mark.parametrize("size", [1, 16, 40])
def test_every_head_gets_the_same_nets_and_rates(features, rows, size):
    spaces = {head: space(head, features, 20, rows, size=size) for head in HEADS}
    plain = [[replace(c, options={}) for c in found] for found in spaces.values()]
    assert all(found == plain[0] for found in plain)
    assert len(plain[0]) == size
    assert len(set(plain[0])) == size
    for head, found in spaces.items():
        for candidate in found:
            HEADS[head](4, 3, **candidate.options)


def test_the_first_candidate_has_the_defaults_and_all_values_are_tried():
    found = space("cosine", 384, 20, 9000, searched={"beta": (16.0, 4.0, 64.0), "learn_beta": (True, False)})
    assert found[0].options == {"beta": 16.0, "learn_beta": True}
    assert {c.options["beta"] for c in found} == {16.0, 4.0, 64.0}
    assert {c.options["learn_beta"] for c in found} == {True, False}


@pytest.mark.parametrize("head", list(HEADS))
def test_every_option_that_a_head_declares_is_searched(head):
    """Margins, curvatures, centres: all ends of a range and all choices are among the 16 candidates."""
    found = space(head, 384, 20, 9000)
    for option, declared in HEADS[head].searched.items():
        tried = {candidate.options[option] for candidate in found}
        wanted = declared.values if isinstance(declared, Choice) else (declared.low, declared.high)
        assert set(wanted) <= tried
    if "margin" in HEADS[head].options():
        assert len({candidate.options["margin"] for candidate in found}) >= 3


def test_the_best_trial_has_the_lowest_loss_and_later_rungs_have_fewer_candidates():
    found = search("cosine", SMALL, digits_parts(), classes=10, seed=0)
    counts = [sum(t.rung == rung for t in found.trials) for rung in range(3)]
    assert counts == [6, 2, 1]
    assert found.best.score == min(t.score for t in found.trials)
    best = found.best
    assert found.candidate == replace(SMALL[best.candidate], epochs=best.epochs, lr=best.lr)
    assert {t.epochs for t in found.trials} == {2, 8, 16}
    assert found.complete
    again = rehearse("cosine", found.candidate, digits_parts(), seed=0, classes=10)
    assert torch.equal(again.logits, found.fitted.logits)
    ranked = sorted((t for t in found.trials if t.rung == 0), key=lambda t: t.score)
    assert {t.candidate for t in found.trials if t.rung == 1} == {t.candidate for t in ranked[:2]}


def test_one_candidate_is_trained_once_and_the_best_of_many_also_for_twice_as_long_at_half_the_rate():
    one = search("cosine", SMALL[:1], digits_parts(), classes=10, seed=0)
    assert [t.epochs for t in one.trials] == [8]
    many = [replace(c, epochs=2, weight_decay=d) for c in SMALL for d in (0.0, 0.1)]
    found = search("cosine", many, digits_parts(), classes=10, seed=0)
    assert [sum(t.rung == rung for t in found.trials) for rung in range(3)] == [12, 3, 1]
    last = found.trials[-1]
    assert (last.epochs, last.lr) == (4, many[last.candidate].lr / 2)


def test_a_rate_that_is_held_stays_in_the_longest_run():
    found = search("cosine", SMALL[:3], digits_parts(), classes=10, seed=0, hold=["lr"])
    assert [t.epochs for t in found.trials] == [2, 2, 2, 8, 8, 16]
    assert all(t.lr == SMALL[t.candidate].lr for t in found.trials)


@pytest.mark.parametrize(("best", "epochs", "lr"), [(0, 2, 3e-2), (1, 8, 3e-2), (2, 16, 1.5e-2)])
def test_the_best_run_is_repeated_with_all_members(best, epochs, lr):
    """What the last run trains, and what is found, has the schedule and the rate of the best run."""
    schedules = [(2, 3e-2), (8, 3e-2), (16, 1.5e-2), (epochs, lr)]
    kept = [
        Trial("cosine", 0, rung, *schedule, 1, nll, nll, 1.0, 0.9, 1.0)
        for rung, schedule in enumerate(schedules)
        for nll in [{best: 0.2, 3: 0.1}.get(rung, 0.5)]
    ]
    worse = [replace(kept[0], candidate=1, rung=rung, calibrated_nll=0.9) for rung in (0, 1)]
    pair = [replace(candidate, members=2) for candidate in (SMALL[0], SMALL[1])]
    parts = digits_parts()
    found = search("cosine", pair, parts, classes=10, seed=0, finished=[*kept, *worse])
    assert found.candidate == replace(SMALL[0], epochs=epochs, lr=lr, members=2)
    alone = replace(kept[3], calibrated_nll=0.3)  # all members are no better than one
    found = search("cosine", pair, parts, classes=10, seed=0, finished=[*kept[:3], alone, *worse])
    assert found.candidate == replace(SMALL[0], epochs=epochs, lr=lr, members=1)


def test_a_search_that_was_killed_goes_on_to_the_same_result():
    seen: list[str] = []
    whole = search(
        "cosine", SMALL, digits_parts(), classes=10, seed=0, on_trial=lambda t: seen.append(_line(t))
    )
    assert len(seen) == len(whole.trials)
    kept = [Trial.from_dict(json.loads(line)) for line in seen[:5]]
    new: list[Trial] = []
    resumed = search("cosine", SMALL, digits_parts(), classes=10, seed=0, finished=kept, on_trial=new.append)
    assert len(new) == len(whole.trials) - 5
    assert [replace(t, seconds=0.0) for t in resumed.trials] == [
        replace(t, seconds=0.0) for t in whole.trials
    ]
    assert resumed.candidate == whole.candidate


def _line(trial: Trial) -> str:
    return json.dumps(trial.to_dict())


def test_what_diverges_is_recorded_and_left_out():
    wild = replace(SMALL[0], lr=1e30)
    found = search("standard", [_plain(wild), *map(_plain, SMALL[1:3])], digits_parts(), classes=10, seed=0)
    assert found.trials[0].error is not None
    assert math.isnan(found.trials[0].nll)
    assert found.best.candidate != 0
    with pytest.raises(NothingTrained, match="standard: all 1 candidates diverged"):
        search("standard", [_plain(wild)], digits_parts(), classes=10, seed=0)


def _plain(candidate: Candidate) -> Candidate:
    return replace(candidate, options={})


def test_no_time_still_gives_an_answer():
    found = search("cosine", SMALL, digits_parts(), classes=10, seed=0, seconds=0.0)
    assert len(found.trials) == 1
    assert not found.complete


def test_few_held_out_rows_are_replaced_by_three_folds_of_everything():
    assert len(digits_parts(400)) == 1
    parts = digits_parts(100)
    assert len(parts) == 3
    assert sum(len(p.held_out) for p in parts) == 600
    assert all(len(p.train) + len(p.held_out) == 600 for p in parts)


def test_folds_deal_out_every_class():
    x, y = load_wine(return_X_y=True)
    rows = Rows.of(x, y)
    fold = folds(rows, seed=1)
    counts = torch.stack([torch.bincount(rows.y[fold == i], minlength=3) for i in range(3)])
    assert int((counts.amax(0) - counts.amin(0)).max()) <= 1
    assert torch.equal(fold, folds(rows, seed=1))
    assert not torch.equal(fold, folds(rows, seed=2))


def test_all_runs_do_with_one_member_and_the_best_is_tried_with_all():
    """On digits, a table of 64 columns: what the search chose says how many members it had."""
    candidates = [
        Candidate(hidden=(16,), members=3, lr=lr, batch_size=64, epochs=10) for lr in (0.02, 0.01, 1e-5, 1e-6)
    ]
    found = search("cosine", candidates, digits_parts(), classes=10, seed=0)
    *ran, longest, last = [(t.rung, t.epochs, t.lr) for t in found.trials]
    rate = candidates[found.best.candidate].lr
    assert ran[:4] == [(0, 3, c.lr) for c in candidates]
    assert set(ran[4:]) == {(1, 10, c.lr) for c in candidates[:2]}
    assert longest == (2, 20, rate / 2)
    assert last in {(3, 10, rate), (3, *longest[1:])}
    assert found.best == found.trials[-1]  # more epochs are better than three, and three members than one
    assert found.candidate.members == found.fitted.models[0].net.body.members == 3
    again = search("cosine", candidates, digits_parts(), classes=10, seed=0, finished=found.trials)
    assert again.candidate == found.candidate
    short = search("cosine", candidates, digits_parts(), classes=10, seed=0, seconds=0.0)
    assert short.candidate.members == short.fitted.models[0].net.body.members == 1


def test_nets_for_tables_have_two_members_and_gates():
    """Elsewhere a single hidden layer does better without gates."""
    for rows in (500, 20_000):
        for candidate in space("cosine", 16, 10, rows):
            assert candidate.members == (2 if candidate.hidden else 1)
            assert candidate.gates == bool(candidate.hidden)
    wide = space("cosine", 384, 10, 500)
    assert {candidate.members for candidate in wide} == {1}
    assert all(candidate.gates == (len(candidate.hidden) > 1) for candidate in wide)
    assert {len(candidate.hidden) for candidate in wide[:8]} == {0, 1, 2}


def test_columns_that_mean_something_each_repeat_their_values():
    """Pixels and counts do, on any scale; coordinates of an embedding do not."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 17, (600, 196)).astype(np.float32)
    labels = np.arange(600) % 3

    def is_table(x):
        return Columns.of(Rows.of(x, labels[: len(x)])).table

    assert is_table(pixels)
    assert is_table(pixels / 16 - 0.5)
    assert not is_table(random.standard_normal((600, 196)))
    assert is_table(random.standard_normal((600, 16)))
    assert not is_table(random.integers(0, 2, (600, 2048)).astype(np.float32))
    assert not is_table(pixels[:1])  # one row repeats nothing


def test_columns_of_two_values_are_not_cut_into_pieces():
    """Few numbers and many categories have the nets of a table, which are little wider than they."""
    random = np.random.default_rng(0)
    numbers, told = random.standard_normal((600, 6)), random.integers(0, 2, (600, 102))
    constant = np.ones((600, 2))
    columns = Columns.of(Rows.of(np.hstack([numbers, told, constant]), np.arange(600) % 2))
    assert columns == Columns(True, 104)
    found = space("cosine", 110, 2, 600, columns=columns)
    assert found[0].hidden == (128, 128)
    assert {c.pieces for c in found} == {0, 4, 8, 16, 32}
    assert {c.uncut for c in found} == {104}
    unaided = space("cosine", 110, 2, 600, columns=Columns(True))
    assert {c.pieces for c in unaided} == {0, 4}
    assert len(set(unaided)) == len(unaided) == 16
    assert {c.pieces for c in space("cosine", 300, 10, 600, columns=Columns(True, 0))} == {0}
    assert {c.pieces for c in space("cosine", 9, 10, 600, columns=Columns(True, 9))} == {0}
