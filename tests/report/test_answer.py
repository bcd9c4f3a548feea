"""The answer and what it rests on: picture, weights, references, search, cost, mistakes, what to deploy."""

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from spaceform import metrics
from spaceform.decisions import Combined, Known, LeastAmbiguousSets
from spaceform.report.contents import Contents, compute
from spaceform.report.figures.confusion import Confusion, confused_table, confusion, confusion_figure
from spaceform.report.figures.intervals import intervals
from spaceform.report.figures.searched import sensitive_heads
from spaceform.report.looks import display
from spaceform.report.page.advice import cards
from spaceform.report.page.page import render
from spaceform.report.records import collect
from spaceform.report.tables import decided
from spaceform.report.tables.making import made
from spaceform.report.tables.typeset import comma_separated, latex, markdown
from spaceform.run import timing
from spaceform.run.held_out import HeldOut
from spaceform.study.references import FOLDER
from spaceform.study.sensitivity import Tried
from study.test_sensitivity import write_search

HEADS = ("standard", "cosine", "vmf")

pytestmark = pytest.mark.slow


def write_reference(study: Path, name: str, title: str, p: np.ndarray, labels: np.ndarray) -> None:
    """A reference as `compare` keeps it."""
    measured = {
        "accuracy": float(metrics.accuracy(p, labels)),
        "nll": float(metrics.nll(np.log(p), labels)),
        "calibration_error_l2": float(metrics.calibration_error(p, labels)),
    }
    about = {"title": title, "measured": measured, "setting": {}, "seconds": 2.5}
    (study / FOLDER).mkdir()
    np.savez(
        study / FOLDER / f"{name}.npz",
        about=np.array(json.dumps(about)),
        labels=labels,
        probabilities=p.astype(np.float32),
        probabilities_structured=p.astype(np.float32),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_study) -> Path:
    """A study with a search, a race, a reference that knows nothing, and a head that never trained."""
    out = tmp_path_factory.mktemp("answer") / "s"
    study = make_study(out, heads=HEADS, seeds=2, items=300, noise=3)
    labels = np.arange(300) % 10
    write_reference(out, "logistic", "LogisticRegression", np.full((300, 10), 0.1), labels)
    for head, scores in zip(HEADS, ([0.3, 0.31, 0.32], [0.3, 0.5, 0.6], [0.4, 0.41, None]), strict=True):
        write_search(out, head, [scores], planned=3)
    for job in study.jobs:
        timing.write(study.path(job), 0.03, 300)
    plan = json.loads((out / "study.json").read_text())
    question = {"goal": "accuracy", "choice": "cosine", "regret": 0.4, "region": 0.5, "settled": False}
    plan["notes"] |= {
        "searched": dict.fromkeys(HEADS, "fine") | {"hyperbolic": "every candidate diverged"},
        "race": [
            {"reason": "regret", "questions": [{**question, "heads": ["cosine", "vmf"]}]},
            {"reason": "settled", "questions": [{**question, "settled": True, "heads": ["cosine"]}]},
        ],
    }
    (out / "study.json").write_text(json.dumps(plan))
    return out


@pytest.fixture(scope="module")
def contents(folder) -> Contents:
    return compute(collect([folder]))


@pytest.fixture(scope="module")
def page(contents) -> str:
    return render(contents)


def test_the_table_is_marked_by_the_verdict_in_every_format(contents, page) -> None:
    (part,) = contents.parts
    assert [line.label for line in part.summary.lines] == ["Standard", "Cosine", "vMF", "LogisticRegression"]
    assert [line.reference for line in part.summary.lines] == [False, False, False, True]
    assert not any(cell.bold for cell in part.summary.lines[-1].cells)
    leading = part.advice.leading("accuracy")
    names = {"standard": "Standard", "cosine": "Cosine", "vmf": "vMF"}
    text = markdown(part.summary)
    for label, name in names.items():
        row = re.search(rf"^\| {name} \| (.*?) \|", text, re.MULTILINE)[1]
        assert row.startswith("**") == (label in leading)
    assert "| *LogisticRegression* | 10.00 |" in text
    rows = {row["head"]: row for row in csv.DictReader(io.StringIO(comma_separated(part.summary)))}
    assert {label for label, name in names.items() if rows[name]["accuracy % bold"] == "1"} == leading
    assert [row["kind"] for row in rows.values()] == ["head", "head", "head", "reference"]
    assert r"\midrule" + "\n" + r"\textit{LogisticRegression} & $10.00$" in latex(part.summary)
    assert re.search(r'<tr class="reference"><th scope="row" data-value="LogisticRegression">', page)
    assert "Bold: the head to choose by this column" in page


