"""Killed at any moment, in one process or two: the end is the same."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from short_runs import same, tiny, two_processes_give_the_run_of_one
from spaceform import data
from spaceform.run import files
from spaceform.run.recipe import QUICK, RecipeError, replace
from spaceform.run.train import train

pytestmark = pytest.mark.slow

# Killed and gone on

LIVES = """
    import os, random, signal, sys, time
    from pathlib import Path
    import torch
    torch.set_num_threads(1)
    import spaceform.run.loop  # once, and not in every life
    from spaceform.run.evaluate import evaluate
    from spaceform.run.recipe import load_recipe
    from spaceform.run.train import train

    recipe, dice, (whole, killed) = load_recipe(sys.argv[1]), random.Random(0), map(Path, sys.argv[2:])
    assert "torchmetrics" not in sys.modules  # Fabric would import it, which takes a second

    def life(folder, seconds=0.0):
        '''Train in a process of its own, killed after so many seconds of work; then True, and the epochs.'''
        child = os.fork()
        if child == 0:
            signal.setitimer(signal.ITIMER_PROF, seconds)  # 0 is never; nothing of Python runs at such an end
            began = time.process_time()

            def note(progress):
                if progress.done and not (folder / ".first").exists():
                    (folder / ".first").write_text(str(time.process_time() - began))

            evaluate(train(recipe, folder, listener=note))
            (folder / ".last").write_text(str(time.process_time() - began))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit(f"training failed in {folder}")
        lines = (folder / "history.jsonl").read_text().splitlines() if folder.exists() else []
        return os.WIFSIGNALED(status), len(lines)

    life(whole)
    first, last = (float((whole / name).read_text()) for name in (".first", ".last"))
    epochs, longer = [0], 1.0
    while len(epochs) <= 10:
        died, seen = life(killed, first + longer * dice.uniform(0, 0.12) * (last - first))
        if not died:
            break
        longer = 1.0 if seen > epochs[-1] else 1.5 * longer  # a life too short to save anything
        epochs.append(seen)
    life(killed)
    print(*epochs)
"""


def test_killed_at_random_moments_the_end_is_the_same_to_the_last_bit(tmp_path):
    """A real process is killed ten times, by the time that it worked, and started again each time."""
    epochs = {"budget.epochs": 40, "budget.patience": 40, "budget.episodes": 4}
    recipe = replace(QUICK["digits/vmf"], {**epochs, "data.label_noise": 0.1})
    path = tmp_path / "recipe.json"
    path.write_text(recipe.to_json())
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(LIVES), str(path), str(whole), str(killed)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = [int(number) for number in done.stdout.split()]
    assert len(seen) == 11  # none before the first life, and after each of the ten
    assert len(set(seen)) > 5, seen  # most lives went on from where another was killed
    same(whole, killed)
    assert not list(killed.glob("checkpoint*"))
    assert not list(killed.glob(".*.tmp"))


class Stop(Exception):
    """Raised by a listener to end training early."""


def stop_after(epoch: int):
    def listener(progress):
        if progress.done and progress.epoch == epoch:
            raise Stop

    return listener


def test_a_damaged_checkpoint_costs_epochs_but_changes_nothing(tmp_path):
    recipe = tiny("cosine", budget__epochs=60, budget__patience=60)
    train(recipe, tmp_path / "whole")
    with pytest.raises(Stop):
        train(recipe, tmp_path / "run", listener=stop_after(50))
    path = tmp_path / "run" / files.CURRENT
    assert (tmp_path / "run" / files.PREVIOUS).exists()
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.warns(UserWarning, match="set aside as checkpoint.damaged"):
        train(recipe, tmp_path / "run")
    same(tmp_path / "whole", tmp_path / "run")


def test_sigterm_is_an_interrupt(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        train(tiny(), tmp_path / "run", listener=lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert train(tiny(), tmp_path / "run").result["epochs"] == 3


def test_sigterm_ends_all_processes(tmp_path):
    """Without a traceback, and the run can go on."""
    code = f"""
        import multiprocessing
        from pathlib import Path

        from spaceform.run.recipe import load_recipe
        from spaceform.run.train import train

        if __name__ == "__main__":
            recipe = load_recipe(Path({str(tmp_path / "recipe.json")!r}))
            try:
                train(recipe, Path({str(tmp_path / "run")!r}), accelerator="cpu", devices=2)
            except KeyboardInterrupt:
                print("stopped", len(multiprocessing.active_children()))
    """
    recipe = tiny("cosine", budget__epochs=3000, budget__patience=3000)
    (tmp_path / "recipe.json").write_text(recipe.to_json())
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (tmp_path / "run" / files.CURRENT).exists():
        time.sleep(0.05)
    process.terminate()
    out, err = process.communicate(timeout=600)
    assert (process.returncode, out) == (0, "stopped 0\n"), err
    assert "Traceback" not in err
    assert files.latest_checkpoint(tmp_path / "run") is not None


def test_sigterm_is_left_to_whoever_handles_it(tmp_path):
    def kept(*_):
        raise AssertionError

    before = signal.signal(signal.SIGTERM, kept)
    seen = []
    try:
        train(tiny(), tmp_path / "run", listener=lambda _: seen.append(signal.getsignal(signal.SIGTERM)))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert set(seen) == {kept}
    train(tiny(), tmp_path / "again", listener=lambda _: seen.append(signal.getsignal(signal.SIGTERM)))
    assert kept is not seen[-1] is not before
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("head", ["cosine", "hyperbolic"])
def test_adamw_learns_and_goes_on_where_it_stopped(head, tmp_path):
    recipe = replace(tiny(head, budget__epochs=6), {"optim.name": "adamw", "optim.lr": 3e-3})
    history = train(recipe, tmp_path / "whole").history
    assert history[-1]["loss"] < history[0]["loss"]
    with pytest.raises(Stop):
        train(recipe, tmp_path / "run", listener=stop_after(2))
    train(recipe, tmp_path / "run")
    same(tmp_path / "whole", tmp_path / "run")


def test_changed_data_are_refused(tmp_path):
    recipe, dataset = tiny(budget__epochs=30, budget__patience=30), data.load("digits")
    with pytest.raises(Stop):
        train(recipe, tmp_path / "run", listener=stop_after(0), dataset=dataset)
    labels = dataset.labels.clone()
    labels[:3] = 9
    with pytest.raises(RecipeError, match=r"'digits' is not what it was when the run .* began"):
        train(
            recipe, tmp_path / "run", dataset=data.Dataset("digits", dataset.classes, labels, dataset.inputs)
        )


# Several processes


def test_two_processes_give_the_result_of_one_also_when_killed(tmp_path):
    """In float64, without batch norm (on CPUs each process has its own statistics); 15 items part oddly."""
    recipe = tiny("cosine", precision="64-true", net__hidden=None, budget__classes=5)
    two_processes_give_the_run_of_one(recipe, tmp_path)
