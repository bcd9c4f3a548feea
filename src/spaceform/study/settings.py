"""What `--set` may change in a study, and where to change the rest."""

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
"""What a comparison takes by an argument of its own, and how; the same for a reproduction and a search."""


def require_settable(settings: Mapping[str, Any] | None, otherwise: Mapping[str, str]) -> None:
    """Refuse settings of what a study takes by another argument."""
    for key in settings or {}:
        if key in otherwise:
            raise RecipeError(f"--set {key} does not hold in a study: {otherwise[key]}")


def of_candidate(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Those of the settings that are of a net, rates or options: what a search would choose."""
    own = ("net", "optim", "head")
    return {key: value for key, value in (settings or {}).items() if key.split(".")[0] in own}
