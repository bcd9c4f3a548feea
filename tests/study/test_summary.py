"""The table of results: values, what the verdict marks, references, and what is said below."""

import re

import numpy as np
import pandas as pd
import pytest

from spaceform.cli import terminal
from spaceform.run.progress import Progress, describe
from spaceform.run.recipe import QUICK
from spaceform.study import summary
from spaceform.study.folder import Job, RunStatus
from spaceform.study.summary import Findings, Measure, measures, results, standard_error, summarize

ACCURACY = Measure("accuracy", "accuracy %")


def table(column: str = "accuracy", state: str = "finished", **scores: list[float | None]) -> pd.DataFrame:
    rows = [
        {"label": label, "seed": seed, "task": "classification", "state": state, column: value}
        for label, values in scores.items()
        for seed, value in enumerate(values)
    ]
    return pd.DataFrame(rows)


def said(found: pd.DataFrame, findings: Findings = summary.NOTHING) -> str:
    return " ".join(results(found, findings).footnote)


def test_standard_error_divides_by_one_less_and_needs_two_seeds():
    assert standard_error([1.0, 2.0, 3.0, 4.0]) == pytest.approx(np.sqrt(5 / 3) / 2)
    assert standard_error([0.7]) is None
    (alone,) = summarize(table(vmf=[0.9]), ACCURACY)
    assert alone.sem is None


def test_what_the_verdict_names_is_marked_and_nothing_else():
    found = table(vmf=[0.90, 0.91], cosine=[0.89, 0.91], standard=[0.70, 0.71])
    shown = results(found, Findings({"accuracy": {"vmf", "cosine"}}))
    assert [shown.row(label, ACCURACY).marked for label in shown.heads] == [True, True, False]
    assert not any(row.marked for row in results(found).rows.values())
    assert "practically as good" in " ".join(shown.footnote)
    assert "Bold" not in said(found)


def test_a_column_without_a_verdict_is_named():
    found = table(vmf=[0.90, 0.91], cosine=[0.89, 0.91]).assign(nll=0.3)
    assert "No bold where there is no verdict: NLL." in said(found, Findings({"accuracy": {"vmf"}}))


def test_references_stand_below_and_are_never_marked():
    found = table(vmf=[0.90, 0.91], cosine=[0.80, 0.81])
    beside = {"LogisticRegression": {"accuracy": 0.95}, "the features": {"retrieval.map_at_r": 0.4}}
    shown = results(found, Findings({"accuracy": {"vmf", "LogisticRegression"}}, beside))
    assert shown.heads == ("vmf", "cosine")
    assert shown.references == ("LogisticRegression",)  # the other has no value in any column
    row = shown.row("LogisticRegression", ACCURACY)
    assert (row.mean, row.sem, row.marked) == (0.95, None, False)
    assert "The last row is no head." in " ".join(shown.footnote)
    assert "no head" not in said(found)


def test_how_many_seeds_is_said():
    assert said(table(vmf=[0.9, 0.92])) == "Mean ± standard error over 2 seeds."
    assert said(table(vmf=[0.9], cosine=[0.8])) == "One seed of each head, so there is no error bar."
    assert "over 1 to 2 seeds" in said(table(vmf=[0.9], cosine=[0.8, 0.9]))


def test_a_search_that_was_turned_off_is_said():
    note = "Rates and options were not searched."
    assert note in said(table(vmf=[0.9], cosine=[0.8]), Findings().told("", note))


def test_plain_temperature_is_shown_where_no_calibrator_was_chosen():
    plain, chosen = (f"calibrated.{name}.calibration_error_l2" for name in ("temperature", "chosen"))
    found = table(plain, vmf=[0.02, 0.03], cosine=[0.04, 0.05])
    assert [m.column for m in measures(found)] == [plain]
    found[chosen] = [0.02, 0.03, 0.04, 0.01]
    assert [m.column for m in measures(found)] == [chosen]


