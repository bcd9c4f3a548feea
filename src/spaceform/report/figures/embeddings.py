"""Figure 4: test embeddings in three dimensions, coloured by class."""

import numpy as np
from jaxtyping import Float, Int64
from matplotlib.axes import Axes

from spaceform.report.figures.figure import Draw, Figure, Panel
from spaceform.report.layout import Layout, lay_out
from spaceform.report.looks import display
from spaceform.report.records import Group
from spaceform.report.style import CLASS_COLORS, MUTED

_MOST_NAMED = 40
"""How many classes the legend has room for."""
_MOST_DRAWN = 4000
"""The most points of a panel."""
_CLASS_MARKS = ("o", "s", "^", "D", "v")


def layouts(group: Group) -> dict[str, Layout]:
    """The embeddings of every row in three dimensions."""
    return {label: lay_out(one.outputs.embeddings, one.record.geometry) for label, one in group.shown.items()}


def embeddings_figure(group: Group, found: dict[str, Layout]) -> Figure:
    """One panel for each head: embeddings as the net emits them, coloured by class."""
    panels = [
        Panel(display(label), _cloud(layout.points, group.shown[label].outputs.labels))
        for label, layout in found.items()
    ]
    classes = next((one.outputs.classes for one in group.shown.values()), ())
    if panels and len(classes) <= _MOST_NAMED:
        panels.append(Panel("Class", _names(classes)))
    return Figure(
        f"{group.key}-embeddings",
        "Embeddings in three dimensions",
        f"Embeddings of the test items before they enter their space, coloured by class. {_how(found)}",
        tuple(panels),
        2.9,
        3.0,
        3,
        number="Figure 4",
        missing="" if panels else "No run has left embeddings to draw.",
    )


def _how(found: dict[str, Layout]) -> str:
    said: dict[str, list[str]] = {}
    for label, layout in found.items():
        said.setdefault(layout.how, []).append(display(label))
    if len(said) == 1:
        return f"{next(iter(said))}."
    return " ".join(f"{', '.join(labels)}: {how[0].lower()}{how[1:]}." for how, labels in said.items())


def _cloud(points: Float[np.ndarray, "items 3"], labels: Int64[np.ndarray, " items"]) -> Draw:
    def draw(axes: Axes) -> None:
        view = _rotation(0.65, -0.45)
        rng = np.random.default_rng(0)
        pick = np.sort(rng.choice(len(points), min(len(points), _MOST_DRAWN), replace=False))
        seen, classes = points[pick] @ view.T, labels[pick]
        radius = float(np.quantile(np.linalg.norm(seen, axis=1), 0.999)) or 1.0
        for x, y, _ in radius * view.T:
            axes.plot([-x, x], [-y, y], color=MUTED, linewidth=0.5, alpha=0.6, zorder=0)
        _scatter(axes, seen, classes)
        axes.set(xlim=(-radius, radius), ylim=(-radius, radius))
        axes.set_aspect("equal")
        axes.set_axis_off()

    return draw


def _scatter(axes: Axes, points: Float[np.ndarray, "items 3"], classes: Int64[np.ndarray, " items"]) -> None:
    """Points from back to front, fainter at the back; every tenth class has another marker."""
    order = np.argsort(points[:, 2])
    depth = points[:, 2] - points[:, 2].min()
    near = depth / (depth.max() or 1.0)
    colors = np.array([_rgb(light) for light, _ in CLASS_COLORS])[classes % len(CLASS_COLORS)]
    for block in range(int(classes.max()) // len(CLASS_COLORS) + 1):
        mine = order[classes[order] // len(CLASS_COLORS) == block]
        axes.scatter(
            points[mine, 0],
            points[mine, 1],
            s=4 if len(points) > 2000 else 10,
            c=np.column_stack([colors[mine], 0.35 + 0.6 * near[mine]]),
            marker=_CLASS_MARKS[block % len(_CLASS_MARKS)],
            linewidths=0,
            rasterized=True,
        )


def _names(classes: tuple[str, ...]) -> Draw:
    def draw(axes: Axes) -> None:
        for i, name in enumerate(classes):
            block, color = divmod(i, len(CLASS_COLORS))
            axes.plot(
                [],
                marker=_CLASS_MARKS[block % len(_CLASS_MARKS)],
                color=CLASS_COLORS[color][0],
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
