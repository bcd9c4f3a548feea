"""A command in this process."""

import sys

import pytest

from spaceform.cli import app as cli
from spaceform.cli import verbosity


@pytest.fixture
def call(monkeypatch, capsys):
    """Gives the exit code, and what was said on both streams."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["spaceform", *map(str, arguments)])
        monkeypatch.setattr("warnings.showwarning", None)  # main sets its own
        with pytest.raises(SystemExit) as left:
            cli.main()
        verbosity.set_level("normal")
        said = capsys.readouterr()
        return left.value.code, said.out, said.err

    return run
