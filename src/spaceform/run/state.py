"""Everything that the rest of a run depends on, as a value that is saved as a whole and restored exactly."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

from torch import Tensor, nn
from typing_extensions import TypedDict

from spaceform.run import files
from spaceform.run.material import Fingerprint, Material
from spaceform.run.model import Model
from spaceform.run.progress import Progress
from spaceform.run.recipe import Recipe, RecipeError, Schedule
from spaceform.run.split_head import like, load_whole, whole

_SAVING = 0.05  # the share of the time that checkpoints may take


@final
@dataclass(frozen=True)
class Plateau:
    """When to cut the rates and when to stop, as a value: the best epoch so far, and the epochs since."""

    best_score: float | None = None
    best_epoch: int = -1
    stale: int = 0
    """Epochs since the best epoch."""
    since_cut: int = 0
    """Epochs since the best epoch, or since the last cut if that is later."""
    cuts: int = 0
    warmup: int = 0
    """The first epoch that counts; the best of the epochs before is then forgotten."""

    def after(self, epoch: int, score: float, schedule: Schedule) -> "Plateau":
        """The plateau after the validation score of `epoch`."""
        if self.best_score is None or epoch == self.warmup or score > self.best_score:
            return Plateau(score, epoch, cuts=self.cuts, warmup=self.warmup)
        if epoch < self.warmup:
            return self
        if self.since_cut + 1 >= schedule.patience:
            return replace(self, stale=self.stale + 1, since_cut=0, cuts=self.cuts + 1)
        return replace(self, stale=self.stale + 1, since_cut=self.since_cut + 1)


@final
@dataclass(frozen=True, eq=False)
class TrainingState:
    """The content of a checkpoint: everything that the rest of a run depends on."""

    epoch: int
    plateau: Plateau
    history: list[dict[str, Any]]
    model: dict[str, Tensor]
    best: dict[str, Tensor]
    moments: dict[str, Tensor]
    """What the optimiser keeps for each parameter: `momentum_buffer/net.conv1.weight`, ..."""

    def into(self, model: Model, optimizer: Any) -> None:
        load_whole(model, self.model)
        parameters = dict(model.named_parameters())
        for key, tensor in self.moments.items():
            kind, _, name = key.partition("/")
            device = "cpu" if kind == "step" else parameters[name].device  # AdamW counts its steps on the CPU
            own = tensor.to(device)
            optimizer.state[parameters[name]][kind] = own if kind == "step" else like(own, parameters[name])

    def after(
        self, record: dict[str, Any], schedule: Schedule, model: Model, optimizer: Any
    ) -> "TrainingState":
        plateau = self.plateau.after(record["epoch"], record["score"], schedule)
        moments = {
            f"{kind}/{name}": whole(tensor)
            for name, p in model.named_parameters()
            for kind, tensor in optimizer.state.get(p, {}).items()
            if tensor is not None
        }
        best = copied(model) if plateau.best_epoch == record["epoch"] else self.best
        state = {name: whole(tensor) for name, tensor in model.state_dict().items()}
        return TrainingState(record["epoch"] + 1, plateau, [*self.history, record], state, best, moments)

    def save(self, folder: Path, recipe: Recipe, parts: Material) -> None:
        tensors = {
            f"{part}/{name}": tensor
            for part in ("model", "best", "moments")
            for name, tensor in getattr(self, part).items()
        }
        state = {
            "recipe": recipe.digest,
            "data": parts.fingerprint,
            "epoch": self.epoch,
            "plateau": asdict(self.plateau),
            "history": self.history,
        }
        files.save_checkpoint(folder, tensors, state)

    def progress(
        self, recipe: Recipe, epoch: int, step: int, losses: Tensor, lr: float, done: bool = False
    ) -> Progress:
        seconds = [record["seconds"] for record in self.history[-10:]]
        counted_from = max(self.plateau.best_epoch, self.plateau.warmup)
        end = min(recipe.budget.epochs, counted_from + recipe.budget.patience + 1)
        return Progress(
            epoch=epoch,
            epochs=recipe.budget.epochs,
            step=step,
            steps=len(losses),
            loss=losses[:step].mean().item(),
            score=self.history[-1]["score"] if self.history else None,
            best_score=self.plateau.best_score,
            best_epoch=self.plateau.best_epoch,
            lr=lr,
            seconds_left=sum(seconds) / len(seconds) * (end - self.epoch - step / len(losses) * (not done))
            if seconds
            else None,
            done=done,
        )


class _Saved(TypedDict):
    """What a checkpoint says beside its tensors."""

    recipe: str
    data: Fingerprint
    epoch: int
    plateau: Plateau
    history: list[dict[str, Any]]


def restored(folder: Path, recipe: Recipe, parts: Material) -> TrainingState | None:
    """The state that a process left in the folder, or None; a state of another recipe or data is refused."""
    saved = files.latest_checkpoint(folder, _Saved)
    if saved is None:
        return None
    tensors, state = saved
    if state["recipe"] != recipe.digest:
        raise RecipeError(f"the checkpoint in {folder} is of another recipe; choose another folder")
    if state["data"] != parts.fingerprint:
        raise RecipeError(
            f"the data {recipe.data.name!r} is not what it was when the run in {folder} began: "
            "bring it back, or choose another folder"
        )
    part: dict[str, dict[str, Tensor]] = {"model": {}, "best": {}, "moments": {}}
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        part[kind][name] = tensor
    return TrainingState(state["epoch"], state["plateau"], state["history"], **part)


def copied(module: nn.Module) -> dict[str, Tensor]:
    """Copies of the module's parameters and buffers; tensors that are split over processes as a whole."""
    return {name: whole(tensor).detach().clone() for name, tensor in module.state_dict().items()}


@final
class Clock:
    """Decides when to call the listener (a few times a second) and when to write a checkpoint."""

    def __init__(self) -> None:
        self._told = time.monotonic()
        self._saved = self._told
        self._cost = 0.0

    def ticks(self) -> bool:
        due = time.monotonic() - self._told > 0.2
        self._told = time.monotonic() if due else self._told
        return due

    def save_is_due(self) -> bool:
        return time.monotonic() - self._saved > self._cost / _SAVING

    @contextmanager
    def saving(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self._saved = time.monotonic()
        self._cost = self._saved - began
