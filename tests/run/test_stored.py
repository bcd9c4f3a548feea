"""The files of a finished run: what is damaged, foreign or of another run is named in one sentence."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from short_runs import tiny
from spaceform.decisions import pairs_for
from spaceform.geometry import Sphere
from spaceform.run import files, stored
from spaceform.run.export import export
from spaceform.run.finished import Run
from spaceform.run.pairs import read_pairs
from spaceform.run.parts import KeptParts
from spaceform.run.recipe import RecipeError, make, replace
from spaceform.run.train import train

pytestmark = pytest.mark.slow

DEEP = b"[" * 100_000
BROKEN = {
    "nothing": b"",
    "torn": b'{"epochs": 3, "best',
    "deep": DEEP,
    "deep table": b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    "no text": b"\xff\xfe\x00",
    "a list": b"[1, 2]",
    "a number": b"3",
    "null": b"null",
    "another table": b'{"hello": "world"}',
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    return train(tiny("cosine"), tmp_path_factory.mktemp("runs") / "cosine").path


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return shutil.copytree(finished, tmp_path / "run")


def refused(folder: Path) -> str:
    with pytest.raises(RecipeError) as caught:
        Run.load(folder)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 600
    return said


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("name", [stored.RECIPE, stored.RESULT])
def test_broken_json_is_named(run, name, content):
    (run / name).write_bytes(content)
    assert str(run / name) in refused(run)


@pytest.mark.parametrize("content", [b"", DEEP, b"\x08\x00\x00\x00\x00\x00\x00\x00{}      "])
def test_broken_weights_are_named(run, content):
    (run / stored.WEIGHTS).write_bytes(content)
    assert str(run / stored.WEIGHTS) in refused(run)


def test_a_broken_line_of_the_history_is_named(run):
    with open(run / stored.HISTORY, "ab") as file:
        file.write(DEEP)
    with pytest.raises(RecipeError, match=r"history.jsonl cannot be read \(it is nested too deep"):
        _ = Run.load(run).history


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("epochs", "three", "epochs must be a valid integer, unable to parse .*, got 'three'"),
        ("score", None, "score must be a valid number, got None"),
        ("stopped", "tired", "stopped must be 'patience', 'epochs' or 'rehearsal', got 'tired'"),
        ("data", [], r"data must be an object, got \[\]"),
        ("digests", {"recipe": "0"}, "the key 'digests.weights' is missing"),
    ],
)
def test_a_wrong_value_of_the_result_is_named(run, key, value, said):
    result = json.loads((run / stored.RESULT).read_text())
    files.write_json(run / stored.RESULT, {**result, key: value})
    with pytest.raises(RecipeError, match=rf"result.json cannot be read \({said}\); copy the run again, or"):
        Run.load(run)


def test_long_values_are_cut(run):
    result = json.loads((run / stored.RESULT).read_text())
    files.write_json(run / stored.RESULT, {**result, "data": ["x" * 5000] * 5000})
    assert len(refused(run)) < 400


CHANGES = {"head.name": "standard", "net.dim": 5, "net.hidden": 60_000, "seed": 1}


@pytest.mark.parametrize(("key", "value"), CHANGES.items())
def test_another_recipe_is_known_by_its_digest(run, key, value):
    recipe = stored.read_recipe(run)
    (run / stored.RECIPE).write_text(replace(recipe, {key: value}).to_json())
    assert f"{run / stored.RECIPE} is not the recipe of this run; copy the run again" in refused(run)


def forge(folder: Path, changes: dict[str, object], of_the_weights: bool = True) -> None:
    """Another recipe, and every digest made to fit."""
    recipe = replace(stored.read_recipe(folder), changes)
    (folder / stored.RECIPE).write_text(recipe.to_json())
    result = json.loads((folder / stored.RESULT).read_text())
    if of_the_weights:
        tensors, state = files.read_tensors(folder / stored.WEIGHTS)
        state["recipe"] = recipe.model_dump(mode="json")
        result["digests"]["weights"] = files.write_tensors(folder / stored.WEIGHTS, tensors, state)
    result["digests"]["recipe"] = files.sha256(folder / stored.RECIPE)
    files.write_json(folder / stored.RESULT, result)


def test_the_recipe_of_the_weights_counts_too(run):
    forge(run, {"seed": 1}, of_the_weights=False)
    assert "recipe.json is not the recipe of model.safetensors; copy the run again" in refused(run)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"net.dim": 5},
            r"not fit its net of dim 5: layers.4.weight is \(4, 16\) there, and \(5, 16\) in",
        ),
        (
            {"net.hidden": [65_536] * 5, "net.dim": 65_536},  # 69 GB: never allocated
            r"does not fit its net of dim 65536: layers.1.weight is \(16, 64\) there, and \(65536, 64\) in",
        ),
        ({"net.name": "residual"}, "does not fit its net of dim 4: .* is nothing there, and"),
        (
            {"head.name": "hyperbolic"},
            "weights of the head in .*model.safetensors do not fit 'hyperbolic'",
        ),
    ],
)
def test_weights_that_do_not_fit_are_known_before_they_are_made(run, changes, said):
    forge(run, changes)
    with pytest.raises(RecipeError, match=said):
        Run.load(run)


def test_the_weights_of_another_run_are_refused(run, tmp_path):
    other = train(tiny("cosine", seed=1), tmp_path / "other").path
    shutil.copy(other / stored.WEIGHTS, run / stored.WEIGHTS)
    assert f"{run / stored.WEIGHTS} is not the file that this run wrote; copy the run again" in refused(run)


@pytest.mark.parametrize("change", [{"classes": 3}, {"input_shape": None}, {"preprocessing": {"kind": "x"}}])
def test_what_weights_say_beside_their_tensors_has_a_schema(run, change):
    tensors, state = files.read_tensors(run / stored.WEIGHTS)
    result = json.loads((run / stored.RESULT).read_text())
    result["digests"]["weights"] = files.write_tensors(run / stored.WEIGHTS, tensors, {**state, **change})
    files.write_json(run / stored.RESULT, result)
    assert "cannot be read" in refused(run)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: torch.full_like(t, torch.nan), "has NaN or infinite values"),
        (lambda t: t.long(), "is of type torch.int64"),
    ],
)
def test_weights_that_are_no_numbers_are_told(run, change, said):
    tensors, state = files.read_tensors(run / stored.WEIGHTS)
    name = "net.layers.1.weight"
    result = json.loads((run / stored.RESULT).read_text())
    tensors[name] = change(tensors[name])
    result["digests"]["weights"] = files.write_tensors(run / stored.WEIGHTS, tensors, state)
    files.write_json(run / stored.RESULT, result)
    told = refused(run)
    assert told.startswith(f"{name} in {run / stored.WEIGHTS} {said}; copy the run again, or remove")


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_calibrators_that_cannot_be_read_are_told_with_a_remedy(run, tmp_path, content):
    (run / "calibrators.json").write_bytes(content)
    with pytest.raises(RecipeError, match=r"calibrators.json .*; `spaceform evaluate .*` writes it again$"):
        export(run, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("damage", ["torn", "names"])
def test_pairs_that_cannot_be_read_are_told(tmp_path, damage):
    path = tmp_path / "pairs.safetensors"
    files.write_tensors(path, {"x": torch.zeros(2)}, {"kind": pairs_for(Sphere()).name})
    if damage == "torn":
        path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(RecipeError, match=r"pairs.safetensors .*; `spaceform evaluate .*` writes it again"):
        read_pairs(tmp_path, Sphere())


@pytest.mark.parametrize("text", ["data = " + "[" * 50_000, "[" * 50_000, "[1, 2]"])
@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_deep_recipe_is_refused(tmp_path, text, suffix):
    from spaceform.run.recipe import load_recipe

    path = tmp_path / f"mine{suffix}"
    path.write_text(text)
    with pytest.raises(RecipeError, match=rf"mine{suffix} cannot be read as a recipe"):
        load_recipe(path)


@pytest.mark.parametrize("key", ["net.dim", "net.hidden", "budget.episodes"])
def test_absurd_sizes_are_refused(finished, key):
    recipe = stored.read_recipe(finished)
    with pytest.raises(RecipeError, match=rf"{key}.* must be less than or equal to [\d]+, got 10000000000"):
        make(replace(recipe, {key: 10**10}).model_dump())


@pytest.mark.parametrize(
    "content", [*BROKEN.values(), b'{"plan": 3, "parts": 2}', b'{"plan": "", "parts": 1e9}']
)
def test_the_plan_of_kept_parts_that_cannot_be_read_is_told(tmp_path, content):
    (tmp_path / "parts.json").write_bytes(content)
    with pytest.raises(RecipeError, match=r"parts.json cannot be read \(.*\); remove .*"):
        KeptParts.there(tmp_path)
    with pytest.raises(RecipeError, match="holds parts of other items or of another run; remove it"):
        KeptParts(tmp_path, "plan", 2)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"\x93NUMPY"])
def test_a_kept_part_that_cannot_be_read_is_told(tmp_path, content):
    kept = KeptParts(tmp_path, "plan", 1)
    (tmp_path / "part-00000.npz").write_bytes(content)
    with pytest.raises(RecipeError, match=r"part-00000.npz cannot be read; remove it, and the same command"):
        kept.read()
