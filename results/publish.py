"""Keep what a study found, without weights or embeddings: python results/publish.py STUDY [NAME]

Copies the plan, each finished run's recipe, result, metrics and history, the tables of the study's report,
its figures as PNG and the recipes of its search into results/NAME (the study's own name unless given). The
copy is a study that goes on: move it where `--out` points, run the same command, and what is missing is
trained.
"""

import shutil
import sys
from pathlib import Path

from PIL import Image

FILES = ("recipe.json", "result.json", "metrics.json", "history.jsonl")
LARGE = 2**20
"""Bytes beyond which a picture is kept in 256 colours."""


def publish(study: Path, name: str) -> int:
    """Copy one study; the number of finished runs."""
    target = Path(__file__).parent / name
    target.mkdir(parents=True, exist_ok=True)
    for part in ("runs", "tables", "figures", "search"):
        shutil.rmtree(target / part, ignore_errors=True)
    shutil.copy(study / "study.json", target)
    finished = sorted(path.parent for path in study.glob("runs/*/metrics.json"))
    for run in finished:
        (target / "runs" / run.name).mkdir(parents=True)
        for file in FILES:
            shutil.copy(run / file, target / "runs" / run.name)
    for pattern in ("report/tables/*.md", "report/tables/*.csv", "report/figures/*.png"):
        for file in sorted(study.glob(pattern)):
            (target / file.parent.name).mkdir(exist_ok=True)
            copy = shutil.copy(file, target / file.parent.name)
            if file.suffix == ".png" and file.stat().st_size > LARGE:
                Image.open(file).convert("RGB").quantize(256).save(copy, optimize=True)
    for file in sorted(study.glob("search/*.toml")):
        (target / "search").mkdir(exist_ok=True)
        shutil.copy(file, target / "search")
    return len(finished)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    chosen = sys.argv[2] if len(sys.argv) > 2 else folder.name
    print(f"{publish(folder, chosen)} finished runs of {folder} kept in results/{chosen}")
