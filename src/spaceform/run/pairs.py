"""A retrieval run's model of whether two items share a class, fitted on pairs of its validation items.

Such a run holds out whole classes for validation, so the promise is about classes that it has never seen.
"""

from pathlib import Path
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor

from spaceform.decisions import Pairs, pairs_for
from spaceform.geometry import Geometry
from spaceform.metrics import cllr, eer, min_cllr
from spaceform.metrics.ranks import items_needed
from spaceform.run import files
from spaceform.run.recipe import RecipeError

PAIRS_FILE = "pairs.safetensors"
_FALSE_ACCEPT = 0.01


def fit_pairs(geometry: Geometry, z: Float[Tensor, "items dim"], y: Int64[Tensor, " items"]) -> Pairs | None:
    """The model of the geometry, fitted; None without pairs of one class or without pairs of two classes."""
    kept = (z != 0).any(-1)
    z, y = z[kept].cpu(), y[kept.to(y.device)].cpu()
    sizes = y.unique(return_counts=True)[1]
    if len(sizes) < 2 or int(sizes.max()) < 2:
        return None
    return pairs_for(geometry).fit(z, y)


def write_pairs(pairs: Pairs, folder: Path) -> None:
    """Write the model into the folder of a run."""
    files.write_tensors(folder / PAIRS_FILE, pairs.state_dict(), {"kind": pairs.name})


def read_pairs(folder: Path, geometry: Geometry) -> Pairs:
    """Read what `write_pairs` wrote."""
    path = folder / PAIRS_FILE
    if not path.exists():
        raise RecipeError(
            f"there is no {path}, on which matching rests; `spaceform evaluate {folder}` writes "
            "it for a run that was trained for retrieval"
        )
    again = f"`spaceform evaluate {folder}` writes it again"
    try:
        tensors, state = files.read_tensors(path)
    except files.CheckpointError as error:
        raise RecipeError(f"{error}; {again}") from None
    found = pairs_for(geometry)
    if state.get("kind") != found.name:
        raise RecipeError(
            f"{path} has pairs of kind {state.get('kind')!r}, and the run's geometry needs {found.name!r}; "
            f"{again}"
        )
    try:
        found.load_state_dict(tensors)
    except RuntimeError:
        raise RecipeError(f"{path} does not hold pairs of kind {found.name!r}; {again}") from None
    return found


def verification(pairs: Pairs, z: Float[Tensor, "items dim"], y: Int64[Tensor, " items"]) -> dict[str, Any]:
    """How well it judges new pairs: EER, Cllr, the least Cllr, and the false accepts at a promise of 1 %."""
    ratio, same = pairs.of_labelled(z, y)
    found: dict[str, Any] = {
        "same_pairs": int(same.sum()),
        "different_pairs": int((~same).sum()),
        "eer": float(eer(ratio, same)),
        "cllr": float(cllr(ratio, same)),
        "min_cllr": float(min_cllr(ratio, same)),
    }
    if len(pairs.different) >= items_needed(_FALSE_ACCEPT):
        accepted = ratio >= pairs.threshold(_FALSE_ACCEPT)
        found["false_accept_at_1_percent"] = float(accepted[~same].double().mean())
        found["false_reject_at_1_percent"] = float((~accepted[same]).double().mean())
    return found
