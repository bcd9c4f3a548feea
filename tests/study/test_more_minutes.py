"""A search that goes on: more minutes on a folder that has its answer, and what `status` says on the way."""

import json

import numpy as np
import pytest

import spaceform
from spaceform.run.recipe import QUICK, RecipeError, replace
from spaceform.study import feature_search, references
from spaceform.study.folder import Job, StudyFolder

SEARCHED = {"searched": {"cosine": "the best of 2"}}


def _job(seed: int = 0, **changes: object) -> Job:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return Job(f"cosine-seed{seed}", "cosine", replace(QUICK["digits/cosine"], {**dotted, "seed": seed}))


def _leave(study: StudyFolder) -> None:
    """Something in the folder of every run."""
    for job in study.jobs:
        study.path(job).mkdir(parents=True)
        (study.path(job) / "recipe.json").write_text(job.recipe.to_json())


def test_runs_of_an_earlier_choice_make_room(tmp_path):
    said: list[str] = []
    _leave(StudyFolder.plan(tmp_path, [_job(0), _job(1)], SEARCHED))
    better = _job(0, optim__lr=0.5)
    StudyFolder.plan(tmp_path, [better], SEARCHED, say=said.append)
    assert StudyFolder.open(tmp_path).jobs == (better,)  # seed 1 of the earlier choice is not beside it
    assert not any((tmp_path / "runs").iterdir())
    assert sorted(path.name for path in (tmp_path / "earlier").iterdir()) == ["cosine-seed0", "cosine-seed1"]
    assert len(said) == 1
    assert said[0].startswith("cosine: the search went on and found a better candidate (optim.lr was ")


@pytest.mark.parametrize(
    ("before", "now", "changes"),
    [
        ({}, SEARCHED, {"optim__lr": 0.5}),
        (SEARCHED, {}, {"optim__lr": 0.5}),
        (SEARCHED, SEARCHED, {"budget__epochs": 3}),
        (SEARCHED, SEARCHED, {"data__imbalance": 2.0}),
    ],
)
def test_what_no_search_chose_is_refused(tmp_path, before, now, changes):
    _leave(StudyFolder.plan(tmp_path, [_job(0)], before))
    with pytest.raises(RecipeError, match="holds cosine-seed0 with other settings already"):
        StudyFolder.plan(tmp_path, [_job(0, **changes)], now)
    assert (tmp_path / "runs" / "cosine-seed0").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("lasting_processes")
def test_more_minutes_improve_the_answer(tmp_path):
    rng, y = np.random.default_rng(0), np.arange(90) % 3
    data, out = (rng.normal(size=(3, 6))[y] + rng.normal(size=(90, 6)), y), tmp_path / "s"
    first = spaceform.compare(data, "cosine,standard", search=3, seeds=1, minutes=1e-4, out=out)
    assert set(first.trials["candidate"]) == {0}
    kept = {one.name: one.outputs.probabilities for one in first.references}
    more = spaceform.compare(data, "cosine,standard", search=3, seeds=1, out=out)
    assert set(more.trials["candidate"]) == {0, 1, 2}
    assert {status.state for status in more.statuses} == {"finished"}
    for job in more.jobs:
        assert job.recipe == more.recipes[job.label]
        found = spaceform.Run.load(more.kept.path(job)).recipe
        assert found == job.recipe
    assert {one.name for one in more.references} == set(kept)
    for path in (out / references.FOLDER).glob("*.npz"):
        about = json.loads(str(np.load(path)["about"]))
        assert about["trials"] == (2 if path.stem == "features" else 3)  # of these there is nothing to try
    less = spaceform.compare(data, "cosine,standard", search=3, seeds=1, minutes=1e-4, out=out)
    assert less.recipes == more.recipes
    lines = (out / "search" / "standard.jsonl").read_text().splitlines()
    (out / "search" / "standard.jsonl").write_text("\n".join(lines[:2]) + "\n")
    advice = spaceform.Study.open(out).advice
    assert any(said.startswith("The search was not equal: cosine 3 cand") for said in advice.overall())


def test_status_tells_where_a_search_is(tmp_path):
    StudyFolder.plan(tmp_path, (), {"kind": "compare", "heads": ["cosine", "vmf", "standard"]})
    search = tmp_path / "search"
    search.mkdir()
    told = spaceform.Study.open(tmp_path).searches
    assert told == [f"{head}: the search has not begun" for head in ("cosine", "vmf", "standard")]
    about = {"head": "cosine", "candidates": 4, "data": {"content": "a", "split": "b"}}
    kept = feature_search.Kept(search / "cosine.jsonl", about)
    assert spaceform.Study.open(tmp_path).searches[0] == "cosine: the first candidate is on trial"
    for number, error in ((0, None), (1, "it grew")):
        nll = 0.25 if error is None else float("nan")
        trial = feature_search.Trial("cosine", number, 0, 5, 0.1, 5, nll, nll, 1.0, 0.9, 1.0, error)
        kept.add(trial, QUICK["digits/cosine"])
    told = spaceform.Study.open(tmp_path).searches
    assert told[0] == "cosine: 2 of 4 candidates tried so far; best validation NLL 0.2500"
    assert told[1] == "vmf: the search has not begun"
