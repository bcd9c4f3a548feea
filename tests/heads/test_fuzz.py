"""No head breaks: a short version of `benchmarks/fuzz.py`."""

import math
import sys
from pathlib import Path

import pytest

from spaceform.heads import HEADS

sys.path.insert(0, str(Path(__file__).parent))
import fuzz


@pytest.mark.slow
@pytest.mark.parametrize("dtype", fuzz.DTYPES)
@pytest.mark.parametrize("name", list(HEADS))
def test_nothing_is_ever_infinite(name, dtype):
    assert fuzz.broken(name, dtype, 50) == []


def test_what_breaks_is_found(monkeypatch):
    """STANDARD without its bound on coordinates has infinite logits."""
    monkeypatch.setattr(HEADS["standard"], "largest", math.inf)
    found = fuzz.broken("standard", "float32", 50)
    assert found
    assert "value" in found[0]
