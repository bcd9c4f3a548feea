"""The files of a run, read by their schemas and checked against each other.

`train` writes `recipe.json`, `history.jsonl`, `model.safetensors` and, last, `result.json`. It has the
digests of the recipe and of the weights: so files of two runs in one folder are noticed.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NotRequired

import torch
from pydantic import ConfigDict, with_config
from torch import Tensor, nn
from typing_extensions import TypedDict

from spaceform.data import TableFeature
from spaceform.run import files
from spaceform.run.environment import versions
from spaceform.run.material import Fingerprint, Material, write_preprocessing
from spaceform.run.model import Model, build_model
from spaceform.run.recipe import Recipe, RecipeError, make
from spaceform.run.warm_up import without_margin

RECIPE, WEIGHTS, RESULT, HISTORY = "recipe.json", "model.safetensors", "result.json", "history.jsonl"
METRICS = "metrics.json"


class Digests(TypedDict):
    """SHA-256 digests of the files that belong to a result."""

    recipe: str
    weights: str


class Result(TypedDict):
    """`result.json`: how training ended."""

    epochs: int
    best_epoch: int
    score: float
    """The validation score: accuracy, or recall at 1."""
    nll: NotRequired[float]
    """The NLL of the rows that the engine for features held out."""
    seconds: float
    stopped: Literal["patience", "epochs", "rehearsal"]
    note: NotRequired[str]
    """What a reader of the numbers must know."""
    data: Fingerprint
    made_with: dict[str, Any]
    digests: Digests


Measured = dict[str, int | float | None]
"""Metrics by name; None where one does not exist, such as the AUROC of predictions that are all right."""


@with_config(ConfigDict(extra="allow"))
class Metrics(TypedDict):
    """`metrics.json`: what `evaluate` measured. Values that are not named here are not checked."""

    task: Literal["classification", "retrieval"]
    items: NotRequired[int]
    validation_score: NotRequired[float]
    accuracy: NotRequired[float | None]
    nll: NotRequired[float | None]
    brier: NotRequired[float | None]
    calibration_error_l1: NotRequired[float | None]
    calibration_error_l2: NotRequired[float | None]
    auroc_confidence: NotRequired[float | None]
    auroc_probability: NotRequired[float | None]
    aurc_confidence: NotRequired[float | None]
    aurc_probability: NotRequired[float | None]
    map_at_r: NotRequired[float | None]
    recall_at_1: NotRequired[float | None]
    calibrator: NotRequired[str]
    calibrated: NotRequired[dict[str, Measured]]
    retrieval: NotRequired[Measured]
    cosine: NotRequired[Measured]
    sampled: NotRequired[Measured]
    direction: NotRequired[Measured]
    few_shot: NotRequired[Measured]
    verification: NotRequired[Measured]
    numbers: NotRequired[dict[str, int | float]]


@with_config(ConfigDict(extra="allow"))
class EpochLine(TypedDict):
    """A line of `history.jsonl`: what every run records for an epoch."""

    epoch: int
    score: float
    seconds: float


class ColumnRecord(TypedDict):
    """A `data.TableFeature`."""

    source: str
    value: str | None
    fill: float | None
    is_empty: bool


class WeightsState(TypedDict):
    """What `model.safetensors` holds beside its tensors."""

    recipe: dict[str, Any]
    classes: list[str]
    input_shape: list[int]
    preprocessing: dict[str, Any] | None
    own_net: bool
    columns: list[ColumnRecord]
    made_by: str
    """A digest of the pretrained net that made the features of photos; empty if there is no such net."""


def read_recipe(folder: Path) -> Recipe | None:
    """The recipe of a run's folder, or None where there is none."""
    path = folder / RECIPE
    if not path.exists():
        return None
    return make(files.read_json(path, remedy=_remedy(folder)), source=str(path))


def read_result(folder: Path) -> Result:
    """How training ended; an error if the recipe beside it is that of another run."""
    result = files.read_json(folder / RESULT, Result, remedy=_remedy(folder))
    require_own_recipe(folder)
    return result


def require_own_recipe(folder: Path) -> None:
    """Refuse a recipe that is damaged, or whose digest is not the one in the run's result."""
    files.read_json(folder / RECIPE, remedy=_remedy(folder))
    kept = files.read_json(folder / RESULT, remedy=_remedy(folder)).get("digests", {}).get("recipe")
    if kept is not None and files.sha256(folder / RECIPE) != kept:
        raise RecipeError(f"{folder / RECIPE} is not the recipe of this run; {_remedy(folder)}")


def read_history(folder: Path, *, growing: bool = False) -> list[dict[str, Any]]:
    """One record for each epoch; of a run that may be under way (`growing`), the records that are whole."""
    remedy = f"restore the file, or remove {folder} and train again"
    return files.read_lines(folder / HISTORY, growing=growing, schema=EpochLine, remedy=remedy)


