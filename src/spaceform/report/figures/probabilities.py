"""Figures of the probabilities: whether they can be believed, and whether the confidence finds the errors."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from spaceform import metrics
from spaceform.report.figures.axes import fewer_points, line_style, share, within
from spaceform.report.figures.figure import Draw, Figure, Panel
from spaceform.report.looks import display, look
from spaceform.report.outputs import Outputs
from spaceform.report.records import Group, Shown
from spaceform.report.style import MUTED, SURFACE

_Probabilities: TypeAlias = NDArray[np.floating[Any]]
_MOST_BINS, _FEWEST_BINS = 15, 3
"""The most and the fewest bins of a reliability diagram."""


def reliability_figure(group: Group) -> Figure:
    """Accuracy against stated probability in bins with equally many items, before and after scaling.

    15 bins, as in the tables; fewer where a bin would hold fewer than ten items, since its interval would
    then span nearly everything.
    """
    shown = _shown(group)
    sizes = (len(one.outputs.labels) for one, _ in shown.values())
    count = min((_MOST_BINS, *(max(_FEWEST_BINS, size // 10) for size in sizes)))
    found = {label: _bins_of(one.outputs, stated, count) for label, (one, stated) in shown.items()}
    every = [bins for one in found.values() for bins in one.values()]
    lowest = min((float(min(r.confidence.min(), r.accuracy_low.min())) for r in every), default=0.0)
    low = float(np.floor(10 * lowest) / 10)
    panels = tuple(
        Panel(one.title, _diagram(found[label], look(one.record.head).color, low), _said(one))
        for label, (one, _) in shown.items()
    )
    return Figure(
        f"{group.key}-reliability",
        "Reliability",
        f"How often the prediction is right, against the probability that it states, in {count} bins with "
        "equally many items. Bars are 95% intervals (Wilson's). Hollow: as trained. Filled: after "
        "temperature scaling, fitted on the validation split. Below the diagonal the model is too sure of "
        "itself. First seed of each head.",
        panels,
        2.9,
        2.8,
        missing="" if panels else "No run has left probabilities to draw from.",
    )


def _shown(group: Group) -> dict[str, tuple[Shown, _Probabilities]]:
    """The runs that are shown and have probabilities, with these."""
    return {
        label: (one, one.outputs.probabilities)
        for label, one in group.shown.items()
        if one.outputs.probabilities is not None
    }


def _bins_of(outputs: Outputs, stated: _Probabilities, count: int) -> dict[str, metrics.Reliability]:
    bins = {"as trained": metrics.reliability(stated, outputs.labels, bins=count)}
    if (scaled := outputs.calibrated.get("temperature")) is not None:
        bins["after scaling"] = metrics.reliability(scaled, outputs.labels, bins=count)
    return bins


def _said(one: Shown) -> str:
    """The diagram in words."""
    before = one.record.number("calibration_error_l2")
    after = one.record.number("calibrated.temperature.calibration_error_l2")
    parts = [f"Reliability diagram of {one.title}"]
    if before is not None:
        parts.append(f"calibration error {100 * before:.2f}% as trained")
    if after is not None:
        parts.append(f"{100 * after:.2f}% after temperature scaling")
    return ", ".join(parts)


def _diagram(bins: Mapping[str, metrics.Reliability], color: str, low: float) -> Draw:
    def draw(axes: Axes) -> None:
        axes.plot([low, 1], [low, 1], color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
        for name, r in bins.items():
            hollow = name == "as trained"
            error = torch.stack([r.accuracy - r.accuracy_low, r.accuracy_high - r.accuracy])
            mark: dict[str, Any] = {
                "marker": "o",
                "markersize": 4.6,
                "markeredgewidth": 1.1,
                "linestyle": "none",
            }
            axes.errorbar(
                r.confidence.numpy(),
                r.accuracy.numpy(),
                yerr=error.clamp_min(0).numpy(),
                color=color,
                markerfacecolor=SURFACE if hollow else color,
                elinewidth=0.8,
                alpha=0.75 if hollow else 1.0,
                clip_on=False,
                zorder=3,
                **mark,
            )
            axes.plot([], [], color=MUTED, markerfacecolor=SURFACE if hollow else MUTED, label=name, **mark)
        axes.set(xlim=(low, 1), ylim=(low, 1), xlabel="stated probability", ylabel="accuracy")
        axes.set_box_aspect(1)
        share(axes.xaxis)
        share(axes.yaxis)

    return draw


def risk_figure(group: Group) -> Figure:
    """Errors among the most confident share, by the norm and by the top probability."""
    shown = _shown(group)
    by_norm = {label: one.outputs.confidence for label, (one, _) in shown.items()}
    by_probability = {label: stated.max(1) for label, (_, stated) in shown.items()}
    panels = (
        Panel("By the norm or concentration", _risks(group, by_norm)),
        Panel("By the top probability", _risks(group, by_probability)),
    )
    return Figure(
        f"{group.key}-risk-coverage",
        "Risk against coverage",
        "Suppose that the model may decline to answer, and answers only where it is most confident. How many "
        "of its answers are wrong? A curve that stays low for long is better. First seed of each head.",
        panels if shown else (),
        4.4,
        3.0,
        2,
        missing="" if shown else "No run has left probabilities to draw from.",
    )


def _risks(group: Group, scores: Mapping[str, NDArray[np.floating[Any]]]) -> Draw:
    def draw(axes: Axes) -> None:
        top = 0.0
        for label, values in scores.items():
            right = group.shown[label].outputs.right
            if right is None or not np.isfinite(values).all():
                continue
            curve = metrics.risk_coverage(values, right)
            coverage, risk = curve.coverage.numpy(), curve.risk.numpy()
            keep = coverage >= min(0.02, 20 / len(right))
            coverage, risk = fewer_points(coverage[keep], risk[keep])
            style = line_style(group, label)
            axes.plot(
                coverage, risk, color=style["color"], linestyle=style["linestyle"], label=display(label)
            )
            top = max(top, float(risk[-1]), float(np.quantile(risk, 0.9)))
        axes.set(
            xlim=(0, 1),
            ylim=within(0.0, 1.08 * top + 1e-4),
            xlabel="coverage: share answered",
            ylabel="risk: share wrong",
        )
        share(axes.xaxis)
        share(axes.yaxis)

    return draw
