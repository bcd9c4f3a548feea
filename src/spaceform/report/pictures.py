"""The figures that show test items: extremes of the norm, 3-D embeddings, nearest neighbours."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import UInt8
from matplotlib.axes import Axes

from spaceform.geometry import Euclidean, Geometry, PoincareBall, Sphere
from spaceform.report.figures import Draw, Figure, Panel
from spaceform.report.images import (
    Encoded,
    Pictures,
    Thumbnails,
    encode_color,
    encode_exact,
    enlarged,
    neighbours,
    tiled,
)
from spaceform.report.projection import Projection, project
from spaceform.report.records import Group, Record
from spaceform.report.style import CLASS_COLORS, MUTED, display

_GRID = 8
"""Thumbnails on the edge of a grid of extremes."""
_QUERIES, _NEAREST = 6, 8
_MOST_NAMED = 40
"""Classes that a legend of Figure 4 has room for."""
_MARKS = ("o", "s", "^", "D", "v")


@final
@dataclass(frozen=True, eq=False)
class Extremes:
    """The test items of smallest and largest norm or concentration."""

    record: Record
    low: Thumbnails
    high: Thumbnails
    word: str
    low_range: tuple[float, float]
    high_range: tuple[float, float]
    low_right: float | None
    high_right: float | None
    """Share of them that is classified rightly."""

    def encoded(self, which: Thumbnails) -> Encoded:
        """A grid with hairlines between the images."""
        grid = _grid(which)
        return encode_exact(grid) if which.shape[3] == 1 else encode_color(grid, 75)


def extremes(group: Group, pictures: Pictures) -> list[Extremes]:
    """One a head, from the run that stands for it; none of a single item, which is no extreme."""
    found = []
    for record in group.shown.values():
        outputs = record.outputs
        assert outputs is not None
        order = np.argsort(outputs.confidence, kind="stable")
        count = min(_GRID * _GRID, len(order) // 2)
        if not count:
            continue
        low, high = order[:count], order[::-1][:count]
        right = None if outputs.predicted is None else outputs.predicted == outputs.labels
        c = outputs.confidence
        found.append(
            Extremes(
                record,
                pictures.thumbnails(outputs.index[low]),
                pictures.thumbnails(outputs.index[high]),
                "κ" if record.head in ("vmf", "power_spherical") else "‖z‖",
                (float(c[low].min()), float(c[low].max())),
                (float(c[high].min()), float(c[high].max())),
                None if right is None else float(right[low].mean()),
                None if right is None else float(right[high].mean()),
            )
        )
    return found


def extremes_figure(group: Group, found: list[Extremes], missing: str) -> Figure:
    """Figures 1 and 3 and those of the supplement: two grids a head."""
    panels = []
    for one in found:
        name = display(one.record.label)
        panels.append(Panel(f"{name}: smallest {one.word}", _image(_grid(one.low))))
        panels.append(Panel(f"{name}: largest {one.word}", _image(_grid(one.high))))
    return Figure(
        f"{group.key}-extremes",
        "Smallest and largest norm",
        "Test images whose embeddings have the smallest and the largest norm ‖z‖, or concentration κ for "
        f"the stochastic heads: the {max((len(one.low) for one in found), default=0)} most extreme of each, "
        "first seed.",
        tuple(panels),
        2.6,
        2.8,
        4,
        number="Figures 1 and 3",
        missing="" if panels else missing or "There are too few test items.",
    )


def _grid(thumbnails: Thumbnails) -> UInt8[np.ndarray, "height width 4"]:
    return tiled(enlarged(thumbnails, 24), _GRID, gap=2)


def _image(pixels: UInt8[np.ndarray, "height width 4"]) -> Draw:
    def draw(axes: Axes) -> None:
        axes.imshow(pixels, interpolation="nearest")
        axes.set_axis_off()

    return draw


def projections(group: Group) -> dict[str, Projection]:
    """Every row's embeddings in three dimensions."""
    found = {}
    for label, record in group.shown.items():
        assert record.outputs is not None
        found[label] = project(record.outputs.embeddings, record.head, record.curvature)
    return found


def embeddings_figure(group: Group, found: dict[str, Projection]) -> Figure:
    """Figure 4: one panel a head, coloured by class, as the net emits them."""
    panels = []
    classes: tuple[str, ...] = ()
    for label, projection in found.items():
        outputs = group.shown[label].outputs
        assert outputs is not None
        panels.append(Panel(display(label), _cloud(projection, outputs.labels)))
        classes = outputs.classes
    if panels and len(classes) <= _MOST_NAMED:
        panels.append(Panel("Class", _names(classes)))
    return Figure(
        f"{group.key}-embeddings",
        "Embeddings in three dimensions",
        "Embeddings of the test set before normalisation or projection, coloured by class. " + _how(found),
        tuple(panels),
        2.9,
        3.0,
        3,
        number="Figure 4",
        missing="" if panels else "No run has left embeddings to draw.",
    )


def _how(found: dict[str, Projection]) -> str:
    said: dict[str, list[str]] = {}
    for label, projection in found.items():
        said.setdefault(projection.how.rstrip("."), []).append(display(label))
    if len(said) == 1:
        return next(iter(said)) + "."
    return " ".join(f"{', '.join(labels)}: {how[0].lower()}{how[1:]}." for how, labels in said.items())


