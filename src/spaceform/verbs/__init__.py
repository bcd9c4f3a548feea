"""What the command line does, as functions: compare, reproduce, search; and the `Study` that they give."""

import spaceform._lab  # noqa: F401 (names the extra where it is missing)
