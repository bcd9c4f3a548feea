"""The line that a command on one run prints when it is done."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spaceform.foundation.messages import counted

if TYPE_CHECKING:
    import pandas as pd

    from spaceform.data.formats.shards import Shards
    from spaceform.run.predict import Prediction
    from spaceform.verbs.extract_features import Extracted


def trained(out: Path, result: Mapping[str, Any], again: bool) -> str:
    """How long a run trained, and its score; `again` if it was finished before."""
    from spaceform.run.progress import duration

    return (
        f"{out}: {'already finished' if again else 'finished'} after {counted(result['epochs'], 'epoch')} "
        f"({duration(result['seconds'])}); "
        f"best validation score {result['score']:.4f} in epoch {result['best_epoch'] + 1}"
    )


def predicted(out: Path, found: "Prediction", table: "pd.DataFrame") -> str:
    """How many items were predicted, and how many of them are for a human or unknown."""
    kept = f"; {int(table['reject'].sum()):,} of them for a human" if "reject" in table else ""
    foreign = "" if found.unknown is None else f"; {int(found.unknown.sum()):,} unknown"
    sizes = "" if found.sets is None else f"; {found.sets.sum(1).double().mean():.3g} classes in a set"
    return f"{out}: {counted(len(table), 'item')}{kept}{foreign}{sizes}"


def suspected(out: Path, table: "pd.DataFrame") -> str:
    """How many labels are suspect, and for how many the run names another class."""
    other = int((table["class"] != table["label"]).sum())
    return f"{out}: {counted(len(table), 'suspect label')}; the run names another class for {other:,} of them"


def extracted(found: "Extracted") -> str:
    """How many rows were extracted, by which net, and how many items were left out."""
    from spaceform.run.progress import duration

    broken = len(found.about.broken)
    more = f"; {counted(broken, 'broken item')} left out" if broken else ""
    return (
        f"{found.path}: {counted(found.rows, 'row')} of {found.dim} features by {found.about.net} "
        f"({found.origin}), in {duration(found.seconds)}{more}"
    )


def cached(shards: "Shards") -> str:
    """The line for an entry of the cache of features."""
    about = shards.about
    rows = f"{about.rows:,} rows" if about.rows is not None else "unfinished"
    return f"{about.plan[:12]}  {about.name:20} {about.net:24} {rows:>12} {shards.size / 2**20:8.1f} MiB"
