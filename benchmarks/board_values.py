"""The board as values: what `board.parquet` holds, and what it says over all sets.

A set counts once every head has three seeds, with which a comparison begins; the others are `unfinished`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from numpy.typing import NDArray

from over_sets import Effect, Foretold, Ranks, effect, foretell, ranks
from spaceform.heads import HEADS

FILE = Path(__file__).parent.parent / "results" / "board.parquet"
BASE = "standard"
ACCURACY, NLL = "accuracy", "calibrated.chosen.nll"
POINTS, NATS = 0.3, 0.01
"""What the quick answer may give up."""
LEAST_SEEDS = 3
"""Of every head, for a set to count; there are five in the end."""
ENOUGH = 3
"""Sets, for what is said of all of them together."""
GEOMETRIES = ("euclidean", "hyperbolic", "spherical")
_LOGARITHMS = ("classes", "columns", "rows", "rows_a_class", "imbalance", "dimension")


@final
@dataclass(frozen=True, eq=False)
class Task:
    """The studies of one task."""

    names: tuple[str, ...]
    """Sets that count, in the order of the file."""
    heads: tuple[str, ...]
    rows: pd.DataFrame
    """Of these sets: heads and references, a row for each seed."""
    verdicts: Mapping[str, Any]

    def means(self, metric: str) -> pd.DataFrame:
        """Sets by heads."""
        own = self.rows[self.rows["kind"] == "head"]
        if metric not in own:
            return pd.DataFrame(np.nan, index=list(self.names), columns=list(self.heads))
        found = own.pivot_table(index="set", columns="label", values=metric, dropna=False)
        return found.reindex(index=list(self.names), columns=list(self.heads))

    def seeds(self, name: str) -> str:
        """How many every head has."""
        own = self.rows[(self.rows["kind"] == "head") & (self.rows["set"] == name)]
        counts = own.groupby("label").size()
        least, most = counts.min(), counts.max()
        return str(most) if least == most else f"{least} to {most}"

    def references(self, metric: str) -> pd.DataFrame:
        """Sets by references."""
        beside = self.rows[self.rows["kind"] == "reference"]
        return beside.pivot_table(index="set", columns="label", values=metric).reindex(list(self.names))

    def gain(self, metric: str, head: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The gain over plain softmax on every set, in the unit of the goal, and its standard error."""
        found = [self.verdicts[name]["exhaustive"]["standings"][metric][head][3:5] for name in self.names]
        return np.array([gain for gain, _ in found]), np.array([error for _, error in found])

    def leaders(self, name: str, metric: str) -> list[str]:
        """The choice for a goal, and what is practically as good."""
        standings = self.verdicts[name]["exhaustive"]["standings"].get(metric, {})
        return [head for head, (_, _, relation, *_) in standings.items() if relation in _LEADING]


_LEADING = ("chosen", "equivalent")


class GivenUp(NamedTuple):
    """What the quick answer gives up on one set."""

    name: str
    choice: str
    seeds: int
    """Runs that it took."""
    most_accurate: str
    points: float
    least_loss: str
    nats: float
    worse: tuple[str, ...]
    """Goals in which the full study says that the choice is worse."""

    @property
    def within(self) -> bool:
        """Whether it is no more than it may be."""
        return self.points <= POINTS and self.nats <= NATS


