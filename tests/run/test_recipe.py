"""Recipes: the paper's tables as transcribed apart, and one clear sentence for each mistake."""

import csv
import json
import math
from pathlib import Path

import pytest

from spaceform.nets import ProjectionOptions, SmallOptions
from spaceform.run import recipe as r
from spaceform.run.optim import AdamW, Sgd

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
OPEN = ("cars196", "cub200", "sop")


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


def test_last_layers_of_resnet50_start_as_in_the_papers_code():
    for name, recipe in r.PAPER.items():
        resnet = recipe.net.name == "resnet50"
        assert resnet is (name.partition("/")[0] not in ("mnist", "fashion-mnist"))
        if resnet:
            assert recipe.net.init == "torch"
        if recipe.head.name not in ("vmf", "power_spherical"):
            assert recipe.head.options.get("init", "xavier") == ("torch" if resnet else "xavier")


def test_batch_norm_is_frozen_as_the_text_says_or_as_the_code_does():
    for name in r.PAPER:
        if r.PAPER[name].net.name == "resnet50":
            pretrained = r.PAPER[name].net.pretrained
            assert r.PAPER[name].net.freeze_batch_norm == ("all" if pretrained else "none")
            assert r.AUTHORS[name].net.freeze_batch_norm == ("statistics" if pretrained else "none")


def test_the_authors_recipes_differ_from_the_text_in_what_is_documented():
    differ = set()
    for name in r.PAPER:
        text, code = r.flatten(r.PAPER[name]), r.flatten(r.AUTHORS[name])
        assert code["schedule.patience"] == text["schedule.patience"] + 1  # "after more than 15"
        differ |= {(name, key) for key in {**text, **code} if text.get(key) != code.get(key)}
    others = {(name, key) for name, key in differ if key != "schedule.patience"}
    frozen = {(name, "net.freeze_batch_norm") for name in r.PAPER if r.PAPER[name].data.name in OPEN}
    hyperplanes = {(f"{data}/hyperbolic", "head.init") for data in ("mnist", "fashion-mnist")}
    sop = {
        (f"sop/{h}", f"optim.{k}") for h in ("vmf", "power_spherical") for k in ("momentum", "temperature_lr")
    }
    assert others == frozen | hyperplanes | sop


def test_a_profile_is_a_prefix():
    assert r.load_recipe("authors/cub200/vmf") == r.AUTHORS["cub200/vmf"]
    assert r.load_recipe("cub200/vmf") == r.PAPER["cub200/vmf"]
    with pytest.raises(r.RecipeError, match="did you mean 'authors/cub200/vmf'"):
        r.load_recipe("author/cub200/vmf")


@pytest.mark.parametrize("name", list(r.QUICK))
def test_quick_recipes_are_valid(name):
    assert r.QUICK[name].data.name == "digits"


def test_every_head_has_a_quick_recipe():
    from spaceform.heads import HEADS

    ours = {name for name, head in HEADS.items() if head.__module__.startswith("spaceform.")}
    assert {r.QUICK[name].head.name for name in r.QUICK} == ours


@pytest.mark.parametrize("name", ["cifar100/arcface", "mnist/vmf", "digits/standard"])
def test_json_round_trip_is_exact(name):
    recipe = r.replace(r.load_recipe(name), {"optim.lr": 0.1 + 0.2}, seed=3)
    assert r.make(json.loads(recipe.to_json())) == recipe
    assert r.make(json.loads(recipe.to_json())).digest == recipe.digest
    assert r.replace(recipe, seed=4).digest != recipe.digest


def test_another_net_keeps_what_it_has_as_well():
    recipe = r.QUICK["digits/cosine"]
    assert recipe.net == ProjectionOptions(dim=32, hidden=(256,))
    assert r.replace(recipe, {"net.name": "small"}).net == SmallOptions(dim=32)
    timm = r.replace(r.PAPER["cub200/cosine"], {"net.name": "resnet18"})
    assert timm.net == r.PAPER["cub200/cosine"].net.model_copy(update={"name": "resnet18"})
    back = r.replace(r.replace(recipe, {"net.name": "small"}), {"net.hidden": 4, "net.name": "projection"})
    assert back.net == ProjectionOptions(dim=32, hidden=(4,))  # in whatever order they are given


