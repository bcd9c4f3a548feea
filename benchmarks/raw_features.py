"""Retrieval by features as they are: python benchmarks/raw_features.py FEATURES.npz

Writes mAP@R and Recall@1 among the test classes of the open-set split, by the Euclidean distance and by the
cosine, to results/cub200-raw-features.json.
"""

import json
import sys
from pathlib import Path

from spaceform import Euclidean, Sphere, data
from spaceform.metrics.retrieval import retrieval
from spaceform.run.environment import versions

OUT = Path(__file__).parent.parent / "results" / "cub200-raw-features.json"


def main(path: str) -> None:
    dataset = data.load(path).with_task("retrieval")
    test = data.split(dataset, 0).test
    z, y = dataset.inputs[test].float(), dataset.labels[test]
    found: dict[str, object] = {"items": len(test), "classes": len(y.unique())}
    for name, geometry in (("euclidean", Euclidean()), ("cosine", Sphere())):
        at = retrieval(z, y, geometry, k=(1,))
        found[name] = {"map_at_r": at.map_at_r, "recall_at_1": at.recall[1]}
    made_with = versions() | {"command": f"python benchmarks/raw_features.py {Path(path).name}"}
    OUT.write_text(json.dumps({"made_with": made_with, **found}, indent=2) + "\n")
    print(OUT.read_text())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/raw_features.py FEATURES.npz")
    main(sys.argv[1])
