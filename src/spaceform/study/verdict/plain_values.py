"""Findings as plain values, for JSON: what a study keeps and a page reads."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def record(finding: Any) -> Any:
    """A verdict, a decision or a recommendation as dicts, lists, numbers and strings.

    Enums become their values, and keys that are pairs become "one / other". Numbers that JSON does not have
    become None.
    """
    if is_dataclass(finding) and not isinstance(finding, type):
        return {field.name: record(getattr(finding, field.name)) for field in fields(finding)}
    if isinstance(finding, Enum):
        return finding.value
    if isinstance(finding, Mapping):
        return {_key(key): record(value) for key, value in finding.items()}
    if isinstance(finding, list | tuple):
        return [record(value) for value in finding]
    if isinstance(finding, float):
        return finding if math.isfinite(finding) else None
    return finding


def _key(key: Any) -> str:
    return " / ".join(map(str, key)) if isinstance(key, tuple) else str(key)
