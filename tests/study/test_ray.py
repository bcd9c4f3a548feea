"""Work on a Ray cluster, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("on_a_cluster.py")


@pytest.mark.slow
@pytest.mark.timeout(3600)  # each of its cases ends by itself
def test_a_cluster_does_what_this_process_does_also_when_a_node_dies(tmp_path):
    """One test, so that the cluster starts once."""
    pytest.importorskip("ray", reason="install spaceform[cluster] to test work on Ray")
    pytest_here = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [*pytest_here, "--basetemp", str(tmp_path / "ray"), str(CASES)]
    done = subprocess.run(command, cwd=CASES.parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
