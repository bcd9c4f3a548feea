"""Tables as people have them: text with few values, empty cells, labels in a column of another name."""

import json

import numpy as np
import pandas as pd
import pyarrow.json
import pytest
import torch

import spaceform
from spaceform.data import DataError, TableFeature, check, load
from spaceform.data.formats import FILE_FORMATS
from spaceform.data.formats.feature_files import load_features, read_inputs
from spaceform.data.formats.table_files import TABLES
from spaceform.data.formats.texts import load_new_texts
from spaceform.run.export import export
from spaceform.run.predict import predict

ROWS = pd.DataFrame(
    {
        "age": [30.0, np.nan, 50.0, 20.0, 40.0, np.nan],
        "port": ["S", "C", "S", None, "Q", "C"],
        "sex": ["male", "female", "male", "female", "male", "female"],
        "ticket": ["a1", "b2", "c3", "d4", "e5", "f6"],
        "survived": ["no", "yes", "no", "yes", "yes", "no"],
    }
)


def write(folder, frame, name="t.csv", **options):
    path = folder / name
    frame.to_csv(path, index=False, **options) if name.endswith("csv") else frame.to_parquet(path)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_text_with_few_values_and_empty_cells_become_features(tmp_path, name):
    d = load(write(tmp_path, ROWS, name), label="survived")
    assert [c.name for c in d.columns] == [
        "age",
        "age is empty",
        "port = C",
        "port = Q",
        "port = S",
        "port is empty",
        "sex = male",
    ]
    expected = [
        [30, 0, 0, 0, 1, 0, 1],
        [35, 1, 1, 0, 0, 0, 0],  # the median of the ages that are known
        [50, 0, 0, 0, 1, 0, 1],
        [20, 0, 0, 0, 0, 1, 0],
        [40, 0, 0, 1, 0, 0, 1],
        [35, 1, 1, 0, 0, 0, 0],
    ]
    assert d.inputs.tolist() == expected
    assert (d.classes, d.labels.tolist()) == (("no", "yes"), [0, 1, 0, 1, 1, 0])
    assert d.note == (
        "labels are the column 'survived'; columns left out, as text or index: 'ticket'; column 'ticket' "
        "holds texts; to compare heads on these texts, read by a pretrained net, give --text ticket"
    )


def test_a_new_kind_of_table_is_a_function_and_a_line(tmp_path, monkeypatch):
    assert all(FILE_FORMATS[ending].load is load_features for ending in TABLES)
    monkeypatch.setitem(TABLES, ".jsonl", pyarrow.json.read_json)
    monkeypatch.setitem(FILE_FORMATS, ".jsonl", FILE_FORMATS[".csv"])
    path = tmp_path / "t.jsonl"
    ROWS.to_json(path, orient="records", lines=True)
    found, same = load(path, label="survived"), load(write(tmp_path, ROWS), label="survived")
    assert torch.equal(found.inputs, same.inputs)
    assert (found.classes, found.columns, found.note) == (same.classes, same.columns, same.note)
    assert load(path, label="survived", text="ticket").inputs.texts == tuple(ROWS["ticket"])
    assert load_new_texts(path, "ticket").texts == tuple(ROWS["ticket"])
    np.testing.assert_array_equal(read_inputs(path, found.columns), found.inputs.numpy())
    path.write_text('{"age": 1, "survived": ')
    with pytest.raises(DataError, match=r"cut short or no \.jsonl file"):
        load(path)
    with pytest.raises(DataError, match=r"give a \.parquet, \.csv or \.jsonl file, a \.txt file or a folder"):
        load_new_texts(tmp_path, "ticket")


def test_another_table_is_read_in_the_same_way(tmp_path):
    d = load(write(tmp_path, ROWS), label="survived")
    new = pd.DataFrame({"sex": ["male", "?"], "port": ["X", "Q"], "age": [np.nan, 1.0]})
    found = read_inputs(write(tmp_path, new, "new.csv"), d.columns)
    assert found.tolist() == [[35, 1, 0, 0, 0, 0, 1], [1, 0, 0, 1, 0, 0, 0]]
    with pytest.raises(DataError, match="no column 'age' of numbers, one of the 3 that are needed"):
        read_inputs(write(tmp_path, new.assign(age="old"), "text.csv"), d.columns)
    with pytest.raises(DataError, match="no column 'sex', one of the 3"):
        read_inputs(write(tmp_path, new.drop(columns="sex"), "less.csv"), d.columns)


