"""Runs of seconds on digits, and whether two of them are the same."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import torch

from spaceform.heads import HEADS
from spaceform.run import files
from spaceform.run.finished import Run
from spaceform.run.recipe import QUICK, Recipe, replace
from spaceform.run.train import train

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


def two_processes_give_the_run_of_one(recipe: Recipe, folder: Path, **options: object) -> None:
    """Also when both are killed after the second epoch and start again; weights to 1e-5."""
    one = train(recipe, folder / "one")
    code = f"""
        import os, signal, sys
        from spaceform.run.recipe import load_recipe
        from spaceform.run.train import train

        def die(progress):
            if progress.done and progress.epoch == 1:
                os.killpg(0, signal.SIGKILL)

        if __name__ == "__main__":
            train(load_recipe({str(folder / "one" / "recipe.json")!r}), {str(folder / "two")!r}, devices=2,
                  accelerator="cpu", listener=die if "die" in sys.argv else None, **{options!r})
    """
    script = folder / "two.py"
    script.write_text(textwrap.dedent(code))
    command = [sys.executable, "-W", "ignore", str(script)]
    killed = subprocess.run([*command, "die"], capture_output=True, check=False, start_new_session=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert files.latest_checkpoint(folder / "two") is not None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    two = Run.load(folder / "two")
    for (name, a), b in zip(one.model.state_dict().items(), two.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5, msg=name)
    assert [r["score"] for r in one.history] == [r["score"] for r in two.history]
