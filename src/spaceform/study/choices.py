"""What a caller may choose from, by name. The command line imports this file, so it imports nothing slow."""

from typing import Literal, TypeAlias

Length: TypeAlias = Literal["quick", "full", "paper", "authors"]
"""How long to train: minutes, hours, as the paper says, or as its code does."""
Profile: TypeAlias = Literal["paper", "authors"]
"""Whose recipes: the text of the paper, or the authors' code where the two differ."""
Sampler: TypeAlias = Literal["tpe", "grid"]
"""How a search chooses the next trial: by what it has learned, or from a grid, as the paper did."""
