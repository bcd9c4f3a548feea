"""Equal conditions for every head, on every kind of data."""

from dataclasses import replace as with_fields
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from spaceform import data
from spaceform.cli.app import app
from spaceform.run.finished import Run
from spaceform.run.material import material
from spaceform.run.model import build_model
from spaceform.run.recipe import PAPER, QUICK, RecipeError, replace
from spaceform.run.train import train
from spaceform.study.optuna_search import to_toml
from spaceform.study.plan import Conditions, jobs, named_heads, read_recipes, recipes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lasting_processes")]

ALL = named_heads("default")


@pytest.fixture(scope="module")
def features(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("features") / "birds.npz"
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(30), 12)
    np.savez(path, X=rng.normal(size=(30, 40))[y] * 5 + rng.normal(size=(360, 40)) + 3, y=y)
    return path


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos") / "pets"
    rng = np.random.default_rng(0)
    for name, colour in (("cat", (200, 40, 40)), ("dog", (40, 40, 200)), ("eel", (40, 200, 40))):
        (folder / name).mkdir(parents=True)
        for i in range(8):
            noise = rng.integers(-40, 40, (90 + 10 * i, 120, 3))
            Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(
                folder / name / f"{i}.jpg"
            )
    return folder


def test_digits_and_the_papers_data_have_their_own_recipes():
    assert recipes("digits", ALL, Conditions()) == {head: QUICK[f"digits/{head}"] for head in ALL}
    digits = data.load("digits")
    paper = recipes("mnist", ALL, Conditions("paper"), dataset=digits)
    assert paper == {head: PAPER[f"mnist/{head}"] for head in ALL}
    with pytest.raises(RecipeError, match="no recipe for 'digits/vmf'; --budget paper is for cars196"):
        recipes("digits", ["vmf"], Conditions("paper"))
    with pytest.raises(RecipeError, match="unknown head 'vfm'; did you mean 'vmf'"):
        recipes("digits", ["vfm"], Conditions())


@pytest.mark.parametrize("budget", ["quick", "full"])
@pytest.mark.parametrize("task", ["classification", "retrieval"])
def test_features_meet_a_projection_under_equal_conditions(features, budget, task):
    found = recipes(str(features), ALL, Conditions(budget, task, net="projection"))
    first = found["standard"]
    assert (first.net.name, first.net.standardize, first.net.dim) == ("projection", True, 40)
    assert first.budget.epochs == {"quick": 30, "full": 200}[budget]
    assert len(jobs(found, range(3))) == 3 * len(ALL)
    parts = material(first)
    assert parts.dataset.task == task
    model = build_model(first, len(parts.classes), parts.input_shape)
    z = model.net(parts.dataset.inputs[:64])
    assert z.shape == (64, 40)


def test_own_features_are_classified_by_the_engine_unless_a_net_is_named(features):
    for conditions, net in (
        (Conditions(), "features"),
        (Conditions(net="features"), "features"),
        (Conditions(task="retrieval"), "projection"),
        (Conditions(net="projection"), "projection"),
    ):
        found = recipes(str(features), ALL, conditions)
        assert {recipe.net.name for recipe in found.values()} == {net}
        assert len(jobs(found, range(2))) == 2 * len(ALL)


@pytest.mark.parametrize("width", [256, 257])
def test_wide_features_are_thinned_in_classification(tmp_path, width):
    x = np.random.default_rng(0).normal(size=(60, width)).astype(np.float32)
    np.savez(tmp_path / "wide.npz", X=x, y=np.arange(60) % 6)
    for task, dropout in (("classification", 0.5 if width > 256 else 0.0), ("retrieval", 0.0)):
        found = recipes(str(tmp_path / "wide.npz"), ALL, Conditions(task=task, net="projection"))
        assert {recipe.net.dropout for recipe in found.values()} == {dropout}


def test_standardised_features_train_at_any_scale(features):
    dataset = data.load(str(features))
    recipe = replace(
        recipes(str(features), ["cosine"], Conditions(net="projection"))["cosine"], {"budget.epochs": 2}
    )
    scores = []
    for scale in (1e-3, 1.0, 1e3):
        scaled = with_fields(dataset, inputs=dataset.inputs * scale + 7 * scale)
        parts = material(recipe, scaled)
        torch.manual_seed(0)
        model = build_model(recipe, len(parts.classes), parts.input_shape).train()
        scores.append(model.net(scaled.inputs[:128]).detach())
    torch.testing.assert_close(scores[0], scores[1], rtol=0, atol=0.05)
    torch.testing.assert_close(scores[2], scores[1], rtol=0, atol=0.05)


def test_photos_become_thumbnails_and_files_are_predicted(photos, tmp_path):
    found = recipes(str(photos), ["cosine"], Conditions())
    recipe = replace(found["cosine"], {"budget.epochs": 3, "budget.episodes": 5})
    assert recipe.data.thumbnail == 64
    assert material(recipe).input_shape == (3, 64, 64)
    run = train(recipe, tmp_path / "run")
    files = sorted(photos.rglob("*.jpg"))
    assert run.predict_proba(files, calibrator=None).shape == (24, 3)
    loaded = Run.load(tmp_path / "run")
    pixels = data.shrunk(files, 64)
    torch.testing.assert_close(loaded.embed(files), loaded.embed(pixels))
    own = recipes(str(photos), ["cosine"], Conditions(net="resnet18"))["cosine"]
    assert (own.net.name, own.data.thumbnail) == ("resnet18", None)


