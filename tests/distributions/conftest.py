from types import ModuleType

import pytest
from torch.distributions import Distribution


@pytest.fixture(scope="session")
def unhooked(import_unhooked) -> ModuleType:
    """A second copy of the distributions without the shape checks, whose wrappers torch cannot trace."""
    return import_unhooked("spaceform.distributions")


@pytest.fixture(autouse=True)
def _validation(monkeypatch: pytest.MonkeyPatch):
    """As users find it: the first torch.compile of a process switches it off for good."""
    monkeypatch.setattr(Distribution, "_validate_args", True)
