"""Every Python block of the README and the docs runs, page by page; commands and links are real."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from spaceform.cli.app import app
from spaceform.nets import NETS
from spaceform.study.processes import lasting

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, kind: str) -> list[tuple[int, str]]:
    """(line, text) of every block of one kind."""
    text = page.read_text(encoding="utf-8")
    return [
        (text[: m.start()].count("\n") + 1, m.group(2)) for m in FENCE.finditer(text) if m.group(1) == kind
    ]


def runnable() -> list[object]:
    """Pages with Python; those that export trace symbolic sizes, which the shape checks do not know."""
    pages = [page for page in PAGES if blocks(page, "python")]
    return [
        pytest.param(page, marks=pytest.mark.compiled)
        if any("import export" in code for _, code in blocks(page, "python"))
        else page
        for page in pages
    ]


def test_no_block_is_left_out() -> None:
    """A block is Python, which runs, or plain: commands and their output. There is no third kind."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert {m.group(1) for m in FENCE.finditer(text)} <= {"", "python"}, page.name
        assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(FENCE.findall(text)), page.name


@pytest.mark.filterwarnings("ignore")  # those of the packages that a page shows us beside
@pytest.mark.parametrize("page", runnable(), ids=lambda p: p.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    with lasting():  # studies of one page hand on their processes
        for line, code in blocks(page, "python"):
            exec(compile("\n" * line + code, str(page), "exec"), namespace)


def test_the_drop_in_guide_keeps_each_way_under_fifteen_lines() -> None:
    for line, code in blocks(ROOT / "docs" / "drop-in.md", "python"):
        assert len([text for text in code.splitlines() if text.strip()]) < 15, line


def test_commands_shown_exist_with_their_options() -> None:
    root = typer.main.get_command(app)
    shown = [
        (page.name, line.partition("  #")[0].strip())
        for page in PAGES
        for _, text in blocks(page, "")
        for line in text.splitlines()
        if line.startswith("spaceform ")
    ]
    assert len(shown) > 15
    everywhere = {option for p in root.params for option in p.opts} | {"--debug"}
    for page, line in shown:
        for part in line.split(" ; "):
            command, known = root, set(everywhere)
            for word in shlex.split(part)[1:]:
                if word.startswith("-"):
                    assert word.partition("=")[0] in known, f"{page}: {line}: {word}"
                elif isinstance(getattr(command, "commands", None), dict):
                    assert word in command.commands, f"{page}: {line}: {word}"
                    command = command.commands[word]
                    known |= {option for p in command.params for option in p.opts}


def test_every_command_is_described() -> None:
    page = (ROOT / "docs" / "cli.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `spaceform ")]
    root = typer.main.get_command(app)
    for name, command in root.commands.items():
        about = " ".join(row for row in rows if row.startswith(f"| `spaceform {name} "))
        assert about, f"docs/cli.md has no row for `spaceform {name}`"
        for inner in getattr(command, "commands", {}):
            assert re.search(rf"[ `]{inner}`", about), f"docs/cli.md does not name `{name} {inner}`"


@pytest.mark.parametrize("name", sorted({*NETS} - {"features"}))  # which belongs to the engine for features
def test_a_net_that_takes_photos_is_named_on_their_page(name) -> None:
    try:
        NETS[name](name=name, dim=2).build((3, 64, 64))
    except ValueError:
        return
    page = (ROOT / "docs" / "photos.md").read_text("utf-8")
    assert re.search(rf"[ `]{re.escape(name)}`", page)


def prose(page: Path) -> str:
    return re.sub(
        r"^```.*?^```$|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


def test_pages_link_to_files_that_exist() -> None:
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose(page))]
    assert links
    assert not [
        f"{page.name}: {target}"
        for page, target in links
        if "://" not in target and not (page.parent / target).exists()
    ]


def test_pictures_are_small() -> None:
    pictures = sorted((ROOT / "docs").rglob("*.png"))
    assert pictures
    assert not [picture.name for picture in pictures if picture.stat().st_size > 100_000]


def test_the_map_of_the_design_is_the_real_one() -> None:
    """Its rooms are the folders there are; every `room/file.py: name` that it names is there."""
    page = (ROOT / "docs" / "design.md").read_text("utf-8")
    package = ROOT / "src" / "spaceform"
    listed = re.findall(r"^\| (`[^|]*`) \|", page, re.MULTILINE)
    rooms = {name.rstrip("/") for row in listed for name in re.findall(r"`([^`]+)`", row)}
    there = {path.name for path in package.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms - {"estimator.py"} == there
    named = re.findall(r"`(\w+(?:/\w+)*\.py)(?:: ([\w.]+))?`", page)
    assert len(named) > 15
    for file, name in named:
        text = (package / file).read_text("utf-8")
        for part in name.split(".") if name else ():
            assert re.search(rf"^ *(class|def) {part}\b", text, re.MULTILINE), f"{file}: {name}"


@pytest.mark.skipif(not (ROOT / "results").exists(), reason="the results are kept in the repository alone")
def test_what_contributing_names_is_there() -> None:
    """Every file that it names exists; `name` of `room/file.py` stands in that file."""
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    bases = (ROOT, ROOT / "src", ROOT / "src" / "spaceform")
    files = re.findall(r"`(\w+(?:/\w+)+\.(?:py|toml))`", page)
    found = {name: next((base / name for base in bases if (base / name).exists()), None) for name in files}
    assert len(found) > 25
    assert not [name for name, path in found.items() if path is None]
    within = re.findall(r"`(\w+)`(?:,| of| in) (?:of |in )?`(\w+(?:/\w+)+\.py)`", page)
    assert len(within) > 8
    assert not [
        f"{name} of {file}" for name, file in within if name not in (found[file] or ROOT).read_text("utf-8")
    ]
