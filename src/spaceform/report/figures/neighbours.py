"""Queries and their nearest test items, as each head's own geometry sees them."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Int64, UInt8

from spaceform.geometry import Geometry
from spaceform.report.figures.figure import Figure, Panel, picture
from spaceform.report.figures.images import Encoded, Pictures, encode_exact, enlarged, rows_of_neighbours
from spaceform.report.outputs import Outputs
from spaceform.report.records import Group, Shown

_SHOWN_QUERIES, _NEAREST = 6, 8
_TRIED = 400
"""How many items the queries are chosen from."""


@final
@dataclass(frozen=True, eq=False)
class Neighbours:
    """Rows of a query and its nearest items, for one head."""

    shown: Shown
    pixels: UInt8[np.ndarray, "height width 4"]
    right: int
    """How many of the nearest items have the query's class."""
    count: int
    """How many nearest items there are."""

    @property
    def encoded(self) -> Encoded:
        return encode_exact(self.pixels)


def neighbours_of(group: Group, pictures: Pictures) -> list[Neighbours]:
    """The same queries for every head: half where some head's nearest item is wrong, half at random.

    A head that is not registered here is left out: its geometry is not known.
    """
    known = [(one, geometry) for one in group.shown.values() if (geometry := one.record.geometry)]
    if not known:
        return []
    first = known[0][0].outputs
    if len(first.labels) <= _NEAREST + 1:
        return []
    tried = np.random.default_rng(0).permutation(len(first.labels))[:_TRIED]
    found = [
        (one, _nearest(one.outputs, geometry, tried))
        for one, geometry in known
        if np.array_equal(one.outputs.index, first.index)
    ]
    rows = _chosen(first, tried, [nearest for _, nearest in found])
    return [_drawn(one, tried[rows], nearest[rows], pictures) for one, nearest in found]


def _chosen(
    first: Outputs, tried: Int64[np.ndarray, " tried"], found: list[Int64[np.ndarray, "tried nearest"]]
) -> Int64[np.ndarray, " queries"]:
    wrong = np.zeros(len(tried), bool)
    for nearest in found:
        wrong |= first.labels[nearest[:, 0]] != first.labels[tried]
    hard = np.flatnonzero(wrong)[: _SHOWN_QUERIES // 2]
    return np.concatenate([hard, np.setdiff1d(np.arange(len(tried)), hard)[: _SHOWN_QUERIES - len(hard)]])


def _drawn(one: Shown, queries: np.ndarray, nearest: np.ndarray, pictures: Pictures) -> Neighbours:
    labels, index = one.outputs.labels, one.outputs.index
    right = labels[nearest] == labels[queries][:, None]
    pixels = rows_of_neighbours(
        enlarged(pictures.thumbnails(index[queries]), 28),
        [enlarged(pictures.thumbnails(index[row]), 28) for row in nearest],
        right.tolist(),
    )
    return Neighbours(one, pixels, int(right.sum()), right.size)


def _nearest(
    outputs: Outputs, geometry: Geometry, queries: Int64[np.ndarray, " queries"]
) -> Int64[np.ndarray, "queries nearest"]:
    z = torch.from_numpy(outputs.embeddings).double()
    with torch.inference_mode():
        similarity = geometry.pairwise(z[queries], z)
        similarity[torch.arange(len(queries)), torch.from_numpy(queries)] = -torch.inf
        return similarity.topk(_NEAREST, dim=1).indices.numpy()


def neighbours_figure(group: Group, found: list[Neighbours], missing: str) -> Figure:
    """The rows of every head."""
    return Figure(
        f"{group.key}-neighbours",
        "Nearest neighbours",
        "Queries (left) and their nearest test items, measured in each head's own geometry. Items of another "
        "class have a frame and a cross. All heads get the same queries: up to three where the nearest item "
        "of some head is wrong, the others at random.",
        tuple(Panel(one.shown.title, picture(one.pixels)) for one in found),
        3.4,
        2.6,
        3,
        missing="" if found else missing,
    )
