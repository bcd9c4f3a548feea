"""What a run is: a frozen, validated value. TOML in, JSON beside the results."""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, final, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]


class RecipeError(ValueError):
    """A recipe that cannot be: the message names the key, the value and the remedy."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=False)


@final
class Data(_Value):
    """Which data, split how, and what is done to its training part."""

    name: str = Field(min_length=1)
    """A name in the catalogue (`mnist`, ...), a folder of images, an `.npz`, `.parquet` or `.csv`."""
    task: Literal["classification", "retrieval"] | None = None
    """Fixed-set or open-set; None is the data set's own."""
    split_seed: Natural = 0
    """The same for every replication."""
    imbalance: float = Field(1.0, ge=1.0)
    """Most frequent over rarest class of the training split, in geometric steps between."""
    label_noise: float = Field(0.0, ge=0.0, lt=1.0)
    """Share of training labels replaced by another class."""
    thumbnail: Annotated[int, Field(ge=8)] | None = None
    """Shrink photos once to this many pixels an edge and hold them in memory; None decodes them as needed."""


@final
class Net(_Value):
    """What turns inputs into embeddings."""

    name: str = "small"
    """One of `spaceform.nets.NETS`, or any model of timm."""
    dim: Positive
    hidden: Positive | None = None
    """Width of a hidden layer before the embedding; only `projection`."""
    standardize: bool = False
    """Bring every feature to mean 0 and variance 1 first, by a batch norm without parameters; only
    `projection`.
    """
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the features that is left out in training, after `standardize`; only `projection`."""
    stem: Literal["imagenet", "cifar"] = "imagenet"
    pretrained: bool = False
    weights: str | None = None
    """A local safetensors file of pretrained weights; None fetches them where `pretrained`."""
    freeze_batch_norm: bool = False
    """Keep running statistics as they are; scale and shift still train."""


@final
class Head(BaseModel):
    """Which head; every further key is an option of its constructor."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)
    name: str

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @model_validator(mode="before")
    @classmethod
    def _options_fit_the_head(cls, values: Any) -> Any:
        import torch

        from spaceform.heads import HEADS

        if not isinstance(values, dict) or not isinstance(name := values.get("name"), str):
            return values
        if name not in HEADS:
            raise ValueError(unknown("head", name, HEADS))
        types = {
            key: kind
            for key, kind in get_type_hints(HEADS[name].__init__).items()
            if key not in ("dim", "num_classes", "return")
        }
        options: dict[str, Any] = {}
        for key, value in values.items():
            if key == "name":
                continue
            if key not in types:
                raise ValueError(unknown(f"option of head {name!r}", key, types))
            try:
                options[key] = TypeAdapter(types[key]).validate_python(value)
            except ValidationError as error:
                raise ValueError(f"head.{key} {_said(error.errors()[0])}") from None
        with torch.random.fork_rng():
            HEADS[name](2, 2, **options)  # the head's own sentence for a value out of range
        return {"name": name, **options}


@final
class Optim(_Value):
    """SGD: weights decay; biases, scales and hyperplanes do not; the temperature has its own plain rate."""

    lr: float = Field(gt=0.0)
    temperature_lr: float = Field(0.001, ge=0.0)
    momentum: float = Field(0.9, ge=0.0, lt=1.0)
    nesterov: bool = False
    weight_decay: float = Field(0.0, ge=0.0)

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> "Optim":
        if self.nesterov and self.momentum == 0.0:
            raise ValueError("nesterov needs momentum above 0, got 0.0")
        return self


@final
class Schedule(_Value):
    """Multiply every group's rate by `factor` after `patience` epochs without a better validation score."""

    factor: float = Field(0.5, gt=0.0, le=1.0)
    patience: Positive = 15


@final
class Budget(_Value):
    """An epoch is `episodes` batches of `classes` classes with `instances` examples of each."""

    epochs: Positive = 1000
    episodes: Positive = 250
    classes: Positive = 10
    instances: Positive = 13
    patience: Positive = 35
    """Stop after this many epochs without a better validation score."""


