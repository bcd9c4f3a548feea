"""Runs on features: the engine trains them in seconds, in place of the loop of episodes.

A run is first rehearsed with the validation part held out, which finds the number of epochs (if that part is
small, three folds take turns in being held out). Then the model goes on with training and validation rows
together; after folds a new model is trained on all rows. The models of the rehearsal are kept in the run's
folder: calibrators are fitted to what these say of rows that they did not see.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from spaceform.data.guard import memory
from spaceform.data.stored_rows import StoredRows
from spaceform.decisions import Combined, Known
from spaceform.engine import (
    Candidate,
    FeaturesModel,
    Rehearsal,
    Rows,
    TrainingSplit,
    finish,
    folds,
    joined,
    parted,
    rehearse,
)
from spaceform.engine import CandidateDiverged as DivergedFit
from spaceform.engine.judges import judge_of_all, judge_of_part
from spaceform.engine.rows import SMALLEST_HELD_OUT
from spaceform.engine.training import WATCHING_DRAWS, set_draws
from spaceform.run import files
from spaceform.run.material import Material
from spaceform.run.model import Model, build_model, reach_of
from spaceform.run.recipe import Recipe, RecipeError, flatten, replace

__all__ = [
    "DivergedFit",
    "FeatureRun",
    "affordable",
    "candidate_of",
    "candidates_with",
    "engine_parts",
    "held_out",
    "is_for_features",
    "judge_of",
    "require_features",
    "rows_of",
    "with_candidate",
]

REHEARSAL = "rehearsal.safetensors"
WATCHED = 20_000
"""The most validation rows that are held out from a rehearsal, if features stay on the disk."""
_SEARCH_MEMORY, _FEWEST_SEARCHED = 1 / 32, 2_000
"""If features stay on the disk: the share of the memory that the training rows of a search take (a fit has
three copies of them, and several fits run at a time), and the fewest rows, however small the memory is. With
many classes the logits of a row, in double precision, are more than its features and count in their place.
"""


@final
class FeatureRun:
    """A recipe that the engine has trained."""

    def __init__(self, recipe: Recipe, parts: Material) -> None:
        """Rehearse, then train on all rows."""
        began = time.monotonic()
        head, classes = recipe.head.name, len(parts.classes)
        candidate, seed = candidate_of(recipe), recipe.seed
        self.rehearsal: Rehearsal = rehearse(head, candidate, engine_parts(parts), seed=seed, classes=classes)
        rows = joined(*rows_of(parts))
        self.model: FeaturesModel = finish(head, candidate, self.rehearsal, rows, seed=seed, classes=classes)
        self.seconds = time.monotonic() - began

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record for each time that the held-out loss was measured."""
        share = self.seconds / len(self.rehearsal.history)
        return [
            {
                "epoch": look.epoch - 1,
                "loss": look.objective,
                "score": look.accuracy,
                "nll": look.held_out_nll,
                "calibrated_nll": look.calibrated_nll,
                "train_seconds": share,
                "seconds": share,
            }
            for look in self.rehearsal.history
        ]

    @property
    def result(self) -> dict[str, Any]:
        """What `result.json` says about the training."""
        return {
            "epochs": self.rehearsal.best_epoch,
            "best_epoch": self.rehearsal.best_epoch - 1,
            "score": self.rehearsal.accuracy,
            "nll": self.rehearsal.nll,
            "seconds": self.seconds,
            "stopped": "rehearsal",
        }

    def keep_rehearsal(self, folder: Path) -> None:
        """Write the models of the rehearsal, which did not see the held-out rows."""
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
    """Raise an error for data that the engine does not take."""
    if parts.dataset.kind != "features" or parts.dataset.task != "classification":
        raise RecipeError(
            f"net 'features' is for the classification of features, and {recipe.data.name!r} is "
            f"{parts.dataset.task} of {parts.dataset.kind}; try net.name=projection"
        )
    recipe.net.build(parts.input_shape)  # if options do not go together, the net says so


