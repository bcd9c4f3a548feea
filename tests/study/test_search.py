"""A search is resumable, prunes, looks at the validation split alone, and writes a recipe that trains."""

import json

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from spaceform.run.recipe import PAPER, QUICK, RecipeError, flatten, load_recipe, replace
from spaceform.study.optuna_search import _open as open_study
from spaceform.study.optuna_search import search_head, standing, to_toml, trials_of
from spaceform.study.optuna_space import RATES, ranges_of, starting_point
from spaceform.study.processes import Processes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lasting_processes")]

TINY = {"budget.epochs": 4, "budget.episodes": 4, "budget.instances": 3, "net.hidden": 16, "net.dim": 4}
RECIPE = replace(QUICK["digits/cosine"], TINY)


def test_a_recipe_survives_toml(tmp_path):
    for name, recipe in QUICK.items():
        odd = replace(recipe, {"data.name": 'a "b" \\ ü', "seed": 7, "optim.weight_decay": 1e-05})
        path = tmp_path / f"{name.replace('/', '-')}.toml"
        path.write_text(to_toml(odd), "utf-8")
        assert load_recipe(path) == odd


@pytest.mark.parametrize("head", ["standard", "hyperbolic", "cosine", "arcface", "vmf", "power_spherical"])
@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_the_space_makes_valid_recipes_and_holds_the_start(head, sampler):
    recipe = QUICK[f"digits/{head}"]
    distributions = ranges_of(recipe, sampler)
    assert {"optim.lr", "optim.momentum", "optim.nesterov", "optim.weight_decay"} <= set(distributions)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(5):
        params = study.ask(distributions).params
        assert flatten(replace(recipe, params)) | params == flatten(replace(recipe, params))
    if sampler == "tpe":
        for key, distribution in distributions.items():
            assert distribution._contains(distribution.to_internal_repr(starting_point(recipe)[key]))
    else:
        assert all(d.choices == RATES[key] for key, d in distributions.items() if key in RATES)
        assert all(len(d.choices) > 1 for d in distributions.values())


def test_the_warm_up_of_a_margin_is_searched_within_the_budget():
    key = "head.warmup_epochs"
    quick = replace(QUICK["digits/arcface"], {"budget.epochs": 30, key: 5})
    assert starting_point(quick)[key] == 5
    assert set(ranges_of(quick, "tpe")[key].choices) == {0, 3, 5, 6}
    assert ranges_of(quick, "grid")[key].choices == (0, 20)
    assert ranges_of(replace(quick, {"budget.epochs": 10}), "grid")[key].choices == (0, 1, 2)
    assert ranges_of(PAPER["cifar100/arcface"], "grid")[key].choices == (0, 20, 60, 100)
    assert key not in ranges_of(QUICK["digits/cosine"], "tpe")


def test_search_continues_and_ends_at_the_best(tmp_path):
    said: list[str] = []
    # a process that died in the middle of its only trial
    dead = open_study(RECIPE, tmp_path, "tpe", None)
    trial = dead.ask(ranges_of(RECIPE, "tpe"))
    from spaceform.study.optuna_search import _where

    trial.set_user_attr("where", _where(tmp_path))
    trial.set_user_attr("folder", "cosine-0")
    lost = trial.params

    ended = search_head(RECIPE, tmp_path, trials=4, on=Processes(1), say=said.append)
    best = ended.recipe
    assert "the best of 4 trials" in ended.sentence
    assert len(said) == 4
    again = open_study(RECIPE, tmp_path, "tpe", None)
    assert again.trials[0].state == TrialState.FAIL
    assert [t.params for t in again.trials].count(lost) == 2
    finished = [t.value for t in again.trials if t.state == TrialState.COMPLETE]
    assert finished
    assert again.best_value == max(finished)
    assert load_recipe(tmp_path / "cosine.toml") == best
    assert best.data == RECIPE.data
    assert not list((tmp_path / "trials").iterdir())
    assert not list(tmp_path.rglob("metrics.json"))
    (line,) = standing(tmp_path)
    assert line.startswith("digits-cosine-tpe-")
    assert line.endswith(f"best validation score {max(finished):.4f}")
    assert "4 trials done" in line
    before = len(again.trials)
    assert search_head(RECIPE, tmp_path, trials=4, on=Processes(1)).recipe == best
    assert len(open_study(RECIPE, tmp_path, "tpe", None).trials) == before


def test_hopeless_trials_are_cut_short_and_diverged_ones_count(tmp_path):
    recipe = replace(RECIPE, {"budget.epochs": 2000, "budget.patience": 2000})
    study = open_study(recipe, tmp_path, "tpe", None)
    for _ in range(5):  # trials that were perfect from the first epoch on
        good = study.ask(ranges_of(recipe, "tpe"))
        for epoch in range(0, 2000, 200):
            good.report(1.0, epoch)
        study.tell(good, 1.0)
    said: list[str] = []
    search_head(recipe, tmp_path, trials=6, on=Processes(1), say=said.append)
    states = [t.state for t in open_study(recipe, tmp_path, "tpe", None).trials]
    assert states == [TrialState.COMPLETE] * 5 + [TrialState.PRUNED]
    assert said[0].startswith("cosine-5: cut short")

    wild = replace(QUICK["digits/standard"], {**TINY, "optim.lr": 1e30})
    ended = search_head(wild, tmp_path, trials=1, on=Processes(1), say=said.append)
    assert said[1].startswith("standard-0: diverged")
    assert ended.sentence.startswith("validation score 0.0000")
    table = trials_of(tmp_path)
    assert list(table["head"]) == ["cosine"] * 6 + ["standard"]
    assert list(table["diverged"]) == [False] * 6 + [True]
    assert table["optim.lr"].iloc[-1] == 1e30


def test_a_storage_that_cannot_be_used_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"the storage 'sqlite:////nowhere/at/all\.db' cannot be used"):
        search_head(RECIPE, tmp_path, trials=1, storage="sqlite:////nowhere/at/all.db")
    assert json.dumps([p.name for p in tmp_path.iterdir()]) == "[]"


def test_data_that_changed_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 3
    np.savez(tmp_path / "mine.npz", X=X, y=y)
    recipe = replace(RECIPE, {"data.name": str(tmp_path / "mine.npz")})
    before = search_head(recipe, tmp_path / "out", trials=1, on=Processes(1))
    np.savez(tmp_path / "mine.npz", X=X[::-1], y=y)
    with pytest.raises(RecipeError, match=r"is not what the search .* began with: bring it back"):
        search_head(recipe, tmp_path / "out", trials=2, on=Processes(1))
    np.savez(tmp_path / "mine.npz", X=X, y=y)
    assert search_head(recipe, tmp_path / "out", trials=1, on=Processes(1)) == before
