"""A study in one file: results/NAME.parquet, a row for every planned run.

Columns: `name` and `label` of the run; `recipe`, `result` and `metrics` as JSON; `history` as JSON lines, one
record an epoch. What a run did not finish is null. The file's metadata hold the rest of `study.json` (the
versions, the command and the notes of the plan) under `study`, and the recipes that a search found under
`search`. Weights and embeddings are not kept.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, final

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from spaceform.study.folder import flat_metrics

RESULTS = Path(__file__).parent
FILES = {"recipe": "recipe.json", "result": "result.json", "metrics": "metrics.json"}


class ArchiveError(ValueError):
    """A study that is not kept, or a folder that cannot take it."""


@final
@dataclass(frozen=True)
class KeptRun:
    """One row."""

    name: str
    label: str
    recipe: Mapping[str, Any]
    result: Mapping[str, Any] | None
    metrics: Mapping[str, Any] | None
    history: tuple[Mapping[str, Any], ...]


@final
@dataclass(frozen=True)
class KeptStudy:
    """What `study.json` and the folders of the runs held."""

    study: Mapping[str, Any]
    """`version`, `made_with` (versions, commit, command, date) and `notes`."""
    runs: tuple[KeptRun, ...]
    search: Mapping[str, str]
    """The recipe files that a search wrote, by name."""

    def made_with(self, run: KeptRun) -> Mapping[str, Any]:
        """The versions and the commit that ended a run: its own record, or else the plan's."""
        return (run.result or {}).get("made_with") or self.study["made_with"]

    def results(self) -> pd.DataFrame:
        """A row for every finished run: what it was and what was measured, with dotted names."""
        return pd.DataFrame([_row(run) for run in self.runs if run.result and run.metrics])


def names() -> list[str]:
    """The studies that are kept."""
    return sorted(path.stem for path in RESULTS.glob("*.parquet") if _is_study(path))


def _is_study(path: Path) -> bool:
    """The board holds many studies, and is no study itself."""
    return b"study" in (pq.read_metadata(path).metadata or {})


@cache
def load(name: str) -> KeptStudy:
    """A study by its name."""
    if name not in names():
        raise ArchiveError(f"there is no study {name!r} in results/; choose from {', '.join(names())}")
    table = pq.read_table(RESULTS / f"{name}.parquet")
    metadata = table.schema.metadata
    runs = tuple(
        KeptRun(
            row["name"],
            row["label"],
            json.loads(row["recipe"]),
            json.loads(row["result"] or "null"),
            json.loads(row["metrics"] or "null"),
            tuple(map(json.loads, (row["history"] or "").splitlines())),
        )
        for row in table.to_pylist()
    )
    return KeptStudy(json.loads(metadata[b"study"]), runs, json.loads(metadata[b"search"]))


def pack(folder: Path, name: str) -> int:
    """Keep the study of a folder; returns the number of finished runs."""
    if not (folder / "study.json").exists():
        raise ArchiveError(f"{folder} holds no study.json; give the folder of a study")
    study = json.loads((folder / "study.json").read_text("utf-8"))
    planned = study.pop("runs")
    rows = [_packed(folder / "runs" / run, run, plan) for run, plan in planned.items()]
    search = {path.name: path.read_text("utf-8") for path in sorted(folder.glob("search/*.toml"))}
    metadata = {"study": json.dumps(study), "search": json.dumps(search)}
    schema = pa.schema([(column, pa.string()) for column in rows[0]], metadata)
    table = pa.Table.from_pylist(rows, schema)
    pq.write_table(table, RESULTS / f"{name}.parquet", compression="zstd", compression_level=19)
    return sum(row["metrics"] is not None for row in rows)


def unpack(name: str, folder: Path) -> int:
    """Write a kept study as a folder that `spaceform report` reads and the study's command continues."""
    kept = load(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ArchiveError(f"{folder} is there already and is not an empty folder; choose another one")
    plan = {run.name: {"label": run.label, "recipe": run.recipe} for run in kept.runs}
    _write(folder / "study.json", {**kept.study, "runs": plan})
    finished = [run for run in kept.runs if run.metrics is not None]
    for run in finished:
        place = folder / "runs" / run.name
        for column, file in FILES.items():
            _write(place / file, getattr(run, column))
        (place / "history.jsonl").write_text("".join(json.dumps(r) + "\n" for r in run.history), "utf-8")
    for file, text in kept.search.items():
        (folder / "search").mkdir(exist_ok=True)
        (folder / "search" / file).write_text(text, "utf-8")
    return len(finished)


def _packed(folder: Path, name: str, plan: Mapping[str, Any]) -> dict[str, str | None]:
    row: dict[str, str | None] = {"name": name, "label": plan["label"], "recipe": json.dumps(plan["recipe"])}
    finished = (folder / "metrics.json").exists()
    for column in ("result", "metrics"):
        row[column] = (
            json.dumps(json.loads((folder / FILES[column]).read_text("utf-8"))) if finished else None
        )
    row["history"] = (folder / "history.jsonl").read_text("utf-8") if finished else None
    return row


def _row(run: KeptRun) -> dict[str, Any]:
    assert run.result is not None
    assert run.metrics is not None
    what = {
        "run": run.name,
        "label": run.label,
        "seed": run.recipe["seed"],
        "epochs": run.result["epochs"],
        "seconds": run.result["seconds"],
    }
    return {**flat_metrics(run.metrics), **what}


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
