"""What a search by Optuna may try: the rates that every head has, and the options that a head declares."""

import math
from collections.abc import Collection, Mapping
from typing import Any

import optuna

from spaceform.heads import HEADS, Choice, LogUniform, Uniform
from spaceform.heads.declaration import Range
from spaceform.run.recipe import PAPER, Recipe, flatten
from spaceform.study.choices import Sampler
from spaceform.study.plan import has_temperature

RATES: dict[str, tuple[Any, ...]] = {
    "optim.lr": (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0),
    "optim.momentum": (0.8, 0.9, 0.99),
    "optim.nesterov": (False, True),
    "optim.weight_decay": (0.0, 5e-5, 1e-4, 5e-4),
    "optim.temperature_lr": (0.0001, 0.001, 0.01),
}
"""The grid of the rates that every head has: the values that occur in the paper's tables."""
_WARM_UP = "head.warmup_epochs"
_RATE_FACTOR = 30.0
"""TPE tries rates from 1/30 to 30 times the rate that it starts from."""


def ranges_of(
    recipe: Recipe, sampler: Sampler, fixed: Collection[str] = ()
) -> dict[str, optuna.distributions.BaseDistribution]:
    """What is searched for this head: dotted key to distribution, without the keys in `fixed`."""
    start = starting_point(recipe, fixed)
    if sampler == "grid":
        found = {key: grid_of(recipe, key) for key in start}
        return {key: optuna.distributions.CategoricalDistribution(values) for key, values in found.items()}
    ranges: dict[str, Range] = {f"head.{option}": found for option, found in _searched(recipe).items()}
    ranges[_WARM_UP] = Choice(_warm_ups(recipe))
    return {key: _distribution(ranges.get(key) or _around(key, value), value) for key, value in start.items()}


def starting_point(recipe: Recipe, fixed: Collection[str] = ()) -> dict[str, Any]:
    """The keys that are searched, with the values that the search starts from; those in `fixed` are not."""
    given = flatten(recipe)
    learns = has_temperature(recipe.head.name) and given.get("head.learn_beta") is not False
    rates = [key for key in RATES if key in given and (key != "optim.temperature_lr" or learns)]
    defaults = HEADS[recipe.head.name].options()
    options = [*_searched(recipe), *(option for option in defaults if f"head.{option}" == _WARM_UP)]
    own = {f"head.{option}": given.get(f"head.{option}", defaults[option]) for option in options}
    found = {key: given[key] for key in rates} | own
    return {key: value for key, value in found.items() if key not in fixed}


def _searched(recipe: Recipe) -> Mapping[str, Range]:
    return HEADS[recipe.head.name].searched


def _warm_ups(recipe: Recipe) -> tuple[int, ...]:
    """Epochs before the margin comes: none, a tenth of all epochs, or a fifth."""
    epochs = recipe.budget.epochs
    return tuple(dict.fromkeys((0, epochs // 10, epochs // 5)))


def _around(key: str, value: Any) -> Range:
    """A range around the rate that the search starts from; the grid for what is no rate or starts at 0."""
    if key in ("optim.momentum", "optim.nesterov") or value == 0:
        return Choice(RATES[key])
    return LogUniform(value / _RATE_FACTOR, value * _RATE_FACTOR)


def _distribution(found: Range, start: Any) -> optuna.distributions.BaseDistribution:
    """A range as Optuna's distribution; the value that the search starts from is always inside."""
    match found:
        case LogUniform(low, high):
            return optuna.distributions.FloatDistribution(min(low, start), max(high, start), log=True)
        case Uniform(low, high):
            return optuna.distributions.FloatDistribution(min(low, start), max(high, start))
        case Choice(values):
            return optuna.distributions.CategoricalDistribution(
                values if start in values else (start, *values)
            )


def grid_of(recipe: Recipe, key: str) -> tuple[Any, ...]:
    """The values of a key in the paper's tables; with fewer than two, the middle and the ends of its range.

    Warm-ups that would not end within the budget are left out.
    """
    if key in RATES:
        return RATES[key]
    head, option = recipe.head.name, key.removeprefix("head.")
    rows = [PAPER[row].head.options for row in PAPER if row.endswith(f"/{head}")]
    printed = {row[option] for row in rows if option in row}
    if key == _WARM_UP:
        printed = {epochs for epochs in printed if epochs < recipe.budget.epochs}
    if len(printed) > 1:
        return tuple(sorted(printed))
    if key == _WARM_UP:
        return _warm_ups(recipe)
    match HEADS[head].searched[option]:
        case LogUniform(low, high):
            return low, math.sqrt(low * high), high
        case Uniform(low, high):
            return low, (low + high) / 2, high
        case Choice(values):
            return values