def test_a_cell_that_is_empty_only_later_is_refused(tmp_path):
    d = load(write(tmp_path, ROWS[["sex", "survived"]].assign(size=range(6))), label="survived")
    new = write(tmp_path, pd.DataFrame({"size": [1.0, np.nan], "sex": ["male", "female"]}), "new.csv")
    with pytest.raises(DataError, match=r"column 'size' .* 1 empty, NaN or infinite cell"):
        read_inputs(new, d.columns)


def test_a_cell_that_is_no_number_is_named_in_a_column_of_numbers(tmp_path):
    d = load(write(tmp_path, ROWS), label="survived")
    new = ROWS.assign(age=["30", "31", "abc", "", "40", "41"])
    with pytest.raises(
        DataError, match=r"column 'age' must hold numbers, and its cell in row 2 .* is 'abc'; "
    ):
        read_inputs(write(tmp_path, new, "new.csv"), d.columns)


def test_the_fill_is_taken_from_rows_that_do_not_test(tmp_path):
    frame = pd.DataFrame(
        {"a": [1.0, 3.0, np.nan, 100.0], "y": [0, 1, 0, 1], "split": ["train"] * 3 + ["test"]}
    )
    assert load(write(tmp_path, frame)).inputs[2].tolist() == [2, 1]


def test_text_that_names_the_class_is_no_feature(tmp_path):
    frame = pd.DataFrame({"a": range(6), "name": ["ant", "bee", "cat"] * 2, "y": [0, 1, 2] * 2})
    d = load(write(tmp_path, frame))
    assert d.columns == (TableFeature("a"),)
    assert "'name'" in d.note


def test_a_question_mark_is_an_empty_cell(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,y\n1,?,x\n?,u,z\n3,u,x\n4,v,z\n5,v,x\n")
    assert [c.name for c in load(path).columns] == ["a", "a is empty", "b = u", "b = v", "b is empty"]


@pytest.mark.parametrize("name", ["label", "Target", "CLASS"])
def test_usual_names_of_labels_are_known(tmp_path, name):
    d = load(write(tmp_path, pd.DataFrame({"a": range(4), name: list("xyxy")})))
    assert d.classes == ("x", "y")
    assert d.note == f"labels are the column {name!r}"


def test_which_column_has_the_labels_must_be_clear(tmp_path):
    path = write(tmp_path, pd.DataFrame({"a": range(40), "label": [*"xyxy"] * 10, "class": [*"xxyy"] * 10}))
    with pytest.raises(DataError, match=r"no column 'y' of labels \(its columns: .*--label"):
        load(path)
    with pytest.raises(DataError, match=r"no column 'size'.*--label"):
        load(path, label="size")
    assert load(path, label="class").columns == (TableFeature("a"), TableFeature("label", value="y"))
    assert not check(path)[0].ok
    assert all(found.ok for found in check(path, label="class"))


@pytest.mark.slow
@pytest.mark.compiled
def test_such_a_table_goes_through_compare_predict_and_export(tmp_path):
    onnx = pytest.importorskip("onnx", reason="pip install 'spaceform[export]'")
    random = np.random.default_rng(0)
    kind = random.integers(3, size=90)
    frame = pd.DataFrame(
        {
            "size": np.where(random.random(90) < 0.1, np.nan, kind + random.normal(size=90)),
            "colour": np.array(["red", "green", "blue"])[(kind + (random.random(90) < 0.2)) % 3],
            "species": np.array(["ant", "bee", "cat"])[kind],
        }
    )
    table = write(tmp_path, frame)
    here = {"out": tmp_path / "study", "on": spaceform.Processes(1)}
    study = spaceform.compare(table, ["cosine"], label="species", seeds=1, search=0, **here)
    assert study.table["accuracy"].item() > 0.6
    run = study.runs["cosine-seed0"]
    new = write(tmp_path, frame.drop(columns="species")[["colour", "size"]], "new.csv")
    expected = run.predict_proba(load(table, label="species").inputs)
    found = predict(run, [new]).probabilities
    np.testing.assert_allclose(found, expected, atol=1e-6)
    told = {p.key: p.value for p in onnx.load(export(run, tmp_path / "m.onnx")).metadata_props}
    assert [TableFeature(**one) for one in json.loads(told["columns"])] == list(run.columns)


def test_a_column_of_empty_cells_alone_is_filled_where_the_run_knows_how(tmp_path):
    path = write(tmp_path, pd.DataFrame({"a": [1, 2], "b": [None, None]}))
    known = [TableFeature("a"), TableFeature("b", fill=7.0), TableFeature("b", is_empty=True)]
    with pytest.raises(DataError, match="no column 'b' of numbers"):
        read_inputs(path, [TableFeature("b")])
    x = read_inputs(path, known)
    assert x.tolist() == [[1, 7, 1], [2, 7, 1]]
