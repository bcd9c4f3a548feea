"""Texts in order, as the items of a data set."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from jaxtyping import Int64


@final
@dataclass(frozen=True, eq=False)
class Texts:
    """Texts in order, and what is known of each."""

    name: str
    texts: tuple[str, ...]
    items: tuple[str, ...]
    """The names of the items: their files, or their rows."""
    labels: Int64[np.ndarray, " items"] | None
    """The labels; None if there are none: then the features are for `predict` alone."""
    classes: tuple[str, ...]
    split: tuple[str, ...] | None = None
    """"train", "val" or "test" of each, where the data say so."""
    groups: Int64[np.ndarray, " items"] | None = None
    label: str | None = None
    """The column that was asked for as labels."""
    left_out: tuple[str, ...] = ()
    """Columns that are neither texts nor known."""

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def digest(self) -> str:
        """A digest of all texts."""
        found = hashlib.blake2b(digest_size=16)
        for text in self.texts:
            encoded = text.encode("utf-8", "surrogatepass")
            found.update(b"%d " % len(encoded) + encoded)
        return found.hexdigest()
