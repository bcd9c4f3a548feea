"""The one error of this room."""


class DataError(ValueError):
    """A file or folder that cannot be used; the message names it and says what to do."""
