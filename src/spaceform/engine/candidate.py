"""What is tried: a net, its rates, and the head's own options, as one frozen value."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final


@final
@dataclass(frozen=True)
class Candidate:
    """One net and its rates. Everything in it is plain, so that it can be a line of JSON."""

    hidden: tuple[int, ...] = ()
    """Units of the hidden layers; none: the embedding is linear in the features."""
    dim: int | None = None
    """Coordinates of the embedding. None: the features as they are, each with a scale and an offset."""
    pieces: int = 0
    """Each feature is also given as its progress through so many pieces of its range: tables ask for it."""
    members: int = 1
    """So many nets with hidden layers, side by side; the embedding is the mean of theirs."""
    gates: bool = False
    """Each feature, pieces included, times a factor that learns fast, before hidden layers."""
    dropout: float = 0.0
    """Share of features, or of hidden units where there are hidden layers, left out in training."""
    lr: float = 3e-3
    weight_decay: float = 0.0
    batch_size: int = 128
    epochs: int = 30
    """The schedule's length; training may stop before."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """For the head's constructor."""

    def embedding(self, features: int, classes: int) -> tuple[int, bool]:
        """Coordinates of the embedding, and whether features are projected rather than kept as they are."""
        if self.dim is not None:
            return self.dim, True
        if self.hidden:
            return max(2, min(256, max(32, classes))), True
        width = features * (1 + self.pieces)
        return (width, False) if width > 1 else (2, True)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"hidden": list(self.hidden), "options": dict(self.options)}

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> "Candidate":
        """The inverse of `to_dict`."""
        return Candidate(**{**record, "hidden": tuple(record["hidden"]), "options": dict(record["options"])})
