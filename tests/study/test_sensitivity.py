"""What a search tried, read again: candidates on one schedule, the middle one, those that diverged."""

import json
import math
from pathlib import Path

import optuna
import pytest

from spaceform.study.sensitivity import Tried, heads_left_out, told, tried, unequal


def write_search(study: Path, head: str, rungs: list[list[float | None]], planned: int = 4) -> None:
    """`HEAD.jsonl` of a search: for each rung the NLL of every candidate; None diverged."""
    lines = [{"head": head, "candidates": planned, "data": {"content": "", "split": ""}}]
    for rung, scores in enumerate(rungs):
        for candidate, nll in enumerate(scores):
            value = math.nan if nll is None else nll
            trial = {
                "head": head,
                "candidate": candidate,
                "rung": rung,
                "epochs": 5,
                "lr": 0.1,
                "best_epoch": 5,
                "nll": value,
                "calibrated_nll": value,
                "temperature": 1.0,
                "accuracy": 0.9,
                "seconds": 1.0,
                "error": "the loss is not finite" if nll is None else None,
            }
            lines.append({"trial": trial, "recipe": {"net": {}, "optim": {}, "head": {"name": head}}})
    (study / "search").mkdir(parents=True, exist_ok=True)
    (study / "search" / f"{head}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_candidates_are_compared_on_the_schedule_that_all_had(tmp_path):
    write_search(tmp_path, "vmf", [[0.5, 0.3, None, 0.4], [0.2]])
    (one,) = tried(tmp_path)
    assert one == Tried("vmf", (0.3, 0.4, 0.5), 1, 0.2, "NLL", 4)
    assert one.count == 4
    assert one.typical == pytest.approx(0.45)  # of 0.3, 0.4, 0.5 and one that diverged
    assert one.loss == pytest.approx(0.15)


def test_trials_of_optuna_are_read_by_head(tmp_path):
    (tmp_path / "search").mkdir()
    url = f"sqlite:///{tmp_path / 'search' / 'search.db'}"
    study = optuna.create_study(storage=url, study_name="digits, cosine", direction="maximize")
    study.set_user_attr("head", "cosine")
    for score in (0.8, 0.9, 0.7):
        study.add_trial(optuna.trial.create_trial(value=score))
    lost = optuna.trial.create_trial(value=0.0, user_attrs={"diverged": True})
    study.add_trial(lost)
    (one,) = tried(tmp_path)
    assert one == Tried("cosine", (0.9, 0.8, 0.7), 1, 0.9, "accuracy", 4)
    assert one.typical == pytest.approx(0.75)  # of 0.9, 0.8, 0.7 and one that diverged
    assert one.loss == pytest.approx(0.15)


def test_a_head_that_needs_luck_loses_more_than_one_that_does_not(tmp_path):
    write_search(tmp_path, "cosine", [[0.30, 0.31, 0.32, 0.33]])
    write_search(tmp_path, "vmf", [[0.30, None, None, 0.9]])
    cosine, vmf = tried(tmp_path)
    assert cosine.loss < 0.03
    assert vmf.loss == math.inf


def test_a_head_of_which_nothing_trained_is_not_there_and_is_named(tmp_path):
    write_search(tmp_path, "vmf", [[None, None]])
    assert tried(tmp_path) == []
    assert tried(tmp_path / "nowhere") == []
    notes = {"searched": {"vmf": "vmf: every candidate diverged", "cosine": "fine"}}
    assert heads_left_out({"cosine"}, notes) == {"vmf": "every candidate diverged"}
    assert heads_left_out({"cosine"}, {}) == {}


def test_a_search_that_was_not_equal_is_told_with_the_counts():
    def had(head: str, count: int, planned: int) -> Tried:
        return Tried(head, (0.1,) * count, 0, 0.1, "NLL", planned)

    assert unequal([]) == unequal([had("vmf", 3, 4), had("cosine", 3, 4)]) == ""
    cut = [had("vmf", 1, 4), had("cosine", 4, 4), had("standard", 4, 4)]
    assert unequal(cut) == (
        "The search was not equal: cosine and standard 4 candidates; vmf 1 candidate. A head with fewer may "
        "be better than it looks here. The same command with more --minutes goes on."
    )
    fewer = [had("standard", 1, 1), had("vmf", 4, 4)]  # settings may leave a head without choices
    assert unequal(fewer).endswith("better than it looks here.")
    assert "time was over" not in told(fewer, "")
    assert "time was over" in told(cut, "")


def test_what_was_tried_is_said_and_what_was_not():
    assert told([], "Nothing was searched.") == "Nothing was searched."
    full = Tried("vmf", (0.1, 0.2), 0, 0.1, "NLL", 2)
    assert (
        told([full], "")
        == "Rates and options: 2 candidates were tried for each head on the validation split."
    )
    short = Tried("cosine", (0.1,), 0, 0.1, "NLL", 2)
    assert told([full, short], "").endswith(
        "1 to 2 candidates were tried for each head on the validation split; "
        "2 were planned, but the time was over."
    )
    assert "1 to 2 candidates" in told([full, short], "")
