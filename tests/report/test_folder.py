"""A report is written whole or not at all, whatever happens on the way."""

import errno
import os
from pathlib import Path

import pytest

from spaceform import report
from spaceform.foundation.messages import sentence
from spaceform.report.figures.figure import Figure
from spaceform.report.replacing import replaced_whole

pytestmark = pytest.mark.slow


def content(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def study(tmp_path, make_study, monkeypatch) -> Path:
    """A study whose figures are quick to write."""

    def save(figure: Figure, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        (folder / f"{figure.key}.svg").write_text(figure.caption)

    monkeypatch.setattr("spaceform.report.figures.figure.save_figure", save)
    make_study(tmp_path / "s", heads=("cosine",), items=40)
    return tmp_path / "s"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("half-way")])
def test_an_interrupt_half_way_leaves_the_old_report_or_none(study, monkeypatch, error) -> None:
    def interrupted(*_: object) -> None:
        raise error

    before = content(study)
    with monkeypatch.context() as patch:
        patch.setattr("spaceform.report.tables.typeset.save_table", interrupted)
        with pytest.raises(type(error)):
            report.write([study])
    assert content(study) == before
    assert not (study / "report").exists()
    report.write([study])
    before = content(study)
    (study / "runs" / "cosine-seed0" / "outputs.npz").unlink()  # a new report would be another
    with monkeypatch.context() as patch:
        patch.setattr("spaceform.report.tables.typeset.save_table", interrupted)
        with pytest.raises(type(error)):
            report.write([study])
    del before["runs/cosine-seed0/outputs.npz"]
    assert content(study) == before


@pytest.mark.parametrize("fails", range(1, 7))
def test_an_interrupt_of_the_exchange_itself_moves_everything_back(tmp_path, monkeypatch, fails) -> None:
    out = tmp_path / "report"
    filled(out, "old")
    before = content(tmp_path)
    rename, count = os.rename, 0

    def interrupted(source: Path, target: Path) -> None:
        nonlocal count
        count += 1
        if count == fails:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), replaced_whole(out) as part:
        filled(part, "new")
    assert content(tmp_path) == before


def filled(folder: Path, text: str) -> None:
    for name in ("figures", "tables"):
        (folder / name).mkdir(parents=True)
        (folder / name / f"{text}.csv").write_text(text)
    (folder / "report.html").write_text(text)


def test_a_new_report_replaces_all_of_the_old_and_nothing_else(tmp_path) -> None:
    out = tmp_path / "report"
    filled(out, "old")
    (out / "mine.txt").write_text("mine")
    with replaced_whole(out) as part:
        filled(part, "new")
    assert content(tmp_path) == {
        "report/figures/new.csv": b"new",
        "report/tables/new.csv": b"new",
        "report/report.html": b"new",
        "report/mine.txt": b"mine",
    }
    assert {path.name for path in out.iterdir()} == {"figures", "tables", "report.html", "mine.txt"}


def test_folders_on_the_way_are_made(tmp_path) -> None:
    with replaced_whole(tmp_path / "a" / "b") as part:
        filled(part, "new")
    assert (tmp_path / "a" / "b" / "report.html").read_text() == "new"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_disk_and_a_read_only_folder_end_in_one_sentence(study, monkeypatch, number) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), "a file")

    monkeypatch.setattr("spaceform.report.figures.figure.save_figure", refused)
    with pytest.raises(OSError, match="cannot write the report to") as caught:
        report.write([study])
    said = sentence(caught.value)
    assert said == (
        f"cannot write the report to {study / 'report'} ({os.strerror(number)}); what was there before is "
        "untouched: make room or choose another folder"
    )
    assert caught.value.errno == number
    assert not (study / "report").exists()


def test_a_file_in_the_way_is_named(tmp_path) -> None:
    (tmp_path / "report").write_text("mine")
    with (
        pytest.raises(OSError, match=r"cannot write the report to .*report \(it is a file\)"),
        replaced_whole(tmp_path / "report"),
    ):
        pass
    with pytest.raises(OSError, match="Not a directory"), replaced_whole(tmp_path / "report" / "inside"):
        pass
    assert content(tmp_path) == {"report": b"mine"}
