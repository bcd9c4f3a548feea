"""How training fails."""


class TrainingError(RuntimeError):
    """Training cannot go on; the message says where it stopped and what to try."""


class Diverged(TrainingError):
    """The loss or an embedding is not finite: the rate is too high, or the input is wrong."""
