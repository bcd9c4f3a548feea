"""Versions, hardware, commit and command: what results were made with."""

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spaceform import __version__


def environment() -> dict[str, Any]:
    """`versions`, and the command and date of this process."""
    return versions() | {"command": _command(sys.argv), "date": time.strftime("%Y-%m-%d")}


def versions() -> dict[str, Any]:
    """Versions and hardware; the commit where the package is run from its repository."""
    import numpy
    import torch

    return {
        "spaceform": __version__,
        "commit": _commit(Path(__file__).parents[3]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _commit(root: Path) -> str | None:
    """The commit of this package's repository, not of one that merely contains the virtual environment."""
    if not (root / ".git").exists() or not shutil.which("git"):
        return None
    asked = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or None


def _command(argv: Sequence[str]) -> str:
    """The command that was typed, without the folders of this machine."""
    script = Path(argv[0])
    if script.suffix != ".py" or script.name == "__main__.py":
        return " ".join(["spaceform", *argv[1:]])
    return " ".join(["python", script.name if script.is_absolute() else argv[0], *argv[1:]])
