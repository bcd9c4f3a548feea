"""What `status`, `report` and `compare` say of damaged files of a study: one sentence, with a remedy."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spaceform
from spaceform.cli import app, verbosity
from spaceform.report.outputs import damages
from spaceform.study import feature_search

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("lasting_processes")]

TRIALS, REFERENCE = "search/cosine.jsonl", "references/neighbours.npz"
METRICS, RESULT, PLAN = "runs/cosine-seed0/metrics.json", "runs/cosine-seed0/result.json", "study.json"
HOW = ("--heads", "cosine", "--search", "2", "--seeds", "1")


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("data") / "mine.npz"
    rng, y = np.random.default_rng(0), np.arange(90) % 3
    np.savez(path, X=rng.normal(size=(3, 6))[y] * 3 + rng.normal(size=(90, 6)), y=y)
    return path


@pytest.fixture(scope="module")
def whole(table, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("studies") / "whole"
    spaceform.compare(table, "cosine", search=2, seeds=1, out=out)
    return out


@pytest.fixture
def said(monkeypatch, capsys) -> Callable[..., tuple[int, str]]:
    def call(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["spaceform", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            app.main()
        verbosity.set_level("normal")
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error:")]
        assert len(errors) == 1
        return left.value.code, errors[0]

    return call


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _as(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text) and None


def _changed(change: Callable[[dict[str, Any]], Any], line: int | None = None) -> Callable[[Path], None]:
    """A change of a JSON file, or of one of its lines."""

    def damage(path: Path) -> None:
        lines = path.read_text().splitlines() if line is not None else [path.read_text()]
        record = json.loads(lines[line or 0])
        change(record)
        lines[line or 0] = json.dumps(record)
        path.write_text("\n".join(lines) + "\n")

    return damage


def _arrays(**arrays: Any) -> Callable[[Path], None]:
    return lambda path: np.savez(path, **arrays)


_ABOUT = json.dumps({"title": "k nearest neighbours", "measured": {}, "setting": {}, "seconds": 1.0})
_SEARCH = r"(?s)search/cosine.jsonl cannot be read \(.*\); .*the same command searches this head again"
_REFERENCE = r"references/neighbours.npz cannot be read \(.*\); remove it: the same .* makes it again"
_METRICS = r"runs/cosine-seed0/metrics.json cannot be read \(.*\); `spaceform evaluate .*` writes it again"
_RESULT = r"runs/cosine-seed0/result.json cannot be read \(.*\); .*the same command trains it again"
_PLAN = r"study.json.*the same command plans again"
_VERSION = r"study.json is of version 99, and this spaceform reads version 1: use the spaceform that wrote it"
DAMAGES = {
    "a trial without its key": (TRIALS, _changed(lambda r: r.pop("trial"), 1), _SEARCH),
    "a trial without its loss": (TRIALS, _changed(lambda r: r["trial"].pop("calibrated_nll"), 1), _SEARCH),
    "a trial with words": (TRIALS, _changed(lambda r: r["trial"].update(accuracy="high"), 1), _SEARCH),
    "a recipe that is none": (TRIALS, _changed(lambda r: r.update(recipe=3), 1), _SEARCH),
    "no candidates": (TRIALS, _changed(lambda r: r.pop("candidates"), 0), _SEARCH),
    "a line that is a list": (TRIALS, lambda path: path.write_text(path.read_text() + "[]\n"), _SEARCH),
    "a reference cut short": (REFERENCE, _cut, _REFERENCE),
    "a reference of text": (REFERENCE, _as("x"), _REFERENCE),
    "a reference of other arrays": (REFERENCE, _arrays(a=[1]), _REFERENCE),
    "a reference of odd shapes": (
        REFERENCE,
        _arrays(about=_ABOUT, labels=[0, 1], probabilities=[[0.5, 0.5]]),
        _REFERENCE,
    ),
    "metrics cut short": (METRICS, _cut, _METRICS),
    "metrics of nothing": (METRICS, _as("{}"), _METRICS),
    "metrics with words": (METRICS, _changed(lambda r: r.update(accuracy="x")), _METRICS),
    "metrics of an unknown task": (METRICS, _changed(lambda r: r.update(task="x")), _METRICS),
    "calibrated metrics that are none": (METRICS, _changed(lambda r: r.update(calibrated=3)), _METRICS),
    "a result of nothing": (RESULT, _as("{}"), _RESULT),
    "a plan cut short": (PLAN, _cut, _PLAN),
    "a plan that is a list": (PLAN, _as("[]"), _PLAN),
    "a race of nothing": (PLAN, _changed(lambda r: r["notes"].update(race=[{"questions": [{}]}])), _PLAN),
    "a plan of another version": (PLAN, _changed(lambda r: r.update(version=99)), _VERSION),
    "a run without a recipe": (PLAN, _changed(lambda r: r["runs"]["cosine-seed0"].update(recipe={})), _PLAN),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_damage_is_one_sentence_with_a_remedy(what, whole, table, tmp_path, said):
    name, damage, sentence = DAMAGES[what]
    study = tmp_path / "study"
    shutil.copytree(whole, study)
    damage(study / name)
    for arguments in (("status", study), ("report", study), ("compare", table, *HOW, "--out", study)):
        code, error = said(*arguments)
        assert code > 0
        assert re.search(sentence, error), error
        assert "Traceback" not in error


_WRITTEN = r"cannot be read \(.*\); `spaceform evaluate .*` writes it again"
_COPIED = r"; copy the run again, or remove .* and train it again"
BESIDE = {
    "outputs cut short": ("outputs.npz", _cut, rf"outputs.npz {_WRITTEN}"),
    "outputs of text": ("outputs.npz", _as("x"), rf"outputs.npz {_WRITTEN}"),
    "outputs of other arrays": ("outputs.npz", _arrays(a=[1]), rf"outputs.npz {_WRITTEN}"),
    "a history cut short": ("history.jsonl", _cut, r"history.jsonl cannot be read .* restore the file, or"),
    "a history of text": ("history.jsonl", _as("x"), r"history.jsonl cannot be read .* restore the file, or"),
    "a recipe cut short": ("recipe.json", _cut, rf"recipe.json cannot be read \(.*\){_COPIED}"),
    "another recipe": (
        "recipe.json",
        _changed(lambda r: r.update(seed=7)),
        rf"recipe.json is not the recipe of this run{_COPIED}",
    ),
    "calibrators cut short": ("calibrators.json", _cut, rf"calibrators.json {_WRITTEN}"),
    "calibrators of nothing": (
        "calibrators.json",
        _as("{}"),
        r"calibrators.json does not hold the calibrators .* `spaceform evaluate .*` writes it again",
    ),
    "held-out items of text": ("held_out.npz", _as("x"), r"held_out.npz cannot be read; `spaceform eval"),
}


@pytest.mark.parametrize("what", BESIDE)
def test_damage_beside_the_metrics_is_told(what, whole, tmp_path):
    name, damage, sentence = BESIDE[what]
    run = tmp_path / "run"
    shutil.copytree(whole / "runs/cosine-seed0", run)
    assert damages(run) == []
    damage(run / name)
    (told,) = damages(run)
    assert re.search(sentence, told), told


def test_a_report_with_damage_beside_the_metrics_is_made_and_says_so(whole, tmp_path, said):
    study = tmp_path / "study"
    shutil.copytree(whole, study)
    _cut(study / "runs/cosine-seed0/outputs.npz")
    _as("{}")(study / "runs/cosine-seed0/calibrators.json")
    code, error = said("report", study)
    assert code == 1
    for name in ("outputs.npz", "calibrators.json"):
        assert re.search(rf"cosine-seed0/{name} .*`spaceform evaluate .*` writes it again", error)
        assert name in (study / "report" / "report.html").read_text("utf-8")


def test_a_report_on_two_studies_is_made_without_the_damaged_one(whole, tmp_path, said):
    for name in ("a", "b"):
        shutil.copytree(whole, tmp_path / name)
    _changed(lambda r: r.update(version=99))(tmp_path / "b" / PLAN)
    code, error = said("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "out")
    assert code == 1
    assert re.search(_VERSION, error), error
    assert "cosine-seed0" in (tmp_path / "out" / "report.html").read_text("utf-8")


def test_outputs_that_do_not_belong_together_leave_the_metrics(whole, tmp_path):
    study = tmp_path / "study"
    shutil.copytree(whole, study)
    np.savez(study / "runs/cosine-seed0/outputs.npz", labels=[0, 1], probabilities=[[0.5, 0.5]])
    assert spaceform.Study.open(study).advice is not None
    assert spaceform.Study.open(study).report().exists()


def test_a_last_line_that_is_not_whole_yet_is_passed_over(whole, tmp_path):
    shutil.copy(whole / TRIALS, tmp_path)
    before = feature_search.Kept.read(tmp_path / "cosine.jsonl")
    with (tmp_path / "cosine.jsonl").open("a") as file:
        file.write('{"trial": {"head": "cos')
    assert feature_search.Kept.read(tmp_path / "cosine.jsonl") == before
