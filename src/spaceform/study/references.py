"""References of a study: what people would use instead of a head, on the same split.

They are logistic regression, k nearest neighbours and, for tables, gradient boosting. For each, as many
settings are tried on the validation split as a head has candidates, and it is calibrated there as heads are.
Where features stay on the disk, a reference is fitted to as many random rows as a search takes (`rows` of the
setting). For retrieval the reference is the features as they are. Each is one file, `references/NAME.npz`:
its probabilities of the test items, as trained and after calibration, and the setting that was chosen.
"""

import io
import json
import time
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, final

import numpy as np
import torch
from typing_extensions import TypedDict

from spaceform.calibrators import StructuredScaling
from spaceform.data import Dataset, Texts
from spaceform.engine import LOOKED_AT, Columns, Rows, reference
from spaceform.engine.space import NARROW
from spaceform.foundation.messages import first_line
from spaceform.foundation.values import parsed
from spaceform.run import files
from spaceform.run.allocator import give_back_freed_memory
from spaceform.run.evaluate import found_within_classes, kept_items
from spaceform.run.feature_run import affordable, engine_parts
from spaceform.run.material import Material, load_data, material
from spaceform.run.quality import quality
from spaceform.run.recipe import Recipe, RecipeError
from spaceform.study.folder import Job
from spaceform.study.processes import Errand
from spaceform.study.verdict.item_outputs import ItemOutputs

FOLDER = "references"
REFERENCE_TITLES = {
    "logistic": "LogisticRegression",
    "neighbours": "k nearest neighbours",
    "boosting": "gradient boosting",
    "features": "the features as they are",
}
"""What each reference is called, in the order of the table."""

_MOST_BOOSTED = 30_000_000
"""The most items × features × classes that boosting is fitted to where columns are many: some 20 seconds for
each of five fits.
"""


@final
@dataclass(frozen=True, eq=False)
class KeptReference:
    """A reference row of a study."""

    name: str
    title: str
    measured: Mapping[str, float | None]
    """The metrics of the reference, by column of the results."""
    setting: Mapping[str, Any]
    """The setting that was chosen on the validation split."""
    seconds: float
    """The time to choose the setting and to fit."""
    outputs: ItemOutputs


class AboutReference(TypedDict):
    """What the file of a reference says beside its arrays."""

    title: str
    measured: dict[str, float | None]
    setting: dict[str, Any]
    seconds: float
    trials: NotRequired[int]
    """How many settings were to be tried."""


