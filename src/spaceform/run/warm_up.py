"""Heads whose margin comes after a warm-up: whether training is long enough for the margin to come."""

from spaceform.foundation.messages import counted
from spaceform.heads import HEADS
from spaceform.run.recipe import Recipe


def warm_up(recipe: Recipe) -> int:
    """How many epochs the head of a recipe trains without its margin; 0 for a head without a warm-up."""
    name = recipe.head.name
    default = HEADS[name].options().get("warmup_epochs", 0) if name in HEADS else 0
    return int(recipe.head.options.get("warmup_epochs", default))


def epochs_of(recipe: Recipe) -> int:
    """The most epochs that a recipe trains for."""
    own = recipe.optim.model_dump().get("epochs")
    return recipe.budget.epochs if own is None else int(own)


def without_margin(recipe: Recipe, epochs: int) -> str:
    """A sentence if training ends after `epochs` epochs before the margin comes; otherwise empty."""
    wait = warm_up(recipe)
    if wait < max(1, epochs):
        return ""
    return (
        f"{recipe.head.name} has no margin here: it trains for {counted(epochs, 'epoch')}, and its margin "
        f"comes after {wait}; train longer, or set head.warmup_epochs lower"
    )
