"""How long a run took to predict its test split: `timing.json`, apart from the metrics.

`metrics.json` is the same whenever a run is evaluated again; a time is not.
"""

from pathlib import Path

from spaceform.run import files

TIMING_FILE = "timing.json"


def write(folder: Path, seconds: float, items: int) -> None:
    """Write the seconds that net, head and calibrators took for all test items."""
    files.write_json(folder / TIMING_FILE, {"predict_seconds": seconds, "items": items})


def read(folder: Path) -> float | None:
    """The seconds for the test split; None if they are missing or cannot be read."""
    try:
        return float(files.read_json(folder / TIMING_FILE)["predict_seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
