"""Training with the classes of the head split over two processes."""

import pytest

from short_runs import tiny, two_processes_give_the_run_of_one
from spaceform.run.recipe import RecipeError
from spaceform.run.train import train


@pytest.mark.slow
def test_split_classes_give_the_run_of_one_process_also_when_killed(tmp_path):
    """In float64, without batch norm; the folder holds all classes, and goes on from a checkpoint."""
    recipe = tiny("arcface", precision="64-true", net__hidden=None, budget__classes=5)
    two_processes_give_the_run_of_one(recipe, tmp_path, shard_classes=True)


def test_what_cannot_be_split_is_refused(tmp_path):
    with pytest.raises(RecipeError, match="add --devices 2"):
        train(tiny("cosine"), tmp_path / "a", shard_classes=True)
    with pytest.raises(RecipeError, match="'hyperbolic' cannot be split"):
        train(tiny("hyperbolic"), tmp_path / "b", devices=2, accelerator="cpu", shard_classes=True)
