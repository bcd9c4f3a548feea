"""Runs on features in memory: the engine trains them, in seconds, in place of the loop of episodes.

A run is rehearsed with the validation part held out (three folds take turns where that part is small), which
finds the number of epochs. Then it goes on with training and validation rows together; after folds it is
trained anew on all of them. The models of the rehearsal stay beside it: what they say of rows that they did
not see is what calibrators are fitted on.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from spaceform.engine import (
    Candidate,
    FeaturesModel,
    Rehearsal,
    Rows,
    TrainingSplit,
    finish,
    folds,
    joined,
    parts_of,
    rehearse,
)
from spaceform.engine import CandidateDiverged as DivergedFit
from spaceform.engine.training import WATCHING_DRAWS, set_draws
from spaceform.nets import FeaturesNet
from spaceform.run import files
from spaceform.run.material import Material
from spaceform.run.model import build_model
from spaceform.run.recipe import Recipe, RecipeError, replace

__all__ = [
    "DivergedFit",
    "FeatureRun",
    "candidate_of",
    "engine_parts",
    "held_out",
    "is_for_features",
    "require_features",
    "rows_of",
    "with_candidate",
]

REHEARSAL = "rehearsal.safetensors"


@final
class FeatureRun:
    """What the engine made of a recipe."""

    def __init__(self, recipe: Recipe, parts: Material) -> None:
        """Rehearse, then train on everything."""
        began = time.monotonic()
        head, classes = recipe.head.name, len(parts.classes)
        candidate, seed = candidate_of(recipe), recipe.seed
        self.rehearsal: Rehearsal = rehearse(head, candidate, engine_parts(parts), seed=seed, classes=classes)
        rows = joined(*rows_of(parts))
        self.model: FeaturesModel = finish(head, candidate, self.rehearsal, rows, seed=seed, classes=classes)
        self.seconds = time.monotonic() - began

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record for each look at the held-out rows."""
        share = self.seconds / len(self.rehearsal.history)
        return [
            {
                "epoch": look.epoch - 1,
                "loss": look.objective,
                "score": look.accuracy,
                "nll": look.held_out_nll,
                "train_seconds": share,
                "seconds": share,
            }
            for look in self.rehearsal.history
        ]

    @property
    def result(self) -> dict[str, Any]:
        """What a run's `result.json` says of the training."""
        return {
            "epochs": self.rehearsal.best_epoch,
            "best_epoch": self.rehearsal.best_epoch - 1,
            "score": self.rehearsal.accuracy,
            "nll": self.rehearsal.nll,
            "seconds": self.seconds,
            "stopped": "rehearsal",
        }

    def keep_rehearsal(self, folder: Path) -> None:
        """Write the models that did not see the rows held out."""
        tensors = {
            f"{i}.{name}": value
            for i, model in enumerate(self.rehearsal.models)
            for name, value in model.state_dict().items()
        }
        files.write_tensors(folder / REHEARSAL, tensors, {"models": len(self.rehearsal.models)})


def is_for_features(recipe: Recipe) -> bool:
    """Whether the engine trains this recipe."""
    return recipe.net.name == "features"


def require_features(recipe: Recipe, parts: Material) -> None:
    """Refuse data that the engine does not take."""
    if parts.dataset.kind != "features" or parts.dataset.task != "classification":
        raise RecipeError(
            f"net 'features' is for the classification of features, and {recipe.data.name!r} is "
            f"{parts.dataset.task} of {parts.dataset.kind}; try net.name=projection"
        )


def candidate_of(recipe: Recipe) -> Candidate:
    """The net, rates and options of a recipe, as the engine takes them."""
    net, optim = recipe.net.model_dump(), recipe.optim.model_dump()
    return Candidate(
        hidden=tuple(net["hidden"]),
        dim=net["dim"] if net["projected"] else None,
        pieces=net["pieces"],
        members=net["members"],
        gates=net["gates"],
        dropout=net["dropout"],
        lr=optim["lr"],
        weight_decay=optim["weight_decay"],
        batch_size=optim["batch_size"],
        epochs=optim["epochs"],
        options=recipe.head.options,
    )


def with_candidate(recipe: Recipe, candidate: Candidate, features: int, classes: int) -> Recipe:
    """The recipe of a candidate: the same data and head, this net, these rates and options."""
    dim, projected = candidate.embedding(features, classes)
    net = {"name": "features", "dim": dim, "hidden": candidate.hidden}
    net |= {"pieces": candidate.pieces, "members": candidate.members, "dropout": candidate.dropout}
    net |= {"gates": candidate.gates, "projected": projected}
    optim = {"name": "cosine_adamw", "lr": candidate.lr, "weight_decay": candidate.weight_decay}
    optim |= {"batch_size": candidate.batch_size, "epochs": candidate.epochs}
    head = {"name": recipe.head.name, **candidate.options}
    return replace(recipe, net=net, optim=optim, head=head)


def rows_of(parts: Material) -> tuple[Rows, Rows]:
    """The rows that train and those that validate; of classes that do not train, none."""
    x = parts.dataset.inputs
    assert isinstance(x, Tensor)

    def rows(index: Int64[Tensor, " part"]) -> Rows:
        index = index[parts.targets[index] >= 0]
        return Rows.of(x[index], parts.targets[index])

    return rows(parts.split.train), rows(parts.split.val)


def engine_parts(parts: Material) -> list[TrainingSplit]:
    """Rows to train on and rows held out: one split, or folds that take turns."""
    train, val = rows_of(parts)
    found = parts_of(train, val, seed=0)
    views, groups = parts.dataset.views, parts.dataset.groups
    if views is None or groups is None or len(found) == 1:
        return found
    return _folds_with_views(parts, views, groups)


def _folds_with_views(
    parts: Material, views: Int64[Tensor, " items"], groups: Int64[Tensor, " items"]
) -> list[TrainingSplit]:
    """Folds of the items themselves; views of an item train where it trains, and are never held out."""
    x, targets = parts.dataset.inputs, parts.targets
    assert isinstance(x, Tensor)
    index = torch.cat([parts.split.train, parts.split.val])
    index = index[targets[index] >= 0]
    own, more = index[views[index] == 0], index[views[index] > 0]
    rows, seen = Rows.of(x[own], targets[own]), Rows.of(x[more], targets[more])
    fold = folds(rows, seed=0).cpu()
    of_group = dict(zip(groups[own].tolist(), fold.tolist(), strict=True))
    fold_of_view = torch.tensor([of_group.get(group, -1) for group in groups[more].tolist()])
    return [
        TrainingSplit.of(joined(rows[fold != i], seen[fold_of_view != i]), rows[fold == i])
        for i in sorted(set(fold.tolist()))
    ]


def held_out(
    folder: Path, recipe: Recipe, parts: Material
) -> Iterator[tuple[Float[Tensor, "draws n classes"], Int64[Tensor, " n"], Float[Tensor, " n"]]]:
    """Logit samples, labels and confidences of the rows that the models of the rehearsal did not see."""
    tensors, state = files.read_tensors(folder / REHEARSAL)
    for i, part in zip(range(state["models"]), engine_parts(parts), strict=True):
        model = build_model(recipe, len(parts.classes), parts.input_shape)
        own = f"{i}."
        model.load_state_dict({k[len(own) :]: v for k, v in tensors.items() if k.startswith(own)})
        model.eval()
        assert isinstance(model.net, FeaturesNet)
        set_draws(model.head, WATCHING_DRAWS)
        z = model.net.body(part.held_out.x)
        yield model.head.logit_samples(z), part.held_out.y, model.head.confidence(z)
