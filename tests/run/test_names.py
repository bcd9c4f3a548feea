"""Names that are no valid UTF-8, from the folder of images to the table of predictions."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from spaceform.data import DataError, Dataset, load
from spaceform.data.formats.texts import load_texts
from spaceform.run.evaluate import evaluate
from spaceform.run.extraction import names_of
from spaceform.run.finished import Run
from spaceform.run.predict import predict
from spaceform.run.recipe import load_recipe
from spaceform.run.train import train

pytestmark = pytest.mark.slow

LATIN = b"caf\xe9"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A class in Latin-1, with a photo in Latin-1."""
    for c, name in enumerate((LATIN, b"dog")):
        inside = os.path.join(os.fsencode(tmp_path), b"pets", name)
        try:
            os.makedirs(inside)
        except OSError:
            pytest.skip("this file system takes valid UTF-8 only; run on ext4 or another that takes any name")
        for i in range(10):
            pixels = np.random.default_rng(i).integers(100 * c, 100 * c + 99, (8, 8, 3), dtype=np.uint8)
            with open(os.path.join(inside, LATIN + b"%d.png" % i), "wb") as file:
                Image.fromarray(pixels).save(file, format="PNG")
    return tmp_path / "pets"


def test_a_run_is_trained_read_and_predicts(folder: Path, tmp_path: Path) -> None:
    assert load(folder).classes == ("caf\ufffd", "dog")
    short = (f"data.name={folder}", "budget.epochs=1", "budget.episodes=2", "net.hidden=4")
    train(load_recipe("digits/cosine", short), tmp_path / "run", accelerator="cpu")
    evaluate(tmp_path / "run")
    run = Run.load(tmp_path / "run")
    assert run.classes == ("caf\ufffd", "dog")
    predict(run, [folder]).table().to_csv(tmp_path / "found.csv", index=False)
    assert r"caf\xe9/caf\xe90.png" in (tmp_path / "found.csv").read_text("utf-8")


def test_two_names_never_become_one() -> None:
    broken = [b"caf\xe9".decode("utf-8", "surrogateescape"), b"caf\xe8".decode("utf-8", "surrogateescape")]
    found = Dataset("d", (*broken, "é"), torch.tensor([0, 1]), torch.zeros(2, 3))
    assert found.classes == (r"caf\xe9", r"caf\xe8", "é")


def test_features_and_texts_have_names_that_can_be_written(folder: Path, tmp_path: Path) -> None:
    names = names_of(load(folder))
    assert all(name.encode("utf-8") for name in names)
    inside = os.path.join(os.fsencode(tmp_path), b"texts", LATIN)
    os.makedirs(inside)
    with open(os.path.join(inside, LATIN + b".txt"), "w") as file:
        file.write("a text")
    found = load_texts(tmp_path / "texts")
    assert (found.classes, found.items) == ((r"caf\xe9",), (r"caf\xe9/caf\xe9.txt",))


def test_data_in_such_a_folder_are_refused(folder: Path) -> None:
    where = folder.rename(os.fsdecode(os.path.join(os.fsencode(folder.parent), LATIN)))
    with pytest.raises(DataError, match=r"caf\\xe9 is no valid UTF-8, .*; rename it"):
        load(where)
