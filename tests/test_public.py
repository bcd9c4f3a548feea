"""The public names: all there, and imported only when asked for."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest

import spaceform


def loaded_after(*statements: str) -> list[set[str]]:
    """The modules that one process has after each statement."""
    code = "import sys\n" + "".join(f"{statement}\nprint(*sys.modules)\n" for statement in statements)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return [set(line.split()) for line in done.stdout.splitlines()]


def test_every_public_name_is_there():
    for name in spaceform.__all__:
        assert getattr(spaceform, name) is not None
    assert set(spaceform.__all__) <= set(dir(spaceform))


def test_a_wrong_name_is_an_attribute_error():
    assert not hasattr(spaceform, "VonMisesFischer")


def test_the_package_alone_does_not_import_torch():
    (loaded,) = loaded_after("import spaceform")
    assert "torch" not in loaded


@pytest.mark.slow
def test_the_core_imports_neither_the_compiler_nor_the_laboratory():
    heavy = {
        "torch._dynamo",
        "sklearn",
        "pandas",
        "pydantic",
        "scipy",
        "matplotlib",
        "lightning_fabric",
        "timm",
    }
    core = "import spaceform as sf\nsf.HEADS, sf.VonMisesFisher, sf.metrics, sf.calibrators"
    loaded, at_work = loaded_after(core, "import spaceform.study.processes, spaceform.run.train")
    assert "spaceform.heads" in loaded
    assert not heavy & loaded
    assert "spaceform.study.folder" in at_work
    assert not {"pandas", "sklearn", "scipy", "matplotlib"} & at_work  # a study starts many such processes


def test_every_name_of_the_api_page_is_there():
    page = (Path(__file__).parent.parent / "docs" / "api.md").read_text("utf-8")
    named = [line.removeprefix("::: ") for line in page.splitlines() if line.startswith("::: ")]
    assert len(named) > 30
    for name in named:
        assert resolve_name(name) is not None


def named_at_the_top(module: Path) -> Iterator[str]:
    """Classes and constants that a module gives a public name."""
    for node in ast.parse(module.read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (one.id for one in node.targets if isinstance(one, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_no_two_things_share_a_name():
    modules = Path(spaceform.__file__).parent.rglob("*.py")
    count = Counter(name for one in modules for name in named_at_the_top(one) if not name.startswith("_"))
    assert {name for name, times in count.items() if times > 1} == set()


SAME_SUBJECT = {
    "base": "the base class of a room",
    "features": "the net of this name, and the command of this name",
    "hyperbolic": "the geometry and its head",
    "pairs": "the models of pairs, and the one that a run fitted",
    "power_spherical": "the law and its head",
    "references": "what people use instead of a head, and what a study keeps of it",
    "von_mises_fisher": "the law and its head",
    "warm_up": "whether a margin waits too long, and what a comparison does about it",
}
"""Names of files that two rooms have, about one and the same thing."""


def test_no_two_files_share_a_name_unless_they_are_about_one_thing():
    modules = Path(spaceform.__file__).parent.rglob("[a-z]*.py")
    count = Counter(one.stem for one in modules)
    assert {name for name, times in count.items() if times > 1} == set(SAME_SUBJECT)
