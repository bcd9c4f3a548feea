"""The warm-ups of a comparison, shortened where they would not end within the budget."""

from collections.abc import Collection, Mapping

from spaceform.run.recipe import Recipe, replace
from spaceform.run.warm_up import epochs_of, warm_up, without_margin

_KEY = "head.warmup_epochs"
_SHARE = 5
"""A shortened warm-up takes a fifth of the epochs, the longest warm-up that a search tries."""


def shortened_warm_ups(
    found: Mapping[str, Recipe], settings: Collection[str]
) -> tuple[dict[str, Recipe], list[str]]:
    """The recipes with warm-ups that end within the budget, and a sentence for each that was shortened.

    A head that is trained without its margin is not the head that its name says. A warm-up that was set
    stays.
    """
    recipes, said = dict(found), []
    for head, recipe in found.items():
        epochs = epochs_of(recipe)
        if _KEY in settings or not without_margin(recipe, epochs):
            continue
        recipes[head] = replace(recipe, {_KEY: epochs // _SHARE})
        said.append(
            f"the margin of {head} comes after {epochs // _SHARE} epochs instead of {warm_up(recipe)}, since "
            f"it is trained for only {epochs}"
        )
    return recipes, said


def missing_margins(found: Mapping[str, Recipe]) -> list[str]:
    """A sentence for each recipe whose training ends before its margin comes."""
    told = (without_margin(recipe, epochs_of(recipe)) for recipe in found.values())
    return [sentence for sentence in told if sentence]
