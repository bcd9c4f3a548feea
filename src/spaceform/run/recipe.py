"""What a run is: a frozen, validated value. TOML in, JSON beside the results."""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, final, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from spaceform import nets
from spaceform.foundation.messages import no_option
from spaceform.foundation.messages import unknown as unknown
from spaceform.foundation.values import Natural, Positive, Value, keys, parsed, said, validated
from spaceform.run.optim import OPTIMISERS, Optim, optim_options

Net: TypeAlias = Annotated[SerializeAsAny[nets.NetOptions], BeforeValidator(nets.options)]
"""One of `nets.NETS`: the key `name` says which, and the net decides which options there are."""


class RecipeError(ValueError):
    """A recipe is not possible; the message names the key, the value and the remedy."""


@final
class Data(Value):
    """Which data to take, how to split them, and what to do to the training part."""

    name: str = Field(min_length=1)
    """A name in the catalogue (`mnist`, ...), a folder, or a file (`data.formats.FILE_FORMATS`)."""
    label: str | None = None
    """The column of a table that holds the labels; None takes `y`, or the only column with a usual name."""
    text: str | None = None
    """The column of a table that holds texts; ".txt" for a folder of such files. `features` reads them."""
    task: Literal["classification", "retrieval"] | None = None
    """Fixed classes or new classes at test; None takes the task of the data set."""
    split_seed: Natural = 0
    """The seed of the split. It is the same for every replication."""
    imbalance: float = Field(1.0, ge=1.0)
    """The size of the largest training class over that of the smallest, in geometric steps between."""
    label_noise: float = Field(0.0, ge=0.0, lt=1.0)
    """The share of training labels that are replaced by another class."""
    thumbnail: Annotated[int, Field(ge=8)] | None = None
    """Shrink photos once to this many pixels an edge and hold them in memory; None decodes them as needed."""
    features: str | None = None
    """A pretrained model of timm (for texts: of sentence-transformers), whose features replace the items."""
    weights: str | None = None
    """A local file of the weights of `features`; None takes those of a package or of the hub."""

    @property
    def key(self) -> tuple[str | int | None, ...]:
        """A key that is equal for recipes whose loaded data are the same."""
        return self.name, self.label, self.text, self.thumbnail, self.features, self.weights

    @model_validator(mode="after")
    def _one_way_to_see_photos(self) -> "Data":
        if self.features is not None and self.thumbnail is not None:
            raise ValueError(
                f"data.features={self.features!r} and data.thumbnail={self.thumbnail} are two ways to see "
                "photos; leave out one of them"
            )
        if self.weights is not None and self.features is None:
            raise ValueError("data.weights are the weights of data.features; name that net too")
        return self


@final
class HeadChoice(BaseModel):
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
                raise ValueError(no_option("head", name, key, types))
            try:
                options[key] = TypeAdapter(types[key]).validate_python(value)
            except ValidationError as error:
                raise ValueError(f"head.{key} {said(error.errors()[0])}") from None
        with torch.random.fork_rng():
            HEADS[name](2, 2, **options)  # the head itself refuses values out of range
        return {"name": name, **options}


@final
class Schedule(Value):
    """Multiply every group's rate by `factor` after `patience` epochs without a better validation score."""

    factor: float = Field(0.5, gt=0.0, le=1.0)
    patience: Positive = 15


@final
class Budget(Value):
    """An epoch is `episodes` batches of `classes` classes with `instances` examples of each."""

    epochs: Positive = 1000
    episodes: Annotated[int, Field(gt=0, le=1_000_000)] = 250
    classes: Positive = 10
    instances: Positive = 13
    patience: Positive = 35
    """Stop after this many epochs without a better validation score."""


