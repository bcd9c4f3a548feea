"""Every test runs with the shapes in our signatures checked, but for tests of torch.compile."""

import gc
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from jaxtyping import config

import shape_checks

shape_checks.install()

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))  # results may not depend on it


@pytest.fixture(autouse=True)
def _shape_checks(request: pytest.FixtureRequest):
    compiled = request.node.get_closest_marker("compiled") is not None
    config.update("jaxtyping_disable", compiled)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture
def unchecked(_shape_checks: None):
    """Shape checks off, as a user has it: our own message is the one that is met."""
    config.update("jaxtyping_disable", True)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from photo_folders import write_weights

    return write_weights(tmp_path_factory.mktemp("weights") / "net.safetensors")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from photo_folders import write_photos

    return write_photos(tmp_path_factory.mktemp("photos") / "grain")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Features that a test extracts are kept apart from the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPACEFORM_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def lasting_processes():
    """Studies of one file hand on their processes: each takes seconds to start."""
    from spaceform.study.processes import lasting

    with lasting():
        yield


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A short run on digits of every head, evaluated; tests that change one copy it first."""
    from short_runs import SHIPPED
    from spaceform.run.evaluate import evaluate
    from spaceform.run.recipe import load_recipe
    from spaceform.run.train import train

    folder = tmp_path_factory.mktemp("runs")
    short = ("budget.epochs=1", "budget.episodes=5", "net.hidden=16", "net.dim=32")
    for head in SHIPPED:
        train(load_recipe(f"digits/{head}", short), folder / head, accelerator="cpu")
        evaluate(folder / head)
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="session")
def real_data() -> str:
    """The folder of real data sets; tests that need it are skipped, saying so, where it is not set."""
    folder = os.environ.get("SPACEFORM_DATA")
    if not folder:
        pytest.skip("set SPACEFORM_DATA to the folder of real data sets to run this test")
    return folder


@pytest.fixture(scope="session")
def import_unhooked() -> Callable[[str], ModuleType]:
    """Imports a second copy of a module without the shape checks, whose wrappers torch cannot trace."""

    def load_recipe(wanted: str) -> ModuleType:
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in sys.modules if name.partition(".")[0] == "spaceform"]:
                patch.delitem(sys.modules, name)
            kept = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("jaxtyping")]
            patch.setattr(sys, "meta_path", kept)
            return importlib.import_module(wanted)

    return load_recipe


LONGEST = ("test_ray.py", "test_company.py", "test_package_of_heads.py", "test_state.py", "test_markdown.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First the files with the longest tests, and of these the cluster, which mostly waits: a test that takes
    half a minute at the end would leave the other processes without work.
    """
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


def pytest_collection_finish() -> None:
    """All that is imported by now stays. To look through it for garbage took a seventh of the tests' time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(2000, 10, 50)
