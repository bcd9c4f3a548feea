"""One process at a time works in the folder of a study."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from spaceform.run.recipe import RecipeError
from spaceform.study.folder import ARRAYS


@contextmanager
def locked(folder: str | Path) -> Iterator[Path]:
    """Hold the folder of a study, which is made where it is missing; a second process is refused."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"{folder} is a file; --out must be a folder")
    ours = {".lock", "study.json", ARRAYS, "search", "search.db", "trials"}
    if folder.exists() and (there := {path.name for path in folder.iterdir()}) and not there & ours:
        raise RecipeError(f"{folder} is not empty and holds no study; choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecipeError(
            f"the folder {folder} cannot be made ({error.strerror or error}); choose another --out"
        ) from None
    lock = filelock.FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=1.0)  # `at_work` holds the lock for an instant
    except filelock.Timeout:
        raise RecipeError(
            f"another process is working on {folder}; wait for it, watch it with "
            f"`spaceform status {folder}`, or choose another --out"
        ) from None
    try:
        yield folder
    finally:
        lock.release()


def at_work(folder: str | Path) -> bool:
    """Whether a process holds the folder now."""
    lock = filelock.FileLock(Path(folder) / ".lock")
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        return True
    lock.release()
    return False
