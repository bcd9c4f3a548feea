"""train(): the paper's protocol as one loop on Lightning Fabric."""

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessRaisedException

from spaceform import data
from spaceform.run import files, stored
from spaceform.run.allocator import keep_freed_memory
from spaceform.run.environment import versions
from spaceform.run.evaluate import validation_score
from spaceform.run.finished import Run
from spaceform.run.fit import DivergedFit, FeatureRun, is_for_features, require_features
from spaceform.run.interrupts import interruptible
from spaceform.run.loggers import make_logger
from spaceform.run.material import Material, material, write_preprocessing
from spaceform.run.model import Model, build_model
from spaceform.run.optim import parameter_groups
from spaceform.run.progress import Listener
from spaceform.run.recipe import Recipe, RecipeError, flatten
from spaceform.run.state import Clock, Plateau, TrainingState, copied, restored

_SETUP, _PREPARE, _EPOCH = range(3)  # streams of random numbers, one for each purpose


class TrainingError(RuntimeError):
    """Training that cannot go on; the message says where and what to try."""


class Diverged(TrainingError):
    """The loss or an embedding is not finite: the rate is too high, or the input is wrong."""


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
    log: Sequence[str] = (),
    listener: Listener | None = None,
) -> Run:
    """Train as the recipe says into the folder `out`, or go on where an earlier process stopped there.

    `net` and `dataset` stand in for those that the recipe names. The same recipe, seed and machine give the
    same bits, however often the process was killed on the way. A folder with another recipe is refused.
    Ctrl-C and SIGTERM raise KeyboardInterrupt.
    """
    folder = Path(out)
    _refuse_another(folder, recipe)
    if (folder / stored.RESULT).exists():
        return Run.load(folder, net=net)
    keep_freed_memory()
    parts = material(recipe, dataset)
    if is_for_features(recipe):
        require_features(recipe, parts)
    many = devices * nodes > 1
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy=("ddp" if nodes > 1 else "ddp_spawn") if many else "auto",
        precision=recipe.precision,
        loggers=[make_logger(name, folder, recipe) for name in log],
    )
    with torch.random.fork_rng():  # before anything is written: a wrong recipe leaves no folder behind
        build_model(recipe, len(parts.classes), parts.input_shape, net)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with filelock.FileLock(folder / ".lock", timeout=0), interruptible():
            _refuse_another(folder, recipe)
            files.write_bytes(folder / stored.RECIPE, recipe.to_json().encode())
            if is_for_features(recipe):
                _fit_features(recipe, folder, parts)
                return Run.load(folder)
            fit = partial(
                _fit, recipe=recipe, folder=folder, parts=parts, net=net, workers=workers, listener=listener
            )
            fabric.launch(fit) if many else fit(fabric)
    except ProcessRaisedException as error:
        raise TrainingError(
            f"a process of {devices} failed: {str(error).strip().splitlines()[-1]}"
        ) from error
    except filelock.Timeout:
        raise RecipeError(
            f"another process is training in {folder}; wait for it or choose another folder"
        ) from None
    return Run.load(folder, net=net)


def _fit(
    fabric: Fabric,
    recipe: Recipe,
    folder: Path,
    parts: Material,
    net: nn.Module | None,
    workers: int,
    listener: Listener | None,
) -> None:
    budget, own_net, leads = recipe.budget, net is not None, fabric.is_global_zero
    with torch.random.fork_rng(), torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        torch.manual_seed(_seed(recipe.seed, _SETUP))
        model = build_model(recipe, len(parts.classes), parts.input_shape, net)
        if fabric.world_size > 1 and fabric.device.type == "cuda":
            model.net = nn.SyncBatchNorm.convert_sync_batchnorm(model.net)
        groups = parameter_groups(model.net, model.head, recipe.optim)
        rates = [group["lr"] for group in groups]
        ddp, optimizer = fabric.setup(model, recipe.optim.build(groups))
        parts = replace(parts, dataset=parts.dataset.to(fabric.device))
        sampler = data.EpisodicSampler(
            parts.targets,
            parts.split.train,
            classes_per_episode=budget.classes,
            items_per_class=budget.instances,
            episodes=budget.episodes,
            seed=recipe.seed,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
        )
        now = fabric.broadcast(restored(folder, recipe, parts) if leads else None)
        if now is None:
            model.head.prepare(_untrained_embeddings(model, parts, recipe, fabric.device, workers))
            plateau = Plateau(warmup=model.head.warmup_epochs)
            now = TrainingState(0, plateau, [], copied(model), copied(model), {})
        now.into(model, optimizer)
        if leads:
            _write_history(folder, now.history)
        clock = Clock()

        for epoch in range(now.epoch, budget.epochs):
            if now.plateau.stale >= budget.patience:
                break
            began = time.monotonic()
            torch.manual_seed(_seed(recipe.seed, _EPOCH, epoch, fabric.global_rank))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * recipe.schedule.factor**now.plateau.cuts
            lr = optimizer.param_groups[0]["lr"]
            losses = torch.zeros(budget.episodes, device=fabric.device)
            ddp.train()
            model.head.start_epoch(epoch)
            sampler.set_epoch(epoch)
            batches = data.train_batches(
                parts.dataset, parts.targets, sampler, parts.how, device=fabric.device, workers=workers
            )
            for step, (x, y, total) in enumerate(batches):
                optimizer.zero_grad()
                with _explained(model, recipe, epoch, step):
                    loss = ddp(x, y).sum() * (fabric.world_size / total)
                fabric.backward(loss)
                optimizer.step()
                losses[step] = loss.detach()
                if (
                    losses.is_cpu or step + 1 == budget.episodes
                ):  # elsewhere every look would wait for the device
                    _require_finite(losses, recipe, epoch)
                if listener is not None and leads and clock.ticks():
                    listener(now.progress(recipe, epoch, step + 1, losses, lr))
            trained = time.monotonic()

            score = fabric.broadcast(
                validation_score(model, parts, fabric.device, workers) if leads else None
            )
            record = {"epoch": epoch, "loss": losses.mean().item(), "score": score, "lr": lr}
            if isinstance(beta := getattr(model.head, "log_beta", None), Tensor):
                record["beta"] = beta.exp().item()
            record |= {"train_seconds": trained - began, "seconds": time.monotonic() - began}
            now = now.after(record, recipe.schedule, model, optimizer)
            fabric.log_dict({name: value for name, value in record.items() if name != "epoch"}, step=epoch)
            if leads:
                with open(folder / stored.HISTORY, "a") as file:
                    file.write(json.dumps(record) + "\n")
                if clock.save_is_due():
                    with clock.saving():
                        now.save(folder, recipe, parts)
                if listener is not None:
                    listener(now.progress(recipe, epoch, budget.episodes, losses, lr, done=True))
        if leads:
            _finish(folder, recipe, parts, now, own_net)
        fabric.barrier()


