"""Refuse a tag that is not the version: python .github/check_release.py v0.1.0

The version is in src/spaceform/__init__.py; CHANGELOG.md must have a section for it, and CITATION.cff must
name it, with the same date.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def problems(tag: str, root: Path = ROOT) -> list[str]:
    """What is wrong, a sentence each; nothing where the tag may be released."""
    version = _found(root / "src/spaceform/__init__.py", r'^__version__ = "(.+)"$')
    citation = _found(root / "CITATION.cff", r"^version: [\"']?(.+?)[\"']?$")
    sections = re.findall(r"^## \[?([^\]\s]+)", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    dated = _found(root / "CITATION.cff", r"^date-released: [\"']?(.+?)[\"']?$")
    date = _found(root / "CHANGELOG.md", rf"^## \[?{re.escape(version)}\]? - (.+)$")
    found = []
    if tag != f"v{version}":
        found.append(f"the tag {tag} is not v{version}; change src/spaceform/__init__.py or the tag")
    if citation != version:
        found.append(f"CITATION.cff names version {citation}, not {version}; change it")
    if version not in sections:
        found.append(f"CHANGELOG.md has no section '## {version}'; write it")
    elif dated != date:
        found.append(f"CITATION.cff was released on {dated}, CHANGELOG.md says {date}; change one")
    return found


def _found(path: Path, pattern: str) -> str:
    match = re.search(pattern, path.read_text("utf-8"), re.MULTILINE)
    return match[1] if match else "(none)"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("error: give the tag: python .github/check_release.py v0.1.0")
    wrong = problems(sys.argv[1])
    print("\n".join(f"error: {sentence}" for sentence in wrong) or f"{sys.argv[1]} may be released")
    sys.exit(bool(wrong))
