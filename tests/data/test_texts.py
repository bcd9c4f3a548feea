"""Texts of tables and folders, and sentences for those that cannot be."""

import numpy as np
import pandas as pd
import pytest

from spaceform.data.dataset import DataError
from spaceform.data.formats.texts import has_texts, load_texts, require_texts


def test_a_table(tmp_path):
    frame = pd.DataFrame({"said": ["a", "b", "c"], "y": [2, 1, 2], "split": ["Training", "dev", "test"]})
    frame.assign(groups=["x", "y", "x"]).to_parquet(tmp_path / "t.parquet")
    found = load_texts(tmp_path / "t.parquet", "said")
    assert found.texts == ("a", "b", "c")
    assert found.items == ("row 0", "row 1", "row 2")
    assert found.classes == ("1", "2")
    assert found.labels is not None
    assert found.labels.tolist() == [1, 0, 1]
    assert found.split is not None
    assert found.split == ("train", "val", "test")
    assert found.groups is not None
    assert found.groups.tolist() == [0, 1, 0]
    frame[["said"]].to_csv(tmp_path / "bare.csv", index=False)
    assert load_texts(tmp_path / "bare.csv", "said").labels is None


def test_a_folder_with_a_split(tmp_path):
    for part, label in (("train", "spam"), ("train", "ham"), ("test", "ham")):
        place = tmp_path / part / label / "deeper"
        place.mkdir(parents=True)
        (place / "1.txt").write_text(f" {part} {label}\n", "utf-8")
    assert has_texts(tmp_path)
    found = load_texts(tmp_path)
    assert found.texts == ("test ham", "train ham", "train spam")
    assert found.classes == ("ham", "spam")
    assert found.labels is not None
    assert found.labels.tolist() == [0, 0, 1]
    assert found.split is not None
    assert found.split == ("test", "train", "train")


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("said", r"split in .*t\.csv has the value 'later'; give 'train', 'val' or 'test'"),
        ("sayd", r"has no column 'sayd' \(its columns: 'said', 'y', 'split'\); name one of them by --text"),
        (None, r"say which column of .*t\.csv holds the texts: --text COLUMN"),
    ],
)
def test_a_wrong_table(tmp_path, column, said):
    frame = pd.DataFrame({"said": ["a", "b"], "y": [1, 2], "split": ["train", "later"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=said):
        load_texts(tmp_path / "t.csv", column)


def test_labels_are_whole_and_texts_are_not_empty(tmp_path):
    frame = pd.DataFrame({"said": ["a", " ", None], "y": ["x", "y", None]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"column 'y' of .*t\.csv has 1 empty cell; fill them"):
        load_texts(tmp_path / "t.csv", "said")
    frame.assign(y=["x", "y", "x"]).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(
        DataError, match=r"t has 2 empty texts, the first is row 1 \(counted from 0\); fill or remove them"
    ):
        require_texts(load_texts(tmp_path / "t.csv", "said"))


def test_other_places(tmp_path):
    with pytest.raises(DataError, match=r"there is no file or folder 'nowhere\.csv'"):
        load_texts("nowhere.csv", "said")
    np.savez(tmp_path / "x.npz", X=np.zeros(3))
    with pytest.raises(DataError, match=r"x\.npz is no table; give texts in a \.parquet or \.csv file"):
        load_texts(tmp_path / "x.npz", "said")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"has no \.txt files in sub-folders"):
        load_texts(tmp_path / "empty")
    with pytest.raises(DataError, match=r"is a folder and has no column 'said'; leave out --text"):
        load_texts(tmp_path / "empty", "said")
    (tmp_path / "latin" / "a").mkdir(parents=True)
    (tmp_path / "latin" / "a" / "1.txt").write_bytes("né".encode("latin-1"))
    with pytest.raises(DataError, match=r"1\.txt is not written in UTF-8; save it so"):
        load_texts(tmp_path / "latin")
