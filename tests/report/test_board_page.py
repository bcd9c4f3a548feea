"""The board of benchmarks/: a small one, made here, whose answers are known."""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SCRIPTS = Path(__file__).parent.parent.parent / "benchmarks"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCRIPTS.exists(), reason="the scripts are in the repository alone"),
]
HEADS = ("standard", "cosine", "lorentz")
ACCURACY = {"a": (0.90, 0.95, 0.80), "b": (0.70, 0.60, 0.65), "c": (0.50, 0.60, 0.55), "d": (0.9, 0.8, 0.7)}
NOT_MADE = {"name": "e", "kind": "audio", "tags": [], "source": "there", "licence": "none", "part": "all"}
MEASURES = ("classes", "columns", "rows", "rows_a_class", "imbalance", "delta")


def rows(name: str, seeds: int) -> list[dict[str, Any]]:
    found = [
        {
            "set": name,
            "task": "classification",
            "kind": "head",
            "label": head,
            "seed": seed,
            "seconds": 1.0,
            "accuracy": accuracy + 0.01 * seed,
            "calibrated.chosen.nll": 1 - accuracy,
        }
        for head, accuracy in zip(HEADS, ACCURACY[name], strict=True)
        for seed in range(seeds)
    ]
    beside = {"kind": "reference", "label": "LogisticRegression", "seed": 0, "accuracy": 0.85}
    return [*found, {**found[0], **beside, "calibrated.chosen.nll": 0.4}]


def said(name: str) -> dict[str, Any]:
    """`cosine` is chosen on every set, and `standard` is the quick answer."""
    own = np.array(ACCURACY[name])
    relations = ("open", "chosen", "worse")
    standings = {
        column: {
            head: [0.3, 0.1, relation, round(scale * float(value - own[0]), 6), 0.5]
            for head, relation, value in zip(HEADS, relations, own, strict=True)
        }
        for column, scale in (("accuracy", 100), ("calibrated.chosen.nll", 1))
    }
    quick = {"choice": "standard", "seeds": dict.fromkeys(HEADS, 2)}
    exhaustive = {"choice": "cosine", "why": "clear", "goals": {}, "standings": standings}
    return {"classification": {"commit": "abc", "search": "", "exhaustive": exhaustive, "quick": quick}}


def described(name: str, place: int) -> dict[str, Any]:
    counts = {"rows": 100, "columns": 4, "classes": 3, "smallest_class": 20, "largest_class": 40}
    where = {"source": "<here>", "licence": "none", "part": "all", "sha256": "f" * 64}
    measures = {measure: float(place + 1) for measure in MEASURES}
    kind = ("image", "text", "table", "table")[place]
    return {"name": name, "kind": kind, "tags": ["hierarchy"], **counts, **where, "measures": measures}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sets that count, a fourth that has two seeds of three, and a fifth that is not made."""
    path = tmp_path_factory.mktemp("board") / "board.parquet"
    table = pa.Table.from_pylist([row for name in "abcd" for row in rows(name, 2 if name == "d" else 3)])
    metadata = {
        "sets": [*(described(name, i) for i, name in enumerate("abcd")), NOT_MADE],
        "verdicts": {name: said(name) for name in "abcd"},
        "made_with": {"commit": "abc"},
    }
    with pq.ParquetWriter(path, table.schema, store_schema=False) as file:
        file.write_table(table)
        file.add_key_value_metadata({key: json.dumps(value) for key, value in metadata.items()})
    return path


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch, small: Path) -> Any:
    """A script of benchmarks/, with the small board for the kept one."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    found = importlib.import_module("board_values").read(small)

    def load(name: str) -> ModuleType:
        for one in ("board_over", "board_tables"):
            monkeypatch.setattr(importlib.import_module(one), "board", lambda: found)
        return importlib.import_module(name)

    return load


