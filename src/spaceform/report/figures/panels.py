"""Figures of whole runs: training curves, accuracy against calibration, temperatures, and the start."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from spaceform.foundation.messages import capital
from spaceform.heads.directional import initial_concentration
from spaceform.report.figures.axes import fewer_points, line_style, logarithmic, share, within
from spaceform.report.figures.figure import Draw, Figure, Panel
from spaceform.report.looks import display, look
from spaceform.report.records import Group, Record
from spaceform.report.style import MUTED, SHADES, SURFACE
from spaceform.special import mean_resultant_length
from spaceform.study.summary import standard_error

_DIMENSIONS = (2, 3, 8, 32, 128, 512)


def training(group: Group) -> Figure:
    """Validation score, objective and learned temperature by epoch; every seed is a line."""
    score = "accuracy" if group.task == "classification" else "Recall@1"
    panels = [
        Panel(f"Validation {score}", _score_curves(group, f"validation {score}")),
        Panel("Training objective", _log_curves(group, "loss", "objective of each head")),
    ]
    if any("beta" in epoch for record in group.records for epoch in record.history[:1]):
        panels.append(Panel("Inverse temperature β", _log_curves(group, "beta", "β = exp τ")))
    shown = any(record.history for record in group.records)
    return Figure(
        f"{group.key}-training",
        "Training",
        "Every seed is a line; the first seed is drawn stronger. Compare heads by the validation score: "
        "their training objectives are different quantities.",
        tuple(panels) if shown else (),
        2.9,
        2.5,
        3,
        missing="" if shown else "No run has left its training curve.",
    )


def _score_curves(group: Group, what: str) -> Draw:
    def draw(axes: Axes) -> None:
        values = np.concatenate(_curves(axes, group, "score", what) or [np.zeros(1)])
        share(axes.yaxis)
        low, high = float(np.quantile(values, 0.03)), float(values.max())
        room = 0.06 * (high - low) + 1e-3
        axes.set_ylim(within(low - room, high + room))

    return draw


def _log_curves(group: Group, name: str, what: str) -> Draw:
    def draw(axes: Axes) -> None:
        if any((values > 0).any() for values in _curves(axes, group, name, what)):
            axes.set_yscale("log")
            logarithmic(axes.yaxis)

    return draw


def _curves(axes: Axes, group: Group, name: str, what: str) -> list[np.ndarray]:
    """Draw one line for each run that has this quantity, and return all finite values."""
    axes.set(xlabel="epoch", ylabel=what)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    drawn: list[np.ndarray] = []
    seen: set[str] = set()
    for record in group.records:
        y = np.array([epoch.get(name, np.nan) for epoch in record.history], float)
        if not np.isfinite(y).any():
            continue
        style, first = line_style(group, record.label), record.label not in seen
        axes.plot(
            *fewer_points(np.arange(1, len(y) + 1), y),
            color=style["color"],
            linestyle=style["linestyle"],
            linewidth=1.4 if first else 0.9,
            alpha=1.0 if first else 0.45,
            label=display(record.label) if first else None,
        )
        seen.add(record.label)
        drawn.append(y[np.isfinite(y)])
    return drawn


def tradeoff(group: Group) -> Figure:
    """Every run as a point: accuracy against calibration error; in retrieval, own metric against cosine."""
    finished = any(map(group.of, group.labels))
    make = _own_and_cosine if group.task == "retrieval" else _accuracy_and_calibration
    return make(group, "" if finished else "No run has finished.")


def _accuracy_and_calibration(group: Group, missing: str) -> Figure:
    def against(column: str) -> Draw:
        return _scatter(group, column, "accuracy", "calibration error", "accuracy")

    panels = (
        Panel("As trained", against("calibration_error_l2")),
        Panel("After temperature scaling", against("calibrated.temperature.calibration_error_l2")),
    )
    return Figure(
        f"{group.key}-tradeoff",
        "Accuracy and calibration",
        "Every seed is a small point, the mean a large one; up and to the left is better. Calibration error: "
        "l2, 15 bins with equally many items.",
        () if missing else panels,
        4.4,
        3.2,
        2,
        missing=missing,
    )


def _own_and_cosine(group: Group, missing: str) -> Figure:
    draw = _scatter(group, "map_at_r", "cosine.map_at_r", "own metric", "cosine", diagonal=True)
    return Figure(
        f"{group.key}-tradeoff",
        "Own metric and cosine at test",
        "mAP@R with neighbours by the head's own geometry, against mAP@R with neighbours by the cosine. "
        "Every seed is a small point, the mean a large one. Above the diagonal the cosine is better.",
        () if missing else (Panel("mAP@R", draw),),
        4.4,
        4.0,
        missing=missing,
    )


def _scatter(group: Group, x: str, y: str, xlabel: str, ylabel: str, diagonal: bool = False) -> Draw:
    def draw(axes: Axes) -> None:
        for label in group.labels:
            pairs = [
                (a, b)
                for record in group.of(label)
                if (a := record.number(x)) is not None and (b := record.number(y)) is not None
            ]
            if not pairs:
                continue
            style = line_style(group, label) | {
                "linestyle": "none",
                "markerfacecoloralt": SURFACE,
                "clip_on": False,
            }
            a, b = np.array(pairs).T
            axes.plot(a, b, **style, markersize=4.4, markeredgewidth=0.5, alpha=0.5)
            axes.plot([a.mean()], [b.mean()], **style, markersize=7.5, label=display(label), zorder=3)
        axes.margins(0.12)
        across, up = within(*axes.get_xlim()), within(*axes.get_ylim())
        if diagonal:
            across = up = min(across[0], up[0]), max(across[1], up[1])
            axes.plot(up, up, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
        else:
            across = 0, across[1]
        axes.set(xlim=across, ylim=up, xlabel=xlabel, ylabel=ylabel)
        share(axes.xaxis)
        share(axes.yaxis)

    return draw


def temperature(group: Group) -> Figure | None:
    """Figure 5: learned against fixed β; None where no head was run with several temperatures."""
    column, score = ("accuracy", "accuracy") if group.task == "classification" else ("map_at_r", "mAP@R")
    by_head: dict[str, dict[str, list[float]]] = {}
    for label in group.labels:
        for record in group.of(label):
            if (found := record.number(column)) is not None and (setting := _temperature_of(record)):
                by_head.setdefault(record.head, {}).setdefault(setting, []).append(found)
    by_head = {head: found for head, found in by_head.items() if len(found) > 1}
    if not by_head:
        return None
    return Figure(
        f"{group.key}-temperature",
        "Learned and fixed temperature",
        "Each head with its temperature β = exp τ learned, and with β fixed: mean over seeds ± one standard "
        "error.",
        (Panel(f"{capital(score)} on {group.title}", _by_temperature(by_head, score)),),
        4.4,
        3.2,
        number="Figure 5",
    )


def _temperature_of(record: Record) -> str:
    """`learned`, or the fixed β; empty where the head has no temperature."""
    beta = record.option("beta")
    if beta is None:
        return ""
    return "learned" if record.option("learn_beta") else f"{beta:g}"


def _by_temperature(by_head: dict[str, dict[str, list[float]]], score: str) -> Draw:
    fixed = sorted({float(t) for found in by_head.values() for t in found if t != "learned"})
    ticks = ["learned", *(f"{t:g}" for t in fixed)]

    def draw(axes: Axes) -> None:
        for place, (head, found) in enumerate(by_head.items()):
            own, shift = look(head), 0.08 * (place - (len(by_head) - 1) / 2)
            for part in (ticks[:1], ticks[1:]):  # no line from the learned to the fixed ones
                x = [ticks.index(t) for t in part if t in found]
                axes.errorbar(
                    np.array(x) + shift,
                    [np.mean(found[ticks[i]]) for i in x],
                    yerr=[standard_error(found[ticks[i]]) or 0.0 for i in x],
                    color=own.color,
                    marker=own.mark.name,
                    linestyle=own.dash,
                    linewidth=1,
                    capsize=2,
                    label=own.title,
                )
        axes.set_xticks(range(len(ticks)), [ticks[0], *(f"β = {t}" for t in ticks[1:])])
        share(axes.yaxis)
        axes.set_ylim(within(*axes.get_ylim()))
        axes.set(xlabel="temperature", ylabel=score)

    return draw


def starts(ratio: float, own: Sequence[int] = ()) -> Figure:
    """Figure 2: A_n(κ) by dimension, with the expected norm that class weights start with."""
    dims = sorted({*_DIMENSIONS, *own})

    def draw(axes: Axes) -> None:
        kappa = torch.logspace(-1, 4, 300, dtype=torch.float64)
        for i, n in enumerate(dims):
            color, _ = SHADES[round(i * (len(SHADES) - 1) / (len(dims) - 1))]
            axes.plot(kappa, mean_resultant_length(kappa, n), color=color, label=f"n = {n}", linewidth=1.4)
            axes.plot(
                expected_norm(n, ratio),
                ratio,
                "o",
                color=color,
                markersize=6,
                markeredgecolor=SURFACE,
                markeredgewidth=0.9,
                zorder=4,
            )
        axes.axhline(ratio, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)), zorder=0.5)
        axes.set_xscale("log")
        logarithmic(axes.xaxis)
        axes.set(xlim=(0.1, 1e4), ylim=(0, 1.01), xlabel="concentration κ", ylabel="Aₙ(κ) = E[μ·z]")

    return Figure(
        "starts",
        "Where the stochastic heads start",
        "Curves: the length of the mean, Aₙ(κ) = I(n/2; κ) / I(n/2 − 1; κ), computed exactly. Points: the "
        f"expected norm of the class weights at the start, which aims at Aₙ = λ = {ratio:g}. A point on its "
        "curve means that the start meets this aim.",
        (Panel("Mean resultant length by dimension", draw),),
        4.4,
        3.2,
        number="Figure 2",
    )


def expected_norm(n: int, ratio: float) -> float:
    """E‖w̃‖ = σ √2 Γ((n+1)/2) / Γ(n/2) of a class weight at the start, w̃_i ~ N(0, σ), σ = κ/√n."""
    sigma = initial_concentration(n, ratio) / math.sqrt(n)
    return sigma * math.sqrt(2) * math.exp(math.lgamma((n + 1) / 2) - math.lgamma(n / 2))
