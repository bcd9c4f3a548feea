"""Parts of a result, kept until all are there: after a kill the work goes on where it stopped."""

import contextlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import TypedDict

from spaceform.data.formats.shards import whole_file
from spaceform.run.files import read_json
from spaceform.run.recipe import RecipeError

_PLAN = "parts.json"


class _About(TypedDict):
    """What `parts.json` says."""

    plan: str
    parts: Annotated[int, Field(ge=0, lt=100_000)]


@final
class KeptParts:
    """Numbered archives of arrays in a folder; each is whole or not there."""

    def __init__(self, folder: Path, plan: str, count: int) -> None:
        """Open a new folder, or one of the same plan; a folder of another plan is refused."""
        self.folder, self.count = folder, count
        folder.mkdir(parents=True, exist_ok=True)
        about = json.dumps({"plan": plan, "parts": count})
        path = folder / _PLAN
        if not path.exists():
            with whole_file(path) as file:
                file.write(about.encode())
        elif path.read_bytes() != about.encode():
            raise RecipeError(
                f"{folder} holds parts of other items or of another run; remove it, or choose another output"
            )

    @classmethod
    def there(cls, folder: Path) -> "KeptParts":
        """The parts in a folder, whatever their plan."""
        about = read_json(folder / _PLAN, _About, remedy=f"remove {folder}")
        return cls(folder, about["plan"], about["parts"])

    @property
    def missing(self) -> list[int]:
        """The numbers of the parts that are not there yet."""
        return [i for i in range(self.count) if not self._path(i).exists()]

    def write(self, number: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Write one part."""
        with whole_file(self._path(number)) as file:
            np.savez(file, allow_pickle=False, **arrays)

    def read(self) -> dict[str, NDArray[Any]]:
        """The arrays of all parts, joined."""
        found = []
        for number in range(self.count):
            path = self._path(number)
            try:
                with path.open("rb") as file, np.load(file, allow_pickle=False) as part:
                    found.append({name: part[name] for name in part.files})
            except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error):
                raise RecipeError(
                    f"{path} cannot be read; remove it, and the same command makes it again"
                ) from None
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def remove(self) -> None:
        """Remove all parts."""
        for path in [self.folder / _PLAN, *map(self._path, range(self.count))]:
            path.unlink(missing_ok=True)
        for path in self.folder.glob(".*.tmp"):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()

    def _path(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.npz"
