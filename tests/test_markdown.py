"""Every Python block of the README and the docs runs, page by page, in reading order."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def python_blocks(page: Path) -> list[tuple[int, str]]:
    """(line, code) of every block, but for those fenced as ```python no-run: they are for reading only."""
    text = page.read_text(encoding="utf-8")
    return [
        (text[: m.start()].count("\n") + 1, m.group(2))
        for m in BLOCK.finditer(text)
        if "no-run" not in m.group(1)
    ]


@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p)], ids=lambda p: p.name)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for line, code in python_blocks(page):
        exec(compile("\n" * line + code, str(page), "exec"), namespace)


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