def _cloud(projection: Projection, labels: np.ndarray) -> Draw:
    def draw(axes: Axes) -> None:
        view = _rotation(0.65, -0.45)
        points = projection.points @ view.T
        rng = np.random.default_rng(0)
        pick = np.sort(rng.choice(len(points), min(len(points), 4000), replace=False))
        points, classes = points[pick], labels[pick]
        radius = float(np.quantile(np.linalg.norm(points, axis=1), 0.999)) or 1.0
        for axis in view.T:
            axes.plot(
                [-radius * axis[0], radius * axis[0]],
                [-radius * axis[1], radius * axis[1]],
                color=MUTED,
                linewidth=0.5,
                alpha=0.6,
                zorder=0,
            )
        order = np.argsort(points[:, 2])
        span = np.ptp(points[:, 2]) or 1.0
        near = (points[:, 2] - points[:, 2].min()) / span
        colors = np.array([_rgb(CLASS_COLORS[int(c) % len(CLASS_COLORS)]) for c in classes])
        for block in range(int(classes.max()) // len(CLASS_COLORS) + 1):
            mine = order[classes[order] // len(CLASS_COLORS) == block]
            rgba = np.column_stack([colors[mine], 0.35 + 0.6 * near[mine]])
            axes.scatter(
                points[mine, 0],
                points[mine, 1],
                s=4 if len(points) > 2000 else 10,
                c=rgba,
                marker=_MARKS[block % len(_MARKS)],
                linewidths=0,
                rasterized=True,
            )
        axes.set(xlim=(-radius, radius), ylim=(-radius, radius))
        axes.set_aspect("equal")
        axes.set_axis_off()

    return draw


def _names(classes: tuple[str, ...]) -> Draw:
    def draw(axes: Axes) -> None:
        for i, name in enumerate(classes):
            block, color = divmod(i, len(CLASS_COLORS))
            axes.plot(
                [],
                marker=_MARKS[block % len(_MARKS)],
                color=CLASS_COLORS[color],
                linestyle="none",
                label=f"{name[:17]}…" if len(name) > 18 else name.lstrip("_") or "_",
            )
        axes.legend(loc="upper left", ncols=1 + (len(classes) - 1) // 14, borderaxespad=0)
        axes.set_axis_off()

    return draw


def _rotation(yaw: float, pitch: float) -> np.ndarray:
    cy, sy, cp, sp = np.cos(yaw), np.sin(yaw), np.cos(pitch), np.sin(pitch)
    return np.array([[cy, 0, sy], [sp * sy, cp, -sp * cy], [-cp * sy, sp, cp * cy]])


def _rgb(color: str) -> tuple[float, float, float]:
    r, g, b = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return r, g, b


@final
@dataclass(frozen=True, eq=False)
class Neighbours:
    """Rows of a query and its nearest items, by a head's own geometry."""

    record: Record
    image: UInt8[np.ndarray, "height width 4"]
    right: int
    shown: int

    @property
    def encoded(self) -> Encoded:
        return encode_exact(self.image)


def neighbours_of(group: Group, pictures: Pictures) -> list[Neighbours]:
    """The same queries for every head: half drawn at random, half where some head's nearest item is wrong."""
    shown = [record for record in group.shown.values() if record.outputs]
    if not shown:
        return []
    first = shown[0].outputs
    assert first is not None
    same = [r for r in shown if r.outputs and np.array_equal(r.outputs.index, first.index)]
    if len(first.labels) <= _NEAREST + 1:
        return []
    rng = np.random.default_rng(0)
    tried = rng.permutation(len(first.labels))[:400]
    found = {record.label: _nearest(record, tried) for record in same}
    wrong = np.zeros(len(tried), bool)
    for nearest in found.values():
        wrong |= first.labels[nearest[:, 0]] != first.labels[tried]
    hard = np.flatnonzero(wrong)[: _QUERIES // 2]
    rows = np.concatenate([hard, np.setdiff1d(np.arange(len(tried)), hard)[: _QUERIES - len(hard)]])
    queries = tried[rows]
    out = []
    for record in same:
        picked = found[record.label][rows]
        right = first.labels[picked] == first.labels[queries][:, None]
        image = neighbours(
            enlarged(pictures.thumbnails(first.index[queries]), 28),
            [enlarged(pictures.thumbnails(first.index[row]), 28) for row in picked],
            right.tolist(),
        )
        out.append(Neighbours(record, image, int(right.sum()), right.size))
    return out


def neighbours_figure(group: Group, found: list[Neighbours], missing: str) -> Figure:
    """The rows of every head."""
    return Figure(
        f"{group.key}-neighbours",
        "Nearest neighbours",
        "Queries (left) and their nearest test items by each head's own geometry; items of another class are "
        "framed and crossed. The same queries for every head: up to three where some head's nearest item is "
        "wrong, the others drawn at random.",
        tuple(Panel(display(one.record.label), _image(one.image)) for one in found),
        3.4,
        2.6,
        3,
        missing="" if found else missing,
    )


def _nearest(record: Record, queries: np.ndarray) -> np.ndarray:
    assert record.outputs is not None
    z = torch.from_numpy(record.outputs.embeddings).double()
    with torch.inference_mode():
        similarity = _geometry(record).pairwise(z[queries], z)
        similarity[torch.arange(len(queries)), torch.from_numpy(queries)] = -torch.inf
        return similarity.topk(_NEAREST, dim=1).indices.numpy()


def _geometry(record: Record) -> Geometry:
    match record.geometry:
        case "euclidean":
            return Euclidean()
        case "hyperbolic":
            return PoincareBall(record.curvature)
        case _:
            return Sphere()
