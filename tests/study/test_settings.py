"""What `--set` says holds in every trial and every run, or is refused in a sentence that says what to do."""

import numpy as np
import pytest

import spaceform
from spaceform.data import load
from spaceform.run.feature_run import FeatureRun, candidate_of
from spaceform.run.material import material
from spaceform.run.recipe import PAPER, RecipeError, flatten, load_recipe, replace
from spaceform.run.train import train
from spaceform.study.feature_search import search_one, trials_of
from spaceform.study.folder import Job
from spaceform.study.optuna_search import search_head, to_toml
from spaceform.study.optuna_space import ranges_of, starting_point
from spaceform.study.plan import Conditions, recipes
from spaceform.study.settings import COMPARED, require_settable

SHORT = {"optim.epochs": 3}


@pytest.fixture
def table(tmp_path):
    """Three classes of twenty rows of four numbers."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(3), 20)
    path = tmp_path / "table.npz"
    np.savez(path, X=rng.normal(size=(60, 4)) + y[:, None], y=y)
    return path


def planned(table, settings, head="cosine"):
    """The recipe that a comparison starts from."""
    require_settable(settings, COMPARED)
    (recipe,) = recipes(str(table), [head], Conditions(settings=settings)).values()
    return recipe


def searched(table, settings, folder, head="cosine", trials=4):
    """The recipe that a search chooses, and those of all of its trials."""
    recipe = planned(table, settings, head)
    folder.mkdir()
    search_one(Job("search", head, recipe), folder, None, {}, trials=trials, settings=settings, seconds=None)
    tried = trials_of(folder)
    rows = [
        {f"{part}.{key}": value for part in ("net", "optim", "head") for key, value in one[part].items()}
        for one in tried.to_dict("records")
    ]
    return load_recipe(folder / f"{head}.toml"), rows, tried


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"net.members": 3},
        {"net.projected": False},
        {"net.projected": False, "net.dim": 4, "net.pieces": 0},
        {"net.dim": 3},
        {"net.gates": False},
        {"net.gates": True},
        {"net.hidden": []},
        {"net.hidden": [8], "net.members": 2},
        {"net.pieces": 5},
        {"net.dropout": 0.25},
        {"optim.epochs": 4},
        {"optim.batch_size": 17, "optim.lr": 0.005, "optim.weight_decay": 0.5},
        {"head.beta": 20.0},
    ],
)
def test_what_is_set_holds_in_every_trial_and_in_what_is_chosen(table, tmp_path, settings):
    short = settings if "optim.epochs" in settings else {**settings, **SHORT}
    chosen, rows, tried = searched(table, short, tmp_path / "search")
    built = candidate_of(chosen)
    made = FeatureRun(chosen, material(chosen, load(table))).model.net.body
    for key, value in short.items():
        assert flatten(chosen)[key] == value
        assert all(row[key] == value for row in rows)
    assert set(tried["epochs"]) == {short["optim.epochs"]}
    assert made.members == built.members == short.get("net.members", made.members)
    assert (made.gates is not None) == short.get("net.gates", made.gates is not None)


@pytest.mark.slow
def test_nothing_set_leaves_a_search_its_short_rungs(table, tmp_path):
    chosen, _, tried = searched(table, {}, tmp_path / "search", trials=2)
    assert len(set(tried["epochs"])) > 1
    assert candidate_of(chosen).members in (1, 2)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"net.projected": False, "net.hidden": [8]}, "no net for 4 features has all of net.projected=false"),
        ({"net.members": 3, "net.hidden": []}, r"has all of net.members=3, net.hidden=\[\]; leave out one"),
        ({"net.projected": False, "net.dim": 3}, "no net for 4 features has all of"),
    ],
)
def test_settings_that_no_net_can_have_together_are_refused(table, settings, said):
    with pytest.raises(RecipeError, match=said):
        planned(table, settings)


def test_a_recipe_whose_options_do_not_go_together_is_refused_before_it_trains(table, tmp_path):
    recipe = planned(table, {"net.hidden": []})
    for changes, said in (
        ({"net.members": 3}, "net.members=3 is for nets with hidden layers; set net.hidden"),
        ({"net.gates": True}, "net.gates=true is for nets with hidden layers"),
        ({"net.hidden": [8], "net.projected": False}, "net.projected=false is for nets without hidden"),
    ):
        with pytest.raises(ValueError, match=said):
            train(replace(recipe, changes), tmp_path / "run")


REFUSED = {
    "data.name": "the data are the first argument",
    "data.label": "give --label",
    "data.text": "give --text",
    "data.task": "give --task",
    "data.features": "give --net",
    "data.weights": "give --weights",
    "data.thumbnail": "it is for photos",
    "head.name": "give --heads",
    "seed": "give --seeds",
    "budget.epochs": "set optim.epochs",
    "budget.classes": "set optim.batch_size",
    "budget.instances": "set optim.batch_size",
    "budget.episodes": "leave it out",
    "budget.patience": "leave it out",
    "schedule.factor": "leave it out",
    "schedule.patience": "leave it out",
    "retrieval": "net.name=projection",
    "precision": "leave it out",
    "channels_last": "leave it out",
    "optim.temperature_lr": "set optim.lr",
    "optim.name": "go together",
}
CHANGED = {
    "data.split_seed": 3,
    "data.imbalance": 4.0,
    "data.label_noise": 0.2,
    "net.name": "projection",
    "net.dim": 7,
    "net.hidden": [9],
    "net.dropout": 0.4,
    "net.pieces": 3,
    "net.uncut": 1,
    "net.members": 3,
    "net.gates": False,
    "net.projected": False,
    "head.beta": 5.0,
    "head.learn_beta": False,
    "optim.lr": 0.02,
    "optim.weight_decay": 2.0,
    "optim.batch_size": 11,
    "optim.epochs": 4,
}
OTHER = {
    "data.name": "wine",
    "data.label": "class",
    "data.text": "class",
    "data.task": "retrieval",
    "data.features": "resnet18",
    "data.weights": "a.safetensors",
    "data.thumbnail": 32,
    "head.name": "vmf",
    "retrieval": "direction",
    "precision": "64-true",
    "channels_last": True,
    "schedule.factor": 0.25,
    "optim.name": "sgd",
    "optim.temperature_lr": 0.02,
}


def test_every_field_of_a_recipe_is_named_here(table):
    assert flatten(planned(table, {})).keys() - {"head.samples"} <= REFUSED.keys() | CHANGED.keys()


@pytest.mark.parametrize("key", REFUSED)
def test_a_setting_without_effect_is_refused_with_what_to_do_instead(table, tmp_path, key):
    with pytest.raises(RecipeError, match=REFUSED[key]):
        spaceform.compare(
            table, ["cosine"], settings={key: OTHER.get(key, 3)}, out=tmp_path / "study", seeds=1
        )
    assert not (tmp_path / "study").exists()


def test_a_budget_without_effect_is_refused(table, tmp_path):
    with pytest.raises(RecipeError, match="--budget full has no effect on features: --search"):
        spaceform.compare(table, budget="full", out=tmp_path / "study")


@pytest.mark.parametrize("key", CHANGED)
def test_every_other_setting_changes_what_is_run(table, key):
    base = planned(table, SHORT)
    changed = planned(table, {**({} if key == "net.name" else SHORT), key: CHANGED[key]})
    assert flatten(changed)[key] == CHANGED[key]
    if key != "net.name":  # another net than that of the engine
        assert _trained(base, table) != _trained(changed, table)


def _trained(recipe, table):
    """The data and the weights of a run, to be compared."""
    parts = material(recipe, load(table))
    weights = FeatureRun(recipe, parts).model.state_dict()
    return parts.fingerprint, {name: value.tolist() for name, value in weights.items()}


def test_an_option_that_two_runs_of_the_same_recipe_share_is_no_change(table):
    """That weights differ says something: the same recipe gives the same."""
    recipe = planned(table, SHORT)
    one, other = (_trained(recipe, table) for _ in range(2))
    assert one == other


def test_train_refuses_what_has_no_effect_on_features(table, tmp_path):
    (tmp_path / "cosine.toml").write_text(to_toml(planned(table, {})))
    assert load_recipe(tmp_path / "cosine.toml", ["optim.epochs=2"]).optim.epochs == 2
    with pytest.raises(RecipeError, match=r"budget.epochs has no effect .* set optim.epochs"):
        load_recipe(tmp_path / "cosine.toml", ["budget.epochs=2"])
    assert load_recipe("digits/cosine", ["budget.epochs=2"]).budget.epochs == 2


@pytest.mark.parametrize("sampler", ["tpe", "grid"])
def test_what_is_set_is_not_searched_by_optuna(sampler):
    recipe = replace(PAPER["mnist/cosine"], {"optim.lr": 0.02, "head.beta": 9.0})
    fixed = ["optim.lr", "head.beta"]
    assert {"optim.lr", "head.beta"} <= ranges_of(recipe, sampler).keys()
    assert not {"optim.lr", "head.beta"} & ranges_of(recipe, sampler, fixed).keys()
    assert ranges_of(recipe, sampler, fixed).keys() == starting_point(recipe, fixed).keys()
    assert ranges_of(recipe, sampler, fixed)


def test_a_search_with_nothing_left_to_vary_is_refused(tmp_path):
    recipe = PAPER["mnist/standard"]
    with pytest.raises(RecipeError, match=r"all that a search of standard varies is set \(optim.lr"):
        search_head(recipe, tmp_path / "out", trials=2, fixed=[*starting_point(recipe)])
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_search_by_optuna_keeps_what_is_set(tmp_path):
    settings = {"budget.epochs": 1, "budget.episodes": 2, "optim.lr": 0.0123}
    study = spaceform.search(
        "digits", ["cosine"], trials=2, settings=settings, out=tmp_path / "out", on=spaceform.Processes(1)
    )
    assert study.recipes["cosine"].optim.lr == 0.0123
    assert "optim.lr" not in study.trials.columns


@pytest.mark.slow
def test_a_search_of_features_keeps_what_is_set(table, tmp_path):
    settings = {"net.members": 3, **SHORT}
    study = spaceform.search(
        table, ["cosine"], trials=2, settings=settings, out=tmp_path / "out", on=spaceform.Processes(1)
    )
    assert candidate_of(study.recipes["cosine"]).members == 3
    assert study.recipes["cosine"].optim.epochs == 3