def read_metrics(folder: Path) -> dict[str, Any]:
    """What `evaluate` measured of a run."""
    remedy = f"`spaceform evaluate {folder}` writes it again"
    return dict(files.read_json(folder / METRICS, Metrics, remedy=remedy))


def write_run(
    folder: Path,
    recipe: Recipe,
    parts: Material,
    weights: Mapping[str, Tensor],
    history: list[dict[str, Any]],
    result: dict[str, Any],
    own_net: bool,
) -> None:
    """Write the trained weights, then `result.json` (the run is whole now), then remove the checkpoints."""
    state: WeightsState = {
        "recipe": recipe.model_dump(mode="json"),
        "classes": list(parts.classes),
        "input_shape": list(parts.input_shape),
        "preprocessing": write_preprocessing(parts.how),
        "own_net": own_net,
        "columns": [_record(column) for column in parts.dataset.columns],
        "made_by": parts.dataset.made_by,
    }
    digest = files.write_tensors(folder / WEIGHTS, weights, state)
    write_history(folder, history)
    digests = {"recipe": files.sha256(folder / RECIPE), "weights": digest}
    if note := without_margin(recipe, result["epochs"]):
        result = {**result, "note": note}
    result = {**result, "data": parts.fingerprint, "made_with": versions(), "digests": digests}
    files.write_json(folder / RESULT, result)
    files.remove_checkpoints(folder)


def _record(column: TableFeature) -> ColumnRecord:
    return {
        "source": column.source,
        "value": column.value,
        "fill": column.fill,
        "is_empty": column.is_empty,
    }


def write_history(folder: Path, history: list[dict[str, Any]]) -> None:
    """Write `history.jsonl`, one line for each epoch."""
    text = "".join(json.dumps(record) + "\n" for record in history)
    files.write_bytes(folder / HISTORY, text.encode())


def read_model(
    folder: Path, recipe: Recipe, digest: str, net: nn.Module | None = None
) -> tuple[Model, WeightsState]:
    """The trained model; an error if its weights have another digest or do not fit the recipe."""
    path = folder / WEIGHTS
    try:
        tensors, state = files.read_tensors(path, WeightsState, digest)
    except files.CheckpointError as error:
        raise RecipeError(f"{error}; {_remedy(folder)}") from None
    if net is None and state["own_net"]:
        raise RecipeError(f"{folder} was trained with a net of your own; pass it: Run.load(path, net=...)")
    if state["recipe"] != recipe.model_dump(mode="json"):
        raise RecipeError(f"{folder / RECIPE} is not the recipe of {path.name}; {_remedy(folder)}")
    plain = recipe.model_copy(update={"net": recipe.net.without_weights()})
    _require_fit(path, tensors, _net_on_no_device(plain, state) if net is None else net, recipe.net.dim)
    with torch.random.fork_rng():
        model = build_model(plain, len(state["classes"]), state["input_shape"], net)
    if recipe.precision == "64-true":
        model.double()
    _require_numbers(path, tensors, model)
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise RecipeError(
            f"the weights of the head in {path} do not fit {recipe.head.name!r}; {_remedy(folder)}"
        ) from None
    return model, state


def _net_on_no_device(recipe: Recipe, state: WeightsState) -> nn.Module:
    """The net with shapes but without memory: a wrong recipe may ask for more memory than there is."""
    with torch.device("meta"):
        return recipe.net.build(state["input_shape"])


def _require_fit(path: Path, tensors: dict[str, Tensor], net: nn.Module, dim: int) -> None:
    """Raise an error if the tensors are not those of the net."""
    held = {name.removeprefix("net."): t.shape for name, t in tensors.items() if name.startswith("net.")}
    wanted = {name: tensor.shape for name, tensor in net.state_dict().items()}
    for name in {**wanted, **held}:
        if wanted.get(name) != held.get(name):
            ours, theirs = (tuple(s[name]) if name in s else "nothing" for s in (wanted, held))
            raise RecipeError(
                f"{path} does not fit its net of dim {dim}: {name} is {theirs} there, and {ours} in the net; "
                f"{_remedy(path.parent)}"
            )


def _require_numbers(path: Path, tensors: dict[str, Tensor], model: Model) -> None:
    """Raise an error if a tensor is not finite, or has another type than in the model."""
    for name, own in model.state_dict().items():
        found = tensors.get(name, own)
        if found.is_floating_point() != own.is_floating_point():
            raise RecipeError(f"{name} in {path} is of type {found.dtype}; {_remedy(path.parent)}")
    for name, _ in model.named_parameters():
        if name in tensors and not bool(tensors[name].isfinite().all()):
            raise RecipeError(f"{name} in {path} has NaN or infinite values; {_remedy(path.parent)}")


def _remedy(folder: Path) -> str:
    return f"copy the run again, or remove {folder} and train it again"
