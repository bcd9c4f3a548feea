"""Recipes: the paper's tables as transcribed apart, and one clear sentence for each mistake."""

import csv
import json
import math
from pathlib import Path

import pytest

from spaceform.run import recipe as r

TABLES = Path(__file__).parents[1] / "reference" / "paper_tables.csv"
ROWS = list(csv.DictReader(TABLES.read_text().splitlines()))
EPISODES = {  # N, K, episodes an epoch, embedding dimension: appendix D.1 and D.2
    "mnist": (10, 13, 250, 3),
    "fashion-mnist": (10, 13, 250, 3),
    "cifar10": (10, 26, 250, 128),
    "cifar100": (32, 8, 250, 128),
    "cars196": (32, 4, 100, 512),
    "cub200": (32, 4, 100, 512),
    "sop": (32, 2, 500, 512),
}


def number(cell: str) -> float | None:
    return float(cell) if cell else None


def test_the_table_is_whole():
    assert len(ROWS) == 35
    assert {row["data"] for row in ROWS} == set(EPISODES)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['data']}/{row['head']}")
def test_paper_row(row):
    recipe = r.PAPER[f"{row['data']}/{row['head']}"]
    head, optim, budget = recipe.head.options, recipe.optim, recipe.budget
    assert recipe.data.name == row["data"]
    assert recipe.head.name == row["head"]
    assert optim.lr == float(row["LR"])
    assert optim.momentum == float(row["MOM"])
    assert optim.nesterov is {"True": True, "False": False}[row["NMOM"]]
    assert optim.weight_decay == float(row["WD"])
    assert head.get("margin") == number(row["m"])
    assert head.get("warmup_epochs") == number(row["m0_epochs"])
    assert head.get("curvature") == number(row["c"])
    assert head.get("init_ratio") == number(row["lambda"])
    if row["tau"]:
        assert optim.temperature_lr == float(row["TLR"])
        assert round(math.log(head["beta"]), 3) == float(row["tau"])
    else:
        assert "beta" not in head
        assert row["TLR"] == ""
    if row["head"] == "vmf":
        assert (head["normalizer"], head["samples"]) == ("bounds", 10)
    assert (budget.classes, budget.instances, budget.episodes, recipe.net.dim) == EPISODES[row["data"]]
    assert (budget.epochs, budget.patience) == (1000, 35)
    assert (recipe.schedule.factor, recipe.schedule.patience) == (0.5, 15)


def test_power_spherical_repeats_the_rows_of_vmf():
    for name in EPISODES:
        ours, theirs = r.PAPER[f"{name}/power_spherical"], r.PAPER[f"{name}/vmf"]
        assert ours.optim == theirs.optim
        assert ours.budget == theirs.budget
        shared = {k: v for k, v in theirs.head.options.items() if k != "normalizer"}
        assert ours.head.options == shared


@pytest.mark.parametrize("name", list(r.QUICK))
def test_quick_recipes_are_valid(name):
    assert r.QUICK[name].data.name == "digits"


def test_every_head_has_a_quick_recipe():
    from spaceform.heads import HEADS

    assert {r.QUICK[name].head.name for name in r.QUICK} == set(HEADS)


def test_json_round_trip_is_exact():
    recipe = r.replace(r.PAPER["cifar100/arcface"], {"optim.lr": 0.1 + 0.2}, seed=3)
    assert r.make(json.loads(recipe.to_json())) == recipe
    assert r.make(json.loads(recipe.to_json())).digest == recipe.digest
    assert r.replace(recipe, seed=4).digest != recipe.digest


def test_what_was_begun_before_there_was_dropout_goes_on():
    """Checkpoints and searches know their recipe by this digest."""
    recipe = r.replace(r.PAPER["mnist/power_spherical"], seed=2)
    assert recipe.digest == "400f7b8c8dbf96e80004de107eb0bc7049e121efc9cf17d438972b8ec84e9db2"
    dropped = [r.replace(recipe, {"net.dropout": p}).digest for p in (0.1, 0.2)]
    assert len({recipe.digest, *dropped}) == 3


