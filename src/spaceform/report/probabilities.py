"""Figures of the probabilities: are they to be believed, and does confidence know the errors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes

from spaceform import metrics
from spaceform.report.axes import look, share, thinned, within
from spaceform.report.figures import Draw, Figure, Panel
from spaceform.report.records import Group, Record
from spaceform.report.style import COLORS, MUTED, PAPER, display

_MOST, _FEWEST = 15, 3


def reliability(group: Group) -> Figure:
    """Accuracy against stated probability in bins of equal mass, before and after temperature scaling.

    15 bins, as in the tables; fewer where a bin would have less than ten items and its bar span everything.
    """
    shown = _shown(group)
    count = min((_MOST, *(max(_FEWEST, len(r.outputs.labels) // 10) for r in shown.values() if r.outputs)))
    found = {label: _bins_of(record, count) for label, record in shown.items()}
    every = [bins for one in found.values() for bins in one.values()]
    lowest = min((float(min(r.confidence.min(), r.accuracy_low.min())) for r in every), default=0.0)
    low = float(np.floor(10 * lowest) / 10)
    panels = [
        Panel(display(label), _diagram(bins, COLORS.get(group.shown[label].head, MUTED), low), said)
        for label, bins in found.items()
        if (said := _said(group.shown[label]))
    ]
    return Figure(
        f"{group.key}-reliability",
        "Reliability",
        "How often the prediction is right, against the probability it states, "
        f"in {count} bins of equal mass; bars are Wilson's 95% intervals. Hollow: as trained. Filled: after "
        "temperature scaling, fitted on the validation split. Below the diagonal the model claims too much. "
        "First seed of each head; the same axes for all.",
        tuple(panels),
        2.9,
        2.8,
        missing="" if panels else "No run has left probabilities to draw from.",
    )


def _shown(group: Group) -> dict[str, Record]:
    return {label: r for label, r in group.shown.items() if r.outputs and r.outputs.probabilities is not None}


def _bins_of(record: Record, count: int) -> dict[str, metrics.Reliability]:
    found = record.outputs
    assert found is not None
    assert found.probabilities is not None
    bins = {"as trained": metrics.reliability(found.probabilities, found.labels, bins=count)}
    if "temperature" in found.calibrated:
        bins["after scaling"] = metrics.reliability(found.calibrated["temperature"], found.labels, bins=count)
    return bins


def _said(record: Record) -> str:
    before = record.number("calibration_error_l2")
    after = record.number("calibrated.temperature.calibration_error_l2")
    parts = [f"Reliability diagram of {display(record.label)}"]
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
                markerfacecolor=PAPER if hollow else color,
                elinewidth=0.8,
                alpha=0.75 if hollow else 1.0,
                clip_on=False,
                zorder=3,
                **mark,
            )
            axes.plot([], [], color=MUTED, markerfacecolor=PAPER if hollow else MUTED, label=name, **mark)
        axes.set(xlim=(low, 1), ylim=(low, 1), xlabel="stated probability", ylabel="accuracy")
        axes.set_box_aspect(1)
        share(axes.xaxis)
        share(axes.yaxis)

    return draw


def risk_coverage(group: Group) -> Figure:
    """Error among the most confident share, by the norm and by the top probability."""
    shown = _shown(group)

    def by(score: str) -> Draw:
        def draw(axes: Axes) -> None:
            top = 0.0
            for label, record in shown.items():
                found = record.outputs
                assert found is not None
                assert found.probabilities is not None
                assert found.predicted is not None
                right = found.predicted == found.labels
                values = found.confidence if score == "norm" else found.probabilities.max(1)
                if not np.isfinite(values).all():
                    continue
                curve = metrics.risk_coverage(values, right)
                coverage, risk = curve.coverage.numpy(), curve.risk.numpy()
                keep = coverage >= min(0.02, 20 / len(right))
                style = look(group, label)
                coverage, risk = thinned(coverage[keep], risk[keep])
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

    return Figure(
        f"{group.key}-risk-coverage",
        "Risk against coverage",
        "If the model may decline to answer, and answers only where it is most confident: how many of its "
        "answers are wrong. A confidence that knows its errors rises late. First seed of each head.",
        (
            Panel("By the norm or concentration", by("norm")),
            Panel("By the top probability", by("probability")),
        )
        if shown
        else (),
        4.4,
        3.0,
        2,
        missing="" if shown else "No run has left probabilities to draw from.",
    )
