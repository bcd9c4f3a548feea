"""One run: from its recipe to a trained, measured and usable model."""

import spaceform.foundation.lab  # noqa: F401 (names the extra where it is missing)

from spaceform.run.finished import Run

__all__ = ["Run"]