@final
@dataclass(frozen=True, eq=False)
class Board:
    """All of it."""

    sets: Mapping[str, Mapping[str, Any]]
    """What each is, by name."""
    classification: Task
    retrieval: Task
    unfinished: tuple[str, ...]
    made_with: Mapping[str, Any]

    @cached_property
    def worth(self) -> dict[str, NDArray[np.float64]]:
        """Sets by heads, more is better: points of accuracy, and NLL after calibration with a minus."""
        task = self.classification
        return {ACCURACY: 100 * task.means(ACCURACY).to_numpy(), NLL: -task.means(NLL).to_numpy()}

    @property
    def enough(self) -> bool:
        """Whether there are enough sets for a model over sets."""
        return len(self.classification.names) >= ENOUGH

    def kinds(self) -> list[str]:
        """The kind of data of every set that counts."""
        return [self.sets[name]["kind"] for name in self.classification.names]

    def ranks(self, metric: str) -> Ranks:
        """Mean ranks of the heads."""
        return ranks(self.worth[metric])

    def effect(self, metric: str, head: str) -> Effect:
        """The gain over plain softmax, over sets."""
        return effect(*self.classification.gain(metric, head))

    @cached_property
    def foretold(self) -> dict[str, Foretold]:
        """Ways to choose beforehand, by what is wanted."""
        measured = [_plain(self.sets[name]) for name in self.classification.names]
        return {
            metric: foretell(worth, np.array(measured), self.kinds()) for metric, worth in self.worth.items()
        }

    @cached_property
    def given_up(self) -> list[GivenUp]:
        """The quick answer of every set beside the best of all heads."""
        return [found for name in self.classification.names if (found := self._given_up(name))]

    def _given_up(self, name: str) -> GivenUp | None:
        task = self.classification
        said, place = task.verdicts[name], task.names.index(name)
        quick = said.get("quick", {})
        if "choice" not in quick:
            return None
        own, choice = task.heads.index(quick["choice"]), quick["choice"]
        lost, best = {}, {}
        for metric, worth in self.worth.items():
            lost[metric] = float(worth[place].max() - worth[place, own])
            best[metric] = task.heads[int(worth[place].argmax())]
        standings = said["exhaustive"]["standings"]
        worse = tuple(m for m in (ACCURACY, NLL) if standings[m][choice][2] == "worse")
        runs = sum(quick["seeds"].values())
        return GivenUp(name, choice, runs, best[ACCURACY], lost[ACCURACY], best[NLL], lost[NLL], worse)

    def best_of_geometry(self, metric: str) -> pd.DataFrame:
        """The worth of the best head of each geometry, by set."""
        heads = self.classification.heads
        columns = {
            kind: self.worth[metric][:, [i for i, head in enumerate(heads) if geometry(head) == kind]].max(1)
            for kind in GEOMETRIES
        }
        return pd.DataFrame(columns, index=list(self.classification.names))


def geometry(head: str) -> str:
    """The kind of its geometry."""
    return HEADS[head](2, 2).geometry.kind


def _plain(one: Mapping[str, Any]) -> list[float]:
    """What is measured of a set beforehand, counts as logarithms, and whether its classes come in groups."""
    found = {
        name: float(np.log(value)) if name in _LOGARITHMS else float(value)
        for name, value in one["measures"].items()
    }
    return [*found.values(), float("hierarchy" in one["tags"])]


def read(path: Path = FILE) -> Board:
    """The board from its file."""
    file = pq.ParquetFile(path)
    kept = {key.decode(): json.loads(value) for key, value in file.metadata.metadata.items()}
    rows, verdicts = file.read().to_pandas(), kept["verdicts"]
    sets = {one["name"]: one for one in kept["sets"]}
    tasks = {task: _task(rows, verdicts, sets, task) for task in ("classification", "retrieval")}
    missing = tuple(name for name in sets if name not in tasks["classification"].names)
    return Board(sets, tasks["classification"], tasks["retrieval"], missing, kept["made_with"])


board = cache(read)
"""The board that is kept, read once."""


def _task(rows: pd.DataFrame, verdicts: Mapping[str, Any], sets: Mapping[str, Any], task: str) -> Task:
    rows = rows[rows["task"] == task]
    seeds = rows[rows["kind"] == "head"].groupby(["set", "label"]).size().unstack(fill_value=0)
    heads = tuple(head for head in HEADS if head in seeds.columns)
    whole = set(seeds.index[(seeds >= LEAST_SEEDS).all(axis=1)])
    names = tuple(name for name in sets if name in whole)
    said = {name: verdicts[name][task] for name in names}
    return Task(names, heads, rows[rows["set"].isin(names)], said)


def share(values: Sequence[bool]) -> str:
    """`9 of 10`."""
    return f"{sum(values)} of {len(values)}"


Lines = list[list[str]]
"""A table: cells in Markdown, the second line its rule."""
NOT = "—"


def rule(leading: int, numbers: int) -> list[str]:
    """The line below the titles: words to the left, numbers to the right."""
    return ["---"] * leading + ["---:"] * numbers


def code(name: str) -> str:
    """A name as it is typed."""
    return f"`{name}`"
