"""How much the command line prints: one level for the process, set once before a command runs."""

import atexit
import os
from functools import cache
from typing import Literal, TextIO

Level = Literal["quiet", "normal", "verbose"]

_LEVEL: list[Level] = ["normal"]


def set_level(level: Level) -> None:
    """Set the level for everything that this process prints from now on."""
    _LEVEL[0] = level


def level() -> Level:
    """The level that was chosen."""
    return _LEVEL[0]


def progress_file() -> TextIO | None:
    """Where progress and notes go: None is standard error; under --quiet they go nowhere."""
    return _nowhere() if level() == "quiet" else None


def seconds_between(usual: float) -> float:
    """Seconds between lines of progress without a terminal; --verbose prints ten times as often."""
    return usual / 10 if level() == "verbose" else usual


@cache
def _nowhere() -> TextIO:
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (closed at the very end)
    atexit.register(nowhere.close)
    return nowhere
