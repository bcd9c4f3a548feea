"""Tables: numbers by hand, three formats, escaping, the paper beside ours."""

import csv
import io
import json
import shutil

import numpy as np
import pytest

from spaceform.report.contents import compute
from spaceform.report.records import collect
from spaceform.report.tables.results import (
    MISSING,
    Cell,
    Column,
    Line,
    Table,
    comparison,
    frame,
    paper_tables,
    runs,
)
from spaceform.report.tables.typeset import comma_separated, latex, markdown
from spaceform.run.recipe import RecipeError

TABLE = Table(
    "t",
    "A | title",
    "50% of <it>",
    (Column("paper", "MNIST"), Column("ours", "MNIST"), Column("other")),
    (
        Line(
            "vMF β=16", "vmf", (Cell("1.6 ± 0.1", 0.016, 0.001), Cell("1.50", 0.015, None, 1, True), MISSING)
        ),
        Line("a|b_c", "x", (MISSING, Cell("2.00 ± 0.20", 0.02, 0.002, 3), Cell("finished"))),
    ),
)


def no_marks(_group):
    return {}


def test_markdown_marks_the_best_and_escapes() -> None:
    lines = markdown(TABLE).splitlines()
    assert lines[0] == "### A \\| title"
    assert lines[2] == "50% of &lt;it>"
    assert lines[4] == "| head | MNIST: paper | MNIST: ours | other |"
    assert lines[6] == "| vMF β=16 | 1.6 ± 0.1 | **1.50** | — |"
    assert lines[7].startswith("| a\\|b_c |")


def test_latex_is_booktabs_with_spans_and_no_bare_specials() -> None:
    text = latex(TABLE)
    assert r"\multicolumn{2}{c}{MNIST}" in text
    assert r"\cmidrule(lr){2-3}" in text
    assert r"vMF $\beta$=16 & $1.6 \pm 0.1$ & $\boldsymbol{1.50}$ & ---" in text
    assert r"a|b\_c" in text
    assert r"50\% of \textless{}it\textgreater{}" in text
    assert text.count("{") == text.count("}")


def test_csv_holds_plain_numbers() -> None:
    rows = list(csv.DictReader(io.StringIO(comma_separated(TABLE))))
    assert rows[0]["MNIST: ours mean"] == "0.015"
    assert rows[0]["MNIST: ours sem"] == ""
    assert rows[1]["MNIST: ours sem"] == "0.002"
    assert rows[1]["MNIST: ours seeds"] == "3"
    assert rows[0]["other mean"] == ""
    assert rows[1]["other mean"] == "finished"


def test_summary_is_mean_and_standard_error_over_seeds(tmp_path, make_study) -> None:
    make_study(tmp_path / "s", heads=("standard", "cosine"), seeds=3)
    (part,) = compute(collect([tmp_path / "s"])).parts
    group, table = part.group, part.summary
    values = [record.metrics["accuracy"] for record in group.of("cosine")]
    cell = table.lines[1].cells[0]
    assert table.lines[1].label == "Cosine"
    assert cell.mean == pytest.approx(np.mean(values))
    error = np.std(values, ddof=1) / np.sqrt(3)
    assert cell.sem == pytest.approx(error)
    assert cell.text == f"{100 * np.mean(values):.2f} ± {100 * error:.2f}"
    for place, measure in enumerate(part.results.measures):
        marked = {
            label for label, line in zip(group.labels, table.lines, strict=True) if line.cells[place].bold
        }
        assert marked == part.advice.leading(measure.column)  # nothing where chance alone gives such values
    assert part.advice.leading("accuracy")
    assert part.advice.leading("nll")
    assert [line.label for line in runs(group).lines] == [r.name for r in group.records]


def test_the_paper_stands_beside_ours_on_its_own_data(tmp_path, make_study) -> None:
    make_study(tmp_path / "mnist", heads=("standard", "vmf"), data="mnist")
    make_study(tmp_path / "own", heads=("standard", "vmf"))
    collection = collect([tmp_path / "mnist", tmp_path / "own"])
    tables = {table.number: table for table in paper_tables(collection.groups, no_marks)}
    assert list(tables) == ["Table 1", "Table 2", "Table 3"]
    accuracy = tables["Table 2"]
    assert [(c.over, c.title) for c in accuracy.columns] == [
        ("MNIST", "paper"),
        ("MNIST", "ours"),
        ("", "digits"),
    ]
    assert [line.cells[0].text for line in accuracy.lines] == ["98.92 ± 0.03", "99.02 ± 0.04"]
    assert tables["Table 1"].lines[1].cells[0].text == "0.97"
    assert tables["Table 3"].lines[1].cells[0].text == "1.6 ± 0.1"
    assert tables["Table 3"].columns[0].over == "MNIST, as trained"
    beside = comparison(collection.groups[0])
    assert beside is not None
    ours = (
        frame(collection.groups[0])
        .groupby("label")["accuracy"]
        .agg(["mean", lambda v: v.std(ddof=0) / 2**0.5])
    )
    mean, sem = ours.loc["vmf"]
    place = [c.over for c in beside.columns].index("accuracy %")
    difference = beside.lines[1].cells[place + 2].mean
    assert difference == pytest.approx((mean - 0.9902) / np.hypot(0.0004, sem), rel=1e-6)
    assert comparison(collection.groups[1]) is None


