"""Show what is behind a published number: python results/trace.py mnist vmf accuracy

Give a study (a file of results/*.parquet), a label and a metric: it prints the command, the versions and, for
each run, the seed, the value and the commit. Leave out the metric, or the label too, to see what there is.
For a JSON record (`benchmarks/training`, `cub200-raw-features`), give its name and then keys.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tables
from archive import RESULTS, ArchiveError, KeptRun, KeptStudy, load, names

from spaceform.foundation.messages import counted
from spaceform.study.summary import standard_error

RECORDS = ("benchmarks/*.json", "*.json")


def trace(study: str, label: str = "", metric: str = "") -> list[str]:
    """The lines that are printed about a study."""
    kept, found = load(study), tables.results(study)
    labels = list(dict.fromkeys(found["label"]))
    if not label:
        return [f"labels of {study}:", *labels]
    _require("label", label, labels, study)
    metrics = [c for c in found if c not in ("run", "label") and found[c].dtype.kind in "fi"]
    if not metric:
        return [f"metrics of {study}:", *metrics]
    _require("metric", metric, metrics, study)
    values = tables.values(study, label, metric)
    runs = [run for run in kept.runs if run.name in values.index]
    error = standard_error(values.to_numpy())
    spread = "" if error is None else f" ± {error:.6g} (standard error)"
    return [
        f"{study}, {label}, {metric}",
        f"command: {kept.study['made_with']['command']}",
        f"made with: {_versions(kept.study['made_with'])}",
        *(_line(kept, run, metric, values[run.name]) for run in runs),
        f"mean: {values.mean():.6g}{spread} over {counted(len(values), 'run')}",
        *(f"shown in: {place}" for place in shown_in(study, metric)),
        f"recipes and histories: python results/unpack.py {study} FOLDER",
    ]


def _line(kept: KeptStudy, run: KeptRun, metric: str, value: float) -> str:
    assert run.result is not None
    commit = kept.made_with(run)["commit"]
    return (
        f"  {run.name}: seed {run.recipe['seed']}, {metric} {value:.6g}, "
        f"{counted(run.result['epochs'], 'epoch')}, commit {commit}"
    )


def shown_in(study: str, metric: str) -> list[str]:
    """Pages and tables that show a metric of a study."""
    return [
        f"{page.relative_to(RESULTS.parent)}, table {name!r}"
        for page in tables.PAGES
        for _, name, _ in tables.BLOCK.findall(page.read_text(encoding="utf-8"))
        if name in tables.TABLES and _shows(tables.TABLES[name], study, metric)
    ]


def _shows(table: tables.Table, study: str, metric: str) -> bool:
    return any(
        column.metric == metric and study in (column.study, *(row.study for row in table.rows))
        for column in table.columns
    )


def trace_record(name: str, keys: Sequence[str]) -> list[str]:
    """The lines that are printed about a JSON record: how it was made, and what stands under the keys."""
    parts = tables.record(name)
    parts = parts if isinstance(parts, list) else [parts]
    lines = []
    for part in parts:
        value: Any = part
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            lines += [f"{name}: {_made(part)}", json.dumps(value, indent=1, ensure_ascii=False)]
    if not lines:
        known = ", ".join(dict.fromkeys(key for part in parts for key in part))
        raise ArchiveError(f"there is no {' / '.join(keys)} in {name}.json; it begins with {known}")
    return lines


def _made(part: Mapping[str, Any]) -> str:
    made = part.get("made_with", part)
    return f"{made.get('command', 'no command was recorded')}, commit {made.get('commit', 'not recorded')}"


def _versions(made: Mapping[str, Any]) -> str:
    packages = ", ".join(f"{name} {made[name]}" for name in ("spaceform", "python", "torch", "numpy"))
    return f"commit {made['commit']}, {made['date']}; {packages}; {made['system']}, {made['cores']} cores"


def _require(what: str, name: str, known: Sequence[str], study: str) -> None:
    if name not in known:
        raise ArchiveError(f"{study} has no {what} {name!r}; choose from {', '.join(known)}")


def main(arguments: Sequence[str]) -> list[str]:
    """What `python results/trace.py` prints."""
    records = [
        str(path.relative_to(RESULTS).with_suffix("")) for glob in RECORDS for path in RESULTS.glob(glob)
    ]
    if not arguments:
        return ["studies:", *names(), "records:", *sorted(records)]
    if arguments[0] in records:
        return trace_record(arguments[0], arguments[1:])
    if len(arguments) > 3:
        raise ArchiveError("give a study, a label and a metric; quote a label that has spaces")
    return trace(*arguments)


if __name__ == "__main__":
    try:
        print("\n".join(main(sys.argv[1:])))
    except ArchiveError as error:
        sys.exit(f"error: {error}")