def test_a_recipe_is_frozen():
    recipe = r.QUICK["digits/standard"]
    with pytest.raises(ValueError, match="frozen"):
        recipe.seed = 3
    assert hash(recipe.optim)


def test_replace_takes_dotted_keys_and_leaves_the_original():
    before = r.QUICK["digits/cosine"]
    after = r.replace(before, {"optim.lr": 0.7, "head.beta": 2.0}, seed=9)
    assert (after.optim.lr, after.head.options["beta"], after.seed) == (0.7, 2.0, 9)
    assert before.seed == 0


def test_another_head_drops_the_options_of_the_old_one():
    recipe = r.replace(r.QUICK["digits/arcface"], {"head.name": "standard"})
    assert recipe.head.options == {}


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("optim.lr=0.1", "optim.lr", 0.1),
        ("optim.nesterov=true", "optim.nesterov", True),
        ("data.name=my data/x=1.npz", "data.name", "my data/x=1.npz"),
        ("seed=3", "seed", 3),
        ('net.name="small"', "net.name", "small"),
    ],
)
def test_settings(setting, key, value):
    assert r.parse_setting(setting) == (key, value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ["optim.lrr=0.1"],
            r"unknown key 'optim.lrr'; did you mean 'optim.lr'\? choose from optim.lr, .*\(30 in all\)",
        ),
        (["lr=0.1"], r"unknown key 'lr'"),
        (["optim.lr=-1"], r"optim.lr must be greater than 0, got -1"),
        (["optim.momentum=1.5"], r"optim.momentum must be less than 1, got 1.5"),
        (["seed=0.5"], r"seed must be a valid integer"),
        (["precision=32"], r"precision must be '32-true', '64-true' or 'bf16-mixed', got 32"),
        (["head.name=vfm"], r"unknown head 'vfm'; did you mean 'vmf'\? choose from standard"),
        (["head.betta=3"], r"unknown option of head 'cosine' 'betta'; did you mean 'beta'\?"),
        (["head.beta=-3"], r"beta must be positive"),
        (["head.beta=warm"], r"head.beta must be a valid number.*got 'warm'"),
        (["optim.momentum=0"], r"nesterov needs momentum above 0"),
        (["optim.lr=nan"], r"optim.lr must be .*finite.*nan"),
        (["optim.lr"], r"a setting is KEY=VALUE, such as optim.lr=0.1; got 'optim.lr'"),
        (["net.dim.x=1"], r"unknown key 'net.dim.x'; did you mean 'net.dim'"),
    ],
)
def test_mistakes_are_one_clear_sentence(settings, said):
    with pytest.raises(r.RecipeError, match=said) as caught:
        r.load("digits/cosine", settings)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[data]\nname = "digits"\n[head]\nname = "cosine"\n[net]\ndim = 3\n')
    with pytest.raises(r.RecipeError, match=r"mine.toml: the key 'optim' is missing"):
        r.load(path)


def test_a_file_is_read_and_a_broken_one_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[data]\nname = "digits"\n[head]\nname = "cosine"\n[net]\ndim = 3\n[optim]\nlr = 0.1\n')
    assert r.load(path).optim.lr == 0.1
    assert r.load(path, ["optim.lr=0.2"]).optim.lr == 0.2
    path.write_text("[data\n")
    with pytest.raises(r.RecipeError, match=r"mine.toml cannot be read as a recipe"):
        r.load(path)
    with pytest.raises(r.RecipeError, match=r"there is no recipe file '.*nothing.toml'"):
        r.load(tmp_path / "nothing.toml")


def test_unknown_names_say_the_nearest():
    with pytest.raises(r.RecipeError, match=r"unknown recipe 'mnist/vfm'; did you mean 'mnist/vmf'"):
        r.load("mnist/vfm")
    with pytest.raises(KeyError, match=r"did you mean 'mnist/vmf'"):
        r.PAPER["mnist/vfm"]