def test_retrieval_results_are_read_by_their_own_measures():
    found = table("map_at_r", vmf=[0.2, 0.21], cosine=[0.3, 0.31]).assign(task="retrieval")
    assert [m.column for m in measures(found)] == ["map_at_r"]


def test_what_is_missing_is_left_out_and_said():
    found = pd.concat(
        [table(vmf=[0.9, 0.91], cosine=[0.8, 0.81]), table(state="failed", standard=[None])],
        ignore_index=True,
    )
    assert {row.label for row in summarize(found, ACCURACY)} == {"vmf", "cosine"}
    assert "1 of 5 runs are not finished or failed" in said(found)
    nothing = table(state="failed", vmf=[None])
    assert measures(nothing) == ()
    assert summarize(nothing, ACCURACY) == []


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_no_figure_is_broken_in_a_narrow_terminal(width, monkeypatch, capsys):
    rows = [
        {"label": label, "seed": seed, "state": "finished", "task": "classification"}
        | {m.column: 0.5 + 0.1 * seed for m in summary.CLASSIFICATION_MEASURES}
        for label in ("vmf", "power_spherical")
        for seed in range(3)
    ]
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    terminal.print_results(results(pd.DataFrame(rows)), [])
    said = capsys.readouterr().out
    columns = measures(pd.DataFrame(rows))
    percents = sum(m.percent for m in columns)
    values = ["60.00 ± 5.77", "0.600 ± 0.058"]
    table_part = said[: said.index("Mean ±")]
    assert [table_part.count(value) for value in values] == [2 * percents, 2 * (len(columns) - percents)]
    plain = [line for line in re.sub(r"\x1b\[[0-9;]*m", "", table_part).splitlines() if line]
    assert max(map(len, plain)) <= width
    if width == 80:
        parts = len([line for line in plain if line.startswith("vmf")])
        assert 1 < parts <= -(-len(columns) // 3)  # three columns or more beside each other


def test_a_terminal_sets_references_apart_and_marks_with_stars_where_it_has_no_bold(capsys):
    found = Findings({"accuracy": {"vmf"}}, {"LogisticRegression": {"accuracy": 0.95}})
    terminal.print_results(results(table(vmf=[0.9], cosine=[0.8]), found), ["Choose vmf."])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == ["vmf", "90.00", "*"]
    assert lines[2] == ["cosine", "80.00"]
    assert lines[3] == ["instead", "of", "a", "head:"]
    assert lines[4] == ["LogisticRegression", "95.00"]
    assert lines[-1] == ["Choose", "vmf."]


def board_of(states: list[str], capsys) -> str:
    """What the board prints when it begins, where there is no terminal."""
    jobs = [Job(f"vmf-seed{i}", "vmf", QUICK["digits/vmf"]) for i in range(len(states))]
    with terminal.Board([RunStatus(job, state) for job, state in zip(jobs, states, strict=True)]):
        return capsys.readouterr().err


def test_the_board_counts_finished_runs_whoever_made_them(capsys):
    """A comparison adds seeds round by round: the first rounds may be its own work."""
    assert board_of(["waiting"] * 2, capsys) == ""
    assert board_of(["finished", "finished", "waiting"], capsys) == "2 of 3 runs are finished; 1 more to do\n"
    assert board_of(["finished", "failed"], capsys) == "1 of 2 runs is finished; 1 more to do\n"
    assert board_of(["finished"] * 3, capsys) == "3 of 3 runs are finished\n"


@pytest.mark.parametrize(
    ("left", "said"),
    [(None, ""), (0.0, ""), (0.4, ""), (1.2, "  at least 1 s left"), (75.0, "  at least 1 min 15 s left")],
)
def test_no_time_is_named_where_none_is_left(left, said):
    progress = Progress(2, 3, 5, 5, 0.5, 0.9, 0.9, 1, 0.1, left, True)
    assert describe(progress).endswith(f"  lr 0.1{said}")
