"""What a head declares about itself: what a search may try, and where a comparison starts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, final


@final
@dataclass(frozen=True)
class LogUniform:
    """Any number between two positive ones; each decade is as likely as another."""

    low: float
    high: float


@final
@dataclass(frozen=True)
class Uniform:
    """Any number between two."""

    low: float
    high: float


@final
@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: tuple[Any, ...]


Range: TypeAlias = LogUniform | Uniform | Choice


@final
@dataclass(frozen=True)
class Start:
    """Where training of a head starts on one kind of data, until a search finds better."""

    lr: float
    weight_decay: float
    temperature_lr: float = 0.01
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the head's constructor."""