def _fit_features(recipe: Recipe, folder: Path, parts: Material) -> None:
    try:
        found = FeatureRun(recipe, parts)
    except DivergedFit as error:
        raise Diverged(str(error)) from error
    found.keep_rehearsal(folder)
    _write(folder, recipe, parts, found.model.state_dict(), found.history, found.result, own_net=False)


def _finish(folder: Path, recipe: Recipe, parts: Material, now: TrainingState, own_net: bool) -> None:
    result = {
        "epochs": now.epoch,
        "best_epoch": now.plateau.best_epoch,
        "score": now.plateau.best_score,
        "seconds": sum(record["seconds"] for record in now.history),
        "stopped": "patience" if now.plateau.stale >= recipe.budget.patience else "epochs",
    }
    _write(folder, recipe, parts, now.best, now.history, result, own_net)


def _write(
    folder: Path,
    recipe: Recipe,
    parts: Material,
    weights: Mapping[str, Tensor],
    history: list[dict[str, Any]],
    result: dict[str, Any],
    own_net: bool,
) -> None:
    """The best weights, then the mark that the run is whole, then the checkpoints go."""
    state: stored.WeightsState = {
        "recipe": recipe.model_dump(mode="json"),
        "classes": list(parts.classes),
        "input_shape": list(parts.input_shape),
        "preprocessing": write_preprocessing(parts.how),
        "own_net": own_net,
        "columns": list(parts.dataset.columns),
        "made_by": parts.dataset.made_by,
    }
    digest = files.write_tensors(folder / stored.WEIGHTS, weights, state)
    _write_history(folder, history)
    digests = {"recipe": files.sha256(folder / stored.RECIPE), "weights": digest}
    result = {**result, "data": parts.fingerprint, "made_with": versions(), "digests": digests}
    files.write_json(folder / stored.RESULT, result)
    files.clear(folder)


@torch.no_grad()
def _untrained_embeddings(
    model: Model, parts: Material, recipe: Recipe, device: torch.device, workers: int
) -> Tensor:
    """One augmented look at all training data, batch norm in training mode; its statistics stay."""
    before = copied(model)
    model.train()
    dtype = next(model.parameters()).dtype
    batches = data.training_pass(
        parts.dataset,
        parts.split.train,
        parts.how,
        batch_size=recipe.budget.classes * recipe.budget.instances,
        seed=_seed(recipe.seed, _PREPARE),
        device=device,
        workers=workers,
    )
    z = torch.cat([model.net(x.to(dtype)) for x in batches])
    model.load_state_dict(before)
    return z


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


@contextmanager
def _explained(model: Model, recipe: Recipe, epoch: int, step: int) -> Iterator[None]:
    """A head refuses embeddings that are not finite; here that means that training went wrong."""
    try:
        yield
    except ValueError as error:
        if all(p.isfinite().all() for p in model.parameters()) and "finite" not in str(error):
            raise
        raise _diverged("embedding", epoch, step, recipe) from error


def _require_finite(losses: Tensor, recipe: Recipe, epoch: int) -> None:
    if not math.isfinite(losses.sum().item()):
        raise _diverged("loss", epoch, int((~losses.isfinite()).nonzero()[0]), recipe)


def _diverged(what: str, epoch: int, step: int, recipe: Recipe) -> Diverged:
    momentum = recipe.optim.common.get("momentum", 0.0)
    return Diverged(
        f"the {what} is not finite in epoch {epoch}, step {step}; "
        f"try a lower optim.lr (it is {recipe.optim.lr:g})"
        + (f" or optim.momentum (it is {momentum:g})" if momentum > 0.9 else "")
        + ", in another folder; the last good checkpoint is kept"
    )


def _seed(*key: int) -> int:
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _write_history(folder: Path, history: list[dict[str, Any]]) -> None:
    text = "".join(json.dumps(record) + "\n" for record in history)
    files.write_bytes(folder / stored.HISTORY, text.encode())
