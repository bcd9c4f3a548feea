"""A finished run at work: tables, embeddings, and graphs that other programs run."""

import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

from spaceform.cli import app as cli
from spaceform.run.export import export, graph
from spaceform.run.finished import Run
from spaceform.run.predict import predict
from spaceform.run.recipe import RecipeError, replace
from spaceform.run.suspects import suspects
from spaceform.run.train import train
from spaceform.study.plan import Conditions, recipes

pytestmark = pytest.mark.slow

SHORT_FEATURES = {"optim.epochs": 1}
SHORT_PIXELS = {"budget.epochs": 1, "budget.episodes": 2}


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return (load_digits().images * (255 / 16)).round().astype(np.uint8)[:200, None]


def test_pixels_of_any_type_are_the_same_pixels_and_others_are_refused(runs, images) -> None:
    run = Run.load(runs["cosine"])
    wanted = run.predict_proba(images)
    for same in (images.astype(np.int64), images / 255, (images / 255).astype(np.float32)):
        np.testing.assert_allclose(run.predict_proba(same), wanted)
    for wrong, said in (
        (images.astype(np.float32), "must lie in 0 to 1, got values from 0 to 255; divide by the largest"),
        (-(images / 255), "must lie in 0 to 1, got values from -1 to"),
        (images.astype(np.int64) * 2, "must lie in 0 to 255, got values from 0 to 510"),
        (np.full_like(images, np.nan, dtype=float), "must not hold NaN; remove such images"),
    ):
        with pytest.raises(ValueError, match=said):
            run.predict_proba(wrong)


def test_a_study_in_the_place_of_a_run_is_told(runs, tmp_path: Path) -> None:
    inside = tmp_path / "runs" / "cosine-seed0"
    inside.parent.mkdir()
    inside.symlink_to(runs["cosine"])
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(RecipeError, match=r"is a study of many runs; give one of .*runs/cosine-seed0"):
        Run.load(tmp_path)