def test_thumbnails_are_the_middle_square(tmp_path):
    image = np.zeros((100, 300, 3), dtype=np.uint8)
    image[:, 100:200] = (250, 10, 30)
    Image.fromarray(image).save(tmp_path / "wide.png")
    pixels = data.shrunk([tmp_path / "wide.png"], 16)
    assert pixels.shape == (1, 3, 16, 16)
    assert (pixels == torch.tensor([250, 10, 30]).view(1, 3, 1, 1)).all()


def test_conditions_reach_every_recipe():
    conditions = Conditions(imbalance=10.0, label_noise=0.2, settings={"budget.epochs": 2, "optim.lr": 0.25})
    for recipe in recipes("digits", ALL, conditions).values():
        assert (recipe.data.imbalance, recipe.data.label_noise) == (10.0, 0.2)
        assert (recipe.budget.epochs, recipe.optim.lr) == (2, 0.25)


def test_runs_are_heads_times_seeds_on_one_split():
    planned = jobs(recipes("digits", ["standard", "vmf"], Conditions()), range(2))
    assert [j.name for j in planned] == ["standard-seed0", "vmf-seed0", "standard-seed1", "vmf-seed1"]
    assert {j.recipe.data.split_seed for j in planned} == {0}
    assert [j.recipe.seed for j in planned] == [0, 0, 1, 1]
    assert material(planned[0].recipe).split.test.tolist() == material(planned[3].recipe).split.test.tolist()


def test_temperatures_are_variants_of_spherical_heads():
    planned = jobs(recipes("digits", ["standard", "cosine"], Conditions()), range(1), ["learned", "16", "32"])
    assert {j.name: j.label for j in planned} == {
        "standard-seed0": "standard",
        "cosine-learned-seed0": "cosine β learned",
        "cosine-beta16-seed0": "cosine β=16",
        "cosine-beta32-seed0": "cosine β=32",
    }
    fixed = planned[2].recipe.head.options
    assert (fixed["beta"], fixed["learn_beta"]) == (16.0, False)
    with pytest.raises(RecipeError, match="'learned' and numbers, got 'warm'"):
        jobs(recipes("digits", ["cosine"], Conditions()), range(1), ["warm"])


def test_recipe_files_take_the_place_of_defaults_and_must_be_equal(tmp_path):
    wanted = recipes("digits", ["standard", "cosine"], Conditions(label_noise=0.1))
    better = {
        head: replace(recipe, {"optim.lr": 0.33, "data.label_noise": 0.0}) for head, recipe in wanted.items()
    }
    for head, recipe in better.items():
        (tmp_path / f"{head}.toml").write_text(to_toml(recipe))
    found = read_recipes([tmp_path], wanted)
    assert {r.optim.lr for r in found.values()} == {0.33}
    assert {r.data.label_noise for r in found.values()} == {0.1}
    found = read_recipes([tmp_path], wanted, {"budget.epochs": 1})
    assert {(r.optim.lr, r.budget.epochs) for r in found.values()} == {(0.33, 1)}
    with pytest.raises(RecipeError, match="none for head 'vmf'"):
        read_recipes([tmp_path], recipes("digits", ["vmf"], Conditions()))
    (tmp_path / "cosine.toml").write_text(to_toml(replace(better["cosine"], {"net.dim": 5})))
    with pytest.raises(RecipeError, match="would not meet the same conditions: net is"):
        jobs(read_recipes([tmp_path], wanted), range(1))
    with pytest.raises(RecipeError, match="there is no file or folder"):
        read_recipes([tmp_path / "nowhere"], wanted)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--heads", " , "], "no head is named; choose from standard"),
        (["--temperature", "warm"], "'learned' and numbers, got 'warm'"),
        (["--temperature", "-3"], "beta must be positive"),
        (["--net", "resnet999"], "unknown net 'resnet999'; did you mean"),
        (["--net", "small", "--set", "net.hidden=3"], "net 'small' has no option 'hidden'"),
        (["--set", "optim.lr=fast"], "optim.lr must be a valid number"),
        (["--recipes", "a.toml", "--net", "small"], "give --set net.name=... for --net"),
        (["--recipes", "a.toml", "--budget", "full"], "give --set budget.epochs=... for --budget"),
        (["--recipes", "nowhere"], "there is no file or folder 'nowhere'"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_before_anything_is_written(tmp_path, arguments, said):
    found = CliRunner().invoke(app, ["compare", "digits", *arguments, "--out", str(tmp_path / "study")])
    assert isinstance(found.exception, ValueError)
    assert said in str(found.exception)
    assert not (tmp_path / "study").exists()