def reference_errands(recipe: Recipe, folder: Path, *, trials: int) -> list[Errand]:
    """An errand for each reference that is missing, or for which fewer settings were tried."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    wanted = [name for name in REFERENCE_TITLES if name != "boosting" or _is_boosted(load_data(recipe))]
    missing = [name for name in wanted if not _is_made(folder / FOLDER / f"{name}.npz", trials)]
    work = partial(make_reference, trials=trials)
    return [Errand(Job(name, REFERENCE_TITLES[name], recipe), folder, work) for name in missing]


def _is_boosted(data: Dataset) -> bool:
    """Whether people would use gradient boosting: on a table, unless one fit takes minutes."""
    x = data.inputs
    if isinstance(x, tuple | Texts):
        return False
    if x.shape[1] < NARROW:
        return True
    some = torch.arange(0, len(data), max(1, len(data) // LOOKED_AT))
    work = len(data) * x.shape[1] * len(data.classes)
    return work <= _MOST_BOOSTED and Columns.of(Rows.of(x, data.labels)[some]).table


def make_reference(
    job: Job,
    folder: Path,
    listener: object,  # noqa: ARG001 (there are no epochs to tell of)
    datasets: dict[Any, Any],
    *,
    trials: int,
    workers: int = 0,  # noqa: ARG001 (there is nothing to decode)
) -> None:
    """Choose, fit and measure one reference, and write its file."""
    recipe, began = job.recipe, time.monotonic()
    key = recipe.data.key
    if key not in datasets:
        datasets[key] = load_data(recipe)
    parts = material(recipe, datasets[key])
    if job.name == "features":
        arrays, measured, setting = _features(parts)
    else:
        arrays, measured, setting = _classifier(job.name, parts, trials)
    about: AboutReference = {
        "title": job.label,
        "measured": measured,
        "setting": setting,
        "seconds": time.monotonic() - began,
        "trials": trials,
    }
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)
    files.write_bytes(folder / FOLDER / f"{job.name}.npz", archive.getvalue())


def read_references(folder: Path) -> list[KeptReference]:
    """The references of a study, in the order of `TITLES`."""
    kept = [folder / FOLDER / f"{name}.npz" for name in REFERENCE_TITLES]
    return [_read(path) for path in kept if path.exists()]


_Made = tuple[dict[str, Any], dict[str, float | None], dict[str, Any]]
"""Arrays, what was measured, and the setting that was chosen."""


def _classifier(name: str, parts: Material, trials: int) -> _Made:
    (x, y), most = _test(parts), affordable(parts)
    held_out = engine_parts(parts, most)
    found = reference(name, held_out, x, classes=len(parts.classes), trials=trials)
    log_p, held_log_p = (
        torch.from_numpy(p).log() for p in (found.probabilities, found.held_out_probabilities)
    )
    held_y = torch.cat([part.held_out.y for part in held_out])
    del x, held_out  # a calibrator of many classes takes as much memory as the rows did
    give_back_freed_memory()
    calibrator: StructuredScaling = StructuredScaling().fit(held_log_p, held_y)
    calibrated = calibrator(log_p)
    measured, chosen = quality(log_p, y), quality(calibrated, y)
    arrays = {
        "labels": y.numpy(),
        "probabilities": log_p.exp().float().numpy(),
        f"probabilities_{calibrator.name}": calibrated.exp().float().numpy(),
    }
    after = {f"calibrated.chosen.{name}": value for name, value in chosen.items()}
    trained_on = {} if most is None else {"rows": most}
    return arrays, {**measured, **after}, {**found.best.options, **trained_on}


def _features(parts: Material) -> _Made:
    """Retrieval by the features as they are, standardised as for the heads and compared by the cosine."""
    x, y = _test(parts)
    found = found_within_classes(engine_parts(parts, affordable(parts))[0].inputs(x), y)
    arrays = {"average_precision": found.average_precision.float().numpy()}
    return arrays, {"retrieval.map_at_r": float(found.map_at_r)}, {}


def _test(parts: Material) -> tuple[torch.Tensor, torch.Tensor]:
    """The test items of which runs keep predictions."""
    assert not isinstance(parts.dataset.inputs, tuple | Texts)
    index = parts.split.test[kept_items(parts)]
    return parts.dataset.inputs[index].float(), parts.targets[index]


def _is_made(path: Path, trials: int) -> bool:
    """Whether the file of a reference is there, with at least as many settings tried."""
    if not path.exists():
        return False
    about, _ = _content(path)
    return about["title"] == REFERENCE_TITLES["features"] or about.get("trials", trials) >= trials


def _read(path: Path) -> KeptReference:
    about, outputs = _content(path)
    return KeptReference(
        path.stem, about["title"], about["measured"], about["setting"], about["seconds"], outputs
    )


def _content(path: Path) -> tuple[AboutReference, ItemOutputs]:
    """What the file of a reference holds; a sentence where it is damaged."""
    try:
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no archive of arrays")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in kept.files}
        about: AboutReference = parsed(str(arrays.pop("about", "{}")), AboutReference)
        return about, ItemOutputs.of(arrays, StructuredScaling.name, about["measured"])
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
        raise RecipeError(
            f"{path} cannot be read ({why}); remove it: the same `spaceform compare` makes it again"
        ) from None
