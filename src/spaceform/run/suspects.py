"""Labels of a run's own data to look at again: items that lie far from the dominant centre of their class."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from spaceform import data
from spaceform.heads import SubCentreArcFaceHead
from spaceform.run.finished import Run
from spaceform.run.material import Material, load_named
from spaceform.run.recipe import RecipeError

if TYPE_CHECKING:
    from pandas import DataFrame

_PARTS = np.array(("train", "val", "test"))


@torch.inference_mode()
def suspects(
    run: Run | str | Path, *, angle: float = 75.0, dataset: data.Dataset | None = None, workers: int = 0
) -> "DataFrame":
    """Items of the run's data farther than `angle` degrees from the centre of their label, farthest first.

    The centre is the dominant one, which most training items of the class are nearest to; so the run needs
    the head `subcentre_arcface`. Columns: `item` (the path of a photo, the name of a text, or the row of an
    array), `part` (train, val or test), `label` as it was given, `angle` in degrees, and what the run takes
    the item for: `class` and `probability`, as `predict` gives them. Items of classes that were not trained
    on and augmented views are left out.

    `dataset` is the run's data, if they are at hand. Data that have changed since training are refused.
    """
    run = run if isinstance(run, Run) else Run.load(run)
    head = run.model.head
    if not isinstance(head, SubCentreArcFaceHead):
        raise RecipeError(
            f"{run.path} has the head {run.recipe.head.name!r}, and suspect labels need the centres of "
            "'subcentre_arcface'; train a run with that head on the same data"
        )
    if not 0 <= angle <= 180:
        raise ValueError(f"angle must lie in 0 to 180, in degrees, got {angle:g}")
    given = load_named(run.recipe) if dataset is None else dataset
    parts = run.material(given)
    index, part = _labelled(parts)
    batches = data.evaluation_batches(parts.dataset, index, parts.how, device=run.device, workers=workers)
    z = run.model.embed(batches)
    y, train = parts.targets[index].to(z.device), (part == 0).to(z.device)
    centres = head.dominant_centres(z[train], y[train])
    far = head.suspects(z, y, angle=math.radians(angle), centres=centres)
    degrees = head.angles(z[far], y[far], centres=centres).rad2deg()
    top = run.predictor(run.best_calibrator).predict(z[far])[0].max(1)
    rows, names = index[far.cpu()], np.array(parts.classes, dtype=object)
    import pandas as pd

    return pd.DataFrame(
        {
            "item": [given.item(row) for row in rows.tolist()],
            "part": _PARTS[part[far.cpu()].numpy()],
            "label": names[parts.targets[rows].numpy()],
            "angle": degrees.cpu().numpy(),
            "class": names[top.indices.cpu().numpy()],
            "probability": top.values.cpu().numpy(),
        }
    )


def _labelled(parts: Material) -> tuple[Int64[Tensor, " items"], Int64[Tensor, " items"]]:
    """Items whose label the head knows, and the part that each is in."""
    split = (parts.split.train, parts.split.val, parts.split.test)
    index = torch.cat(split)
    part = torch.repeat_interleave(torch.arange(3), torch.tensor([len(one) for one in split]))
    kept = parts.targets[index] >= 0
    if parts.dataset.views is not None:
        kept &= parts.dataset.views[index] == 0
    return index[kept], part[kept]
