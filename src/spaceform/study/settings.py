"""What `--set` may not change in a study, and the argument that does."""

from collections.abc import Mapping
from typing import Any

from spaceform.run.recipe import RecipeError

REPRODUCED: Mapping[str, str] = {
    "data.name": "the data are the first argument of the command",
    "head.name": "give --heads",
    "seed": "the runs of a head have the seeds 0, 1, 2, ...; give --seeds for their number",
}
COMPARED: Mapping[str, str] = {
    **REPRODUCED,
    "data.label": "give --label",
    "data.text": "give --text",
    "data.task": "give --task",
    "data.features": "give --net",
    "data.weights": "give --weights",
}
SEARCHED: Mapping[str, str] = {
    **COMPARED,
    "head.name": "give --head",
    "seed": "every trial has the seed 0; leave it out",
}
"""What a reproduction, a comparison or a search takes by an argument of its own, and by which."""


def require_settable(settings: Mapping[str, Any] | None, otherwise: Mapping[str, str]) -> None:
    """Refuse to set what a study takes by another argument."""
    for key in settings or {}:
        if key in otherwise:
            raise RecipeError(f"--set {key} does not hold in a study: {otherwise[key]}")


def of_candidate(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings of net, rates and options: what a search would choose."""
    own = ("net", "optim", "head")
    return {key: value for key, value in (settings or {}).items() if key.split(".")[0] in own}
