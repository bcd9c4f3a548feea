"""What people would use instead of a head, kept beside the runs of a study.

Each is one file, `references/NAME.npz`, with its probabilities of the test items and what was chosen.
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from spaceform.run import files
from spaceform.study.verdict.evidence import Outputs

FOLDER = "references"


@final
@dataclass(frozen=True, eq=False)
class KeptReference:
    """A reference row of a study."""

    name: str
    title: str
    figures: Mapping[str, float | None]
    """By column of the results."""
    setting: Mapping[str, Any]
    """What was chosen on the validation split."""
    seconds: float
    """Of the whole choice and fit."""
    outputs: Outputs


def write_reference(folder: Path, name: str, arrays: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Keep a reference in the folder of a study: arrays as a run's outputs have them, and a record."""
    archive = io.BytesIO()
    np.savez(archive, allow_pickle=False, about=np.array(json.dumps(about)), **arrays)
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    files.write_bytes(folder / FOLDER / f"{name}.npz", archive.getvalue())


def read_references(folder: Path) -> list[KeptReference]:
    """The references of a study, by name; none where none were kept."""
    return [_read(path) for path in sorted((folder / FOLDER).glob("*.npz"))]


def _read(path: Path) -> KeptReference:
    with np.load(path, allow_pickle=False) as kept:
        arrays = {name: kept[name] for name in kept.files}
    about = json.loads(str(arrays.pop("about")))
    return KeptReference(
        path.stem,
        about["title"],
        about["figures"],
        about["setting"],
        about["seconds"],
        Outputs.of(arrays, about.get("calibrator", ""), about["figures"]),
    )