def test_the_advice_sets_the_choice_against_the_reference(contents, page) -> None:
    (part,) = contents.parts
    said = part.advice.overall()[1]
    choice = part.advice.recommendation.choice.label
    assert said.startswith(
        f"Compared with what people would use instead, {choice} is better than LogisticRegression"
    )
    assert "Compared with what people would use instead" in page


def test_the_picture_has_a_panel_for_each_goal_with_heads_above_references(contents) -> None:
    (part,) = contents.parts
    advice = part.advice
    judged = [advice.verdict.of(column).goal.title for column in advice.recommendation.weights]
    assert [panel.title for panel in part.answer.panels] == judged
    assert {"accuracy", "AUROC of the norm"} <= set(judged)
    drawn, axes = plt.subplots()
    part.answer.panels[0].draw(axes)
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert set(names[:3]) == {"Standard", "Cosine", "vMF"}
    assert names[3:] == ["LogisticRegression"]
    bold = [text.get_text() for text in axes.get_yticklabels() if text.get_fontweight() == "bold"]
    verdict = part.advice.verdict.of("accuracy")
    assert [name.lower() for name in bold] == [part.advice.recommendation.goals["accuracy"].label]
    low, high = axes.get_xlim()
    assert low < verdict.chosen.mean - verdict.goal.region < verdict.chosen.mean < high
    assert low > verdict.reference.mean  # 25 regions behind: an arrow at the edge
    plt.close(drawn)


def test_without_a_finished_run_the_picture_says_so(contents) -> None:
    assert intervals(contents.parts[0].group, None).missing == "No goal has a value yet."


def test_the_weights_on_the_page_are_those_of_the_recommendation(contents, page) -> None:
    (part,) = contents.parts
    data = json.loads(re.search(r'id="digits-losses">(.*?)</script>', page)[1])
    found = part.advice.recommendation
    assert [goal["weight"] for goal in data["goals"]] == [round(100 * w) for w in found.weights.values()]
    assert sum(found.weights.values()) == pytest.approx(1)
    for goal, (column, share) in zip(data["goals"], found.weights.items(), strict=True):
        verdict = part.advice.verdict.of(column)
        regrets = [verdict.of(label).regret / verdict.counted(share) for label in part.advice.verdict.labels]
        assert goal["loss"] == pytest.approx(regrets)
    assert data["heads"][data["choice"]]["label"].lower() == found.choice.label


def test_the_page_says_which_run_to_deploy_and_how(contents, page) -> None:
    run = contents.parts[0].advice.to_deploy
    assert f"<code>spaceform export {run.folder} model.onnx</code>" in page
    assert f"To deploy: the run {run.folder.name}, the best of 2 seeds on the validation split." in page


def test_search_cost_and_plan_are_shown(contents, page) -> None:
    (part,) = contents.parts
    assert "Rates and options: 3 candidates were tried for each head on the validation split." in page
    rows = {line.label: [cell.text for cell in line.cells] for line in part.search_table.lines}
    assert rows["Cosine"] == ["3", "0", "0.300", "0.500", "0.200"]
    assert rows["vMF"] == ["3", "1", "0.400", "0.410", "0.010"]
    assert "Most sensitive: Cosine (0.200 NLL)" in page
    costs = {line.label: [cell.text for cell in line.cells] for line in part.costs.lines}
    assert costs["vMF"] == ["5.00", "100"]
    assert costs["LogisticRegression"] == ["2.50", "—"]
    assert part.made.rounds == [
        "After round 1: more seeds for Cosine and vMF. Open: accuracy (Cosine so far; expected loss 0.80 of "
        "what matters)."
    ]
    assert part.made.said[1:] == [
        "Seeds: 2 of each head.",
        "After round 2 the race for seeds stopped: more seeds would hardly change the choice of any goal.",
    ]


def test_a_head_that_never_trained_is_named(page) -> None:
    assert "Hyperbolic is left out: every candidate diverged." in page


def test_seeds_that_differ_are_listed(contents) -> None:
    group = contents.parts[0].group
    fewer = replace(group, records=group.records[1:])
    assert made(fewer, {}, "").said[0] == "Seeds: 2 of Cosine and vMF; 1 of Standard."


def test_heads_with_too_few_candidates_are_not_compared() -> None:
    many = [Tried(head, (0.1, 0.2, 0.3, 0.4), 0, 0.1, "NLL", 4) for head in ("cosine", "standard")]
    assert sensitive_heads(many).startswith("Least sensitive to its rates: Cosine")
    assert sensitive_heads([many[0], Tried("vmf", (0.1,), 0, 0.1, "NLL", 4)]) == ""


