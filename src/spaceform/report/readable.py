"""Text for people: names that can be drawn, and numbers."""

import math
import re
from typing import Any

_UNDRAWABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Control characters, and those that Python makes of names that are not UTF-8: no font has them."""


def readable(value: Any) -> Any:
    """A name with � for every character that cannot be written; lists and dicts with such names inside.

    Every name from outside (of a class, a folder, a run, a command) passes here when the report reads it.
    """
    match value:
        case str():
            return _UNDRAWABLE.sub("\ufffd", value)
        case dict():
            return {readable(key): readable(inner) for key, inner in value.items()}
        case list() | tuple():
            return type(value)(map(readable, value))
        case _:
            return value


def number(value: float) -> str:
    """Three significant digits and no exponent: 0.0135, 1.35, 1,350."""
    if not math.isfinite(value):
        return "—"
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, digits):,.{max(digits, 0)}f}"
