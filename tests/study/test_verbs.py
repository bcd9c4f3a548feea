"""compare, reproduce and search as functions, and the Study that they give."""

from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch

import spaceform
from spaceform import data
from spaceform.run.recipe import RecipeError
from spaceform.study.folder import Failure, StudyFolder
from spaceform.study.optuna_search import SearchError
from spaceform.study.place import Event, Watcher, accelerator, decoding_processes, perform, unwatched
from spaceform.study.processes import Processes
from spaceform.verbs.source import study_data

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lasting_processes")]

SHORT = {"budget.epochs": 2, "budget.episodes": 3}
BRIEF = {"optim.epochs": 2}  # of the engine for features


@final
class ThisProcess:
    """Carries runs out here; what it was asked for is kept."""

    def __init__(self, fail: str = "") -> None:
        self.asked: list[tuple[str, int | None]] = []
        self.fail = fail

    def finish(self, study: StudyFolder, watch: Watcher = unwatched, *, workers: int | None = None) -> None:
        datasets: dict[Any, Any] = {}
        for job in study.unfinished():
            self.asked.append((job.name, workers))
            if self.fail:
                failure = Failure("RecipeError", self.fail.format(job=job.name))
                study.record_failure(job, failure)
                watch(Event(job, "failed", failure=failure))
            else:
                perform(job, study.path(job), lambda _: None, datasets)
                watch(Event(job, "finished"))


def arrays(shift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    return rng.normal(size=(3, 6))[y] * 3 + rng.normal(size=(90, 6)) + shift, np.array(["a", "b", "c"])[y]


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> spaceform.Study:
    said: list[str] = []
    found = spaceform.compare(
        arrays(),
        "cosine,standard",
        seeds=2,
        search=0,
        out=tmp_path_factory.mktemp("studies") / "mine",
        settings=BRIEF,
        on=ThisProcess(),
        say=said.append,
    )
    assert said[0] == "cosine-seed0: finished (1 of 4)"
    return found


def test_a_study_has_a_table_runs_recipes_and_advice(study):
    assert list(study.table["run"]) == ["cosine-seed0", "standard-seed0", "cosine-seed1", "standard-seed1"]
    assert set(study.runs) == set(study.table["run"])
    assert study.runs["cosine-seed1"].predict_proba(arrays()[0].astype("float32")).shape == (90, 3)
    assert study.recipes["cosine"].seed == 0
    assert {one.goal.column for one in study.advice.verdict.goals} >= {"accuracy", "retrieval.map_at_r"}
    assert study.failures == {}
    assert "90" not in repr(study)
    assert (study.folder / "results.parquet").exists()
    assert study.report() == study.folder / "report" / "report.html"


def test_a_notebook_shows_the_table_and_the_advice(study):
    shown = study._repr_html_()
    assert shown.count("<tr>") == 3
    assert "<th>cosine</th>" in shown
    assert '<tr style="opacity: 0.6"><th>LogisticRegression</th>' in shown
    assert shown.count("<b>") == sum(row.marked for row in study.shown()[0].rows.values()) > 0
    assert shown.count("<li>") == len(study.advice.brief()) + 2
    assert "Rates and options were not searched" in shown


def test_the_page_and_the_terminal_say_the_same(study):
    from spaceform.report.contents import compute
    from spaceform.report.records import collect

    (part,) = compute(collect([study.folder])).parts
    assert part.advice.sentences() == study.advice.sentences()
    assert {label: row.marked for label, row in part.results.rows.items()} == {
        label: row.marked for label, row in study.shown()[0].rows.items()
    }
    assert set(part.results.footnote) == set(study.shown()[0].footnote)


def test_the_next_step_is_the_command_that_exports_the_recommended_run(study):
    *_, deploy, command = study.shown()[1]
    run = study.advice.to_deploy
    assert run.label == study.advice.recommendation.choice.label
    assert deploy == f"To deploy: the run {run.folder.name}, the best of 2 seeds on the validation split."
    assert command == f"Next: spaceform export {run.folder} model.onnx"
    assert run.score == max(other.score for other in study.advice.runs if other.label == run.label)
    assert all(run.predict_seconds > 0 for run in study.advice.runs)


def test_a_study_of_arrays_goes_on_and_refuses_others(study):
    again = ThisProcess()
    same = spaceform.compare(
        arrays(), "cosine,standard", seeds=2, search=0, out=study.folder, settings=BRIEF, on=again
    )
    assert again.asked == []
    assert same.table.equals(study.table)
    with pytest.raises(RecipeError, match="holds other arrays"):
        spaceform.compare(arrays(1.0), "cosine", seeds=1, out=study.folder, settings=BRIEF, on=again)
    opened = spaceform.Study.open(study.folder)
    assert opened.table.equals(study.table)
    assert opened.notes["kind"] == "compare"


def test_data_is_a_name_a_path_a_data_set_or_arrays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    digits = data.load("digits")
    for given in ("digits", digits):
        source, folder = study_data(given, None)
        assert (source.name, folder, dict(source.arrays)) == ("digits", Path("spaceform-digits"), {})
    source, folder = study_data(arrays(), "here")
    assert (source.name, folder) == ("here/data.npz", Path("here"))
    assert source.dataset.classes == ("a", "b", "c")
    kept = data.Dataset(
        "mine",
        ("x", "y"),
        torch.arange(8) % 2,
        torch.randn(8, 3),
        groups=torch.arange(8) // 2,
        official=data.Split(torch.arange(4), torch.tensor([4, 5]), torch.tensor([6, 7])),
    )
    source, _ = study_data(kept, "there", "-search")
    assert source.dataset.content == kept.content
    assert study_data(kept, None, "-search")[1] == Path("spaceform-arrays-search")
    pixels = data.Dataset("drawn", ("x", "y"), torch.arange(4) % 2, torch.zeros(4, 1, 8, 8).byte())
    with pytest.raises(RecipeError, match="the pixels of 'drawn' cannot be kept"):
        study_data(pixels, None)
    with pytest.raises(RecipeError, match=r"a Dataset or the arrays \(X, y\); got 3 things"):
        study_data((1, 2, 3), None)
    X, y = arrays()
    X[3] = np.nan
    with pytest.raises(ValueError, match="X in the arrays has 1 row with NaN"):
        study_data((X, y), None)


def test_workers_and_the_device_reach_every_run(tmp_path, monkeypatch):
    seen: dict[str, Any] = {}
    monkeypatch.setattr("spaceform.run.train.train", lambda *_, **how: seen.update(train=how))
    monkeypatch.setattr("spaceform.run.evaluate.evaluate", lambda *_, **how: seen.update(evaluate=how))
    monkeypatch.setattr("spaceform.study.place.accelerator", lambda: "cuda")
    study = StudyFolder.plan(tmp_path, spaceform.Study.open(_planned(tmp_path / "s")).jobs)
    perform(study.jobs[0], tmp_path / "run", lambda _: None, {}, workers=3)
    assert seen["train"]["workers"] == seen["evaluate"]["workers"] == 3
    assert seen["evaluate"]["device"] == "cuda"
    assert accelerator() in ("cpu", "cuda", "mps")


def _planned(folder: Path) -> Path:
    return spaceform.compare(
        "digits", "cosine", seeds=1, out=folder, settings=SHORT, on=ThisProcess(fail="not now")
    ).folder


def test_cores_to_spare_decode():
    asked = (16, 1), (16, 4), (4, 4), (1, 1), (2, 3)
    assert [decoding_processes(cores, runs) for cores, runs in asked] == [8, 3, 0, 0, 0]
    with pytest.raises(ValueError, match="at least 1 process"):
        Processes(0)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("too few rows", "error: 2 of 2 runs failed: too few rows; the same command tries them again"),
        ("{job} is odd", "error: 2 of 2 runs failed: cosine-seed0: cosine-seed0 is odd; `spaceform status"),
    ],
)
def test_why_all_runs_failed_is_said_at_once(tmp_path, capsys, reason, said):
    from spaceform.cli import study as commands

    failed = spaceform.compare(
        "digits", "cosine", seeds=2, out=tmp_path / "s", settings=SHORT, on=ThisProcess(reason)
    )
    assert commands._show(failed) == 2
    assert said in capsys.readouterr().err