def test_the_optimiser_is_sgd_unless_named():
    recipe = r.QUICK["digits/cosine"]
    assert recipe.optim == Sgd(lr=0.1, temperature_lr=0.01, momentum=0.9, nesterov=True, weight_decay=1e-2)
    adam = r.replace(recipe, {"optim.name": "adamw", "optim.lr": 1e-3}).optim
    assert adam == AdamW(lr=1e-3, temperature_lr=0.01, weight_decay=1e-2)


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
            r"optim 'sgd' has no option 'lrr'; did you mean 'lr'\? choose from lr, temperature_lr, ",
        ),
        (["lr=0.1"], r"unknown key 'lr'"),
        (["optim.lr=-1"], r"optim.lr must be greater than 0, got -1"),
        (["optim.momentum=1.5"], r"optim.momentum must be less than 1, got 1.5"),
        (["seed=0.5"], r"seed must be a valid integer"),
        (["precision=32"], r"precision must be '32-true', '64-true' or 'bf16-mixed', got 32"),
        (["head.name=vfm"], r"unknown head 'vfm'; did you mean 'vmf'\? choose from standard"),
        (["head.betta=3"], r"head 'cosine' has no option 'betta'; did you mean 'beta'\?"),
        (["head.beta=-3"], r"beta must be positive"),
        (["head.init=zeros"], r"head.init must be 'xavier' or 'torch', got 'zeros'"),
        (["head.beta=warm"], r"head.beta must be a valid number.*got 'warm'"),
        (["optim.momentum=0"], r"nesterov needs momentum above 0"),
        (["optim.lr=nan"], r"optim.lr must be .*finite.*nan"),
        (["optim.lr"], r"a setting is KEY=VALUE, such as optim.lr=0.1; got 'optim.lr'"),
        (["optim.name=adam"], r"unknown optimiser 'adam'; did you mean 'adamw'\? choose from sgd, adamw"),
        (["optim.name=adamw", "optim.momentum=0"], r"optim 'adamw' has no option 'momentum'; choose from lr"),
        (
            ["optim.name=adamw", "optim.betas=[0.9, 1.0]"],
            r"optim.betas must lie in \[0, 1\), got",
        ),
        (["net.stem=cifar"], r"net 'projection' has no option 'stem'; choose from dim, hidden"),
        (["net=3"], r"net must be a table, got 3"),
        (["net.dim.x=1"], r"unknown key 'net.dim.x'; did you mean 'net.dim'"),
    ],
)
def test_mistakes_are_one_clear_sentence(settings, said):
    with pytest.raises(r.RecipeError, match=said) as caught:
        r.load_recipe("digits/cosine", settings)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[data]\nname = "digits"\n[head]\nname = "cosine"\n[net]\ndim = 3\n')
    with pytest.raises(r.RecipeError, match=r"mine.toml: the key 'optim' is missing"):
        r.load_recipe(path)


def test_a_file_is_read_and_a_broken_one_named(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[data]\nname = "digits"\n[head]\nname = "cosine"\n[net]\ndim = 3\n[optim]\nlr = 0.1\n')
    assert r.load_recipe(path).optim.lr == 0.1
    assert r.load_recipe(path, ["optim.lr=0.2"]).optim.lr == 0.2
    path.write_text("[data\n")
    with pytest.raises(r.RecipeError, match=r"mine.toml cannot be read as a recipe"):
        r.load_recipe(path)
    with pytest.raises(r.RecipeError, match=r"there is no recipe file '.*nothing.toml'"):
        r.load_recipe(tmp_path / "nothing.toml")


def test_unknown_names_say_the_nearest():
    with pytest.raises(r.RecipeError, match=r"unknown recipe 'mnist/vfm'; did you mean 'mnist/vmf'"):
        r.load_recipe("mnist/vfm")
    with pytest.raises(KeyError, match=r"did you mean 'mnist/vmf'"):
        r.PAPER["mnist/vfm"]
