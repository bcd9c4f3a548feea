"""Imported before lightning_fabric, which imports all of torchmetrics to read its version.

If torchmetrics is installed, that takes a second in each process that trains a net, and nothing here uses it.
A stand-in has the version during the import, and is removed afterwards.
"""

import importlib
import sys
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

_SLOW = "torchmetrics"


def import_fabric() -> None:
    """Import lightning_fabric without torchmetrics; does nothing if one of the two is imported already."""
    if _SLOW in sys.modules or "lightning_fabric" in sys.modules:
        return
    stand_in = ModuleType(_SLOW)
    try:
        stand_in.__version__ = version(_SLOW)  # type: ignore[attr-defined]
    except PackageNotFoundError:
        return
    sys.modules[_SLOW] = stand_in
    try:
        importlib.import_module("lightning_fabric")
    finally:
        del sys.modules[_SLOW]


import_fabric()