def test_retrieval_has_table_4(tmp_path, make_study) -> None:
    make_study(tmp_path / "s", heads=("standard", "cosine"), data="cub200", task="retrieval")
    collection = collect([tmp_path / "s"])
    (table,) = paper_tables(collection.groups, no_marks)
    assert table.number == "Table 4"
    assert [c.over for c in table.columns][:2] == ["CUB200-2011, own metric"] * 2
    assert table.lines[0].cells[0].text == "20.0 ± 0.2"


def test_the_paper_does_not_stand_beside_another_net(tmp_path, make_study) -> None:
    make_study(tmp_path / "s", heads=("standard", "vmf"), data="cifar10", net="residual")
    collection = collect([tmp_path / "s"])
    assert comparison(collection.groups[0]) is None
    assert "paper" not in {
        column.title for table in paper_tables(collection.groups, no_marks) for column in table.columns
    }


def test_missing_pieces_become_notes(tmp_path, make_study) -> None:
    study = make_study(tmp_path / "s", heads=("standard", "cosine", "vmf"), seeds=2)
    runs_folder = study.folder / "runs"
    (runs_folder / "standard-seed0" / "outputs.npz").write_bytes(b"not a zip")
    shutil.rmtree(runs_folder / "cosine-seed0")
    for name in ("metrics.json", "result.json"):
        (runs_folder / "vmf-seed0" / name).unlink()
    (runs_folder / "vmf-seed0" / "error.json").write_text('{"error": "the loss is not finite"}')
    (runs_folder / "vmf-seed1" / "metrics.json").write_text("{")
    group = collect([study.folder]).groups[0]
    notes = "\n".join(group.notes)
    assert "standard-seed0: no outputs.npz that can be read" in notes
    assert "cosine-seed0: not finished (waiting)" in notes
    assert "vmf-seed0: failed: the loss is not finite" in notes
    assert "vmf-seed1: failed: its files cannot be read" in notes
    assert "No finished run: vMF." in notes
    assert "One seed only, so no error bar: Cosine." in notes
    assert group.shown["standard"].record.recipe.seed == 1
    (part,) = compute(collect([study.folder])).parts
    assert part.summary.lines[2].cells[0] is MISSING


def test_a_note_about_many_runs_can_be_read(tmp_path, make_study) -> None:
    study = make_study(tmp_path / "s", heads=("standard", "cosine"), seeds=4, items=60)
    files = [study.path(job) / "outputs.npz" for job in study.jobs]
    for file in files[:-1]:
        file.unlink()
    (note,) = collect([study.folder]).groups[0].notes
    assert note.startswith("standard-seed0, standard-seed1, standard-seed2, standard-seed3 and 3 more runs: ")
    files[-1].unlink()
    (note,) = collect([study.folder]).groups[0].notes
    assert note.startswith("All 8 runs: no outputs.npz that can be read")


def test_nothing_to_report_says_so(tmp_path) -> None:
    with pytest.raises(RecipeError, match="neither a study"):
        collect([tmp_path])
    with pytest.raises(RecipeError, match="there is no folder"):
        collect([tmp_path / "nowhere"])
    with pytest.raises(RecipeError, match="give the folder"):
        collect([])


def test_studies_of_the_same_data_do_not_mix(tmp_path, make_study) -> None:
    for name in ("quick", "full"):
        make_study(tmp_path / name, heads=("cosine",), seeds=1)
    groups = collect([tmp_path / "quick", tmp_path / "full"]).groups
    assert [group.title for group in groups] == ["digits · quick", "digits · full"]
    assert [group.key for group in groups] == ["digits-quick", "digits-full"]


def test_rows_stand_in_the_papers_order_whatever_the_order_of_the_studies(tmp_path, make_study) -> None:
    make_study(tmp_path / "a", heads=("vmf", "cosine"), seeds=1)
    make_study(tmp_path / "b", heads=("hyperbolic", "standard"), seeds=1, data="mnist")
    table = paper_tables(collect([tmp_path / "a", tmp_path / "b"]).groups, no_marks)[1]
    assert [line.label for line in table.lines] == ["Standard", "Hyperbolic", "Cosine", "vMF"]


def test_the_numbers_that_heads_ended_with_have_a_table(tmp_path, make_study) -> None:
    study = make_study(tmp_path / "s", heads=("standard", "hyperbolic", "cosine"), seeds=2)
    ended = {
        "hyperbolic": [{"curvature": 2e-4, "clip": 30.0}] * 2,
        "cosine": [{"beta": 10.5, "centres": 3}, {"beta": 12.5, "centres": 3}],
    }
    for job in study.jobs:
        path = study.path(job) / "metrics.json"
        found = json.loads(path.read_text())
        if job.label in ended:
            found["numbers"] = ended[job.label][job.recipe.seed]
        path.write_text(json.dumps(found))
    (part,) = compute(collect([tmp_path / "s"])).parts
    assert part.found is not None
    assert part.found in part.tables
    titles = ["curvature c", "longest norm", "inverse temperature β", "centres of a class"]
    assert [column.title for column in part.found.columns] == titles
    assert [(line.label, [cell.text for cell in line.cells]) for line in part.found.lines] == [
        ("Hyperbolic", ["0.0002", "30", "—", "—"]),
        ("Cosine", ["—", "—", "11.5 ± 1", "3"]),
    ]


def test_without_such_numbers_there_is_no_table_of_them(tmp_path, make_study) -> None:
    make_study(tmp_path / "s", heads=("standard",), seeds=1)
    (part,) = compute(collect([tmp_path / "s"])).parts
    assert part.found is None