def test_a_set_counts_when_every_head_has_three_seeds(module, small: Path) -> None:
    found = module("board_values").read(small)
    assert found.classification.names == ("a", "b", "c")
    assert found.classification.heads == HEADS
    assert found.unfinished == ("d", "e")
    assert found.classification.means("accuracy").loc["a", "cosine"] == pytest.approx(0.96)
    assert found.classification.means("not measured").isna().all(axis=None)


def test_what_the_quick_answer_gives_up(module, small: Path) -> None:
    a, b, c = module("board_values").read(small).given_up
    assert (a.choice, a.most_accurate, a.seeds) == ("standard", "cosine", 6)
    assert (a.points, a.nats) == (pytest.approx(5), pytest.approx(0.05))
    assert (b.points, b.nats) == (0, 0)
    assert [one.within for one in (a, b, c)] == [False, True, False]
    line = module("board_tables").quick()[2]
    assert line[:5] == ["a", "`standard`", "6", "`cosine`", "**5.00**"]
    assert dict(module("board_over").answers()[2:])["What does the quick answer give up?"].startswith(
        "At most 0.3 points and 0.01 NLL on 1 of 3 sets (33 %); in the median 5.00 points and 0.0500 NLL"
    )


def test_the_best_of_each_geometry(module, small: Path) -> None:
    best = module("board_values").read(small).best_of_geometry("accuracy")
    assert best.idxmax(axis=1).to_dict() == {"a": "spherical", "b": "euclidean", "c": "spherical"}
    every = module("board_over").geometries()[-1]
    assert every[:5] == ["all", "3", "1.0", "0.0", "2.0"]
    assert every[5:7] == ["-3.33", "+1.67"]


def test_tables_say_which_head_is_chosen_and_what_stands_beside(module) -> None:
    tables = module("board_tables").TABLES
    assert tables["board accuracy"]()[2] == [
        "a",
        "91.00",
        "**96.00**",
        "81.00",
        "85.00 (LogisticRegression)",
    ]
    assert tables["board nll"]()[3][-1] == "0.400 (LogisticRegression)"
    assert tables["board verdicts"]()[2][1:3] == ["`cosine`", "`cosine`; 1 open, 1 worse"]
    assert tables["board verdicts"]()[2][-2:] == ["3", "abc"]
    assert tables["board sets"]()[-2][:6] == ["d (hierarchy)", "table", "100", "4", "3", "20 to 40"]
    assert tables["board sets"]()[-1] == ["e", "audio", *["—"] * 4, "all", "there; none", "not made yet"]
    assert "Not in yet: d, e." in tables["board answers"]()[2][1]
    for name, table in tables.items():
        lengths = {len(line) for line in table()}
        assert len(lengths) == 1, name


def test_the_page_sorts_filters_and_opens_a_verdict(module, browser, small: Path, tmp_path: Path) -> None:
    """In a browser; nothing is fetched and nothing is logged."""
    path, troubles = tmp_path / "board.html", []
    path.write_text(module("board_page").render(module("board_values").read(small)), "utf-8")
    page = browser.new_page(viewport={"width": 390, "height": 900})
    page.set_default_timeout(0)  # the machine may be busy
    page.on("console", lambda message: troubles.append(message.text))
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(path.as_uri())

    def shown() -> list[str]:
        return [name.split("\n")[0] for name in page.locator("#matrix tbody th").all_inner_texts()]

    assert shown() == ["a", "b", "c"]
    page.click("#matrix th[data-sort='1'] button")
    assert shown() == ["a", "b", "c"]  # 96, 61 and 61: the best first
    page.click("#matrix th[data-sort='1'] button")
    assert shown()[-1] == "a"
    page.click("[data-filter='table']")
    assert sorted(shown()) == ["a", "b"]
    page.click("[data-view='behind']")
    assert page.locator("#matrix tbody tr", has_text="text").locator("td").first.inner_text() == "0.00"
    page.locator("#matrix tbody tr").first.click()
    assert "<here>; none" in page.inner_text("#detail")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()
    assert troubles == []
