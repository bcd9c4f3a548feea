"""Data that change under a run or a study are noticed before anything is measured, averaged or written."""

import json
import shutil
import sys
from dataclasses import replace as with_fields
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch import Tensor

from short_runs import tiny
from spaceform import data
from spaceform.cli import app as cli
from spaceform.cli import verbosity
from spaceform.data import Dataset, Split
from spaceform.run.evaluate import evaluate
from spaceform.run.material import material
from spaceform.run.recipe import Recipe, RecipeError, replace
from spaceform.run.train import train
from spaceform.study.folder import Job, StudyFolder
from spaceform.study.place import perform
from spaceform.study.plan import Conditions, recipes

pytestmark = pytest.mark.slow

SHORT = {"optim.epochs": 1}
SHORT_PIXELS = {"budget.epochs": 1, "budget.episodes": 2}


def blobs(items: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    y = np.arange(items) % 2
    x = np.random.default_rng(seed).normal(size=(items, 4)) + 3 * y[:, None]
    return x.astype(np.float32), y


def recipe_for(path: Path) -> Recipe:
    settings = SHORT_PIXELS if path.is_dir() else SHORT
    return recipes(str(path), ["cosine"], Conditions(settings=settings))["cosine"]


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# What counts


def changes(dataset: Dataset) -> dict[str, Dataset]:
    """One thing changed in each."""
    inputs, labels = dataset.inputs.clone(), dataset.labels.clone()
    inputs[-1, -1] += 1
    labels[-1] = 0
    items = torch.arange(len(dataset))
    return {
        "inputs": with_fields(dataset, inputs=inputs),
        "type": with_fields(dataset, inputs=dataset.inputs.double()),
        "labels": with_fields(dataset, labels=labels),
        "classes": with_fields(dataset, classes=(*dataset.classes[:-1], "other")),
        "groups": with_fields(dataset, groups=items),
        "official": with_fields(dataset, official=Split(items[:9], test=items[9:])),
    }


def test_everything_counts_but_the_place(tmp_path):
    x, y = blobs()
    dataset = Dataset("here", ("a", "b"), torch.from_numpy(y), torch.from_numpy(x))
    contents = {name: changed.content for name, changed in changes(dataset).items()}
    assert len({dataset.content, *contents.values()}) == 1 + len(contents), contents
    elsewhere = with_fields(dataset, name="there", source=(tmp_path,), inputs=dataset.inputs.T.contiguous().T)
    assert elsewhere.content == dataset.content


def photos(folder: Path) -> Path:
    for name in ("cat", "dog", "eel"):
        (folder / name).mkdir(parents=True)
        for i in range(8):
            Image.effect_noise((90, 70), 10 * i + 5).convert("RGB").save(folder / name / f"{i}.jpg")
    return folder


def test_photos_count_by_names_and_sizes_wherever_they_lie(tmp_path):
    folder = photos(tmp_path / "photos")
    dataset, copy = data.load(folder), shutil.copytree(folder, tmp_path / "far" / "copy")
    assert not isinstance(dataset.inputs, Tensor)
    assert data.load(copy).content == dataset.content
    assert data.thumbnails(dataset, 16).content == dataset.content
    (copy / "cat" / "7.jpg").rename(copy / "cat" / "9.jpg")
    assert data.load(copy).content != dataset.content
    (copy / "cat" / "9.jpg").rename(copy / "cat" / "7.jpg")
    assert data.load(copy).content == dataset.content
    with (copy / "eel" / "3.jpg").open("ab") as file:
        file.write(b"\0")
    assert data.load(copy).content != dataset.content
    assert data.thumbnails(data.load(copy), 16).content != dataset.content


# A run


def test_a_file_with_more_rows_is_not_evaluated(tmp_path, monkeypatch, capsys):
    x, y = blobs()
    np.savez(tmp_path / "f.npz", X=x, y=y)
    run = train(recipe_for(tmp_path / "f.npz"), tmp_path / "run", accelerator="cpu")
    evaluate(run)
    before = written(run.path)
    (tmp_path / "f.npz").rename(tmp_path / "kept.npz")
    more_x, more_y = blobs(62)
    np.savez(tmp_path / "f.npz", X=more_x, y=more_y)

    monkeypatch.setattr(sys, "argv", ["spaceform", "evaluate", str(run.path)])
    monkeypatch.setattr("warnings.showwarning", None)  # main sets its own
    with pytest.raises(SystemExit) as left:
        cli.main()
    verbosity.set_level("normal")
    assert left.value.code == 2
    assert capsys.readouterr().err == (
        f"error: the data {str(tmp_path / 'f.npz')!r} is not what the run in {run.path} was trained on: "
        "bring it back, or train again in another folder\n"
    )
    assert written(run.path) == before
    assert run.predict_proba(more_x).shape == (62, 2)
    elsewhere = evaluate(run.path, dataset=data.load(tmp_path / "kept.npz"))
    assert elsewhere == {**json.loads(before["metrics.json"]), "data": "kept"}


@pytest.mark.parametrize("what", ["inputs", "labels"])
def test_neither_other_inputs_nor_other_labels_are_evaluated_for_retrieval(what, tmp_path):
    """Classes that only test have no targets; their labels count all the same."""
    recipe, digits = tiny(data__task="retrieval"), data.load("digits")
    run = train(recipe, tmp_path / "run", dataset=digits)
    tests = material(recipe, digits).split.test
    inputs, labels = digits.inputs.clone(), digits.labels.clone()
    if what == "inputs":
        inputs[tests[0]] += 1
    else:
        labels[tests[0]] = 5 if labels[tests[0]] > 5 else 6
    with pytest.raises(
        RecipeError, match=r"'digits' is not what the run in .* was trained on: bring it back"
    ):
        evaluate(run, dataset=with_fields(digits, inputs=inputs, labels=labels))
    assert not (tmp_path / "run" / "metrics.json").exists()


def test_photos_that_were_shrunk_are_compared_as_files(tmp_path):
    folder = photos(tmp_path / "photos")
    run = train(recipe_for(folder), tmp_path / "run", accelerator="cpu")
    assert run.recipe.data.thumbnail is not None
    shutil.copytree(folder, tmp_path / "copy")
    evaluate(run, dataset=data.load(tmp_path / "copy"))
    (folder / "dog" / "2.jpg").write_bytes((folder / "dog" / "3.jpg").read_bytes())
    with pytest.raises(RecipeError, match="is not what the run"):
        evaluate(run)


class Stop(Exception):
    """Raised by a listener to end training early."""


def stop_at_once(progress) -> None:
    if progress.done:
        raise Stop


def test_a_run_does_not_go_on_with_other_inputs(tmp_path):
    digits = data.load("digits")
    with pytest.raises(Stop):
        train(tiny(), tmp_path / "run", listener=stop_at_once, dataset=digits)
    inverted = with_fields(digits, inputs=255 - digits.inputs)
    with pytest.raises(
        RecipeError, match=r"'digits' is not what it was when the run .* began: bring it back"
    ):
        train(tiny(), tmp_path / "run", dataset=inverted)
    train(tiny(), tmp_path / "run", dataset=digits)


# A study


def finished(study: StudyFolder) -> None:
    loaded: dict[object, object] = {}
    for job in study.unfinished():
        perform(job, study.path(job), lambda _: None, loaded)


def test_a_study_does_not_go_on_with_other_data(tmp_path):
    x, y = blobs()
    path, out = tmp_path / "f.parquet", tmp_path / "study"

    def save(x: np.ndarray) -> None:
        pd.DataFrame({**dict(zip("abcd", x.T, strict=True)), "y": y}).to_parquet(path)

    save(x)
    recipe = recipe_for(path)
    jobs = [Job(f"cosine-seed{seed}", "cosine", replace(recipe, seed=seed)) for seed in range(3)]
    finished(StudyFolder.plan(out, jobs[:1]))
    finished(StudyFolder.plan(out, jobs[:2]))
    plan = (out / "study.json").read_bytes()

    save(x[::-1])
    refused = f"the data '{path}' is not what cosine-seed0 in {out} was trained on: bring it back, or choose"
    for planned in (jobs, jobs[2:]):  # those that are there stand in the report, asked for or not
        with pytest.raises(RecipeError, match=refused):
            StudyFolder.plan(out, planned)
    assert (out / "study.json").read_bytes() == plan

    save(x)
    assert len(StudyFolder.plan(out, jobs).unfinished()) == 1


def test_the_digest_is_taken_once_for_all_runs_of_a_process():
    """It stays with the data set that is handed from run to run, though tasks and noise make others of it."""
    digits = data.load("digits")
    first = material(tiny(data__label_noise=0.1), digits)
    kept = vars(digits)["content"]
    assert first.content is kept
    assert material(tiny(data__task="retrieval"), digits).content is kept
