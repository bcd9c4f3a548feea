"""What `spaceform compare` said on real sets, beside what people would use instead, as one record.

    spaceform compare FILE.npz --out STUDY
    python benchmarks/compared.py STUDY ... [--fresh NAME ...] [--out results/benchmarks/compare.json]

NAME is that of the file without its ending. Numbers are means over the seeds; NLL is that after calibration,
as `predict` gives it. A set is marked as fresh if nothing was chosen on it, and it was looked at once. What
the record has of other sets stays.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spaceform.data import load
from spaceform.study.folder import read_plan
from spaceform.study.references import read_references
from spaceform.verbs.outcome import Study

RECORD = Path(__file__).parent.parent / "results" / "benchmarks" / "compare.json"
COLUMNS = {"accuracy": "accuracy", "nll": "calibrated.chosen.nll"}
"""What the record calls a metric, and its column in a study."""


def summary(folder: Path) -> tuple[str, dict[str, Any]]:
    """The name of the set, and what came out."""
    study, made = Study.open(folder), read_plan(folder)["made_with"]
    data = load(study.jobs[0].recipe.data.name)
    table = study.table[study.table["state"] == "finished"]
    heads = {
        label: {"seeds": len(own), **{name: float(own[column].mean()) for name, column in COLUMNS.items()}}
        for label, own in table.groupby("label", sort=False)
    }
    references = {
        one.title: {name: one.measured[column] for name, column in COLUMNS.items()}
        for one in read_references(folder)
        if one.measured.get("accuracy") is not None
    }
    assert not isinstance(data.inputs, tuple)
    advice = study.advice
    chosen = None if advice is None or advice.recommendation is None else advice.recommendation.choice.label
    return Path(data.name).stem, {
        "command": made["command"],
        "commit": made["commit"],
        "rows": len(data),
        "features": data.inputs.shape[1],
        "classes": len(data.classes),
        "tested": int(table["items"].iloc[0]),
        "recommended": chosen,
        "heads": heads,
        "references": references,
    }


def lines(record: Mapping[str, Any]) -> list[list[str]]:
    """A table: for each set the best and the least accurate head, and each reference; accuracy % / NLL."""
    shown = ["LogisticRegression", "k nearest neighbours", "gradient boosting"]
    found = [["data", "recommended", "most accurate head", "lowest NLL", "least accurate head", *shown]]
    found.append(["---"] * 2 + ["---:"] * 6)
    for name, one in record["sets"].items():
        heads = one["heads"]
        shape = f"{one['rows']:,} x {one['features']}, {one['classes']} classes"
        first = f"{name}{' (fresh)' if one['fresh'] else ''}, {shape}"
        best = max(heads, key=lambda head: heads[head]["accuracy"])
        lowest = min(heads, key=lambda head: heads[head]["nll"])
        least = min(heads, key=lambda head: heads[head]["accuracy"])
        cells = [f"{_pair(heads[head])} (`{head}`)" for head in (best, lowest, least)]
        beside = [_pair(one["references"][title]) if title in one["references"] else "" for title in shown]
        found.append([first, f"`{one['recommended']}`", *cells, *beside])
    return found


def _pair(measured: Mapping[str, float]) -> str:
    return f"{100 * measured['accuracy']:.2f} / {measured['nll']:.3f}"


def main() -> None:
    """Add studies to the record."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="+", type=Path)
    parser.add_argument("--fresh", nargs="+", default=(), metavar="NAME")
    parser.add_argument("--out", type=Path, default=RECORD)
    asked = parser.parse_args()
    record = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {"sets": {}}
    for folder in asked.studies:
        name, found = summary(folder)
        record["sets"][name] = {"fresh": name in asked.fresh, **found}
    asked.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    for line in lines(record):
        print(" | ".join(line))


if __name__ == "__main__":
    main()
