"""Other packages' metrics, imported without their noise; a test that needs one is skipped where it is
missing.
"""

import contextlib
import logging
import warnings
from types import ModuleType

import pytest

from spaceform.foundation.torchvision import ensure_torchvision


def peer(name: str) -> ModuleType:
    """Import a peer, or skip the test saying what to install."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations in their own imports are theirs
        with contextlib.suppress(ImportError):
            ensure_torchvision()
        module = pytest.importorskip(name, reason=f"needs {name.split('.')[0]}", exc_type=ImportError)
    logging.getLogger().setLevel(logging.ERROR)
    return module
