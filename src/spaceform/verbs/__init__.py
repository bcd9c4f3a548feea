"""What the command line does, as functions: compare, reproduce, search, extract_features."""

import spaceform.foundation.lab  # noqa: F401 (names the extra where it is missing)