@pytest.mark.parametrize("head", ["vmf", "cosine"])
def test_probabilities_are_those_of_the_run(runs, images, head: str, tmp_path: Path) -> None:
    run = Run.load(runs[head])
    np.savez(tmp_path / "images.npz", X=images)
    found = predict(run, [tmp_path / "images.npz"])
    own = [run.predict_proba(images, seed=s) for s in range(40)]
    torch.testing.assert_close(run.predict_proba(images), found.probabilities)
    turned = run.predict_proba(images[::-1].copy(), batch_size=7).flip(0)
    torch.testing.assert_close(turned, found.probabilities)
    # The head is hardly trained, its draws are wide: 10 of them are off by 0.04 on average.
    assert (found.probabilities - torch.stack(own).mean(0)).abs().mean() < (0.02 if head == "vmf" else 1e-6)
    table = found.table(top=3, reject=0.5)
    assert list(table) == [
        *("item", "class", "probability", "confidence", "reject"),
        *("class_2", "probability_2", "class_3", "probability_3"),
    ]
    assert table["reject"].tolist() == (found.probabilities.amax(1) < 0.5).tolist()
    assert table["class"].tolist() == [run.classes[i] for i in found.probabilities.argmax(1)]


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("head", "calibrator"),
    [
        ("vmf", "norm_aware_temperature"),
        ("cosine", None),
        ("arcface", "isotonic"),
    ],
)
def test_onnxruntime_agrees_on_real_images(runs, images, head: str, calibrator, tmp_path: Path) -> None:
    """With calibrators that see the norm, that see classes, or none; `test_prediction.py` has every head with
    the usual one, `test_modules.py` every calibrator.
    """
    onnxruntime = pytest.importorskip("onnxruntime", reason="pip install 'spaceform[export]'")
    run = Run.load(runs[head])
    path = export(run, tmp_path / "model.onnx", calibrator=calibrator)
    session = onnxruntime.InferenceSession(str(path))
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list(run.classes)
    x = images.astype(np.float32) / 255
    with torch.inference_mode():
        expected = [out.numpy() for out in graph(run, calibrator=calibrator)(torch.from_numpy(x))]
    for part in (slice(0, 1), slice(None)):
        found = session.run(["probabilities", "confidence", "embedding"], {"inputs": x[part]})
        for ours, theirs in zip(expected, found, strict=True):
            np.testing.assert_allclose(theirs, ours[part], rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(expected[2], run.embed(images).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.compiled
@pytest.mark.parametrize("head", ["vmf", "hyperbolic", "subcentre_arcface"])
def test_a_program_of_torch_export_agrees(runs, images, head: str, tmp_path: Path) -> None:
    run = Run.load(runs[head])
    path = export(run, tmp_path / "model.pt2")
    extra = {"classes.json": ""}
    program = torch.export.load(path, extra_files=extra).module()
    assert json.loads(extra["classes.json"]) == list(run.classes)
    x = torch.from_numpy(images).float() / 255
    for batch in (x[:1], x[:7], x):
        for ours, theirs in zip(graph(run)(batch), program(batch), strict=True):
            torch.testing.assert_close(ours, theirs)


def spaceform(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "spaceform", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_commands_write_what_they_say(runs, images, tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", X=images[:20])
    done = spaceform(
        "predict", runs["vmf"], tmp_path / "images.npz", "--reject", "0.9", "-o", tmp_path / "out.csv"
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert len(lines) == 21
    assert lines[0] == "item,class,probability,confidence,reject"
    done = spaceform("embed", runs["vmf"], tmp_path / "images.npz", "-o", tmp_path / "z.npz")
    assert "20 embeddings of dimension 32, to be compared by Sphere" in done.stdout
    with np.load(tmp_path / "z.npz") as found:
        assert found["embedding"].shape == (20, 32)
        assert found["confidence"].shape == (20,)


def test_suspect_labels_are_listed(runs, call, tmp_path: Path) -> None:
    run = runs["subcentre_arcface"]
    code, said, _ = call("suspects", run, "-o", tmp_path / "list.csv", "--angle", 60)
    found = suspects(run, angle=60.0)
    other = int((found["class"] != found["label"]).sum())
    assert (code, len(found) > other > 0) == (0, True)
    assert (
        f"list.csv: {len(found):,} suspect labels; the run names another class for {other:,} of them" in said
    )
    written = pd.read_csv(tmp_path / "list.csv", dtype={"item": str, "label": str, "class": str})
    pd.testing.assert_frame_equal(written, found, check_dtype=False, rtol=1e-4)
    code, _, said = call("suspects", run, "-o", tmp_path / "list.txt")
    assert (code, "the output must end in .csv or .parquet" in said) == (2, True)
    code, _, said = call("suspects", runs["cosine"], "-o", tmp_path / "list.csv")
    assert (code, "suspect labels need the centres of 'subcentre_arcface'" in said) == (2, True)


def test_images_in_folders_are_found_and_measured(runs, images, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for i, image in enumerate(images[:5, 0]):
        Image.fromarray(image).save(tmp_path / "deep" / f"{i}.png")
    run = Run.load(runs["cosine"])
    np.savez(tmp_path / "images.npz", X=images[:5])
    found, same = predict(run, [tmp_path]), predict(run, [tmp_path / "images.npz"])
    assert [Path(item).name for item in found.items] == [f"{i}.png" for i in range(5)]
    torch.testing.assert_close(found.probabilities, same.probabilities)
    Image.new("L", (9, 8)).save(tmp_path / "wide.png")
    with pytest.raises(ValueError, match="has 9x8 pixels, but this run takes 8x8"):
        predict(run, [tmp_path / "wide.png"])
    with pytest.raises(FileNotFoundError):
        predict(run, [tmp_path / "none.png"])


def array_bytes(array: np.ndarray) -> bytes:
    """What `np.save` writes."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def bad_inputs(folder: Path, images: np.ndarray) -> dict[str, str]:
    """Files that cannot be predicted, and a part of what is said of them."""
    np.savez(folder / "whole.npz", X=images)
    whole = (folder / "whole.npz").read_bytes()
    (folder / "truncated.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "damaged.npz").write_bytes(whole[:300] + bytes(4000) + whole[4300:])
    (folder / "empty.npz").write_bytes(b"")
    nan = images.astype(np.float32)
    nan[3] = np.nan
    np.savez(folder / "nan.npz", X=nan)
    np.savez(folder / "width.npz", X=np.zeros((5, 7), np.float32))
    np.savez(folder / "nothing.npz", X=images[:0])
    np.savez(folder / "words.npz", X=np.array([["a", "b"]]))
    np.savez(folder / "objects.npz", X=np.array([[{}]], dtype=object))
    np.savez(folder / "unnamed.npz", images)
    np.savez(folder / "last.npz", X=np.moveaxis(images, 1, -1))
    np.savez(folder / "flat.npz", X=images[:, 0])
    os.mkfifo(folder / "pipe.npz")
    with zipfile.ZipFile(folder / "lacking.npz", "w") as archive:
        archive.writestr("X.npy", array_bytes(images)[:-8])
    (folder / "cut.parquet").write_bytes(b"PAR1 nothing")
    (folder / "empty folder").mkdir()
    Image.new("L", (8, 8)).save(folder / "whole.jpg")
    (folder / "half.jpg").write_bytes((folder / "whole.jpg").read_bytes()[:200])
    (folder / "text.png").write_text("not a picture")
    return {
        "truncated.npz": "copy it again, or write it by np.savez",
        "damaged.npz": "cannot be read as arrays",
        "empty.npz": "cannot be read as arrays",
        "nan.npz": "NaN or infinite values in 1 of 200 rows, the first is row 3 (counted from 0)",
        "width.npz": "inputs must have shape (items, 1, 8, 8), got (5, 7); give images of 8x8 pixels with 1",
        "nothing.npz": "one at least, got shape (0, 1, 8, 8)",
        "words.npz": "must hold real numbers, got <U1; convert it",
        "objects.npz": "holds Python objects",
        "pipe.npz": "pipe.npz is a pipe, not a plain file",
        "lacking.npz": "lacking.npz is cut short; copy it again",
        "unnamed.npz": "has no array 'X' (it has arr_0)",
        "last.npz": "got (200, 8, 8, 1); put channels first",
        "flat.npz": "got (200, 8, 8); add the axis of channels",
        "cut.parquet": "copy or write it again",
        "empty folder": "there is no image in",
        "half.jpg": "half.jpg",
        "text.png": "text.png",
        "nowhere.npz": "there is no such file or folder",
    }


def test_bad_input_is_one_sentence(runs, images, tmp_path: Path, monkeypatch, capsys) -> None:
    def said(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["spaceform", *map(str, arguments)])
        monkeypatch.setattr("warnings.showwarning", None)  # main sets its own
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == 2
        told = capsys.readouterr().err
        assert told.startswith("error: ")
        assert told.count("\n") == 1
        return told

    out = tmp_path / "out.csv"
    for name, part in bad_inputs(tmp_path, images).items():
        assert part in said("predict", runs["cosine"], tmp_path / name, "-o", out), name
    assert not out.exists()
    whole = tmp_path / "whole.npz"
    assert "there is no run" in said("predict", tmp_path / "none", whole, "-o", out)
    assert "/proc/none" in said("predict", runs["cosine"], whole, "-o", "/proc/none/out.csv")
    assert "/proc/none" in said("embed", runs["cosine"], whole, "-o", "/proc/none/out.npz")
    assert "/proc/none" in said("export", runs["cosine"], "/proc/none/model.onnx")
    assert "must end in .csv or .parquet" in said(
        "predict", runs["cosine"], whole, "-o", tmp_path / "out.txt"
    )
    assert "reject must be a probability between 0 and 1, got 2; such as 0.9" in said(
        "predict", runs["cosine"], whole, "--reject", 2, "-o", out
    )
    for share in (0, 1):
        for option in ("--coverage", "--unknown"):
            assert "must lie between 0 and 1, both excluded" in said(
                "predict", runs["cosine"], whole, option, share, "-o", out
            )
    assert "must end in .onnx or .pt2" in said("export", runs["vmf"], tmp_path / "model.bin")
    assert "unknown calibrator" in said("export", runs["vmf"], tmp_path / "m.pt2", "--calibrator", "isotonik")
    with pytest.raises(ValueError, match="unknown calibrator"):
        graph(Run.load(runs["vmf"]), calibrator="temprature")


def test_a_damaged_run_is_one_sentence(runs, images, tmp_path: Path) -> None:
    np.savez(tmp_path / "images.npz", X=images[:5])
    for name in ("model.safetensors", "recipe.json", "result.json", "calibrators.json"):
        copy = tmp_path / name.partition(".")[0]
        shutil.copytree(runs["cosine"], copy)
        (copy / name).write_bytes((copy / name).read_bytes()[:20])
        with pytest.raises((ValueError, OSError), match=name) as told:
            predict(Run.load(copy), [tmp_path / "images.npz"])
        if name == "model.safetensors":
            assert str(told.value).endswith(f"; copy the run again, or remove {copy} and train it again")


def test_a_run_of_features_predicts_a_parquet_without_labels_and_refuses_nan(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    y = np.arange(60) % 2
    np.savez(tmp_path / "f.npz", X=X + 3 * y[:, None], y=y)
    recipe = recipes(str(tmp_path / "f.npz"), ["cosine"], Conditions(settings=SHORT_FEATURES))["cosine"]
    run = train(recipe, tmp_path / "run", accelerator="cpu")
    pd.DataFrame(X[:1], columns=list("abcd")).to_parquet(tmp_path / "one.parquet")
    found = predict(run, [tmp_path / "one.parquet"], calibrator=None)
    torch.testing.assert_close(found.embedding, run.embed(X[:1]))
    X[7, 2] = np.nan
    with pytest.raises(
        ValueError,
        match=r"inputs must be finite, but row 7 \(counted from 0\) has NaN .*; remove or fill such rows",
    ):
        run.predict_proba(X, calibrator=None)
    with pytest.raises(ValueError, match="give a single item as x"):
        run.predict_proba(X[0], calibrator=None)
    with pytest.raises(ValueError, match="inputs are empty"):
        run.predict_proba(X[:0], calibrator=None)


def test_columns_of_a_parquet_are_taken_by_name(tmp_path: Path) -> None:
    y = np.arange(60) % 2
    X = np.random.default_rng(0).normal(size=(60, 3)) + np.outer(y, [9, 0, 0])
    frame = pd.DataFrame(X, columns=["width", "height", "age"])
    frame.assign(y=y).to_parquet(tmp_path / "f.parquet")
    recipe = recipes(str(tmp_path / "f.parquet"), ["cosine"], Conditions(settings=SHORT_FEATURES))["cosine"]
    train(recipe, tmp_path / "run", accelerator="cpu")
    run = Run.load(tmp_path / "run")
    assert [column.name for column in run.columns] == ["width", "height", "age"]
    wanted = run.embed(X.astype(np.float32))

    def embedding(name: str, table: pd.DataFrame) -> torch.Tensor:
        table.to_parquet(tmp_path / name)
        return predict(run, [tmp_path / name], calibrator=None).embedding

    turned = frame[["age", "width", "height"]]
    torch.testing.assert_close(embedding("turned.parquet", turned), wanted)
    more = turned.assign(weight=1.0, y="unknown", name="x")
    torch.testing.assert_close(embedding("more.parquet", more[more.columns[::-1]]), wanted)
    lists = pd.DataFrame({"X": list(X)})
    torch.testing.assert_close(embedding("lists.parquet", lists), wanted)
    np.savez(tmp_path / "rows.npz", X=X)
    torch.testing.assert_close(predict(run, [tmp_path / "rows.npz"], calibrator=None).embedding, wanted)
    for wrong in (more.drop(columns="height"), more.assign(height="tall")):
        with pytest.raises(ValueError, match=r"no column 'height' of numbers, one of the 3 .*; add it"):
            embedding("wrong.parquet", wrong)


def test_a_single_path_is_a_photo(tmp_path: Path) -> None:
    for name, colour in (("day", "white"), ("night", "black")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(6):
            Image.new("RGB", (70, 66 + i), colour).save(tmp_path / "photos" / name / f"{i}.png")
    photo = tmp_path / "photos" / "day" / "0.png"
    recipe = recipes(str(tmp_path / "photos"), ["cosine"], Conditions(settings=SHORT_PIXELS))["cosine"]
    whole = {"net.name": "test_resnet", "data.thumbnail": None}
    for changes in ({}, whole):
        run = train(replace(recipe, changes), tmp_path / f"run{len(changes)}", accelerator="cpu")
        for one in (photo, str(photo)):
            one_row, same = (run.predict_proba(x, calibrator=None) for x in (one, [photo]))
            torch.testing.assert_close(one_row, same)
        with pytest.raises(ValueError, match=r"nowhere\.png does not exist"):
            run.predict_proba(str(tmp_path / "nowhere.png"), calibrator=None)
