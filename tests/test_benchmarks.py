"""Every script of benchmarks/ can be started: what it imports is there."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPTS = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.py"))
IMPORT = """
import importlib.util, sys
for path in sys.argv[1:]:
    sys.path.insert(0, path.rpartition("/")[0])
    spec = importlib.util.spec_from_file_location("script", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    print(path)
"""


@pytest.mark.skipif(not SCRIPTS, reason="the scripts are in the repository alone")
def test_every_script_finds_what_it_imports():
    """In one interpreter: each would take seconds to start."""
    command = [sys.executable, "-W", "ignore", "-c", IMPORT, *map(str, SCRIPTS)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert run.stdout.splitlines() == [str(path) for path in SCRIPTS], run.stderr[-3000:]
