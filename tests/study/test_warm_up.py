"""A margin comes within the budget of a comparison; elsewhere its absence is told."""

import pytest
import torch
from typer.testing import CliRunner

import spaceform
from short_runs import tiny
from spaceform.cli.app import app
from spaceform.engine import Candidate, Rows, finish, fit
from spaceform.heads import HEADS
from spaceform.run.recipe import QUICK, replace
from spaceform.run.train import train
from spaceform.run.warm_up import without_margin
from spaceform.study.plan import Conditions, recipes
from spaceform.study.warm_up import missing_margins, shortened_warm_ups

WAITING = {"head.warmup_epochs": 5}


@pytest.mark.parametrize(("epochs", "wait"), [(3, 0), (5, 1), (6, 5), (60, 5)])
def test_a_comparison_shortens_a_warm_up_that_would_not_end(epochs, wait):
    found = recipes("digits", ["cosine", "arcface"], Conditions(settings={"budget.epochs": epochs}))
    changed, said = shortened_warm_ups(found, {"budget.epochs"})
    assert changed["arcface"].head.options["warmup_epochs"] == wait
    assert changed["cosine"] == found["cosine"]
    assert missing_margins(changed) == []
    wanted = f"the margin of arcface comes after {wait} epochs instead of 5, since it is trained for only"
    assert said == ([] if wait == 5 else [f"{wanted} {epochs}"])


def test_a_warm_up_that_was_set_stays_and_is_told():
    settings = {"budget.epochs": 3, **WAITING}
    found = recipes("digits", ["arcface"], Conditions(settings=settings))
    assert shortened_warm_ups(found, settings) == (found, [])
    assert missing_margins(found) == [
        "arcface has no margin here: it trains for 3 epochs, and its margin comes after 5; train longer, or "
        "set head.warmup_epochs lower"
    ]


def test_heads_without_a_margin_have_nothing_to_tell():
    for head in HEADS:
        recipe = QUICK[f"digits/{head}"]
        assert bool(without_margin(recipe, 1)) == ("warmup_epochs" in recipe.head.options)
        assert without_margin(recipe, 60) == ""


def test_a_run_says_that_it_had_no_margin(tmp_path):
    result = train(tiny("arcface"), tmp_path / "short").result
    assert result["note"].startswith("arcface has no margin here: it trains for 3 epochs, and its margin")
    result = train(replace(tiny("arcface"), {"head.warmup_epochs": 2}), tmp_path / "other").result
    assert "note" not in result
    told = CliRunner().invoke(
        app, ["train", str(tmp_path / "short/recipe.json"), "--out", f"{tmp_path}/short"]
    )
    assert "note: arcface has no margin here" in told.output


@pytest.mark.slow
@pytest.mark.usefixtures("lasting_processes")
def test_a_comparison_keeps_and_says_it(tmp_path):
    said: list[str] = []
    settings = {"budget.epochs": 2, "budget.episodes": 2}
    study = spaceform.compare(
        "digits", "arcface", seeds=1, settings=settings, out=tmp_path / "s", say=said.append
    )
    assert "note: the margin of arcface comes after 0 epochs instead of 5" in "\n".join(said)
    assert study.notes["shortened"].startswith("The margin of arcface comes after 0 epochs instead of 5")
    assert "note" not in study.runs["arcface-seed0"].result


def test_a_model_of_features_is_finished_with_its_margin():
    y = torch.arange(60) % 3
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)) + y[:, None]
    rows, held_out = Rows.of(x[:40], y[:40]), Rows.of(x[40:], y[40:])
    options = {"margin": 0.2, "warmup_epochs": 2}
    candidate = Candidate(dim=4, epochs=6, batch_size=16, options=options)
    found = fit("arcface", candidate, rows, held_out, seed=0, classes=3)
    assert found.best_epoch > 2
    model = finish("arcface", candidate, found, rows, seed=0, classes=3)
    assert float(model.head.margin) == pytest.approx(0.2)