@final
class Recipe(_Value):
    """A run, reproducible from this value alone."""

    data: Data
    net: Net
    head: Head
    optim: Optim
    schedule: Schedule = Field(default_factory=lambda: Schedule.model_validate({}))
    budget: Budget = Field(default_factory=lambda: Budget.model_validate({}))
    precision: Literal["32-true", "64-true", "bf16-mixed"] = "32-true"
    seed: Natural = 0

    def to_json(self) -> str:
        """Every field in order: what is written beside the results."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"

    @property
    def digest(self) -> str:
        """Equal for equal recipes, and for no others.

        `net.dropout` came later: unset, it is left out, so that what was begun without it goes on.
        """
        values = self.model_dump(mode="json")
        if not self.net.dropout:
            del values["net"]["dropout"]
        canonical = json.dumps(values, sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


_LISTED = 12  # names that a sentence has room for


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that is not among the known ones; of many, the nearest are listed."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    listed = ", ".join(known)
    if len(known) > _LISTED:
        nearest = difflib.get_close_matches(name, known, n=_LISTED // 2, cutoff=0)
        listed = f"{', '.join(nearest)} ({len(known)} in all)"
    return f"unknown {what} {name!r}; {hint}choose from {listed}"


def make(values: Mapping[str, Any], *, source: str = "recipe") -> Recipe:
    """A recipe from nested values; a RecipeError says in one sentence what is wrong."""
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(f"{source}: {_sentence(error)}") from None


def replace(recipe: Recipe, changes: Mapping[str, Any] | None = None, /, **fields: Any) -> Recipe:
    """The recipe with other values: `replace(r, {"optim.lr": 0.1}, seed=3)`."""
    values = recipe.model_dump()
    for key, value in {**(changes or {}), **fields}.items():
        *parents, last = key.split(".")
        inner: Any = values
        for parent in parents:
            inner = inner.get(parent)
            if not isinstance(inner, dict):
                raise RecipeError(unknown("key", key, _keys(Recipe)))
        if last == "name" and parents == ["head"] and value != inner.get("name"):
            inner.clear()  # another head has other options
        inner[last] = value.model_dump() if isinstance(value, BaseModel) else value
    return make(values)


def flatten(recipe: Recipe) -> dict[str, Any]:
    """Dotted keys and their values: `{"optim.lr": 0.1, ...}`."""
    flat: dict[str, Any] = {}
    for key, value in recipe.model_dump(mode="json").items():
        flat |= {f"{key}.{k}": v for k, v in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def parse_setting(text: str) -> tuple[str, Any]:
    """`optim.lr=0.1` as a key and a value; the value is TOML, or else taken as a bare string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"a setting is KEY=VALUE, such as optim.lr=0.1; got {text!r}")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


@final
class Recipes(Mapping[str, Recipe]):
    """Named recipes of one TOML file: the table `[mnist]` holds what all of `["mnist/..."]` share."""

    def __init__(self, tables: Mapping[str, Mapping[str, Any]]) -> None:
        self._rows = {
            name: _merge(tables.get(name.rpartition("/")[0], {}), row)
            for name, row in tables.items()
            if "/" in name
        }

    def __getitem__(self, name: str) -> Recipe:
        if name not in self._rows:
            raise KeyError(unknown("recipe", name, self._rows))
        return make(self._rows[name], source=name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def shipped(file: str) -> Recipes:
    """The recipes of a TOML file that comes with the package."""
    return Recipes(tomllib.loads(files("spaceform").joinpath("recipes", file).read_text("utf-8")))


def load(source: str | Path, settings: Iterable[str] = ()) -> Recipe:
    """A recipe by its name (`mnist/vmf`) or from a `.toml` or `.json` file, then `--set` settings on top."""
    named = {**PAPER._rows, **QUICK._rows}
    path = Path(source)
    if str(source) in named:
        recipe = make(named[str(source)], source=str(source))
    elif path.suffix in (".toml", ".json") or path.is_file():
        recipe = make(_read(path), source=str(path))
    else:
        raise RecipeError(unknown("recipe", str(source), named) + ", or the path of a .toml file")
    changes = dict(map(parse_setting, settings))
    return replace(recipe, changes) if changes else recipe


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe file {str(path)!r}") from None
    except (ValueError, OSError) as error:
        raise RecipeError(f"{path} cannot be read as a recipe: {error}") from None
    if not isinstance(values, dict):
        raise RecipeError(f"{path} cannot be read as a recipe: its top level is not a table")
    return values


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = (
            _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        )
    return merged


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    match first["type"]:
        case "extra_forbidden":
            return unknown("key", key, _keys(Recipe))
        case "missing":
            return f"the key {key!r} is missing"
        case "value_error":
            return str(first["ctx"]["error"])
        case _:
            return f"{key} {_said(first)}"


def _said(error: Any) -> str:
    return f"{error['msg'].replace('Input should', 'must', 1).removesuffix('.')}, got {error['input']!r}"


def _keys(model: type[BaseModel], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += _keys(inner, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys


PAPER: Recipes = shipped("paper.toml")
"""The hyperparameter tables of the paper, and Power Spherical with the rows of vMF."""
QUICK: Recipes = shipped("quick.toml")
"""`digits/*`: seconds on a laptop."""
