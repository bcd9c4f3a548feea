"""Plan a comparison: every head under the same conditions.

The same split, net, dimension, budget and seeds for each head; what differs are the head's own options and
its learning rates.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from math import ceil
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import torch

from spaceform import data
from spaceform.engine import LOOKED_AT, Columns, Rows, space
from spaceform.heads import HEADS, Head, Start, StochasticHead
from spaceform.nets import NETS, TimmOptions
from spaceform.run.feature_run import candidates_with, with_candidate
from spaceform.run.recipe import (
    AUTHORS,
    PAPER,
    QUICK,
    Recipe,
    RecipeError,
    load_recipe,
    make,
    replace,
    require_effect,
    unknown,
)
from spaceform.study.choices import Length
from spaceform.study.folder import Job
from spaceform.study.published import PAPER_HEADS
from spaceform.study.settings import of_candidate

PlannedKind: TypeAlias = Literal["features", "pixels"]
OWN: Mapping[str, Any] = tomllib.loads(files("spaceform").joinpath("recipes", "own.toml").read_text("utf-8"))
"""What all heads share in a comparison on a user's own data, by kind of input."""
THUMBNAIL = 64
_PROFILES = {"paper": PAPER, "authors": AUTHORS}
_BATCH = 128
_MANY_FEATURES = 256
"""With more features than this, half of them are left out at random in training: a projection of that many
features learns its examples by heart.
"""
_ALIKE = ("data", "net", "budget", "schedule", "precision")
_LENGTH = {"quick": (30, 60, 10, 4), "full": (200, 250, 35, 15)}
"""By budget: the most epochs; the most episodes in an epoch; after how many epochs without a better score
training stops; and after how many the rate is cut.
"""


@final
@dataclass(frozen=True)
class Conditions:
    """What a comparison asks for besides data, heads and seeds."""

    budget: Length = "quick"
    task: data.dataset.Task | None = None
    imbalance: float = 1.0
    label_noise: float = 0.0
    net: str | None = None
    settings: Mapping[str, Any] | None = None
    """Further changes to every recipe: dotted key to value."""


def named_heads(wanted: str | Iterable[str]) -> list[str]:
    """Heads by name: a list, or a string with commas.

    "default" names the heads that declare `compared`, "all" every head, "paper" the five heads of the paper.
    """
    if wanted == "default":
        return [name for name, head in HEADS.items() if head.compared]
    if wanted == "all":
        return list(HEADS)
    if wanted == "paper":
        return list(PAPER_HEADS)
    parts = wanted.split(",") if isinstance(wanted, str) else wanted
    named = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not named:
        raise RecipeError(f"no head is named; choose from {', '.join(HEADS)}, 'default' or 'all'")
    for head in named:
        if head not in HEADS:
            raise RecipeError(unknown("head", head, HEADS))
    return named


def has_temperature(head: str) -> bool:
    """Whether a head has an inverse temperature β."""
    return "beta" in HEADS[head].options()


def start_of(head: str, kind: PlannedKind) -> Start:
    """The rates and options that a head's training starts from: its own, or those of its nearest relative.

    The nearest relative is stochastic if the head is, has the same geometry if one has, and is the first such
    head in `HEADS`.
    """
    own = HEADS[head]
    if kind in own.defaults:
        return own.defaults[kind]
    known = [other for other in HEADS.values() if kind in other.defaults]
    return max(known, key=lambda other: _kinship(own, other)).defaults[kind]


def _kinship(one: type[Head], other: type[Head]) -> tuple[bool, bool]:
    random = issubclass(one, StochasticHead) == issubclass(other, StochasticHead)
    with torch.random.fork_rng():
        return random, type(one(2, 2).geometry) is type(other(2, 2).geometry)


def recipes(
    name: str, heads: Sequence[str], conditions: Conditions, *, dataset: data.Dataset | None = None
) -> dict[str, Recipe]:
    """A recipe for each head, seed 0."""
    heads = named_heads(heads)
    dataset = data.load(name) if dataset is None else dataset
    task = conditions.task or dataset.task
    by_engine = suits_engine(name, dataset, conditions)
    if by_engine and conditions.budget == "full":
        raise RecipeError(
            "--budget full has no effect on features: --search tries more candidates, and --set optim.epochs "
            "trains longer"
        )
    found = {
        head: _for_engine(name, dataset, head, conditions.settings or {})
        if by_engine
        else _base(name, dataset, task, conditions.budget, head)
        for head in heads
    }
    changes: dict[str, Any] = {}
    if dataset.label is not None:
        changes["data.label"] = dataset.label
    if dataset.text is not None:
        changes["data.text"] = dataset.text
    if task != dataset.task:
        changes["data.task"] = task
    if conditions.imbalance != 1.0:
        changes["data.imbalance"] = conditions.imbalance
    if conditions.label_noise:
        changes["data.label_noise"] = conditions.label_noise
    if conditions.net is not None:
        changes["net.name"] = conditions.net
        if NETS.get(conditions.net, TimmOptions) is TimmOptions:  # made for photos of their full size
            changes["data.thumbnail"] = None
    changes |= conditions.settings or {}
    changed = {head: replace(recipe, changes) for head, recipe in found.items()}
    require_nets(changed, dataset)
    return changed


