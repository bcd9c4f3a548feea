"""Runs of seconds on digits, and whether two of them are the same."""

import json
from pathlib import Path

from spaceform.heads import HEADS
from spaceform.run.recipe import QUICK, Recipe, replace

SHIPPED = [head for head in HEADS if f"digits/{head}" in QUICK]
"""Heads with recipes of their own: what is the same for all heads is tried with these."""

TINY = {"budget.epochs": 3, "budget.episodes": 4, "budget.instances": 3, "net.hidden": 16, "net.dim": 4}


def tiny(head: str = "cosine", **changes: object) -> Recipe:
    dotted = {key.replace("__", "."): value for key, value in changes.items()}
    return replace(QUICK[f"digits/{head}"], {**TINY, **dotted})


def same(a: Path, b: Path) -> None:
    """Bit-identical: weights, metrics, and all of the history but the seconds."""
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    assert timeless(a) == timeless(b)
    for name in ("metrics.json", "outputs.npz", "calibrators.json", "held_out.npz"):
        if (a / name).exists() or (b / name).exists():
            assert (a / name).read_bytes() == (b / name).read_bytes()


def timeless(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "history.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if "seconds" not in k} for line in lines]
