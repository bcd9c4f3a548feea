"""Sets whose classes form a tree, for benchmarks/hierarchy.py.

    python benchmarks/hierarchy_data.py FOLDER --oos-eval oos-eval --trec trec

Writes NAME.npz (X, y, test) and NAME.json (the groups of each class, from the root down) for

- `clinc150`: questions to an assistant, 150 intents in 10 domains: `data_small.json` and `domains.json` of
  clinc/oos-eval (CC BY 3.0), without those out of scope;
- `trec50`: questions by what is asked for, fine labels in 6 coarse ones: `train.txt` and `test.txt` of TREC
  (Li and Roth, 2002); fine labels with fewer than ten training questions are left out;
- `tree`: made. A tree of depth 4 with 3 branches at each node, 81 leaves. The root has the zero vector of 32
  dimensions, a node that of its parent and a Gaussian step of length 1 in expectation; a row is the vector of
  its leaf and noise of length 2.5. 40 rows of each leaf train and 20 test.

Texts become features by all-MiniLM-L6-v2 (384 of them).
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np

import spaceform

DEPTH, BRANCHES, DIM, NOISE = 4, 3, 32, 2.5
ROWS, TEST_ROWS, FEWEST = 40, 20, 10


def save(out: Path, X: np.ndarray, labels: list[str], test: np.ndarray, groups: dict[str, list[str]]) -> None:
    names = sorted(set(labels))
    y = np.searchsorted(np.array(names), np.array(labels))
    np.savez_compressed(out, X=X.astype(np.float32), y=y, test=test)
    out.with_suffix(".json").write_text(json.dumps({name: groups[name] for name in names}, indent=1) + "\n")


def texts(out: Path, rows: list[tuple[str, str, bool]], groups: dict[str, list[str]]) -> None:
    """Rows are a text, its class and whether it tests."""
    table, features = out.with_suffix(".csv"), out.with_suffix(".features.npz")
    with table.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "y"), *((text, label) for text, label, _ in rows)])
    spaceform.extract_features(table, features, text="text")
    with np.load(features) as found:
        save(out, found["X"], [label for _, label, _ in rows], np.array([t for *_, t in rows]), groups)
    table.unlink()
    features.unlink()


def clinc150(sources: Path, out: Path) -> None:
    found = json.loads((sources / "data" / "data_small.json").read_text("utf-8"))
    domains = json.loads((sources / "data" / "domains.json").read_text("utf-8"))
    groups = {intent: [domain] for domain, intents in domains.items() for intent in intents}
    rows = [(text, label, part == "test") for part in ("train", "val", "test") for text, label in found[part]]
    texts(out, rows, groups)


def trec50(sources: Path, out: Path) -> None:
    rows = []
    for part in ("train", "test"):
        for line in (sources / f"{part}.txt").read_text("utf-8").splitlines():
            if line.strip():
                label, text = line.split(" ", 1)
                rows.append((text, label, part == "test"))
    counts: dict[str, int] = {}
    for _, label, test in rows:
        counts[label] = counts.get(label, 0) + (not test)
    rows = [row for row in rows if counts[row[1]] >= FEWEST]
    texts(out, rows, {label: [label.split(":")[0]] for _, label, _ in rows})


def tree(out: Path) -> None:
    random = np.random.default_rng(0)
    nodes = {"": np.zeros(DIM)}
    for _ in range(DEPTH):
        nodes = {
            name + str(branch): vector + random.normal(size=DIM) / DIM**0.5
            for name, vector in nodes.items()
            for branch in range(BRANCHES)
        }
    labels = [name for name in nodes for _ in range(ROWS + TEST_ROWS)]
    noise = random.normal(size=(len(labels), DIM)) * NOISE / DIM**0.5
    X = np.array([nodes[name] for name in labels]) + noise
    test = np.tile(np.arange(ROWS + TEST_ROWS) >= ROWS, len(nodes))
    save(out, X, labels, test, {name: [name[: i + 1] for i in range(DEPTH - 1)] for name in nodes})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--oos-eval", type=Path, help="a copy of clinc/oos-eval")
    parser.add_argument("--trec", type=Path, help="a folder with train.txt and test.txt")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    tree(options.folder / "tree.npz")
    if options.oos_eval:
        clinc150(options.oos_eval, options.folder / "clinc150.npz")
    if options.trec:
        trec50(options.trec, options.folder / "trec50.npz")


if __name__ == "__main__":
    main()
