"""What a caller may choose from, by name; light enough for the command line to import at once."""

from typing import Literal, TypeAlias

Length: TypeAlias = Literal["quick", "full", "paper"]
"""How long to train: minutes, hours, or as the paper did."""
Sampler: TypeAlias = Literal["tpe", "grid"]
"""How a search chooses what to try next: by what it has learned, or from a grid as the paper did."""
