"""The paper's protocol as one loop on Lightning Fabric: nets that are trained end to end."""

import spaceform.foundation.fabric  # noqa: F401 (before lightning_fabric is imported)

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from spaceform import data
from spaceform.run import stored
from spaceform.run.evaluate import validation_score
from spaceform.run.failures import Diverged
from spaceform.run.loggers import make_logger
from spaceform.run.material import Material
from spaceform.run.model import Model, build_model
from spaceform.run.optim import parameter_groups
from spaceform.run.progress import Listener
from spaceform.run.quality import some_items
from spaceform.run.recipe import Recipe
from spaceform.run.split_head import (
    own_part,
    part_of,
    require_splittable,
    split_classes,
    start_draws,
    whole_model,
)
from spaceform.run.state import Clock, Plateau, TrainingState, copied, restored

_LOOKED_AT = 100_000  # most items that a head looks at before training
_SETUP, _PREPARE, _EPOCH = range(3)  # streams of random numbers, one for each purpose


def net_training(
    recipe: Recipe,
    folder: Path,
    parts: Material,
    *,
    net: nn.Module | None,
    devices: int,
    nodes: int,
    accelerator: str,
    workers: int,
    shard_classes: bool,
    log: Sequence[str],
    listener: Listener | None,
) -> Callable[[], None]:
    """A function that trains the recipe's net into the folder; a wrong recipe is refused before."""
    many = devices * nodes > 1
    if shard_classes:
        require_splittable(recipe, devices * nodes)
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        num_nodes=nodes,
        strategy=("ddp" if nodes > 1 else "ddp_spawn") if many else "auto",
        precision=recipe.precision,
        loggers=[make_logger(name, folder, recipe) for name in log],
    )
    with torch.random.fork_rng():
        build_model(recipe, len(parts.classes), parts.input_shape, net)
    fit = partial(
        _fit_and_leave if many and nodes == 1 else _fit,
        recipe=recipe,
        folder=folder,
        parts=parts,
        net=net,
        workers=workers,
        shard_classes=shard_classes,
        listener=listener,
    )
    return partial(fabric.launch, fit) if many else partial(fit, fabric)


def _fit_and_leave(fabric: Fabric, **what: Any) -> None:
    """Train in a process that ends afterwards. Threads must end first: otherwise they may abort it."""
    _fit(fabric, **what)
    torch.distributed.destroy_process_group()


