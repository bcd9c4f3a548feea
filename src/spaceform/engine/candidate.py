"""What a search tries: a net, its rates, and the head's own options, as one frozen value."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, final

from spaceform.nets.pieces import pieces_width


@final
@dataclass(frozen=True)
class Candidate:
    """One net and its rates. Everything in it is plain, so that it can be a line of JSON."""

    hidden: tuple[int, ...] = ()
    """Units of each hidden layer. Without hidden layers the embedding is linear in the features."""
    dim: int | None = None
    """Coordinates of the embedding. None takes the features as they are, each with a scale and an offset."""
    pieces: int = 0
    """The range of each feature is cut into this many pieces. The progress through each piece is an input,
    too; tables need this.
    """
    uncut: int = 0
    """How many features are not cut into pieces: those with the fewest values."""
    members: int = 1
    """How many nets with hidden layers are trained side by side; the embedding is their mean."""
    gates: bool = False
    """Whether each feature (and each piece) is first multiplied by a factor that learns fast."""
    dropout: float = 0.0
    """Share of hidden units that is left out in training; without hidden layers, share of features."""
    lr: float = 3e-3
    weight_decay: float = 0.0
    batch_size: int = 128
    epochs: int = 30
    """The length of the schedule; training may stop earlier."""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Arguments of the head's constructor."""

    def embedding(self, features: int, classes: int) -> tuple[int, bool]:
        """Coordinates of the embedding, and whether features are projected rather than kept as they are."""
        if self.dim is not None:
            return self.dim, True
        if self.hidden:
            return max(2, min(256, max(32, classes))), True
        width = pieces_width(features, self.pieces, self.uncut)
        return (width, False) if width > 1 else (2, True)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"hidden": list(self.hidden), "options": dict(self.options)}

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> "Candidate":
        """The inverse of `to_dict`."""
        return Candidate(**{**record, "hidden": tuple(record["hidden"]), "options": dict(record["options"])})
