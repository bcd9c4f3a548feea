"""Names from outside: what cannot be written is replaced, in figures, tables and the page alike."""

import warnings
import xml.etree.ElementTree as ET

import pytest

from spaceform import report
from spaceform.foundation.messages import capital, first_line, listed
from spaceform.report.contents import compute
from spaceform.report.readable import readable
from spaceform.report.records import collect

pytestmark = pytest.mark.slow

BROKEN = b"caf\xe9".decode("utf-8", "surrogateescape")
"""A folder name in Latin-1, as Python reads it on a file system of UTF-8."""


def test_only_what_cannot_be_written_is_replaced() -> None:
    assert BROKEN == "caf\udce9"
    assert readable(BROKEN) == "caf�"
    assert readable("a\x00b\x1b[31m\nc\x7f\ud800\uffff") == "a�b�[31m�c���"
    kept = "naïve 猫 🐈 e\u0301 \u200d <b> ‖z‖"
    assert readable(kept) == kept
    assert readable({BROKEN: [BROKEN, 1, None, {"a": BROKEN}]}) == {"caf�": ["caf�", 1, None, {"a": "caf�"}]}


def test_of_what_a_library_says_one_line_is_told() -> None:
    assert first_line(ValueError("\nno such device.\nTry another one.")) == "no such device"
    assert first_line(EOFError()) == "EOFError"


def test_such_names_go_through_the_whole_report(tmp_path, make_study) -> None:
    classes, data = (BROKEN, "bell\x07", "two\nlines", "猫"), str(tmp_path / "da\x07ta")
    make_study(tmp_path / "s", heads=("cosine",), classes=classes, items=40, data=data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = report.write([tmp_path / "s"])
    text = page.read_text("utf-8")
    assert '"classes":["caf�","bell�","two�lines","猫"]' in text
    assert "<title>Which geometry for da�ta?</title>" in text
    ET.fromstring(next(page.parent.glob("figures/*-embeddings.svg")).read_text("utf-8"))
    written = {path.suffix: path.read_text("utf-8") for path in page.parent.glob("tables/*-summary.*")}
    assert sorted(written) == [".csv", ".md", ".tex"]
    assert "Results on da�ta" in written[".md"]
    assert "Results on da?ta" in written[".tex"]  # pdflatex knows no �


def test_a_study_in_a_folder_with_such_a_name_is_reported(tmp_path, make_study) -> None:
    folder = tmp_path / BROKEN
    try:
        folder.mkdir()
    except (OSError, UnicodeError):
        pytest.skip("this file system takes valid UTF-8 only; run on ext4 or another that takes any name")
    make_study(folder / "s", heads=("cosine",), items=40)
    (folder / "s" / "runs" / "cosine-seed0" / "metrics.json").write_text("{")
    found = collect([folder / "s"])
    found.notes[0].encode("utf-8")
    assert "caf�" in found.notes[0]
    assert compute(found).parts[0].no_pictures == ""


def test_lists_and_sentences_read_as_people_write_them() -> None:
    assert [listed(x) for x in (["a"], ["a", "b"], ["a", "b", "c"])] == ["a", "a and b", "a, b and c"]
    assert [capital(x) for x in ("no head", "vMF for accuracy", "")] == ["No head", "vMF for accuracy", ""]
