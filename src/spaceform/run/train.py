"""train(): one run, from a recipe to a folder.

Features in memory are trained by the engine (`run/feature_run.py`), nets by the loop of episodes
(`run/loop.py`, on Lightning Fabric).
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import filelock
from torch import nn
from torch.multiprocessing.spawn import ProcessRaisedException

from spaceform import data
from spaceform.run import files, stored
from spaceform.run.allocator import keep_freed_memory
from spaceform.run.failures import Diverged, TrainingError
from spaceform.run.feature_run import DivergedFit, FeatureRun, is_for_features, require_features
from spaceform.run.finished import Run
from spaceform.run.material import Material, material
from spaceform.run.progress import Listener
from spaceform.run.recipe import Recipe, RecipeError, flatten
from spaceform.run.termination import interruptible


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    net: nn.Module | None = None,
    dataset: data.Dataset | None = None,
    devices: int = 1,
    nodes: int = 1,
    accelerator: str = "auto",
    workers: int = 0,
    shard_classes: bool = False,
    log: Sequence[str] = (),
    listener: Listener | None = None,
) -> Run:
    """Train as the recipe says into the folder `out`, or go on where an earlier process stopped there.

    `net` and `dataset` replace those that the recipe names. The same recipe, seed and machine give the same
    bits, however often the process was killed. A folder with another recipe is refused. With `shard_classes`,
    each of several processes trains its own part of the classes; the run that is written has all classes.
    Ctrl-C and SIGTERM raise KeyboardInterrupt.
    """
    folder = Path(out)
    _refuse_another(folder, recipe)
    if (folder / stored.RESULT).exists():
        return Run.load(folder, net=net)
    keep_freed_memory()
    parts = material(recipe, dataset)
    fit: Callable[[], None]
    if is_for_features(recipe):
        require_features(recipe, parts)
        if shard_classes:
            raise RecipeError("runs on features train in one process; leave out --shard-classes")
        if net is not None:
            raise RecipeError("runs on features train a net of their own; choose another recipe")
        fit = partial(_fit_features, recipe, folder, parts, log)
    else:
        from spaceform.run.loop import (
            net_training,
        )  # Fabric takes seconds to import, and runs on features do not need it

        fit = net_training(
            recipe,
            folder,
            parts,
            net=net,
            devices=devices,
            nodes=nodes,
            accelerator=accelerator,
            workers=workers,
            shard_classes=shard_classes,
            log=log,
            listener=listener,
        )
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(folder / ".lock", timeout=0), interruptible():
            _refuse_another(folder, recipe)
            files.write_bytes(folder / stored.RECIPE, recipe.to_json().encode())
            fit()
    except ProcessRaisedException as error:
        raise TrainingError(
            f"a process of {devices} failed: {str(error).strip().splitlines()[-1]}"
        ) from error
    except filelock.Timeout:
        raise RecipeError(
            f"another process is training in {folder}; wait for it or choose another folder"
        ) from None
    return Run.load(folder, net=net)


def _fit_features(recipe: Recipe, folder: Path, parts: Material, log: Sequence[str]) -> None:
    try:
        found = FeatureRun(recipe, parts)
    except DivergedFit as error:
        raise Diverged(str(error)) from error
    found.keep_rehearsal(folder)
    if log:
        _log(found.history, recipe, folder, log)
    stored.write_run(folder, recipe, parts, found.model.state_dict(), found.history, found.result, False)


def _log(history: Sequence[dict[str, Any]], recipe: Recipe, folder: Path, log: Sequence[str]) -> None:
    from spaceform.run.loggers import make_logger

    for logger in [make_logger(name, folder, recipe) for name in log]:
        for record in history:
            logger.log_metrics({key: record[key] for key in record if key != "epoch"}, step=record["epoch"])
        logger.finalize("success")


def _refuse_another(folder: Path, recipe: Recipe) -> None:
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder} is a file; --out must be a folder")
    there = stored.read_recipe(folder)
    if there is not None and there != recipe:
        raise RecipeError(
            f"{folder} holds a run of another recipe ({_difference(there, recipe)}); choose another folder"
        )


def _difference(there: Recipe, wanted: Recipe) -> str:
    ours, theirs = flatten(wanted), flatten(there)
    key = next(key for key in {**theirs, **ours} if ours.get(key) != theirs.get(key))
    return f"its {key} is {theirs.get(key)!r}, not {ours.get(key)!r}"
