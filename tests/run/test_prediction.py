"""One prediction of a run wherever it is asked for, and the calibrators that it needs."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from short_runs import SHIPPED
from spaceform import data
from spaceform.run.evaluate import evaluate
from spaceform.run.export import export, graph
from spaceform.run.finished import Run
from spaceform.run.predict import predict
from spaceform.run.recipe import RecipeError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return data.load("digits").inputs[:200]


@pytest.mark.compiled
@pytest.mark.parametrize("head", SHIPPED)
def test_one_prediction_everywhere(runs, head: str, tmp_path: Path) -> None:
    """`evaluate`, `Run.predict_proba`, `predict`, its command's table and onnxruntime, for the same items.

    Equal to 1e-6, and for large probabilities to 2e-6 of themselves: float32 rounds an embedding otherwise in
    a batch of another size, and in another program.
    """
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'spaceform[export]'")
    run, digits = Run.load(runs[head]), data.load("digits")
    with np.load(runs[head] / "outputs.npz") as saved:
        x = digits.inputs[torch.from_numpy(saved["index"])]
        expected = {None: saved["probabilities"], "auto": saved[f"probabilities_{run.best_calibrator}"]}
        confidence, embedding = saved["confidence"], saved["embeddings"]
    np.savez(tmp_path / "x.npz", X=x.numpy())
    for calibrator, wanted in expected.items():
        found = predict(run, [tmp_path / "x.npz"], calibrator=calibrator)
        table = found.table(top=10)
        order = np.stack([table["class"], *(table[f"class_{k}"] for k in range(2, 11))], 1).astype(int)
        columns = np.stack([table["probability"], *(table[f"probability_{k}"] for k in range(2, 11))], 1)
        alone = [run.predict_proba(one, calibrator=calibrator) for one in x[:20].split(1)]
        for name, other in {
            "predict_proba": run.predict_proba(x, calibrator=calibrator),
            "small batches": run.predict_proba(x, calibrator=calibrator, batch_size=7),
            "alone": torch.cat(alone),
            "predict": found.probabilities,
            "table": np.take_along_axis(columns, order.argsort(1), 1),
        }.items():
            np.testing.assert_allclose(other, wanted[: len(other)], rtol=2e-6, atol=1e-6, err_msg=name)
    session = onnxruntime.InferenceSession(str(export(run, tmp_path / "m.onnx")))
    names = ["probabilities", "confidence", "embedding"]
    other, certain, z = session.run(names, {"inputs": x.float().numpy() / 255})
    # The logits of LORENTZ are exact to 1e-5 in single precision: their inner products cancel.
    rtol = 1e-5 if run.recipe.head.name == "lorentz" else 2e-6
    np.testing.assert_allclose(other, expected["auto"], rtol=rtol, atol=1e-6)
    np.testing.assert_allclose(certain, confidence, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(z, embedding, rtol=1e-4, atol=2e-5)
    (one,) = session.run(names[:1], {"inputs": x[:1].float().numpy() / 255})
    np.testing.assert_allclose(one, other[:1], rtol=rtol, atol=1e-6)
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list(run.classes)


def test_predicting_copies_nothing(runs, images, monkeypatch) -> None:
    run = Run.load(runs["vmf"])
    monkeypatch.setattr("copy.deepcopy", lambda *_: pytest.fail("something was copied"))
    assert run.predictor().head is run.model.head
    run.predict_proba(images[:3])


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("recipe.json", "[]", r"it must be an object, got \[\]"),
        ("result.json", "[1]", r"it must be an object, got \[1\]"),
        ("result.json", "{}", "the key 'epochs' is missing"),
        ("metrics.json", "7", "it must be an object, got 7"),
        *((f"{name}.json", "[" * 3000 + "]" * 3000, "too deep") for name in ("recipe", "result", "metrics")),
    ],
)
def test_foreign_files_are_one_sentence(runs, name: str, text: str, said: str, tmp_path: Path) -> None:
    copy = shutil.copytree(runs["cosine"], tmp_path / "run")
    (copy / name).write_text(text)
    with pytest.raises(RecipeError, match=rf"{name} cannot be read \(.*{said}"):
        _ = Run.load(copy).metrics


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("name", "standard", "recipe.json is not the recipe of this run; copy the run again"),
        ("dim", 31, "recipe.json is not the recipe of this run; copy the run again"),
        ("dim", 10**12, "recipe.json: net.dim must be less than or equal to 1048576, got 1000000000000"),
    ],
)
def test_the_recipe_of_another_run_is_refused(
    runs, key: str, value: object, said: str, tmp_path: Path
) -> None:
    copy = shutil.copytree(runs["cosine"], tmp_path / "run")
    recipe = json.loads((copy / "recipe.json").read_text())
    recipe["head" if key == "name" else "net"][key] = value
    recipe["head"] = {"name": recipe["head"]["name"]}
    (copy / "recipe.json").write_text(json.dumps(recipe))
    with pytest.raises(RecipeError, match=said):
        Run.load(copy)


def deep(levels: int = 3000) -> str:
    return "[" * levels + "]" * levels


def edited(path: Path, **changes: object) -> str:
    """The calibrators of a run with other values under dotted keys; None removes a key."""
    value = json.loads(path.read_text())
    for key, new in changes.items():
        inner, (*parents, last) = value, key.split("__")
        for parent in parents:
            inner = inner[parent]
        inner.pop(last) if new is None else inner.update({last: new})
    return json.dumps(value)


WRONG: dict[str, tuple[Callable[[Path], str], str]] = {
    "a list": (lambda _: "[]", "must be an object, got []"),
    "a number": (lambda _: "3", "must be an object, got 3"),
    "not JSON": (lambda _: "{", "cannot be read"),
    "deep": (lambda _: deep(), "cannot be read"),
    "deep inside": (lambda _: '{"chosen": "x", "calibrators": ' + deep() + "}", "cannot be read"),
    "another file of ours": (lambda p: (p.parent / "metrics.json").read_text(), "an object with the keys"),
    "unchosen": (lambda p: edited(p, chosen="none"), "the chosen calibrator 'none' is not among"),
    "none at all": (lambda p: edited(p, calibrators={}), "is not among its calibrators"),
    "chosen list": (lambda p: edited(p, chosen=[1]), "is not among its calibrators"),
    "a list of calibrators": (lambda p: edited(p, calibrators=["temperature"]), "is not among"),
    "unknown": (lambda p: edited(p, calibrators__platt={}), "unknown calibrator 'platt'"),
    "no state": (lambda p: edited(p, calibrators__vector=None, calibrators__temperature=[1]), "must have"),
    "less": (lambda p: edited(p, calibrators__vector__scale=None), "vector must have scale and offset"),
    "words": (lambda p: edited(p, calibrators__vector__scale=["a"]), "scale of vector does not hold numbers"),
    "ragged": (lambda p: edited(p, calibrators__isotonic__x=[[0.0], [0.0, 1.0]]), "does not hold numbers"),
    "too large": (lambda p: edited(p, calibrators__vector__scale=[10**400]), "does not hold numbers"),
    "negative": (lambda p: edited(p, calibrators__temperature__inverse_temperature=-1.0), "not positive"),
    "other classes": (
        lambda p: edited(p, calibrators__vector={"scale": [1.0] * 9, "offset": [0.0] * 9}),
        "logits have 10 classes, but the calibrator was fitted to 9",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calibrators_are_one_sentence_that_names_the_file(
    runs, images, case: str, tmp_path: Path
) -> None:
    write, said = WRONG[case]
    copy = tmp_path / "run"
    shutil.copytree(runs["cosine"], copy)
    (copy / "calibrators.json").write_text(write(copy / "calibrators.json"))
    with pytest.raises(RecipeError, match=re.escape(said)) as told:
        Run.load(copy).predict_proba(images)
    assert str(told.value).startswith(str(copy / "calibrators.json"))
    assert "\n" not in str(told.value)
    assert Run.load(copy).predict_proba(images, calibrator=None).shape == (200, 10)


def test_missing_calibrators_are_told(runs, images, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(runs["vmf"], copy)
    (copy / "calibrators.json").unlink()
    run = Run.load(copy)
    said = f"are uncalibrated: run `spaceform evaluate {copy}` first"
    with pytest.warns(UserWarning, match=said):
        p = run.predict_proba(images)
    torch.testing.assert_close(p, run.predict_proba(images, calibrator=None))
    for ask in (
        lambda: run.predict_proba(images, calibrator="vector"),
        lambda: graph(run, calibrator="vector"),
    ):
        with pytest.raises(RecipeError, match=f"there is no calibrator 'vector': .*{said}"):
            ask()
    evaluate(run)
    assert run.best_calibrator is not None
    torch.testing.assert_close(run.predict_proba(images), Run.load(runs["vmf"]).predict_proba(images))
    np.savez(tmp_path / "x.npz", X=images[:2])
    (copy / "calibrators.json").unlink()
    command = [
        sys.executable,
        "-m",
        "spaceform",
        "predict",
        copy,
        tmp_path / "x.npz",
        "-o",
        tmp_path / "out.csv",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, f"note: probabilities of {copy} {said}\n")


def test_the_chosen_calibrator_is_recorded_by_name(runs, images, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(runs["vmf"], copy)
    path = copy / "calibrators.json"
    saved, metrics = json.loads(path.read_text()), json.loads((copy / "metrics.json").read_text())
    assert saved["chosen"] == metrics["calibrator"] == Run.load(copy).best_calibrator
    states = dict(reversed(saved["calibrators"].items()))
    path.write_text(json.dumps({"chosen": "isotonic", "calibrators": states}))
    run = Run.load(copy)
    assert run.best_calibrator == "isotonic"
    torch.testing.assert_close(
        run.predict_proba(images), Run.load(runs["vmf"]).predict_proba(images, calibrator="isotonic")
    )


@pytest.mark.compiled
def test_a_head_that_fixes_the_batch_is_refused_in_one_sentence(runs, monkeypatch, tmp_path: Path) -> None:
    run = Run.load(runs["standard"])
    head = run.model.head
    monkeypatch.setattr(head, "_logits", lambda z: z.new_ones(len(z), 1) + z @ head.weight.T)
    with pytest.raises(ValueError, match=r"StandardHead .* Write z.shape\[0\], not len\(z\)"):
        export(run, tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("trained_on", "given", "remedy"),
    [
        ((64,), (64,), "give a single item as x[None]"),
        ((64,), (5, 63), "give the 64 features made by the same program in the same order as in training"),
        ((64,), (5, 8, 8), "give one row of features an item, by x.reshape(len(x), -1)"),
        ((3, 8, 6), (5, 8, 6, 3), "put channels first, by np.moveaxis(x, -1, 1) or x.permute(0, 3, 1, 2)"),
        ((1, 8, 8), (5, 8, 8), "add the axis of channels, by x[:, None]"),
        ((1, 8, 8), (5, 64), "give images, by x.reshape(-1, 1, 8, 8)"),
        ((3, 8, 6), (5, 3, 9, 9), "give images of 6x8 pixels with 3 channels, channels first"),
    ],
)
def test_a_wrong_shape_has_a_remedy(runs, trained_on, given, remedy, monkeypatch) -> None:
    run = Run.load(runs["cosine"])
    monkeypatch.setattr(run, "input_shape", trained_on)
    with pytest.raises(ValueError, match=f"{re.escape(f'got {given}; {remedy}')}$"):
        run.embed(np.zeros(given, np.float32))
