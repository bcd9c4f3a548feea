"""Heads that another package registers by the entry point go through the whole core, as ours do."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spaceform.heads import HEADS

sys.path.insert(0, str(Path(__file__).parent))
import foreign_heads
import through_the_core

pytestmark = pytest.mark.slow

CASES = [f"{name}:{step}" for name in ("centre", "blurred") for step in through_the_core.STEPS]


def python(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """An interpreter that has the folder on its path."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path}
    run = [sys.executable, *command]
    return subprocess.run(run, env=environment, capture_output=True, text=True, timeout=600, check=False)


def test_both_are_taken_through_the_core(tmp_path):
    run = python(foreign_heads.registered(tmp_path), through_the_core.__file__, *CASES)
    assert run.stdout.splitlines() == CASES, run.stderr[-4000:]


def test_a_package_that_cannot_be_imported_is_a_warning(tmp_path):
    folder = foreign_heads.registered(tmp_path)
    (folder / "foreign_heads.py").write_text("import a_package_that_is_not_there")
    code = "import spaceform as sf; print(*sf.HEADS)"
    run = python(folder, "-c", code)
    ours = [name for name, head in HEADS.items() if head.__module__.startswith("spaceform.")]
    assert run.stdout.split() == ours
    assert "the head 'centre' (foreign_heads:CentreHead) cannot be imported" in run.stderr
