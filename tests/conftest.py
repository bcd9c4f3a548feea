"""Every test runs with the shapes in our signatures checked, but for tests of torch.compile."""

import os

import pytest
import torch
from jaxtyping import config, install_import_hook

install_import_hook("spaceform", "beartype.beartype").__enter__()

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _shape_checks(request: pytest.FixtureRequest):
    compiled = request.node.get_closest_marker("compiled") is not None
    config.update("jaxtyping_disable", compiled)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="session")
def real_data() -> str:
    """The folder of real data sets; tests that need it are skipped, saying so, where it is not set."""
    folder = os.environ.get("SPACEFORM_DATA")
    if not folder:
        pytest.skip("set SPACEFORM_DATA to the folder of real data sets to run this test")
    return folder
