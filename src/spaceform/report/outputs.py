"""What a report reads from the files of a finished run, and which of these files are damaged."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spaceform.report.readable import readable
from spaceform.run import stored
from spaceform.run.calibrating import CALIBRATORS_FILE, read_calibration
from spaceform.run.held_out import HELD_OUT_FILE, HeldOut
from spaceform.run.recipe import RecipeError
from spaceform.study.verdict.item_outputs import require_whole

OUTPUTS_FILE = "outputs.npz"


@final
@dataclass(frozen=True, eq=False)
class Outputs:
    """`outputs.npz`: one row for each test item."""

    embeddings: NDArray[np.floating[Any]]
    labels: NDArray[np.int64]
    confidence: NDArray[np.floating[Any]]
    index: NDArray[np.int64]
    classes: tuple[str, ...]
    probabilities: NDArray[np.floating[Any]] | None
    calibrated: dict[str, NDArray[np.floating[Any]]]

    @cached_property
    def predicted(self) -> NDArray[np.int64] | None:
        """The class of the largest probability."""
        return None if self.probabilities is None else self.probabilities.argmax(1)

    @cached_property
    def right(self) -> NDArray[np.bool_] | None:
        """Whether the prediction is right."""
        return None if self.predicted is None else self.predicted == self.labels


def read_outputs(folder: Path) -> Outputs:
    """The outputs of a run; a RecipeError says what is wrong with them."""
    path = folder / OUTPUTS_FILE
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        require_whole(arrays)
        return Outputs(
            arrays["embeddings"],
            arrays["labels"],
            arrays["confidence"],
            arrays["index"],
            tuple(readable(str(name)) for name in arrays["classes"]),
            arrays.get("probabilities"),
            {
                name.removeprefix("probabilities_"): value
                for name, value in arrays.items()
                if name.startswith("probabilities_")
            },
        )
    except KeyError as error:
        why = f"it has no array {error}"
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        why = (str(error).splitlines() or ["it is damaged"])[0].rstrip(".")
    raise RecipeError(f"{path} cannot be read ({why}); `spaceform evaluate {folder}` writes it again")


def damages(folder: Path) -> list[str]:
    """A sentence for each file of a finished run that cannot be read, except its metrics."""
    said: list[str] = []

    @contextmanager
    def told(name: str) -> Iterator[bool]:
        """Whether the file is there; if it is damaged, a sentence is added."""
        try:
            yield (folder / name).exists()
        except RecipeError as error:
            said.append(str(error))

    with told(stored.RECIPE) as there:
        if there:
            stored.require_own_recipe(folder)
    with told(stored.HISTORY) as there:
        if there:
            stored.read_history(folder)
    classes = None
    with told(OUTPUTS_FILE) as there:
        if there:
            classes = len(read_outputs(folder).classes)
    with told(CALIBRATORS_FILE) as there:
        if there:
            read_calibration(folder, classes)
    with told(HELD_OUT_FILE) as there:
        if there and classes is not None:
            HeldOut.read(folder, classes)
    return said