def read_recipes(
    sources: Iterable[str | Path],
    wanted: Mapping[str, Recipe],
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Recipe]:
    """Recipes from files or folders of them (as `search` writes), one for each head that is wanted.

    Net, head, rates and budget come from these recipes, except where `settings` change them (dotted key to
    value). Data and seed are those of the comparison.
    """
    found: dict[str, Recipe] = {}
    for source in map(Path, sources):
        if not source.exists():
            raise RecipeError(f"--recipes: there is no file or folder {str(source)!r}")
        for path in sorted(source.glob("*.toml")) if source.is_dir() else [source]:
            recipe = load_recipe(path)
            require_effect(recipe, settings or {})
            if recipe.head.name in found:
                raise RecipeError(
                    f"{path} is a second recipe for head {recipe.head.name!r}; give one for each"
                )
            found[recipe.head.name] = recipe
    missing = [head for head in wanted if head not in found]
    if missing:
        raise RecipeError(
            f"--recipes has none for head {missing[0]!r}; search for one, or leave it out of --heads"
        )
    return {
        head: replace(replace(found[head], settings or {}), data=recipe.data, seed=0)
        for head, recipe in wanted.items()
    }


def jobs(found: Mapping[str, Recipe], seeds: Sequence[int], temperatures: Sequence[str] = ()) -> list[Job]:
    """All runs, seed by seed.

    With `temperatures` ("learned", "16", ...) a head has a variant for each of them. Heads without a
    temperature have none.
    """
    _require_equal_conditions(found)
    planned = []
    for seed in seeds:
        for head, recipe in found.items():
            for label, variant in _variants(head, recipe, temperatures):
                planned.append(Job(_folder(label, seed), label, replace(variant, seed=seed)))
    return planned


def _variants(head: str, recipe: Recipe, temperatures: Sequence[str]) -> list[tuple[str, Recipe]]:
    if not temperatures or not has_temperature(head):
        return [(head, recipe)]
    found = []
    for text in temperatures:
        if text == "learned":
            found.append((f"{head} β learned", replace(recipe, {"head.learn_beta": True})))
            continue
        try:
            beta = float(text)
        except ValueError:
            raise RecipeError(f"--temperature takes 'learned' and numbers, got {text!r}") from None
        found.append((f"{head} β={beta:g}", replace(recipe, {"head.beta": beta, "head.learn_beta": False})))
    return found


def _folder(label: str, seed: int) -> str:
    return f"{label.replace(' β learned', '-learned').replace(' β=', '-beta')}-seed{seed}"


def suits_engine(name: str, dataset: data.Dataset, conditions: Conditions) -> bool:
    """Whether the engine trains on these data: a user's own features, classification, and no net named."""
    task = conditions.task or dataset.task
    shipped = any(key.startswith(f"{name}/") for key in QUICK)
    own = dataset.kind == "features" and task == "classification" and not shipped
    net = (conditions.settings or {}).get("net.name", conditions.net)
    return own and net in (None, "features") and conditions.budget not in _PROFILES


