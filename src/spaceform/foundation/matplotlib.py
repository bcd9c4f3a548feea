"""Imported before matplotlib. If its usual folders cannot be written, it gets a folder that can be.

Matplotlib keeps a list of fonts and its settings in the user's home. Without a home it would make a folder
for every process, with a long message.
"""

import atexit
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

MATPLOTLIB_VARIABLE = "MPLCONFIGDIR"


def _can_be_written(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _usual() -> list[Path]:
    """The folders that matplotlib writes to: its settings, and its cache."""
    if not sys.platform.startswith(("linux", "freebsd")):
        return [Path(os.path.expanduser("~/.matplotlib"))]
    pairs = (("XDG_CONFIG_HOME", "~/.config"), ("XDG_CACHE_HOME", "~/.cache"))
    return [Path(os.environ.get(name) or os.path.expanduser(place)) / "matplotlib" for name, place in pairs]


def use_a_folder_that_can_be_written() -> None:
    """Set `MPLCONFIGDIR` if it is not set and the usual folders cannot be written."""
    if MATPLOTLIB_VARIABLE in os.environ or all(map(_can_be_written, _usual())):
        return
    import pooch

    folder = Path(pooch.os_cache("spaceform")) / "matplotlib"
    if not _can_be_written(folder):
        folder = Path(tempfile.mkdtemp(prefix="spaceform-matplotlib-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ[MATPLOTLIB_VARIABLE] = str(folder)
    warnings.warn(
        f"the home folder cannot be written: matplotlib keeps its files in {folder}; "
        f"set {MATPLOTLIB_VARIABLE} to a folder of yours to keep them",
        stacklevel=2,
    )


use_a_folder_that_can_be_written()
