"""What a benchmark writes down: numbers, with the commit and the packages that they belong to."""

import contextlib
import importlib.metadata
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def git_commit() -> str:
    """Of the tree that this runs in; empty outside of git."""
    asked = ["git", "rev-parse", "HEAD"]
    return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()


def versions(*packages: str) -> dict[str, str]:
    """Of what is installed."""
    found = {}
    for name in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """As JSON; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
