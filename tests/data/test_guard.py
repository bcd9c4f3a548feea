"""What is looked at before a file is opened."""

import os
import zipfile

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from spaceform.data import DataError, check, guard, load
from spaceform.data.photos import decode
from spaceform.run.predict import read_items

EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"


def test_an_eps_file_under_another_name_is_not_opened(tmp_path):
    (tmp_path / "a.png").write_bytes(EPS)
    with pytest.raises(DataError, match=r"a\.png cannot be decoded as an image \(JPEG, PNG, .* are read\)"):
        decode(tmp_path / "a.png")


@pytest.mark.timeout(20)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, write_folder):
    folder = write_folder(tmp_path / "pets", {"cat": 3, "dog": 3})
    os.mkfifo(folder / "dog" / "pipe.png")
    with pytest.raises(DataError, match=r"pipe\.png is a pipe, not a plain file; remove it"):
        decode(folder / "dog" / "pipe.png")
    assert not all(c.ok for c in check(folder))
    os.mkfifo(tmp_path / "f.npz")
    os.symlink(tmp_path / "f.npz", tmp_path / "f.csv")
    for name in ("f.npz", "f.csv"):
        with pytest.raises(DataError, match="is a pipe"):
            load(tmp_path / name)


def test_a_link_to_a_photo_is_that_photo(tmp_path, write_photo):
    os.symlink(write_photo(tmp_path / "a.jpg"), tmp_path / "b.jpg")
    assert decode(tmp_path / "b.jpg").size == decode(tmp_path / "a.jpg").size


def test_what_unpacks_to_more_than_its_share_of_memory_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, X=np.eye(2000, 500, dtype=np.float32), y=np.arange(2000) % 2)
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(guard, "memory", lambda: 7_000_000)
    with pytest.raises(DataError, match=r"bomb\.npz unpacks to 0\.0 GiB, and at most 0\.0 GiB \(50% of"):
        load(path)
    with pytest.raises(
        DataError, match=r"keep them in a folder, as Arrow files or as X-0\.npy, y-0\.npy, \.\.\. \("
    ):
        load(path)
    table = tmp_path / "bomb.parquet"
    pd.DataFrame({"y": np.arange(500_000) % 2, "a": np.arange(500_000) // 250_000}).to_parquet(table)
    assert table.stat().st_size < 100_000
    with pytest.raises(DataError, match=r"bomb\.parquet unpacks to"):
        load(table)
    with pytest.raises(DataError, match=r"bomb\.npz unpacks to .*; predict fewer rows at a time"):
        read_items([path])
    lines = tmp_path / "long.csv"
    lines.write_text("a,y\n" + "1.0000000000,0\n" * 300_000)
    with pytest.raises(DataError, match=r"long\.csv unpacks to"):
        load(lines)
    monkeypatch.setattr(guard, "memory", lambda: 100_000_000)
    assert len(load(path)) == 2000
    assert read_items([path])[1].shape == (2000, 500)
    assert len(load(table)) == 500_000


def test_an_array_that_claims_more_than_it_has_is_refused(tmp_path):
    path = tmp_path / "liar.npz"
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2000000000, 100000), }"
    magic = b"\x93NUMPY\x01\x00" + (len(header) + 1).to_bytes(2, "little") + header + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", magic + bytes(64))
        archive.writestr("y.npy", magic + bytes(64))
    with pytest.raises(DataError, match=r"liar\.npz is cut short or damaged"):
        load(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("X.npy", magic.replace(b"2000000000", b"3         ") + bytes(64))
    with pytest.raises(DataError, match=r"X in .*liar\.npz is cut short \(EOF"):
        load(path)


def test_pillows_limit_of_pixels_holds(tmp_path, monkeypatch, write_photo):
    photo = write_photo(tmp_path / "large.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8)
    with pytest.raises(DataError, match=r"large\.png has more than 16 pixels, too many to read; shrink it"):
        decode(photo)


def test_a_column_beyond_the_range_of_features_is_named(tmp_path):
    pd.DataFrame({"y": [0, 1] * 6, "small": 1.0, "price": 1e30}).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(DataError, match=r"column 'price' in .*t\.csv has a value of size 1e\+30"):
        load(tmp_path / "t.csv")


def test_check_refuses_what_cannot_be_split(tmp_path):
    rows = pd.DataFrame(
        {"y": ["label", *["a", "b"] * 6], "x": np.arange(13.0)}
    )  # a header, taken for a class
    rows.to_csv(tmp_path / "t.csv", index=False)
    counts, parts = check(tmp_path / "t.csv")
    assert counts.ok
    assert not parts.ok
    assert "class 'label'" in parts.detail
