"""Many runs, and what they say together."""

import spaceform.foundation.lab  # noqa: F401 (names the extra where it is missing)
