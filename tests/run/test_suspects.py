"""Labels of a run's own data to look at again: wrong ones are found, by their names and parts."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from short_runs import tiny
from spaceform import data
from spaceform.run.evaluate import evaluate
from spaceform.run.finished import Run
from spaceform.run.recipe import RecipeError, replace
from spaceform.run.suspects import suspects
from spaceform.run.train import train

pytestmark = pytest.mark.slow

LONGER = {"budget__epochs": 8, "budget__episodes": 20, "budget__instances": 13, "net__hidden": 64}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """On digits, with a fifth of the training labels wrong."""
    folder = tmp_path_factory.mktemp("runs") / "subcentre"
    train(tiny("subcentre_arcface", data__label_noise=0.2, net__dim=16, **LONGER), folder)
    return Run.load(folder)


def test_wrong_labels_are_among_the_suspects(run):
    found = suspects(run)
    assert list(found) == ["item", "part", "label", "angle", "class", "probability"]
    rows = found["item"].astype(int).to_numpy()
    assert len(set(rows)) == len(rows) > 0
    truth = data.load("digits").labels.numpy()
    given = run.material().dataset.labels.numpy()
    assert found["label"].tolist() == [run.classes[label] for label in given[rows]]
    wrong = given != truth
    share = 0.2 * len(run.material().split.train) / len(truth)
    assert wrong.mean() == pytest.approx(share, abs=0.03)
    assert wrong[rows].mean() > 4 * share
    assert wrong[rows].sum() > wrong.sum() / 3
    assert (found["angle"].to_numpy() > 75).all()
    assert (found["angle"].diff()[1:] <= 1e-3).all()


def test_angles_and_parts_are_those_of_the_head_and_the_split(run):
    parts, head = run.material(), run.model.head
    z, y = run.embed(data.load("digits").inputs), parts.targets
    train_rows = parts.split.train
    centres = head.dominant_centres(z[train_rows], y[train_rows])
    nearest = torch.nn.functional.cosine_similarity(z[:, None], head.weight[:, y].transpose(0, 1), dim=-1)
    counts = torch.zeros(len(run.classes), head.centres)
    for row in train_rows.tolist():
        counts[y[row], nearest[row].argmax()] += 1
    assert centres.tolist() == counts.argmax(1).tolist()
    angle = torch.arccos(nearest[torch.arange(len(y)), centres[y]]).rad2deg()
    found = suspects(run, angle=60.0)
    rows = torch.tensor(found["item"].astype(int).tolist())
    assert sorted(rows.tolist()) == (angle > 60).nonzero()[:, 0].tolist()
    np.testing.assert_allclose(found["angle"], angle[rows].detach(), atol=1e-3)
    members = {"train": set(parts.split.train.tolist()), "val": set(parts.split.val.tolist())}
    members["test"] = set(parts.split.test.tolist())
    assert set(found["part"]) == set(members)
    assert all(row in members[part] for row, part in zip(rows.tolist(), found["part"], strict=True))
    assert len(suspects(run, angle=180.0)) == 0


def test_the_class_and_its_probability_are_those_of_predict(run):
    found = suspects(run)
    rows = torch.tensor(found["item"].astype(int).tolist())
    p = run.predict_proba(data.load("digits").inputs[rows], calibrator=None).numpy()
    assert found["class"].tolist() == [run.classes[i] for i in p.argmax(1)]
    np.testing.assert_allclose(found["probability"], p.max(1), rtol=1e-5)
    evaluate(run)
    p = run.predict_proba(data.load("digits").inputs[rows]).numpy()
    np.testing.assert_allclose(suspects(run)["probability"], p.max(1), rtol=1e-5)


def test_images_are_called_by_their_files(tmp_path: Path):
    g = np.random.default_rng(0)
    for i in range(60):
        folder = tmp_path / "shades" / ("dark", "light")[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        shade = g.integers(0, 40, (8, 8)) + (0, 200)[(i % 2) ^ (i == 8)]  # the fifth dark one is light
        Image.fromarray(shade.astype(np.uint8)).save(folder / f"{i:02}.png")
    changes = {"data.name": str(tmp_path / "shades"), "budget.classes": 2, "budget.instances": 8}
    train(replace(tiny("subcentre_arcface", net__dim=8, budget__episodes=40), changes), tmp_path / "run")
    found = suspects(tmp_path / "run", angle=60.0)
    assert found["item"].iloc[0] == str(tmp_path / "shades" / "dark" / "08.png")
    assert found["label"].iloc[0] == "dark"
    assert found["class"].iloc[0] == "light"


def test_features_of_files_are_called_by_these(tmp_path: Path):
    X, y = np.random.default_rng(0).normal(size=(60, 8)), np.arange(60) % 2
    names = np.array([f"photo {i}.jpg" for i in range(60)])
    for path, files in (("named", names), ("objects", names.astype(object)), ("short", names[1:])):
        np.savez(tmp_path / f"{path}.npz", X=X, y=y, files=files)
    assert data.load(tmp_path / "named.npz").item(7) == "photo 7.jpg"
    assert [data.load(tmp_path / f"{path}.npz").item(7) for path in ("objects", "short")] == ["7", "7"]
    recipe = tiny("subcentre_arcface", data__name=str(tmp_path / "named.npz"), budget__classes=2)
    train(recipe, tmp_path / "run")
    found = suspects(tmp_path / "run", angle=0.0)
    assert sorted(found["item"]) == sorted(names)
    assert [int(name.split()[1][:-4]) % 2 for name in found["item"]] == found["label"].astype(int).tolist()


def test_what_cannot_be_listed_is_one_sentence(run, tmp_path: Path):
    for angle in (-1.0, 181.0, math.nan):
        with pytest.raises(ValueError, match="angle must lie in 0 to 180, in degrees, got"):
            suspects(run, angle=angle)
    train(tiny("arcface"), tmp_path / "arcface")
    with pytest.raises(RecipeError, match="has the head 'arcface', and suspect labels need the centres"):
        suspects(tmp_path / "arcface")
    digits = data.load("digits")
    other = data.Dataset("digits", digits.classes, digits.labels, digits.inputs.flip(0))
    with pytest.raises(RecipeError, match=r"is not what the run in .* was trained on"):
        suspects(run, dataset=other)
