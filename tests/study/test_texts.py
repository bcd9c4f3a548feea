"""Texts go through a comparison as they are: read by a frozen net, then compared, predicted and exported."""

import json

import numpy as np
import onnxruntime
import pandas as pd
import pytest

import spaceform
from spaceform.data import DataError
from spaceform.run.export import export
from spaceform.run.finished import Run
from spaceform.run.predict import predict
from spaceform.run.recipe import RecipeError

pytestmark = pytest.mark.filterwarnings("ignore")  # those of transformers

_THINGS = {
    "money": ("send the invoice {}", "pay bill number {}", "what does item {} cost"),
    "beach": ("swim in the sea on day {}", "a holiday of {} days by the water", "sand castle number {}"),
    "weather": ("will it rain at {} o'clock", "snow is expected in {} days", "the storm lasts {} hours"),
}


def messages(each: int = 8) -> pd.DataFrame:
    rows = [
        (line.format(i), kind, i) for kind, lines in _THINGS.items() for line in lines for i in range(each)
    ]
    return pd.DataFrame(rows, columns=["said", "kind", "number"])


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    place = tmp_path_factory.mktemp("texts")
    messages().to_csv(place / "messages.csv", index=False)
    return spaceform.compare(
        place / "messages.csv",
        ["cosine", "vmf"],
        text="said",
        label="kind",
        seeds=1,
        search=0,
        settings={"optim.epochs": 6},
        out=place / "study",
    )


@pytest.mark.slow
def test_a_run_on_texts_says_the_same_everywhere(study, tmp_path):
    for head in ("cosine", "vmf"):
        run = study.runs[f"{head}-seed0"]
        assert run.recipe.data.text == "said"
        assert run.recipe.data.label == "kind"
        new = messages(12).tail(20)[["said"]]
        new.to_csv(tmp_path / "new.csv", index=False)
        found = predict(run, [tmp_path / "new.csv"])
        assert found.items[0] == "row 0"
        own = run.predict_proba(new["said"].tolist())
        assert np.abs(found.probabilities.numpy() - own.numpy()).max() < 1e-6
        assert [found.classes[i] for i in own.argmax(1).tolist()] == ["weather"] * 20


@pytest.mark.compiled
def test_an_exported_graph_takes_the_features_of_its_net(study, tmp_path):
    new = messages(12)["said"].tolist()
    for head in ("cosine", "vmf"):
        run = study.runs[f"{head}-seed0"]
        export(run, tmp_path / f"{head}.onnx")
        session = onnxruntime.InferenceSession(tmp_path / f"{head}.onnx")
        told = session.get_modelmeta().custom_metadata_map
        assert json.loads(told["texts"]) == {"net": run.recipe.data.features, "weights": run.made_by}
        given = session.run(["probabilities"], {"inputs": run.reader.encode(new)})[0]
        assert np.abs(given - run.predict_proba(new).numpy()).max() < 1e-5


@pytest.mark.slow
def test_a_study_of_texts_goes_on_and_names_its_net(study):
    assert "columns left out: 'number'; features of sentence-transformers" in study.notes["data_note"]
    again = spaceform.compare(
        study.folder.parent / "messages.csv",
        ["cosine", "vmf"],
        text="said",
        label="kind",
        seeds=1,
        search=0,
        settings={"optim.epochs": 6},
        out=study.folder,
    )
    assert [job.name for job in again.jobs] == ["cosine-seed0", "vmf-seed0"]
    assert study.report().exists()


@pytest.mark.slow
def test_changed_texts_and_other_weights_are_refused(study, tmp_path):
    path = study.folder.parent / "messages.csv"
    kept = path.read_bytes()
    try:
        path.write_bytes(kept.replace(b"storm", b"quake"))
        with pytest.raises(RecipeError, match="bring it back, or choose another"):
            spaceform.compare(
                path,
                ["cosine", "vmf"],
                text="said",
                label="kind",
                seeds=1,
                search=0,
                settings={"optim.epochs": 6},
                out=study.folder,
            )
    finally:
        path.write_bytes(kept)
    run = Run.load(study.folder / "runs" / "cosine-seed0")
    run.made_by = "another"
    with pytest.raises(RecipeError, match="get the weights that it was trained with"):
        run.predict_proba(["a text"])
    run = Run.load(study.folder / "runs" / "cosine-seed0")
    with pytest.raises(
        ValueError, match=r"the text of item 1 \(counted from 0\) is empty; fill or remove it"
    ):
        run.predict_proba(["a text", " "])
    pd.DataFrame({"written": ["a text"]}).to_csv(tmp_path / "other.csv", index=False)
    with pytest.raises(DataError, match=r"has no column 'said' .*; call that of the texts 'said'"):
        predict(run, [tmp_path / "other.csv"])
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("snow and rain all day", "utf-8")
    found = predict(run, [tmp_path / "letters"])
    assert found.items == (str(tmp_path / "letters" / "a.txt"),)
    assert found.classes[int(found.probabilities.argmax())] == "weather"


@pytest.mark.slow
def test_a_folder_of_texts_is_compared_without_a_word_more(tmp_path):
    for i, row in messages(4).iterrows():
        place = tmp_path / "letters" / row["kind"]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{i}.txt").write_text(row["said"], "utf-8")
    study = spaceform.compare(
        tmp_path / "letters", "cosine", seeds=1, search=0, settings={"optim.epochs": 2}, out=tmp_path / "s"
    )
    run = study.runs["cosine-seed0"]
    assert run.recipe.data.text == ".txt"
    assert run.classes == ("beach", "money", "weather")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"text": "sayd"}, r"has no column 'sayd' \(its columns: .*\); name one of them by --text"),
        ({"text": "kind"}, r"column 'kind' .* cannot be texts and labels; name two columns"),
        ({"text": "said", "net": "small"}, "--net small does not read texts; name a net of sentence-"),
        ({"text": "said", "finetune": True}, "--finetune is for photos; for texts, --net names a net"),
        ({"text": "said", "label": "no"}, "has no column 'no' of labels"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(tmp_path, options, said):
    messages(2).to_csv(tmp_path / "messages.csv", index=False)
    with pytest.raises(ValueError, match=said):
        spaceform.compare(tmp_path / "messages.csv", out=tmp_path / "s", **{"label": "kind", **options})
    assert not (tmp_path / "s").exists()


def test_texts_without_a_column_of_them_are_told(tmp_path):
    frame = messages(8)
    frame[["said", "kind"]].to_csv(tmp_path / "bare.csv", index=False)
    with pytest.raises(
        DataError, match=r"no features, but texts in 'said'; name the column .* --text 'said'"
    ):
        spaceform.compare(tmp_path / "bare.csv", label="kind", out=tmp_path / "s")
    frame.to_csv(tmp_path / "more.csv", index=False)
    found = spaceform.data.load(tmp_path / "more.csv", label="kind")
    assert "'said'; column 'said' holds texts; to compare heads on these texts, read by" in found.note
    assert found.note.endswith("give --text said")
    read = spaceform.data.load(tmp_path / "more.csv", label="kind", text="said")
    assert read.kind == "texts"
    assert read.classes == ("beach", "money", "weather")
    other = spaceform.data.load(tmp_path / "bare.csv", label="kind", text="said")
    assert other.content == read.content
