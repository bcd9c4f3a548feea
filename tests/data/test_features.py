"""Features in .npz, .parquet and .csv."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from spaceform.data import DataError, TableFeature, check, load, split
from spaceform.run import predict

X = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
Y = np.arange(12) % 3


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_npz_with_everything(tmp_path):
    part = np.array(["train"] * 6 + ["val"] * 3 + ["test"] * 3)
    path = save(
        tmp_path / "f.npz", X=X.astype(np.float16), y=Y, classes=["a", "b", "c", "d"], split=part, other=[1]
    )
    d = load(path)
    assert (d.name, d.kind, d.task) == ("f", "features", "classification")
    assert d.inputs.dtype == torch.float32
    assert torch.equal(d.inputs, torch.from_numpy(X.astype(np.float16).astype(np.float32)))
    assert d.classes == ("a", "b", "c", "d")
    assert [len(p) for p in (d.official.train, d.official.val, d.official.test)] == [6, 3, 3]
    assert torch.equal(split(d).val, torch.arange(6, 9))
    assert load(path, task="retrieval").task == "retrieval"


def test_labels_are_numbered_in_sorted_order(tmp_path):
    d = load(save(tmp_path / "f.npz", X=X, y=np.array(["cat", "ant", "bee"] * 4)))
    assert d.classes == ("ant", "bee", "cat")
    assert d.labels[:3].tolist() == [2, 0, 1]
    d = load(save(tmp_path / "g.npz", X=X, y=np.array([30, -7, 8] * 4)))
    assert d.classes == ("-7", "8", "30")
    assert d.labels[:3].tolist() == [2, 0, 1]
    d = load(save(tmp_path / "h.npz", X=X, y=Y.astype(float), groups=np.array(list("aabbccddeeff"))))
    assert d.labels.tolist() == Y.tolist()
    assert d.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


def test_parquet_with_lists_and_with_columns(tmp_path):
    names = [("ant", "bee", "cat")[i] for i in Y]
    part = ["train"] * 9 + ["test"] * 3
    lists = pa.table({"X": list(X), "y": pa.array(names).dictionary_encode(), "split": part})
    pq.write_table(lists, tmp_path / "lists.parquet", row_group_size=5)
    columns = pa.table({f"f{i}": X[:, i] for i in range(5)} | {"y": Y, "name": names})
    pq.write_table(columns, tmp_path / "columns.parquet")
    a, b = load(tmp_path / "lists.parquet"), load(tmp_path / "columns.parquet")
    assert torch.equal(a.inputs, torch.from_numpy(X))
    assert torch.equal(a.inputs, b.inputs)
    assert torch.equal(a.labels, b.labels)
    assert a.classes == ("ant", "bee", "cat")
    assert len(a.official.test) == 3


def frame(**more):
    return pd.DataFrame({f"f{i}": X[:, i] for i in range(5)} | more | {"y": np.sort(Y)})


@pytest.mark.parametrize("index", ["without a name", "with a name", "two levels", "without metadata"])
def test_the_index_of_a_data_frame_is_no_feature(tmp_path, index):
    """On sorted data it would tell the class."""
    shuffled = frame(city=["x"] * 12).sample(frac=1, random_state=0)
    if index == "with a name":
        shuffled.index.name = "patient"
    elif index == "two levels":
        shuffled = shuffled.set_index(np.arange(12), append=True)
    shuffled.to_parquet(tmp_path / "f.parquet")
    table = pq.read_table(tmp_path / "f.parquet")
    if index == "without metadata":
        pq.write_table(table.replace_schema_metadata(), tmp_path / "f.parquet")
    extra = [name for name in table.column_names if name not in ("y", "city") and name[1:] not in "01234"]
    assert len(extra) == (2 if index == "two levels" else 1)
    d = load(tmp_path / "f.parquet")
    assert [c.name for c in d.columns] == ["f0", "f1", "f2", "f3", "f4"]
    assert np.array_equal(d.inputs, shuffled.iloc[:, :5])
    assert d.note == f"columns left out, as text or index: {', '.join(map(repr, ['city', *extra]))}"
    assert check(tmp_path / "f.parquet")[0].detail == f"12 items, 3 classes ({d.note})"


def test_labels_may_be_the_index(tmp_path):
    frame().set_index("y").to_parquet(tmp_path / "f.parquet")
    d = load(tmp_path / "f.parquet")
    assert d.labels.tolist() == sorted(Y)
    assert d.inputs.shape == (12, 5)


def test_booleans_and_decimals_are_features(tmp_path):
    odd = np.arange(12) % 2 == 1
    price = pa.array([Decimal(i) / 4 for i in range(12)])
    pq.write_table(pa.table({"odd": odd, "price": price, "y": Y}), tmp_path / "f.parquet")
    d = load(tmp_path / "f.parquet")
    assert d.columns == (TableFeature("odd"), TableFeature("price"))
    assert np.array_equal(d.inputs, np.column_stack([odd, np.arange(12) / 4]))
    assert np.array_equal(load(save(tmp_path / "f.npz", X=odd[:, None], y=Y)).inputs, odd[:, None])
    pq.write_table(pa.table({"odd": [True, None], "y": [0, 1]}), tmp_path / "f.parquet")
    assert load(tmp_path / "f.parquet").inputs.tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize("name", ["f.csv", "F.CSV"])
def test_csv_is_read_like_parquet(tmp_path, name):
    whole = frame(odd=np.arange(12) % 2 == 1, city=["x"] * 12, split=["train"] * 9 + ["test"] * 3)
    whole = whole.sample(frac=1, random_state=0)
    whole.to_parquet(tmp_path / "f.parquet")
    whole.to_csv(tmp_path / name)
    csv, parquet = load(tmp_path / name), load(tmp_path / "f.parquet")
    assert csv.columns == parquet.columns == tuple(map(TableFeature, ("f0", "f1", "f2", "f3", "f4", "odd")))
    assert csv.note == "columns left out, as text or index: '', 'city'"
    assert torch.equal(csv.inputs, parquet.inputs)
    assert torch.equal(csv.labels, parquet.labels)
    assert torch.equal(csv.official.test, parquet.official.test)
    assert np.array_equal(
        predict.read_items([tmp_path / name], [TableFeature("f3"), TableFeature("f0")])[1],
        csv.inputs[:, [3, 0]],
    )
    pd.read_csv(tmp_path / name).to_csv(tmp_path / name, index=False)
    assert load(tmp_path / name).columns == csv.columns


def test_what_is_wrong_with_a_csv_is_said(tmp_path):
    path = tmp_path / "f.csv"
    for content, message in (
        (b"", r"f\.csv has no rows; add an item"),
        (b"\n \n", r"f\.csv has no rows; add an item"),
        (b"a,b,kind\n", r"f\.csv has no rows; add an item"),
        (b"a,b\n1,2\n3\n", r"cut short or no \.csv file"),
        (b"a;y\n1;0\n2;1\n", r"parted by ';' and not by commas"),
        (b"a,a,y\n1,2,0\n3,4,1\n", "f.csv has 2 columns 'a'; rename or remove one"),
        (b"a,y\n1,0\ninf,1\n", r"1 empty, NaN or infinite cell, the first in row 1 \(counted from 0\)"),
        (b"a,y\n1,x\n2,\n", "column 'y' of .* has 1 empty cell; fill"),
        (b"X,y\n1,x\n2,z\n", "each row must hold a list of numbers; rename it"),
        ("a,y\n1,für\n2,gegen\n".encode("latin-1"), "f.csv is not written in UTF-8; save it so"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            load(path)


def test_other_files_are_not_said_to_be_missing(tmp_path):
    (tmp_path / "f.xlsx").write_bytes(b"PK")
    with pytest.raises(
        DataError, match=r"f\.xlsx is not of a kind that is read; give a folder of images or texts, or"
    ):
        load(tmp_path / "f.xlsx")


NAN = X.copy()
NAN[[3, 7], 2] = np.nan
TOO_LARGE = X.astype(np.float64)
TOO_LARGE[4, 0] = 1e300


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"X": NAN, "y": Y},
            r"f\.npz has 2 rows with NaN or infinite values, the first is row 3 \(counted from 0\)",
        ),
        (
            {"X": TOO_LARGE, "y": Y},
            r"column 0 of X in .* has a value of size 1e\+300, and features go up to 1e\+18",
        ),
        ({"X": X, "y": Y[:-1]}, r"12 rows in X and y of shape \(11,\); give one label a row"),
        ({"X": X}, r"f\.npz has no array 'y' \(it has X\); save both by np\.savez"),
        ({"y": Y}, "has no array 'X'"),
        (
            {"X": X[:, :0], "y": Y},
            r"X in .*f\.npz has shape \(12, 0\), no columns; give at least one feature",
        ),
        (
            {"X": X.astype(object), "y": Y},
            r"X in .* holds Python objects, .* save it as X\.astype\(np\.float32",
        ),
        ({"X": X[0], "y": Y}, r"X in .*f\.npz has shape \(5,\)"),
        ({"X": X.astype(str), "y": Y}, "it must be numbers"),
        ({"X": X.reshape(3, 4, 5), "y": Y}, r"shape \(3, 4, 5\), as images have; save these in a folder"),
        ({"X": X[:, :4].reshape(12, 1, 2, 2), "y": Y}, r"shape \(12, 1, 2, 2\), as images have"),
        (
            {"X": X, "y": NAN[:, 2]},
            r"y in .*f\.npz is NaN or infinite in 2 rows, the first is row 3 \(counted from 0\); label or",
        ),
        ({"X": X, "y": Y, "classes": ["a", "b", "a"]}, "classes in .* has 'a' twice; give each class one"),
        (
            {"X": X, "y": Y, "classes": [["a", "b", "c"]]},
            r"classes in .* has shape \(1, 3\); give each class",
        ),
        ({"X": X, "y": Y + 0.5}, "labels are integers or strings"),
        ({"X": X, "y": Y, "classes": ["a"]}, "y in .* goes from 0 to 2, but classes has 1 name;"),
        ({"X": X, "y": Y, "split": ["train", "oops"] * 6}, "has the value .*oops"),
        ({"X": X, "y": Y, "split": ["train"]}, "has a wrong length"),
        ({"X": X, "y": Y, "split": ["test"] * 12}, "marks no row as 'train'"),
        ({"X": X, "y": Y, "groups": [1, 2]}, r"groups in .* has shape \(2,\)"),
        ({"X": X, "y": Y * 0}, "items of one class only"),
        ({"X": X[:0], "y": Y[:0]}, "has no rows in X and y; save"),
        ({"X": X[:0, 0], "y": Y[:0]}, "has no rows in X and y; save"),
    ],
)
def test_what_is_wrong_with_an_npz_is_said(tmp_path, arrays, message):
    with pytest.raises(DataError, match=message):
        load(save(tmp_path / "f.npz", **arrays))


def test_a_class_with_one_row_is_named(tmp_path):
    path = save(tmp_path / "f.npz", X=X, y=np.array(["a"] * 11 + ["lonely"]))
    with pytest.raises(DataError, match=r"class 'lonely' of f \(.*f\.npz\) has one item to train on"):
        split(load(path))


def test_pickles_are_never_read(tmp_path):
    path = save(tmp_path / "f.npz", X=X, y=np.array([{"a": 1}] * 12, dtype=object))
    with pytest.raises(
        DataError, match=r"y in .*f\.npz holds Python objects, .* save it as y\.astype\(str\)"
    ) as told:
        load(path)
    assert "allow_pickle" not in str(told.value)


def test_unreadable_files_are_named(tmp_path):
    path = save(tmp_path / "f.npz", X=X, y=Y)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"hello", whole[:100] + b"\0" * 50 + whole[150:]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"f\.npz"):
            load(path)
    with pytest.raises(DataError, match=r"nowhere\.npz does not exist"):
        load(tmp_path / "nowhere.npz")
    np.save(tmp_path / "single.npy", X)
    (tmp_path / "single.npy").rename(tmp_path / "single.npz")
    with pytest.raises(DataError, match=r"single\.npz is a single array"):
        load(tmp_path / "single.npz")


def test_broken_parquet_is_named(tmp_path):
    path = tmp_path / "f.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(
        DataError, match=r"f\.parquet is cut short or no \.parquet file .*; copy or write it again"
    ):
        load(path)
    with pytest.raises(DataError, match=r"nowhere\.parquet does not exist"):
        load(tmp_path / "nowhere.parquet")
    for table, message in (
        ({"X": [[1.0, 2.0], [1.0]], "y": [0, 1]}, "rows of different lengths"),
        ({"X": [1.0, 2.0], "y": [0, 1]}, "each row must hold a list of numbers"),
        ({"X": [[1.0], [2.0]], "y": [0, None]}, "column 'y' of .* has 1 empty cell; fill"),
        (
            {"X": [[1.0], None, None], "y": [0, 1, 0]},
            r"column 'X' of .* is empty in 2 rows, the first is row 1 \(counted from 0\);",
        ),
        ({"X": [[], []], "y": [0, 1]}, "no columns"),
        ({"a": [0.5, 1.0], "kind": [0, 1]}, "no column 'y' of labels .*'a', 'kind'.*; name the column"),
        ({"X": [[1.0], [None]], "y": [0, 1]}, "1 row with NaN"),
        (
            {"a": [0.5, float("inf")], "y": [0, 1]},
            r"1 empty, NaN or infinite cell, the first in row 1 \(counted",
        ),
        ({"y": [0, 1]}, "has no features; give a column 'X'"),
        ({"0.5": [1.0, 2.0], "a": [0, 1]}, "numbers where the names of its columns should be"),
        (
            {"a": ["1.5", "cm", *["2"] * 20], "y": [0, 1] * 11},
            r"column 'a' of .* but 'cm' in row 1 \(counted from 0\); remove",
        ),
    ):
        pq.write_table(pa.table(table), path)
        with pytest.raises(DataError, match=message):
            load(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "a;b;y\n1,5;2;0\n2;3;1\n",
            r"parted by ';' and not by commas; .*read_csv\(file, sep=';', decimal=','\)",
        ),
        ("a\tb\ty\n1\t2\t0\n", r"parted by a tab and not by commas; .*sep='\\t'\)\.to_csv"),
        ("a,b,y\n", "has no rows; add an item"),
        (
            "a,b,y\n1,2,0\n3,inf,1\n",
            r"column 'b' of .* has 1 empty, NaN or infinite cell, the first in row 1 \(counted from 0\)",
        ),
        ("a,b,y\n1,2,0\n1,2,1\n", "all rows of .* have the same features"),
        ("a,b,y\n1,2,0.5\n2,3,1.25\n", "labels are integers or strings: put such numbers into classes"),
    ],
)
def test_odd_tables_are_refused_in_a_sentence(tmp_path, text, said):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        load(str(tmp_path / "t.csv"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,kind\n1,x\n2,\n3,z\n", "column 'kind' of .* has 1 empty cell; fill"),
        ("a,kind\n1,0.5\n2,1.25\n", r"^kind in .* has type float64; labels are integers or strings"),
        ("1,2,0\n2,3,1\n", "put a line of names first, with 'kind' for the labels"),
    ],
)
def test_errors_call_the_labels_by_the_name_that_was_given(tmp_path, text, said):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        load(str(tmp_path / "t.csv"), label="kind")