def test_the_paper_is_repeated_by_name(tmp_path, monkeypatch):
    with pytest.raises(RecipeError, match="unknown data set of the paper 'digits'"):
        spaceform.reproduce("digits")
    digits = data.load("digits")
    for module in ("spaceform.verbs.compare", "spaceform.verbs.source"):
        monkeypatch.setattr(f"{module}.load", lambda _, **_options: digits)
    study = spaceform.reproduce(
        "mnist", ["cosine"], seeds=1, epochs=7, out=tmp_path / "m", on=ThisProcess("no time")
    )
    assert study.recipes["cosine"].budget.epochs == 7
    assert study.recipes["cosine"].budget.episodes == 250
    assert "at most 7 epochs instead of 1000" in study.notes["shortened"]
    assert study.beside_paper == []
    assert study.failures == {"no time": ["cosine-seed0"]}
    study = spaceform.reproduce(
        "mnist", ["hyperbolic"], profile="authors", seeds=1, out=tmp_path / "a", on=ThisProcess("no time")
    )
    assert study.recipes["hyperbolic"].head.options["init"] == "torch"
    assert study.recipes["hyperbolic"].schedule.patience == 16


@pytest.mark.slow
def test_a_search_leaves_what_was_set_as_it_is(tmp_path):
    fixed = {"net.dim": 5, "net.hidden": [8], "optim.lr": 0.004, "optim.epochs": 2}
    asked = {"seeds": 1, "search": 4, "out": tmp_path / "s"}
    found = spaceform.compare(arrays(), "cosine", settings=fixed, on=Processes(1), **asked)
    recipe = found.recipes["cosine"]
    assert (recipe.net.dim, tuple(recipe.net.hidden), recipe.optim.lr) == (5, (8,), 0.004)
    tried = found.trials
    assert all(net["dim"] == 5 and net["projected"] for net in tried["net"])
    assert all(optim["lr"] == 0.004 for optim in tried["optim"])
    assert tried["candidate"].nunique() > 1  # the rest is searched
    other = {**fixed, "net.dim": 6}
    with pytest.raises(SearchError, match="holds a search of other data or settings"):
        spaceform.compare(arrays(), "cosine", settings=other, on=Processes(1), **asked)