def _fit(
    fabric: Fabric,
    recipe: Recipe,
    folder: Path,
    parts: Material,
    net: nn.Module | None,
    workers: int,
    shard_classes: bool,
    listener: Listener | None,
) -> None:
    budget, own_net, leads = recipe.budget, net is not None, fabric.is_global_zero
    with torch.random.fork_rng(), torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        torch.manual_seed(_seed(recipe.seed, _SETUP))
        model = _placed_model(fabric, recipe, parts, net, shard_classes)
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
            z = _untrained_embeddings(model, parts, recipe, fabric.device, workers)
            model.head.prepare(part_of(z, model))
            plateau = Plateau(warmup=model.head.warmup_epochs)
            now = TrainingState(0, plateau, [], copied(model), copied(model), {})
        now.into(model, optimizer)
        if leads:
            stored.write_history(folder, now.history)
        clock = Clock()

        for epoch in range(now.epoch, budget.epochs):
            if now.plateau.stale >= budget.patience:
                break
            began = time.monotonic()
            torch.manual_seed(_seed(recipe.seed, _EPOCH, epoch, fabric.global_rank))
            start_draws(model, _seed(recipe.seed, _EPOCH, epoch))
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * recipe.schedule.factor**now.plateau.cuts
            lr = optimizer.param_groups[0]["lr"]
            model.head.start_epoch(epoch)
            sampler.set_epoch(epoch)
            batches = data.train_batches(
                parts.dataset, parts.targets, sampler, parts.how, device=fabric.device, workers=workers
            )
            losses = torch.zeros(budget.episodes, device=fabric.device)
            ddp.train()
            for step in _steps(
                fabric, ddp, optimizer, batches, losses, partial(_explained, model, recipe, epoch)
            ):
                if (
                    losses.is_cpu or step == budget.episodes
                ):  # on other devices every look at the loss would wait for them
                    _require_finite(losses, recipe, epoch)
                if listener is not None and leads and clock.ticks():
                    listener(now.progress(recipe, epoch, step, losses, lr))
            trained = time.monotonic()

            judged = whole_model(model)
            score = fabric.broadcast(
                validation_score(judged, parts, fabric.device, workers, retrieval=recipe.retrieval)
                if leads
                else None
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


def _placed_model(
    fabric: Fabric, recipe: Recipe, parts: Material, net: nn.Module | None, shard_classes: bool
) -> Model:
    """The model as this process trains it, not yet on its device."""
    model = build_model(recipe, len(parts.classes), parts.input_shape, net)
    if fabric.world_size > 1 and fabric.device.type == "cuda":
        model.net = nn.SyncBatchNorm.convert_sync_batchnorm(model.net)
    if recipe.channels_last:
        model.net = model.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if shard_classes:
        split_classes(model, fabric, recipe)
    return model


def _steps(
    fabric: Fabric,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[tuple[Tensor, Tensor, int]],
    losses: Tensor,
    explained: Callable[[int], AbstractContextManager[None]],
) -> Iterator[int]:
    """One step of the optimizer for each batch; yields how many are done, and fills in the losses."""
    for step, (x, y, total) in enumerate(batches):
        optimizer.zero_grad()
        with explained(step):
            loss = model(x, y).sum() * (fabric.world_size / total)
        fabric.backward(loss)
        optimizer.step()
        losses[step] = loss.detach()
        yield step + 1


def _finish(folder: Path, recipe: Recipe, parts: Material, now: TrainingState, own_net: bool) -> None:
    result = {
        "epochs": now.epoch,
        "best_epoch": now.plateau.best_epoch,
        "score": now.plateau.best_score,
        "seconds": sum(record["seconds"] for record in now.history),
        "stopped": "patience" if now.plateau.stale >= recipe.budget.patience else "epochs",
    }
    stored.write_run(folder, recipe, parts, now.best, now.history, result, own_net)


@torch.no_grad()
def _untrained_embeddings(
    model: Model, parts: Material, recipe: Recipe, device: torch.device, workers: int
) -> Tensor:
    """Embeddings of augmented training items, at most 100,000, with batch norm in training mode.

    Afterwards the net is as it was before.
    """
    before = copied(model.net)
    model.train()
    dtype = next(model.parameters()).dtype
    batches = data.training_pass(
        parts.dataset,
        parts.split.train[some_items(len(parts.split.train), _LOOKED_AT)],
        parts.how,
        batch_size=recipe.budget.classes * recipe.budget.instances,
        seed=_seed(recipe.seed, _PREPARE),
        device=device,
        workers=workers,
    )
    z = torch.cat([model.net(x.to(dtype)) for x in batches])
    model.net.load_state_dict(before)
    return z


@contextmanager
def _explained(model: Model, recipe: Recipe, epoch: int, step: int) -> Iterator[None]:
    """A head refuses embeddings that are not finite. Here this error means that training went wrong."""
    try:
        yield
    except ValueError as error:
        if all(own_part(p).isfinite().all() for p in model.parameters()) and "finite" not in str(error):
            raise
        raise _diverged("embedding", epoch, step, recipe) from error


def _require_finite(losses: Tensor, recipe: Recipe, epoch: int) -> None:
    if not math.isfinite(losses.sum().item()):
        raise _diverged("loss", epoch, int((~losses.isfinite()).nonzero()[0]), recipe)


def _diverged(what: str, epoch: int, step: int, recipe: Recipe) -> Diverged:
    momentum = recipe.optim.common.get("momentum", 0.0)
    return Diverged(
        f"the {what} is not finite in epoch {epoch + 1}, step {step}; "
        f"try a lower optim.lr (it is {recipe.optim.lr:g})"
        + (f" or optim.momentum (it is {momentum:g})" if momentum > 0.9 else "")
        + ", in another folder; the last good checkpoint is kept"
    )


def _seed(*key: int) -> int:
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(1))
