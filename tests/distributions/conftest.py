import importlib
import sys
from types import ModuleType

import pytest
from torch.distributions import Distribution


@pytest.fixture(scope="session")
def unhooked() -> ModuleType:
    """A second copy of the distributions without the shape checks, whose wrappers torch cannot trace."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.partition(".")[0] == "spaceform"]:
            patch.delitem(sys.modules, name)
        finders = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("jaxtyping")]
        patch.setattr(sys, "meta_path", finders)
        return importlib.import_module("spaceform.distributions")


@pytest.fixture(autouse=True)
def _validation(monkeypatch: pytest.MonkeyPatch):
    """As users find it: the first torch.compile of a process switches it off for good."""
    monkeypatch.setattr(Distribution, "_validate_args", True)
