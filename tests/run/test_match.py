"""Same or not, by a run: kept by `evaluate`, calibrated on classes that it did not see, written as CSV."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from short_runs import tiny
from spaceform import data
from spaceform.decisions import SimilarityPairs, VonMisesFisherPairs
from spaceform.run import match as matching
from spaceform.run.evaluate import evaluate
from spaceform.run.finished import Run
from spaceform.run.match import match
from spaceform.run.recipe import RecipeError
from spaceform.run.train import train

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["cosine", "hyperbolic"])
def run(request, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / request.param
    recipe = tiny(request.param, data__task="retrieval", budget__epochs=4, budget__episodes=20, net__dim=8)
    train(recipe, folder)
    evaluate(folder)
    return Run.load(folder)


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    x = data.load("digits").inputs.numpy()
    for name, rows in (("a", x[:30]), ("b", x[30:60])):
        np.savez(tmp_path / f"{name}.npz", X=rows)
    return tmp_path / "a.npz", tmp_path / "b.npz"


def test_the_kept_pairs_are_those_of_the_validation_classes(run):
    kind = VonMisesFisherPairs if run.recipe.head.name == "cosine" else SimilarityPairs
    assert isinstance(run.pairs, kind)
    said = run.metrics["verification"]
    assert 0 < said["min_cllr"] <= said["cllr"] < 1.5
    assert 0 < said["eer"] < 0.5
    assert said["same_pairs"] > 1000
    assert 0 <= said["false_accept_at_1_percent"] < 0.2


def test_rows_are_compared_and_each_with_each(run, files, tmp_path, monkeypatch):
    a, b = files
    monkeypatch.setattr(matching, "_PAIRS_AT_ONCE", 70)  # several blocks
    assert match(run, a, b, tmp_path / "rows.csv", false_accept=0.05)[:2] == (30, 30)
    found = match(run, a, b, tmp_path / "all.csv", every=True, prior=0.1)
    assert found == (900, 900, None)
    z1, z2 = (run.embed(np.load(path)["X"]) for path in files)
    rows, every = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("rows", "all"))
    torch.testing.assert_close(
        torch.tensor(rows["log_ratio"]), run.pairs(z1, z2).double(), rtol=1e-4, atol=1e-4
    )
    p = run.pairs.same(z1, z2)
    torch.testing.assert_close(torch.tensor(rows["probability"]), p.double(), rtol=1e-4, atol=1e-4)
    assert rows["accept"].tolist() == (run.pairs(z1, z2) >= run.pairs.threshold(0.05)).tolist()
    assert every[["a", "b"]].to_numpy().tolist() == [[i, j] for i in range(30) for j in range(30)]
    expected = run.pairs.all_pairs(z1, z2).flatten().double()
    torch.testing.assert_close(torch.tensor(every["log_ratio"]), expected, rtol=1e-4, atol=1e-4)
    assert (every["probability"].to_numpy()[::31] < rows["probability"]).all()  # a smaller prior


def test_only_likely_pairs_are_written(run, files, tmp_path):
    whole = match(run, *files, tmp_path / "all.csv", every=True)
    some = match(run, *files, tmp_path / "some.csv", every=True, at_least=0.5)
    likely = pd.read_csv(tmp_path / "all.csv").query("probability >= 0.5")
    assert 0 < some.written == len(likely) < whole.written
    assert pd.read_csv(tmp_path / "some.csv")["b"].tolist() == likely["b"].tolist()
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at_least": 1.5}, "at_least must be a probability between 0 and 1, got 1.5"),
        ({"prior": 1.0}, "prior must lie between 0 and 1, both excluded, got 1.0"),
        ({"false_accept": 1e-6}, "false_accept 1e-06 needs at least 999999 pairs of two classes, got "),
        ({"false_accept": 0.0}, "false_accept must lie between 0 and 1, both excluded, got 0"),
    ],
)
def test_wrong_options_are_one_sentence(run, files, tmp_path, options, said):
    with pytest.raises(ValueError, match=said):
        match(run, *files, tmp_path / "x.csv", **options)
    assert not (tmp_path / "x.csv").exists()


def test_wrong_files_are_one_sentence(run, files, tmp_path):
    with pytest.raises(ValueError, match=r"the output must end in .csv, got '.*x.parquet'"):
        match(run, *files, tmp_path / "x.parquet")
    np.savez(tmp_path / "c.npz", X=np.load(files[0])["X"][:7])
    with pytest.raises(
        ValueError, match=r"has 30 items, .*c.npz 7; pairs need as many, or compare each with each"
    ):
        match(run, files[0], tmp_path / "c.npz", tmp_path / "x.csv")


def test_a_run_without_pairs_says_how_to_get_them(tmp_path):
    run = train(tiny(), tmp_path / "run")
    with pytest.raises(
        RecipeError, match=r"evaluate .*run` writes it for a run that was trained for retrieval"
    ):
        run.pairs  # noqa: B018
