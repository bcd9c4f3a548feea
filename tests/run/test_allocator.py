"""Memory that a task has freed goes back to the system when its worker takes the next one."""

import sys
from pathlib import Path

import numpy as np
import pytest

from spaceform.run.allocator import give_back_freed_memory, keep_freed_memory


def resident():
    """MiB of this process in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1024


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have another allocator")
def test_freed_memory_is_given_back():
    keep_freed_memory()
    held = [np.ones(2**17) for _ in range(150)]  # 1 MiB each: larger ones are given back at once
    last = np.ones(2**10)  # above them, so that their memory is no end that could be cut off
    full = resident()
    del held
    give_back_freed_memory()
    assert resident() < full - 100
    assert last.sum() == 2**10