def by_hand(record, classes: int = 3) -> Confusion:
    counts = np.zeros((classes, classes), np.int64)
    counts[0, 0], counts[0, 1], counts[1, 1], counts[2, 0] = 8, 2, 5, 3
    return Confusion(record, tuple(f"class {i}" for i in range(classes)), counts)


def test_mistakes_by_hand(contents) -> None:
    (part,) = contents.parts
    found = by_hand(part.group.records[0])
    assert found.accuracy.tolist() == [0.8, 1.0, 0.0]
    assert found.pairs == [(2, 0, 3), (0, 1, 2)]
    rows = [
        (line.label, *(cell.text for cell in line.cells)) for line in confused_table(part.group, found).lines
    ]
    assert rows == [("class 2", "class 0", "3", "100.0"), ("class 0", "class 1", "2", "20.0")]
    assert [panel.title for panel in confusion_figure(part.group, found).panels] == [
        "Confusion matrix",
        "Accuracy by class",
    ]
    many = confusion_figure(part.group, by_hand(part.group.records[0], 40))
    assert [panel.title for panel in many.panels] == ["The classes with the lowest accuracy"]


def test_sets_by_class_are_those_of_the_held_out_items(contents, tmp_path) -> None:
    (part,) = contents.parts
    record = next(r for r in part.group.records if r.folder == part.advice.to_deploy.folder)
    assert decided.sets(part.group, record) is None  # such a run has kept no validation items
    p, y = (torch.from_numpy(x) for x in (record.outputs.probabilities, record.outputs.labels))
    shutil.copy(record.folder / "outputs.npz", tmp_path)
    kept = replace(record, folder=tmp_path)
    judge = Combined().fit(p, y, Known(p, y, p, p[:, 0]))
    HeldOut(p[:100], y[:100], p[:100].amax(1), judge).write(tmp_path)
    table = decided.sets(part.group, kept)
    members = LeastAmbiguousSets(0.9).fit(p[:100], y[:100])(p)
    first, *rest = table.lines
    assert [cell.mean for cell in first.cells] == pytest.approx(
        [300, members.gather(1, y[:, None]).double().mean().item(), members.sum(1).double().mean().item()]
    )
    assert [line.label for line in rest] == [record.outputs.classes[j] for j in y.unique().tolist()]
    of_first = y == y.min()
    assert rest[0].cells[2].mean == pytest.approx(members[of_first].sum(1).double().mean().item())
    HeldOut(p[:5], y[:5], p[:5].amax(1), judge).write(tmp_path)
    assert decided.sets(part.group, kept) is None  # five items promise nothing
    assert decided.sets(part.group, None) is None


def test_pairs_have_a_row_for_each_head_that_was_verified(contents) -> None:
    (part,) = contents.parts
    assert decided.pairs(part.group) is None
    record = part.group.records[0]
    measured = {"eer": 0.05, "cllr": 0.2, "min_cllr": 0.19}
    group = replace(
        part.group, records=(replace(record, metrics={**record.metrics, "verification": measured}),)
    )
    (line,) = decided.pairs(group).lines
    assert [cell.text for cell in line.cells] == ["5", "0.2", "0.19", "—", "—"]


def test_mistakes_are_those_of_the_run_to_deploy(contents) -> None:
    (part,) = contents.parts
    record = next(r for r in part.group.records if r.folder == part.advice.to_deploy.folder)
    found = confusion(record)
    assert found.counts.sum() == 300
    assert found.counts.diagonal().sum() / 300 == pytest.approx(record.metrics["accuracy"])
    assert confusion(None) is None
    assert confusion_figure(part.group, None).missing
    assert confused_table(part.group, None) is None


def test_the_choice_of_a_sentence_is_first_on_its_card_and_bold_in_the_table(contents) -> None:
    """Also where a cheaper head is chosen in place of the one that loses least."""
    advice = contents.parts[0].advice
    for column, choice in advice.recommendation.goals.items():
        assert choice.label in advice.leading(column)
        assert choice.label in advice.findings.leading[column]
    for card, (column, said) in zip(cards(contents.parts[0]), advice.by_goal(display).items(), strict=True):
        choice = advice.recommendation.goals.get(column)
        if choice is not None:
            assert card["winners"][0][1] == display(choice.label)
            assert said[0].startswith((f"Choose {display(choice.label)}", f"Only {display(choice.label)}"))