@final
class Recipe(Value):
    """A run, reproducible from this value alone."""

    data: Data
    net: Net
    head: HeadChoice
    optim: Annotated[SerializeAsAny[Optim], BeforeValidator(optim_options)]
    schedule: Schedule = Field(default_factory=lambda: Schedule.model_validate({}))
    budget: Budget = Field(default_factory=lambda: Budget.model_validate({}))
    retrieval: Literal["sampled", "direction"] = "sampled"
    """By what a stochastic head is selected and judged in retrieval: by sampled embeddings, as in the paper,
    or by the net's outputs. For other heads it is always the outputs.
    """
    precision: Literal["32-true", "64-true", "bf16-mixed"] = "32-true"
    channels_last: bool = False
    """Whether images lie in memory with their channels last, which convolutions on GPUs prefer."""
    seed: Natural = 0

    @model_validator(mode="after")
    def _features_have_their_own_optimiser(self) -> "Recipe":
        net, optim = self.net.name, self.optim.name
        if (net == "features") != (optim == "cosine_adamw"):
            raise ValueError(
                f"net 'features' and optim 'cosine_adamw' go together, got net {net!r} and optim {optim!r}; "
                "change one of them"
            )
        return self

    def to_json(self) -> str:
        """Every field in order, as it is written beside the results."""
        return json.dumps(self.model_dump(mode="json"), indent=2) + "\n"

    @property
    def digest(self) -> str:
        """A digest that is equal for equal recipes alone."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


def make(values: Mapping[str, Any], *, source: str = "recipe") -> Recipe:
    """A recipe from nested values; a RecipeError says in one sentence what is wrong."""
    try:
        return validated(Recipe, values)
    except ValueError as error:
        raise RecipeError(f"{source}: {error}") from None


def replace(recipe: Recipe, changes: Mapping[str, Any] | None = None, /, **fields: Any) -> Recipe:
    """The recipe with other values: `replace(r, {"optim.lr": 0.1}, seed=3)`."""
    values = recipe.model_dump()
    wanted = {**(changes or {}), **fields}
    for key in sorted(
        wanted, key=lambda key: not key.endswith(".name")
    ):  # names first: a name decides which options there are
        *parents, last = key.split(".")
        inner: Any = values
        for parent in parents:
            inner = inner.get(parent)
            if not isinstance(inner, dict):
                raise RecipeError(unknown("key", key, _keys()))
        value = wanted[key]
        if last == "name" and value != inner.get("name"):
            _keep_shared(parents, inner, value)
        inner[last] = value.model_dump() if isinstance(value, BaseModel) else value
    return make(values)


def _keep_shared(parents: list[str], inner: dict[str, Any], name: Any) -> None:
    """Drop the options that a head, net or optimiser of another name does not have."""
    match parents:
        case ["head"]:
            kept: Iterable[str] = ()
        case ["net"]:
            kept = nets.NETS.get(name, nets.TimmOptions).model_fields
        case ["optim"]:
            kept = OPTIMISERS.get(name, Optim).model_fields
        case _:
            return
    for key in [key for key in inner if key not in kept]:
        del inner[key]


def _keys() -> list[str]:
    """Every dotted key of a recipe, whatever its net and optimiser."""
    found = dict.fromkeys(keys(Recipe))
    tagged: dict[str, Iterable[type[Value]]] = {"net": nets.NETS.values(), "optim": OPTIMISERS.values()}
    for what, kinds in tagged.items():
        for kind in kinds:
            found |= dict.fromkeys(keys(kind, what))
    return list(found)


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


_SET_OTHERWISE: dict[str, str] = {
    "budget.epochs": "set optim.epochs",
    "budget.classes": "set optim.batch_size",
    "budget.instances": "set optim.batch_size",
    "optim.temperature_lr": "the temperature has the rate of the rest; set optim.lr",
    "data.thumbnail": "it is for photos",
    "retrieval": "net.name=projection is for retrieval",
}
"""Settings that have no effect on a run on features, with what to do instead."""


def require_effect(recipe: Recipe, settings: Iterable[str]) -> None:
    """Refuse settings that would change nothing in a recipe for features."""
    if recipe.net.name != "features":
        return
    for key in settings:
        idle = key.split(".")[0] in ("budget", "schedule", "precision", "channels_last")
        if idle or key in _SET_OTHERWISE:
            remedy = _SET_OTHERWISE.get(key, "leave it out")
            raise RecipeError(f"{key} has no effect on the training of net 'features': {remedy}")


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


def shipped(*names: str) -> Recipes:
    """The recipes of TOML files that come with the package; a later file changes those of an earlier one."""
    tables: dict[str, Any] = {}
    for name in names:
        tables = _merge(
            tables, tomllib.loads(files("spaceform").joinpath("recipes", name).read_text("utf-8"))
        )
    return Recipes(tables)


def load_recipe(source: str | Path, settings: Iterable[str] = ()) -> Recipe:
    """A recipe by its name (`mnist/vmf`) or from a `.toml` or `.json` file, changed by `--set` settings.

    `authors/mnist/vmf` is this recipe as the paper's code has it: see `AUTHORS`.
    """
    named = {**PAPER._rows, **QUICK._rows, **{f"authors/{name}": row for name, row in AUTHORS._rows.items()}}
    path = Path(source)
    if str(source) in named:
        recipe = make(named[str(source)], source=str(source))
    elif path.suffix in (".toml", ".json") or path.is_file():
        recipe = make(_read(path), source=str(path))
    else:
        raise RecipeError(unknown("recipe", str(source), named) + ", or the path of a .toml file")
    changes = dict(map(parse_setting, settings))
    changed = replace(recipe, changes) if changes else recipe
    require_effect(changed, changes)
    return changed


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
        values: dict[str, Any] = (
            parsed(text, dict[str, Any]) if path.suffix == ".json" else tomllib.loads(text)
        )
    except FileNotFoundError:
        raise RecipeError(f"there is no recipe file {str(path)!r}") from None
    except RecursionError:
        raise RecipeError(f"{path} cannot be read as a recipe: it is nested too deep") from None
    except (ValueError, OSError) as error:
        raise RecipeError(f"{path} cannot be read as a recipe: {error}") from None
    return values


def _merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = (
            _merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
        )
    return merged


PAPER: Recipes = shipped("paper.toml")
"""The hyperparameter tables of the paper, and Power Spherical with the rows of vMF."""
AUTHORS: Recipes = shipped("paper.toml", "authors.toml")
"""The same recipes; where the paper's public code differs from its text, they follow the code."""
QUICK: Recipes = shipped("quick.toml")
"""The recipes `digits/*`, which take seconds on a laptop."""
