"""The kept results: small, whole, the source of every table, and traceable."""

import importlib
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from spaceform import Study

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not RESULTS.exists(), reason="the results are kept in the repository alone"),
]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch):
    """A script of results/ as a module."""
    monkeypatch.syspath_prepend(str(RESULTS))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    return load


def test_results_stay_small() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(files) < 50
    assert sum(path.stat().st_size for path in files) < 6_000_000


def test_tables_of_the_pages_are_those_of_the_kept_runs(module) -> None:
    """What `python results/tables.py` writes stands in the pages already; a changed digit is found."""
    tables = module("tables")
    shown = set()
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        named = [name for _, name, _ in tables.BLOCK.findall(text)]
        assert named, page.name
        shown |= set(named)
        assert tables.rewritten(text) == text, f"{page.name} is not up to date: run results/tables.py"
        wrong = text.replace(tables.table(named[0]), tables.table(named[0]).replace(" 0.", " 1.", 1))
        assert tables.rewritten(wrong) == text != wrong
    assert set(tables.TABLES) <= shown


def test_an_unpacked_study_is_the_study_that_was_kept(module, tmp_path: Path) -> None:
    """Opened by the library itself, and packed again: the same plan, runs and numbers."""
    archive = module("archive")
    for name in archive.names():
        kept = archive.load(name)
        assert archive.unpack(name, tmp_path / name) == len(kept.results())
        study = Study.open(tmp_path / name)
        assert study.notes == kept.study["notes"]
        found, own = study.table.set_index("run"), kept.results().set_index("run")
        assert (found["state"] == "finished").all()
        columns = own.columns.difference(["data"])  # a path in the recipe, a name in the metrics
        assert found.loc[own.index, columns].equals(own[columns]), name


def test_packing_keeps_runs_that_are_not_finished(module, tmp_path: Path, monkeypatch) -> None:
    archive = module("archive")
    archive.unpack("digits-laws", tmp_path / "laws")
    shutil.rmtree(tmp_path / "laws" / "runs" / "vmf-seed4")
    whole = archive.load("digits-laws")
    monkeypatch.setattr(archive, "RESULTS", tmp_path)
    assert archive.pack(tmp_path / "laws", "again") == 9
    again = archive.load("again")
    assert (again.study, again.search) == (whole.study, whole.search)
    for old, new in zip(whole.runs, again.runs, strict=True):
        if new.name == "vmf-seed4":
            assert (new.recipe, new.result, new.metrics, new.history) == (old.recipe, None, None, ())
        else:
            assert new == old


def test_every_cell_can_be_traced(module) -> None:
    tables, trace = module("tables"), module("trace")
    traced = 0
    for table in tables.TABLES.values():
        for row in table.rows:
            for column in table.columns:
                study, label = row.study or column.study, column.prefix + row.label
                if study == tables.RAW:
                    assert trace.main([study, "cosine"])
                    continue
                lines = trace.main([study, label, column.metric])
                mean = float(next(line for line in lines if line.startswith("mean: ")).split()[1])
                assert mean == pytest.approx(tables.values(study, label, column.metric).mean(), rel=1e-5)
                assert sum(": seed " in line and ", commit " in line for line in lines) >= 3
                traced += 1
    assert traced > 250


def test_the_documented_command_prints_runs_seeds_command_and_commit(module) -> None:
    page = (ROOT / "docs" / "findings.md").read_text("utf-8")
    command = "python results/trace.py mnist vmf accuracy"
    assert f"\n{command}\n" in page
    done = subprocess.run(
        [sys.executable, *command.split()[1:]], cwd=ROOT, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "command: spaceform reproduce mnist --heads all" in done.stdout
    assert "vmf-seed3: seed 3, accuracy 0.9891, 92 epochs, commit e608179" in done.stdout
    assert "shown in: README.md, table 'accuracy'" in done.stdout
    tables = module("tables")
    cell = next(line for line in tables.table("accuracy").splitlines() if "`vmf`" in line).split(" | ")[3]
    mean, error = (100 * float(word) for word in done.stdout.split("mean: ")[1].split()[0:3:2])
    assert cell == f"{mean:.2f} ± {error:.2f}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mnits"], "there is no study 'mnits' in results/; choose from cifar10-residual"),
        (["mnist", "vmv"], "mnist has no label 'vmv'; choose from standard, hyperbolic"),
        (["mnist", "vmf", "acc"], "mnist has no metric 'acc'; choose from "),
        (["benchmarks/training", "speed"], "there is no speed in benchmarks/training.json; it begins with"),
        (["mnist", "vmf", "accuracy", "nll"], "give a study, a label and a metric"),
    ],
)
def test_what_is_not_there_is_said(module, arguments: list[str], said: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(said)):
        module("trace").main(arguments)


def test_the_pictures_of_the_questions_can_be_drawn(module, tmp_path: Path, monkeypatch) -> None:
    questions = module("draw_questions")
    shown = (ROOT / "docs" / "findings.md").read_text("utf-8")
    assert all(f"(images/question-{name}.png)" in shown for name in questions.PICTURES)
    monkeypatch.setattr(questions, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(questions, "IMAGES", tmp_path)
    monkeypatch.setattr(questions, "PICTURES", {"digits-laws": "digits-laws"})
    questions.main()
    assert 5_000 < (tmp_path / "question-digits-laws.png").stat().st_size < 100_000


def test_the_pictures_of_the_benchmarks_can_be_drawn(module, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmarks = module("draw_records")
    shown = (ROOT / "docs" / "findings.md").read_text("utf-8")
    assert all(f"(images/{name}.png)" in shown for name in benchmarks.PICTURES)
    left, right = benchmarks.draw_bound().axes
    rows = [row for row in benchmarks.record("many_classes")["rows"] if row["data"] == "made"]
    drawn = {line.get_label(): line.get_ydata().tolist() for line in (*left.lines, *right.lines)}
    assert drawn["trained, ½β² Σ p² v"] == [row["trained"]["second_order"] for row in rows]
    assert drawn["bound"] == [row["trained"]["bound"] for row in rows]
    panels = benchmarks.draw_hierarchy().axes
    assert len(panels) == 8
    points = sum(len(panel.containers) for panel in panels[:4])
    assert points == sum(len(found["rows"]) for found in benchmarks.record("hierarchy")["sets"].values())


def test_a_folder_that_is_not_empty_is_refused(module, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(ValueError, match="is there already and is not an empty folder; choose another one"):
        module("archive").unpack("digits-laws", tmp_path)
    with pytest.raises(ValueError, match=r"holds no study\.json; give the folder of a study"):
        module("archive").pack(tmp_path, "x")
