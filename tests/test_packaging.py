"""The wheel, the source archive, and the package beside which nothing but its core is installed."""

import importlib.util
import math
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from spaceform import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
LAB = (
    *(
        "lightning_fabric",
        "lightning",
        "timm",
        "torchvision",
        "sklearn",
        "pandas",
        "pyarrow",
        "pydantic",
        "typer",
    ),
    *(
        "rich",
        "optuna",
        "pooch",
        "tqdm",
        "matplotlib",
        "plotly",
        "jinja2",
        "safetensors",
        "PIL",
        "scipy",
        "ray",
    ),
    *("onnx", "onnxruntime", "onnxscript", "beartype"),
)
BLOCKER = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {LAB!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""


def python(code: str, *, path: Path = ROOT / "src") -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(path), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build", reason="pip install build")
    pytest.importorskip("hatchling", reason="pip install hatchling: the build needs no network then")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return out


def test_the_archives_hold_the_package_and_nothing_private(archives: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    (source,) = archives.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as found:
        names = found.namelist()
        metadata = found.read(next(n for n in names if n.endswith("METADATA"))).decode()
    assert {"spaceform/py.typed", "spaceform/recipes/paper.toml", "spaceform/cli/app.py"} <= set(names)
    assert all(n.startswith(("spaceform/", "spaceform-")) for n in names)
    required = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line
    ]
    assert sorted(line.split()[1].partition(">")[0] for line in required) == ["jaxtyping", "numpy", "torch"]
    with tarfile.open(source) as found:
        inside = {name.partition("/")[2] for name in found.getnames()}
    assert {"src/spaceform/__init__.py", "LICENSE", "README.md", "pyproject.toml"} <= inside
    assert {name.partition("/")[0] for name in inside if "/" in name} == {
        "src",
        "tests",
        "benchmarks",
        "docs",
    }


def test_the_core_of_the_wheel_needs_torch_numpy_and_jaxtyping_alone(archives: Path, tmp_path: Path) -> None:
    (wheel,) = archives.glob("*.whl")
    with zipfile.ZipFile(wheel) as found:
        found.extractall(tmp_path)
    code = """
import torch, spaceform as sf
assert sf.__file__.startswith(PLACE), sf.__file__
z, y = torch.randn(8, 16), torch.randint(4, (8,))
for make in sf.HEADS.values():
    head = make(16, 4)
    head(z, y).mean().backward()
    head.predict_proba(z)
sf.metrics.calibration_error(head.predict_proba(z), y)
for make in sf.calibrators.CALIBRATORS.values():
    make().fit(torch.randn(8, 4), y, torch.ones(8))
sf.VonMisesFisher(torch.eye(16)[0], torch.tensor(3.0)).rsample((2,))
"""
    done = python(BLOCKER + code.replace("PLACE", repr(str(tmp_path))), path=tmp_path)
    assert done.returncode == 0, done.stderr


WITHOUT_THE_LAB = """
import spaceform
asked = {
    "SpaceformClassifier": lambda: spaceform.SpaceformClassifier,
    "Run": lambda: spaceform.Run,
}
for part in ("run.export", "run.predict", "run.train", "run.recipe", "study", "study.search", "report"):
    asked[part] = lambda part=part: __import__("spaceform." + part)
for name, ask in asked.items():
    try:
        ask()
    except ImportError as error:
        assert " needs " in str(error), str(error)
        assert str(error).endswith("install it with: pip install 'spaceform[lab]'"), (name, str(error))
    else:
        raise AssertionError(name)
"""


def test_a_lab_feature_without_the_extra_names_the_extra() -> None:
    done = python(BLOCKER + WITHOUT_THE_LAB)
    assert done.returncode == 0, done.stderr
    done = python(
        BLOCKER
        + "import sys; sys.argv = ['spaceform', '--help']\nfrom spaceform.__main__ import main\nmain()"
    )
    assert "pip install 'spaceform[lab]'" in done.stderr
    assert done.returncode == 2


def _seconds(*codes: str) -> list[float]:
    """The processor's seconds, by each code in a process of its own."""
    found = []
    for code in codes:
        done = python(code + "\nimport time; print(time.process_time())")
        assert done.returncode == 0, done.stderr
        found.append(float(done.stdout.split()[-1]))
    return found


def test_import_and_help_are_quick() -> None:
    """As ratios to the import of torch, which takes a second or more; in the least of some rounds."""
    least = [math.inf] * 4
    for _ in range(4):
        now = _seconds(
            "import torch",
            "import torch, spaceform; spaceform.HEADS, spaceform.metrics, spaceform.calibrators",
            "import spaceform",
            "import sys; sys.argv = ['spaceform', '--help']\n"
            "from spaceform.__main__ import main\n"
            "try: main()\n"
            "except SystemExit as e: assert not e.code\n"
            "assert 'torch' not in sys.modules",
        )
        torch, everything, bare, help_ = least = list(map(min, least, now))
        if everything < 1.3 * torch + 0.3 and bare < torch / 2 and help_ < torch:
            return
    pytest.fail(f"torch {torch} s, with spaceform {everything} s, spaceform alone {bare} s, help {help_} s")


def _release_check() -> ModuleType:
    path = ROOT / ".github" / "check_release.py"
    if not path.exists():
        pytest.skip("the workflows are kept in the repository alone")
    spec = importlib.util.spec_from_file_location("check_release", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_tag_is_released_only_where_version_changelog_and_citation_agree(tmp_path: Path) -> None:
    check = _release_check()
    assert check.problems(f"v{__version__}") == []
    for name in ("src/spaceform/__init__.py", "CHANGELOG.md", "CITATION.cff"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"), "utf-8")
    assert check.problems("v9.9.9", tmp_path) == [
        f"the tag v9.9.9 is not v{__version__}; change src/spaceform/__init__.py or the tag"
    ]
    cited = (tmp_path / "CITATION.cff").read_text("utf-8")
    quoted = re.sub("^date-released: (.+)$", r'date-released: "\1"', cited, flags=re.MULTILINE)
    (tmp_path / "CITATION.cff").write_text(quoted, "utf-8")
    assert check.problems(f"v{__version__}", tmp_path) == []
    moved = re.sub("^date-released: .+$", "date-released: 1999-12-31", cited, flags=re.MULTILINE)
    (tmp_path / "CITATION.cff").write_text(moved, "utf-8")
    (said,) = check.problems(f"v{__version__}", tmp_path)
    assert said.startswith("CITATION.cff was released on 1999-12-31, CHANGELOG.md says ")
    (tmp_path / "src/spaceform/__init__.py").write_text('__version__ = "9.9.9"\n')
    assert check.problems("v9.9.9", tmp_path) == [
        f"CITATION.cff names version {__version__}, not 9.9.9; change it",
        "CHANGELOG.md has no section '## 9.9.9'; write it",
    ]


def test_workflows_and_issue_forms_are_yaml_with_their_parts() -> None:
    """Parsed, not run: every job has a time limit, only the jobs that publish may ask for an identity."""
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    if not (ROOT / ".github").exists():
        pytest.skip("the workflows are kept in the repository alone")
    workflows = {
        path.stem: yaml.safe_load(path.read_text("utf-8"))
        for path in (ROOT / ".github" / "workflows").glob("*.yml")
    }
    assert set(workflows) == {"tests", "docs", "release"}
    jobs = {f"{name}/{job}": value for name, flow in workflows.items() for job, value in flow["jobs"].items()}
    assert all(job["timeout-minutes"] <= 60 for job in jobs.values())
    asks = {name for name, job in jobs.items() if "id-token" in job.get("permissions", {})}
    assert asks == {"docs/deploy", "release/publish"}
    assert all(flow["permissions"] == {"contents": "read"} for flow in workflows.values())
    assert jobs["tests/pinned"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text("utf-8"))
        assert path.stem == "config" or {"name", "description", "body"} <= set(form), path.name
