"""The board: every head on every set of a folder, with equal search, and the quick answer beside it.

    python benchmarks/board.py run DATA OUT [--only NAME ...] [--without NAME ...] [--seeds 5] [--search 16]
                                                         [--processes 1]
    python benchmarks/board.py run DATA OUT --task retrieval
    python benchmarks/board.py collect DATA OUT [--to results/board.parquet]

DATA is what `board_data.py` made. `run` compares all heads on one set after the other, the smallest first,
and leaves a study in OUT/NAME; killed, the same command goes on. With `--task retrieval` it takes the sets of
at least 40 classes, and leaves OUT/NAME-retrieval. `collect` writes one file from what the studies have so
far: a row for every set, head and seed, and for every reference; verdicts and the quick answer of every set
are in the metadata. What the file has of sets without a study in OUT stays.

The quick answer is what `compare` with its defaults would have said: the six heads that are compared by
default, with the search that each of them got (it does not depend on the other heads), and the race for seeds
repeated on the seeds that are there. Such a race may take ten seeds; here it ends with those there are.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import spaceform
from board_data import listed
from board_measures import add_unknown, measures
from spaceform.run.environment import environment
from spaceform.study.folder import StudyFolder, flat_metrics, read_plan
from spaceform.study.judge import Advice, JudgedRun, evidence, finished, judge
from spaceform.study.plan import named_heads
from spaceform.study.processes import Processes
from spaceform.study.references import read_references
from spaceform.study.verdict import Evidence, Goal, Series, race
from spaceform.study.verdict.race import FIRST_SEEDS

RETRIEVAL = "-retrieval"
CLASSES = 40
"""The least of them for retrieval: half of them train."""
RESULTS = Path(__file__).parent.parent / "results"
BASE = "standard"
"""What the gain of the others is measured against: plain softmax."""
COMMAND = "python benchmarks/board.py collect DATA OUT"


def sets(data: Path, only: Sequence[str] = (), without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """What `sets.json` says of the sets that are asked for, the smallest file first."""
    found = json.loads((data / "sets.json").read_text("utf-8"))
    known = {one["name"] for one in found}
    for name in only:
        if name not in known:
            sys.exit(f"error: there is no set {name!r} in {data}; choose from {', '.join(sorted(known))}")
    chosen = [one for one in found if (not only or one["name"] in only) and one["name"] not in without]
    return sorted(chosen, key=lambda one: one["rows"] * (one["columns"] + one["classes"]))


# Runs -----------------------------------------------------------------------------------------------------


def run(asked: argparse.Namespace) -> int:
    """One comparison after the other; how many failed."""
    failed = 0
    for one in sets(asked.data, asked.only, asked.without):
        name = one["name"]
        if asked.task == "retrieval" and one["classes"] < CLASSES:
            continue
        suffix = RETRIEVAL if asked.task == "retrieval" else ""
        try:
            study = spaceform.compare(
                asked.data / f"{name}.npz",
                heads=asked.heads,
                seeds=asked.seeds,
                search=asked.search,
                task=asked.task,
                out=asked.out / f"{name}{suffix}",
                on=Processes(asked.processes),
                say=lambda sentence, name=name: print(f"{name}: {sentence}", flush=True),
            )
        except (ValueError, RuntimeError) as error:
            print(f"{name}: failed: {error}", flush=True)
            failed += 1
            continue
        for reason, runs in study.failures.items():
            print(f"{name}: {', '.join(runs)} failed: {reason}", flush=True)
            failed += 1
        summary(asked.data, asked.out / f"{name}{suffix}", one, asked.task)
        print(f"{name}{suffix}: done", flush=True)
    return failed


# What is kept ---------------------------------------------------------------------------------------------


def collect(asked: argparse.Namespace) -> int:
    """One file from the studies that are there; always 0."""
    made = sets(asked.data, asked.only, asked.without)
    anew = {one["name"] for one in made if (asked.out / one["name"] / "study.json").exists()}
    rows, verdicts, kept = _earlier(asked.to, anew)
    described = {one["name"]: one for one in listed()} | kept  # those that are not made yet are named too
    for one in made:
        name = one["name"]
        if name not in anew:
            continue
        described[name] = one
        for task, suffix in (("classification", ""), ("retrieval", RETRIEVAL)):
            found = summary(asked.data, asked.out / f"{name}{suffix}", one, task)
            if found is not None:
                rows += found["rows"]
                verdicts.setdefault(name, {})[task] = found["said"]
        if name in verdicts:
            described[name] = {**one, "measures": measures(asked.data / f"{name}.npz")}
            print(f"{name}: {sum(row['set'] == name for row in rows)} rows", flush=True)
    made_with = {**environment(), "command": COMMAND}
    metadata = {"sets": list(described.values()), "verdicts": verdicts, "made_with": made_with}
    schema = _schema(rows)
    with pq.ParquetWriter(
        asked.to, schema, compression="zstd", compression_level=19, store_schema=False
    ) as file:
        file.write_table(pa.Table.from_pylist(rows, schema))
        file.add_key_value_metadata({key: json.dumps(value) for key, value in metadata.items()})
    return 0


def _earlier(path: Path, anew: set[str]) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """Rows, verdicts and descriptions that the file has of sets which are not measured anew."""
    if not path.exists():
        return [], {}, {}
    table = pq.read_table(path)
    found = {key: json.loads(table.schema.metadata[key.encode()]) for key in ("sets", "verdicts")}
    verdicts = {name: said for name, said in found["verdicts"].items() if name not in anew}
    described = {one["name"]: one for one in found["sets"] if one["name"] in verdicts}
    rows = [
        {column: value for column, value in row.items() if value is not None}
        for row in table.to_pylist()
        if row["set"] in verdicts
    ]
    return rows, verdicts, described


def summary(data: Path, folder: Path, one: Mapping[str, Any], task: str) -> dict[str, Any] | None:
    """Rows and verdict of a study; None without a finished run. Of a whole study it is made once."""
    kept = folder / "board.json"
    if kept.exists():
        return json.loads(kept.read_text("utf-8"))
    if not (folder / "study.json").exists():
        return None
    study = StudyFolder.open(folder)
    runs = finished(study)
    if not runs:
        return None
    rows = list(_rows(one["name"], task, study, runs))
    if task == "classification" and (other := one.get("unknown")) and (data / f"{other}.npz").exists():
        add_unknown(rows, runs, data / f"{other}.npz")
    found = {"rows": rows, "said": _said(study)}
    if not study.unfinished():
        kept.write_text(json.dumps(found), "utf-8")
    return found


_TEXTS = ("set", "task", "kind", "label", "calibrator")
_WHOLE = ("seed", "epochs")


def _schema(rows: Sequence[dict[str, Any]]) -> pa.Schema:
    columns = dict.fromkeys(column for row in rows for column in row)
    types = {**dict.fromkeys(_TEXTS, pa.string()), **dict.fromkeys(_WHOLE, pa.int32())}
    return pa.schema([(column, types.get(column, pa.float32())) for column in columns])


def _rows(name: str, task: str, study: StudyFolder, runs: Sequence[JudgedRun]) -> Iterable[dict[str, Any]]:
    """Of the runs, then of the references."""
    epochs = {study.path(job).name: study.status(job).epoch for job in study.jobs}
    for one in runs:
        measured = {
            column: value
            for column, value in flat_metrics(one.metrics).items()
            if column == "calibrator" or (_is_number(value) and column not in ("items", "retrieval.items"))
        }
        what = {"set": name, "task": task, "kind": "head", "label": one.label, "seed": one.seed}
        spent = {"epochs": epochs[one.folder.name], "seconds": one.seconds}
        yield {**what, **spent, "predict_seconds": one.predict_seconds, **measured}
    for beside in read_references(study.folder):
        what = {"set": name, "task": task, "kind": "reference", "label": beside.title, "seed": 0}
        yield {**what, "seconds": beside.seconds, **beside.measured}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _said(study: StudyFolder) -> dict[str, Any]:
    """The verdict on all heads, and the quick answer."""
    advice = judge(study)
    assert advice is not None
    made = read_plan(study.folder).get("made_with", {})
    said: dict[str, Any] = {"commit": made.get("commit"), "search": study.notes.get("search")}
    said["exhaustive"] = {**_plain(advice), "standings": _standings(advice)}
    default = named_heads("default")
    few = _some(study, dict.fromkeys(default, len(study.jobs)))
    found = evidence(finished(few))
    if found is not None and len(found.labels) == len(default):
        said["quick"] = _quick(few, found)
    return said


def _some(study: StudyFolder, counts: Mapping[str, int]) -> StudyFolder:
    """The first seeds of some heads."""
    jobs = tuple(job for job in study.jobs if job.recipe.seed < counts.get(job.label, 0))
    return StudyFolder(study.folder, jobs, study.notes)


def _quick(study: StudyFolder, found: Evidence) -> dict[str, Any]:
    """The race, repeated on the seeds that are there, and what is said at its end."""
    most = min(len(found.seeds(label)) for label in found.labels)
    first = min(FIRST_SEEDS, most)
    counts = dict.fromkeys(found.labels, first)
    while True:
        now = found.only({label: range(count) for label, count in counts.items()})
        decision = race(now, first=first, most=most)
        if not decision.go_on:
            break
        counts = dict(decision.seeds)
    return {**_plain(judge(_some(study, counts))), "seeds": counts, "reason": decision.reason.value}


def _plain(advice: Advice | None) -> dict[str, Any]:
    """The choice over all goals, and for each goal."""
    assert advice is not None
    chosen = advice.recommendation
    overall = {} if chosen is None else {"choice": chosen.choice.label, "why": chosen.choice.why.value}
    return {**overall, "goals": {one.goal.column: one.choice for one in advice.verdict.goals}}


def _standings(advice: Advice) -> dict[str, Any]:
    """By goal and head: the probability of being the best, expected regret, relation to the choice, and the
    gain over `BASE` with its standard error; in the goal's unit, more is better.
    """
    return {
        one.goal.column: {
            standing.label: [
                _short(standing.best),
                _short(standing.regret),
                standing.relation.value,
                *_gain(one.goal, advice.evidence.series[one.goal.column], standing.label),
            ]
            for standing in one.standings
        }
        for one in advice.verdict.goals
    }


def _gain(goal: Goal, series: Mapping[str, Series], label: str) -> tuple[float | None, float | None]:
    """The mean difference of the values to `BASE`, and its standard error over seeds and items."""
    if BASE not in series or not series[BASE].seeds:
        return None, None
    own, base = series[label].values, series[BASE].values
    ahead = own.mean(0) - base.mean(0)
    variance = sum(one.mean(1).var(ddof=1) / len(one) for one in (own, base) if len(one) > 1)
    variance += ahead.var(ddof=1) / len(ahead) if len(ahead) > 1 else 0.0
    return _short(goal.sign * float(ahead.mean())), _short(float(np.sqrt(variance)))


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def main() -> None:
    """Do what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.add_argument("--heads", nargs="+", default="all")
    running.add_argument("--seeds", type=int, default=5)
    running.add_argument("--search", type=int, default=16)
    running.add_argument("--processes", type=int)
    running.add_argument("--task", choices=("classification", "retrieval"), default="classification")
    running.set_defaults(does=run)
    collecting = commands.add_parser("collect")
    collecting.add_argument("--to", type=Path, default=RESULTS / "board.parquet")
    collecting.set_defaults(does=collect)
    for one in (running, collecting):
        one.add_argument("data", type=Path)
        one.add_argument("out", type=Path)
        one.add_argument("--only", nargs="+", default=(), metavar="NAME")
        one.add_argument("--without", nargs="+", default=(), metavar="NAME")
    asked = parser.parse_args()
    sys.exit(1 if asked.does(asked) else 0)


if __name__ == "__main__":
    main()
