"""No head breaks: a short version of `benchmarks/fuzz.py`."""

import sys
from pathlib import Path

import pytest

from spaceform.heads import HEADS

sys.path.insert(0, str(Path(__file__).parent))
from fuzz import broken


@pytest.mark.parametrize("name", list(HEADS))
def test_nothing_is_ever_infinite(name):
    assert broken(name, 100) == []