def _for_engine(name: str, dataset: data.Dataset, head: str, settings: Mapping[str, Any]) -> Recipe:
    """The recipe where nothing is searched: the engine's first candidate that can have the settings."""
    assert not isinstance(dataset.inputs, tuple | data.Texts)
    train = data.split(dataset).train
    features, classes = dataset.inputs.shape[1], len(dataset.labels[train].unique())
    start = {"net": {"name": "features", "dim": features}, "optim": {"name": "cosine_adamw", "lr": 1e-3}}
    recipe = make({"data": {"name": name}, "head": {"name": head}, **start}, source=f"features/{head}")
    require_effect(recipe, settings)
    some = train[:: max(1, len(train) // LOOKED_AT)]
    columns = Columns.of(Rows.of(dataset.inputs, dataset.labels)[some])
    candidates = space(head, features, classes, len(train), columns=columns)
    found = candidates_with(recipe, candidates, of_candidate(settings), features, classes)
    return with_candidate(recipe, found[0], features, classes)


def _base(name: str, dataset: data.Dataset, task: data.dataset.Task, budget: Length, head: str) -> Recipe:
    row = f"{name}/{head}"
    if budget in _PROFILES:
        profile = _PROFILES[budget]
        if row not in profile:
            sets = ", ".join(sorted({key.partition("/")[0] for key in profile}))
            raise RecipeError(f"the paper has no recipe for {row!r}; --budget {budget} is for {sets}")
        return profile[row]
    shipped = [key for key in QUICK if key.startswith(f"{name}/")]
    if shipped and task == "classification":
        recipe = QUICK[row] if row in QUICK else _with_head(QUICK[shipped[0]], head)
        return recipe if budget == "quick" else replace(recipe, _budget(recipe, dataset, budget))
    dim = _dimension(dataset, task)
    changes: dict[str, Any] = {"data.name": name, "net.dim": dim}
    if task != dataset.task:
        changes["data.task"] = task
    if dataset.kind == "photos":
        changes["data.thumbnail"] = THUMBNAIL
    if dataset.kind == "features":
        assert not isinstance(dataset.inputs, tuple | data.Texts)
        width = dataset.inputs.shape[1]
        changes["net.dim"] = min(dim, width)
        if width > _MANY_FEATURES and task == "classification":
            changes["net.dropout"] = 0.5
    recipe = replace(_own("features" if dataset.kind == "features" else "pixels", head), changes)
    return replace(recipe, _budget(recipe, dataset, budget))


def _own(kind: PlannedKind, head: str) -> Recipe:
    """A recipe on a user's own data: what all heads share, then this head's own rates and options."""
    start, shared = start_of(head, kind), OWN[kind]
    own = {"head": {"name": head, **_options(head, start)}, "optim": shared["optim"] | _rates(start)}
    return make({**shared, **own}, source=f"{kind}/{head}")


def _with_head(recipe: Recipe, head: str) -> Recipe:
    """The recipe with another head, and the rates and options that this head starts from."""
    start = start_of(head, "features" if recipe.net.name == "projection" else "pixels")
    options = {f"head.{key}": value for key, value in _options(head, start).items()}
    rates = {f"optim.{key}": value for key, value in _rates(start).items()}
    return replace(recipe, {"head.name": head, **options, **rates})


def _rates(start: Start) -> dict[str, float]:
    return {
        "lr": start.lr,
        "weight_decay": start.weight_decay,
        "temperature_lr": start.temperature_lr,
    }


def _options(head: str, start: Start) -> dict[str, Any]:
    """Those options of the start that this head takes; the start may be that of another head."""
    return {key: value for key, value in start.options.items() if key in HEADS[head].options()}


def _dimension(dataset: data.Dataset, task: data.dataset.Task) -> int:
    """Coordinates of the embedding.

    As in the paper: for retrieval 512 on features and 128 on images, for many classes 128. Few classes get
    32.
    """
    if task == "retrieval":
        return 512 if dataset.kind == "features" else 128
    return 32 if len(dataset.classes) <= 20 else 128


def _budget(recipe: Recipe, dataset: data.Dataset, budget: Length) -> dict[str, Any]:
    """The budget with as many episodes in an epoch as see every training item about once, up to its limit."""
    epochs, most, stop, cut = _LENGTH[budget]
    material = data.split(dataset.with_task(recipe.data.task or dataset.task), recipe.data.split_seed)
    present = len(dataset.labels[material.train].unique())
    classes = min(present, 32)
    instances = max(2, _BATCH // classes)
    episodes = min(most, max(20, ceil(len(material.train) / (classes * instances))))
    return {
        "budget.epochs": epochs,
        "budget.episodes": episodes,
        "budget.classes": classes,
        "budget.instances": instances,
        "budget.patience": stop,
        "schedule.patience": cut,
    }


def require_nets(found: Mapping[str, Recipe], dataset: data.Dataset) -> None:
    """Refuse nets that cannot be built for these inputs, before any run starts."""
    inputs = dataset.inputs
    shape = (3, 224, 224) if isinstance(inputs, tuple | data.Texts) else tuple(inputs.shape[1:])
    for net in {recipe.net for recipe in found.values()}:
        with torch.random.fork_rng():
            net.without_weights().build(shape)


def _require_equal_conditions(found: Mapping[str, Recipe]) -> None:
    """Refuse recipes that differ in more than the heads' own options, rates and decay.

    On features a search tries the same nets for every head, and each may end with another.
    """
    first_head, first = next(iter(found.items()))
    searched = all(recipe.net.name == "features" for recipe in found.values())
    alike = ("data", "budget", "schedule", "precision") if searched else _ALIKE
    for head, recipe in found.items():
        for part in alike:
            if getattr(recipe, part) != getattr(first, part):
                raise RecipeError(
                    f"{head} and {first_head} would not meet the same conditions: {part} is "
                    f"{getattr(recipe, part)} and {getattr(first, part)}; make them equal"
                )


def seeds_from(count: int) -> range:
    """Seeds 0, 1, ..."""
    if count < 1:
        raise RecipeError(f"--seeds must be at least 1, got {count}")
    return range(count)
