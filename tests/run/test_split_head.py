"""Training with the classes of the head split over two processes."""

import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from short_runs import tiny
from spaceform.run import files
from spaceform.run.finished import Run
from spaceform.run.recipe import RecipeError
from spaceform.run.train import train


@pytest.mark.slow
def test_split_classes_give_the_run_of_one_process_also_when_killed(tmp_path):
    """In float64, without batch norm; the folder holds all classes, and goes on from a checkpoint."""
    recipe = tiny("arcface", precision="64-true", net__hidden=None, budget__classes=5)
    one = train(recipe, tmp_path / "one")
    code = f"""
        import os, signal, sys
        from spaceform.run.recipe import load
        from spaceform.run.train import train

        def die(progress):
            if progress.done and progress.epoch == 1:
                os.killpg(0, signal.SIGKILL)

        if __name__ == "__main__":
            train(load({str(tmp_path / "one" / "recipe.json")!r}), {str(tmp_path / "two")!r}, devices=2,
                  accelerator="cpu", shard_classes=True, listener=die if "die" in sys.argv else None)
    """
    script = tmp_path / "two.py"
    script.write_text(textwrap.dedent(code))
    command = [sys.executable, "-W", "ignore", str(script)]
    killed = subprocess.run([*command, "die"], capture_output=True, check=False, start_new_session=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert files.latest(tmp_path / "two") is not None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    two = Run.load(tmp_path / "two")
    for (name, a), b in zip(one.model.state_dict().items(), two.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5, msg=name)
    assert [r["score"] for r in one.history] == [r["score"] for r in two.history]


def test_what_cannot_be_split_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="add --devices 2"):
        train(tiny("cosine"), tmp_path / "a", shard_classes=True)
    with pytest.raises(RecipeError, match="'hyperbolic' cannot be split"):
        train(tiny("hyperbolic"), tmp_path / "b", devices=2, accelerator="cpu", shard_classes=True)
