"""Many runs, and what they say together."""

import spaceform._lab  # noqa: F401 (names the extra where it is missing)