def candidate_of(recipe: Recipe) -> Candidate:
    """The net, rates and options of a recipe, as the engine takes them."""
    net, optim = recipe.net.model_dump(), recipe.optim.model_dump()
    return Candidate(
        hidden=tuple(net["hidden"]),
        dim=net["dim"] if net["projected"] else None,
        pieces=net["pieces"],
        uncut=net["uncut"],
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
    net |= {"pieces": candidate.pieces, "uncut": candidate.uncut}
    net |= {"dropout": candidate.dropout, "projected": projected}
    if candidate.hidden:  # otherwise there is one member, without gates
        net |= {"members": candidate.members, "gates": candidate.gates}
    optim = {"name": "cosine_adamw", "lr": candidate.lr, "weight_decay": candidate.weight_decay}
    optim |= {"batch_size": candidate.batch_size, "epochs": candidate.epochs}
    head = {"name": recipe.head.name, **candidate.options}
    return replace(recipe, net=net, optim=optim, head=head)


def candidates_with(
    recipe: Recipe, candidates: Iterable[Candidate], settings: Mapping[str, Any], features: int, classes: int
) -> list[Candidate]:
    """The candidates that can have these settings, such as {"net.dim": 32}, with them; equal ones once.

    A net without hidden layers has one member and no gates; a net with hidden layers is projected. A setting
    that needs one kind of net leaves out the candidates of the other kind.
    """
    if not settings:
        return list(candidates)
    if "net.dim" in settings:  # a number of coordinates needs a projection
        settings = {"net.projected": True, **settings}
    found: list[Candidate] = []
    for one in candidates:
        wanted = replace(with_candidate(recipe, one, features, classes), settings)
        changed = candidate_of(wanted)
        kept, asked = flatten(with_candidate(recipe, changed, features, classes)), flatten(wanted)
        if all(kept[key] == asked[key] for key in settings) and changed not in found:
            found.append(changed)
    if not found:
        given = ", ".join(f"{key}={json.dumps(value, default=str)}" for key, value in settings.items())
        raise RecipeError(f"no net for {features} features has all of {given}; leave out one of them")
    return found


def rows_of(parts: Material) -> tuple[Rows, Rows]:
    """The training rows and the validation rows, without classes that have no training row."""
    everything = _all_rows(parts)

    def rows(index: Int64[Tensor, " part"]) -> Rows:
        return everything[index[parts.targets[index] >= 0]]

    return rows(parts.split.train), rows(parts.split.val)


def affordable(parts: Material) -> int | None:
    """How many training rows a search takes into memory if features stay on the disk; None if all."""
    train = len(parts.split.train)
    if not isinstance(parts.dataset.inputs, StoredRows):
        return None
    most = int(_SEARCH_MEMORY * memory()) // (4 * max(parts.input_shape[0], 2 * len(parts.classes)))
    return max(_FEWEST_SEARCHED, most) if train > max(_FEWEST_SEARCHED, most) else None


def engine_parts(parts: Material, most: int | None = None) -> list[TrainingSplit]:
    """Rows to train on and rows held out: one split, or folds that take turns.

    With `most`, at most this many random rows remain to train on, in memory.
    """
    return [
        TrainingSplit.of(train if most is None else train.some(most).in_memory, held)
        for train, held in _parted(parts)
    ]


def _all_rows(parts: Material) -> Rows:
    x = parts.dataset.inputs
    assert not isinstance(x, tuple)
    return Rows.of(x, parts.targets)


def _parted(parts: Material) -> list[tuple[Rows, Rows]]:
    """Rows to train on and rows held out, not yet standardised."""
    train, val = rows_of(parts)
    views, groups = parts.dataset.views, parts.dataset.groups
    if len(val) >= SMALLEST_HELD_OUT:
        return [(train, val.some(WATCHED) if isinstance(val.x, StoredRows) else val)]
    if views is not None and groups is not None:
        return _folds_with_views(parts, views, groups)
    return parted(train, val, seed=0)


def _folds_with_views(
    parts: Material, views: Int64[Tensor, " items"], groups: Int64[Tensor, " items"]
) -> list[tuple[Rows, Rows]]:
    """Folds of the items. The views of an item train where the item trains, and are never held out."""
    everything, targets = _all_rows(parts), parts.targets
    index = torch.cat([parts.split.train, parts.split.val])
    index = index[targets[index] >= 0]
    own, more = index[views[index] == 0], index[views[index] > 0]
    rows, seen = everything[own], everything[more]
    fold = folds(rows, seed=0).cpu()
    of_group = dict(zip(groups[own].tolist(), fold.tolist(), strict=True))
    fold_of_view = torch.tensor([of_group.get(group, -1) for group in groups[more].tolist()])
    return [
        (joined(rows[fold != i], seen[fold_of_view != i]), rows[fold == i])
        for i in sorted(set(fold.tolist()))
    ]


class HeldOutRows(NamedTuple):
    """What a model of the rehearsal says of its held-out rows."""

    logits: Float[Tensor, "draws n classes"]
    y: Int64[Tensor, " n"]
    confidence: Float[Tensor, " n"]
    known: Float[Tensor, " n"]
    """How known each row is, by `judge`."""
    judge: Combined
    """The model's own score of how known a row is."""


def held_out(folder: Path, recipe: Recipe, parts: Material) -> Iterator[HeldOutRows]:
    """What each model of the rehearsal says of its held-out rows."""
    pairs = _parted(parts)
    for model, (train, held) in zip(_rehearsed(folder, recipe, parts, len(pairs)), pairs, strict=True):
        model.eval()
        set_draws(model.head, WATCHING_DRAWS)
        z = model.net(held.features)
        logits, confidence = model.head.logit_samples(z), model.head.confidence(z)
        reach = reach_of(model.net, held.features)
        said = Known(z, held.y, logits, confidence, reach)
        judge = judge_of_part(model.net, train, said)
        yield HeldOutRows(logits, held.y, confidence, judge(z, logits, reach=reach), judge)


def _rehearsed(folder: Path, recipe: Recipe, parts: Material, count: int) -> list[Model]:
    """The models that `keep_rehearsal` wrote; an error if their number is not `count`."""
    path = folder / REHEARSAL
    models = [build_model(recipe, len(parts.classes), parts.input_shape) for _ in range(count)]
    try:
        tensors, state = files.read_tensors(path)
        if state.get("models") != count:
            raise files.CheckpointError(f"{path} has {state.get('models')!r} models, not {count}")
        for i, model in enumerate(models):
            own = f"{i}."
            model.load_state_dict({k[len(own) :]: v for k, v in tensors.items() if k.startswith(own)})
    except (files.CheckpointError, RuntimeError) as error:
        why = error if isinstance(error, files.CheckpointError) else f"{path} does not fit the recipe"
        raise RecipeError(f"{why}; copy the run again, or remove {folder} and train it again") from None
    return models


def judge_of(model: Model, judges: Sequence[Combined], parts: Material) -> Combined:
    """The judge of the model of all rows, with the weights of the rehearsal's `judges`."""
    rows = joined(*rows_of(parts))
    return judge_of_all(lambda x: model.embed(iter([x])), model.head, rows, judges).cpu()
