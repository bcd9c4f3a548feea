"""The curves: what is drawn into each set of axes, from saved results alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from spaceform import metrics
from spaceform.heads.directional import initial_concentration
from spaceform.report.figures import Draw, Figure, Panel
from spaceform.report.records import Group, Record
from spaceform.report.style import (
    COLORS,
    DASHES,
    MARKERS,
    MUTED,
    PAPER,
    SHADES,
    VARIANTS,
    display,
)
from spaceform.special import mean_resultant_length
from spaceform.verdict import standard_error

_DIMENSIONS = (2, 3, 8, 32, 128, 512)


def look(group: Group, label: str) -> dict[str, Any]:
    """Colour, dash and marker of a row: the head's own; variants of a head differ in their dashes."""
    head = next(record.head for record in group.records if record.label == label)
    same = [
        x for x in group.labels if next(record.head for record in group.records if record.label == x) == head
    ]
    dash = DASHES.get(head, "-") if len(same) == 1 else VARIANTS[same.index(label) % len(VARIANTS)]
    return {"color": COLORS.get(head, MUTED), "linestyle": dash, "marker": MARKERS.get(head, "o")}


def reliability(group: Group) -> Figure:
    """Accuracy against stated probability in 15 bins of equal mass, before and after temperature scaling."""
    shown = {
        label: r for label, r in group.shown.items() if r.outputs and r.outputs.probabilities is not None
    }
    panels = [Panel(display(label), _reliability(record), _said(record)) for label, record in shown.items()]
    return Figure(
        f"{group.key}-reliability",
        "Reliability",
        "How often the prediction is right, against the probability it states, in 15 bins of equal mass; "
        "bars are Wilson's 95% intervals. Hollow: as trained. Filled: after temperature scaling, fitted on "
        "the validation split. "
        "Below the diagonal the model claims too much. First seed of each head.",
        tuple(panels),
        2.9,
        2.8,
        missing="" if panels else "No run has left probabilities to draw from.",
    )


def _said(record: Record) -> str:
    before = record.metrics.get("calibration_error_l2")
    after = (record.metrics.get("calibrated", {}).get("temperature") or {}).get("calibration_error_l2")
    parts = [f"Reliability diagram of {display(record.label)}"]
    if before is not None:
        parts.append(f"calibration error {100 * before:.2f}% as trained")
    if after is not None:
        parts.append(f"{100 * after:.2f}% after temperature scaling")
    return ", ".join(parts)


def _reliability(record: Record) -> Draw:
    def draw(axes: Axes) -> None:
        found = record.outputs
        assert found is not None
        assert found.probabilities is not None
        color = COLORS.get(record.head, MUTED)
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)))
        before = metrics.reliability(found.probabilities, found.labels)
        _bins(axes, before, color, hollow=True, name="as trained")
        lowest = float(min(before.confidence.min(), before.accuracy_low.min()))
        if "temperature" in found.calibrated:
            after = metrics.reliability(found.calibrated["temperature"], found.labels)
            _bins(axes, after, color, hollow=False, name="after scaling")
            lowest = min(lowest, float(after.confidence.min()), float(after.accuracy_low.min()))
        low = max(0.0, np.floor(10 * lowest) / 10 - 0.02)
        axes.set(xlim=(low, 1.02), ylim=(low, 1.02), xlabel="stated probability", ylabel="accuracy")
        axes.set_box_aspect(1)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5))
            axis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.legend(loc="best", handlelength=1, borderaxespad=0.2)

    return draw


def _bins(axes: Axes, r: metrics.Reliability, color: str, *, hollow: bool, name: str) -> None:
    error = torch.stack([r.accuracy - r.accuracy_low, r.accuracy_high - r.accuracy]).clamp_min(0).numpy()
    axes.errorbar(
        r.confidence.numpy(),
        r.accuracy.numpy(),
        yerr=error,
        color=color,
        marker="o",
        markersize=4.6,
        markerfacecolor=PAPER if hollow else color,
        markeredgewidth=1.1,
        linestyle="none",
        elinewidth=0.8,
        alpha=0.75 if hollow else 1.0,
        label=name,
    )


def risk_coverage(group: Group) -> Figure:
    """Error among the most confident share, by the norm and by the top probability."""
    shown = {
        label: r for label, r in group.shown.items() if r.outputs and r.outputs.probabilities is not None
    }

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
                coverage, risk = _thinned(coverage[keep], risk[keep])
                axes.plot(
                    coverage, risk, color=style["color"], linestyle=style["linestyle"], label=display(label)
                )
                top = max(top, float(risk[-1]), float(np.quantile(risk, 0.9)))
            axes.set(
                xlim=(0, 1),
                ylim=(0, 1.35 * top + 1e-4),
                xlabel="coverage: share answered",
                ylabel="risk: share wrong",
            )
            axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
            axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1 if top < 0.05 else 0))
            axes.legend(loc="upper left", ncols=2)

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
        4.6,
        3.2,
        2,
        missing="" if shown else "No run has left probabilities to draw from.",
    )


def _thinned(x: np.ndarray, y: np.ndarray, most: int = 400) -> tuple[np.ndarray, np.ndarray]:
    if len(x) <= most:
        return x, y
    pick = np.unique(np.linspace(0, len(x) - 1, most).round().astype(int))
    return x[pick], y[pick]


def training(group: Group) -> Figure:
    """Validation score, objective and learned temperature, epoch by epoch; every seed is a line."""
    records = [r for r in group.records if r.history]
    score = "accuracy" if group.task == "classification" else "Recall@1"

    def curve(name: str, what: str, percent: bool = False, log: bool = False) -> Draw:
        def draw(axes: Axes) -> None:
            values: list[float] = []
            seen: set[str] = set()
            for record in records:
                y = np.array([h.get(name, np.nan) for h in record.history], float)
                if not np.isfinite(y).any() or (log and not (y > 0).any()):
                    continue
                style = look(group, record.label)
                first = record.label not in seen
                axes.plot(
                    *_thinned(np.arange(1, len(y) + 1), y),
                    color=style["color"],
                    linestyle=style["linestyle"],
                    linewidth=1.4 if first else 0.9,
                    alpha=1.0 if first else 0.45,
                    label=display(record.label) if first else None,
                )
                seen.add(record.label)
                values += y[np.isfinite(y)].tolist()
            axes.set(xlabel="epoch", ylabel=what)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
            if log:
                axes.set_yscale("log")
                _plain(axes.yaxis)
            if percent:
                axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
                low, high = np.quantile(values, 0.03), max(values)
                axes.set_ylim(low - 0.05 * (high - low) - 1e-3, high + 0.08 * (high - low) + 1e-3)
            axes.legend(loc="lower right" if percent else "best", ncols=2)

        return draw

    panels = [
        Panel(f"Validation {score}", curve("score", f"validation {score}", percent=True)),
        Panel("Training objective, each head's own", curve("loss", "objective", log=True)),
    ]
    if any("beta" in h for r in records for h in r.history[:1]):
        panels.append(Panel("Temperature β", curve("beta", "β = exp τ", log=True)))
    return Figure(
        f"{group.key}-training",
        "Training",
        "Every seed is a line, the first one stronger. Objectives of different heads are not comparable; the "
        "validation score is.",
        tuple(panels) if records else (),
        4.0,
        3.0,
        3,
        missing="" if records else "No run has left its training curve.",
    )


def _plain(axis: Axis) -> None:
    """Logarithmic ticks as plain numbers; the steps between decades only where there is less than one."""
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    low, high = axis.get_view_interval()
    few = 0 < low < high < 12 * low
    axis.set_minor_formatter(FuncFormatter(lambda v, _: f"{v:g}") if few else NullFormatter())


def tradeoff(group: Group) -> Figure:
    """Accuracy against calibration error, or own metric against cosine for retrieval: a point a run."""
    key, title = f"{group.key}-tradeoff", "Accuracy and calibration"
    if group.task == "retrieval":
        return Figure(
            key,
            "Own metric and cosine at test",
            "mAP@R by the geometry's own similarity, against mAP@R by the cosine; every seed is a point. "
            "Above the diagonal the cosine is the better metric.",
            (
                Panel(
                    "mAP@R",
                    _scatter(group, ("map_at_r",), ("cosine", "map_at_r"), "own metric", "cosine", True),
                ),
            )
            if any(map(group.of, group.labels))
            else (),
            4.2,
            3.6,
            missing="" if any(map(group.of, group.labels)) else "No run has finished.",
        )
    finished = any(map(group.of, group.labels))
    return Figure(
        key,
        title,
        "Every seed is a point; up and to the left is better. Calibration error: l2, 15 bins of equal mass.",
        (
            Panel(
                "As trained",
                _scatter(group, ("calibration_error_l2",), ("accuracy",), "calibration error", "accuracy"),
            ),
            Panel(
                "After temperature scaling",
                _scatter(
                    group,
                    ("calibrated", "temperature", "calibration_error_l2"),
                    ("accuracy",),
                    "calibration error",
                    "accuracy",
                ),
            ),
        )
        if finished
        else (),
        4.6,
        3.4,
        2,
        missing="" if finished else "No run has finished.",
    )


def value(record: Record, path: Sequence[str]) -> float | None:
    """A measured number, such as ("calibrated", "temperature", "nll"); None where there is none."""
    inner: Any = record.metrics
    for name in path:
        inner = inner.get(name) if isinstance(inner, dict) else None
    return float(inner) if isinstance(inner, int | float) and np.isfinite(inner) else None


def _scatter(
    group: Group, x: Sequence[str], y: Sequence[str], xlabel: str, ylabel: str, diagonal: bool = False
) -> Draw:
    def draw(axes: Axes) -> None:
        for label in group.labels:
            pairs = [
                (a, b)
                for record in group.of(label)
                if (a := value(record, x)) is not None and (b := value(record, y)) is not None
            ]
            if not pairs:
                continue
            style = look(group, label)
            a, b = np.array(pairs).T
            axes.scatter(a, b, s=20, color=style["color"], marker=style["marker"], alpha=0.5, linewidths=0)
            axes.scatter(
                a.mean(),
                b.mean(),
                s=64,
                color=style["color"],
                marker=style["marker"],
                edgecolors=PAPER,
                linewidths=1.0,
                label=display(label),
                zorder=3,
            )
        axes.margins(0.12)
        if diagonal:
            low, high = (
                min(axes.get_xlim()[0], axes.get_ylim()[0]),
                max(axes.get_xlim()[1], axes.get_ylim()[1]),
            )
            axes.plot([low, high], [low, high], color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)), zorder=0)
            axes.set(xlim=(low, high), ylim=(low, high))
        axes.set(xlabel=xlabel, ylabel=ylabel)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5))
            axis.set_major_formatter(PercentFormatter(1, decimals=1))
        axes.legend(loc="best", ncols=2, handletextpad=0.2, columnspacing=0.8)

    return draw


def temperature_of(record: Record) -> str:
    """`learned`, or the fixed β."""
    options = record.recipe.head.options
    return "learned" if options.get("learn_beta", True) else f"{options.get('beta', 1.0):g}"


def temperature(group: Group) -> Figure | None:
    """Figure 5: learned against fixed β; None where no head was run with several temperatures."""
    path = ("accuracy",) if group.task == "classification" else ("map_at_r",)
    by_head: dict[str, dict[str, list[float]]] = {}
    for label in group.labels:
        for record in group.of(label):
            if (found := value(record, path)) is not None:
                by_head.setdefault(record.head, {}).setdefault(temperature_of(record), []).append(found)
    by_head = {head: found for head, found in by_head.items() if len(found) > 1}
    if not by_head:
        return None
    fixed = sorted({float(t) for found in by_head.values() for t in found if t != "learned"})
    ticks = ["learned", *(f"{t:g}" for t in fixed)]

    def draw(axes: Axes) -> None:
        for shift, (head, found) in enumerate(by_head.items()):
            x = [i for i, t in enumerate(ticks) if t in found]
            mean = np.array([np.mean(found[ticks[i]]) for i in x])
            error = [standard_error(found[ticks[i]]) or 0.0 for i in x]
            axes.errorbar(
                np.array(x) + 0.08 * (shift - (len(by_head) - 1) / 2),
                mean,
                yerr=error,
                color=COLORS.get(head, MUTED),
                marker=MARKERS.get(head, "o"),
                linestyle=DASHES.get(head, "-"),
                linewidth=1,
                capsize=2,
                label=display(head),
            )
        axes.set_xticks(range(len(ticks)), [ticks[0], *(f"β = {t}" for t in ticks[1:])])
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
        axes.set(xlabel="temperature", ylabel="accuracy" if path == ("accuracy",) else "mAP@R")
        axes.legend(loc="best")

    return Figure(
        f"{group.key}-temperature",
        "Learned and fixed temperature",
        "Mean over seeds ± one standard error.",
        (Panel(group.title, draw),),
        5.0,
        3.4,
        number="Figure 5",
    )


def starts(ratio: float = 0.4, own: Sequence[int] = ()) -> Figure:
    """Figure 2: A_n(κ) per dimension, with the concentration that training starts from."""
    dims = sorted({*_DIMENSIONS, *own})

    def draw(axes: Axes) -> None:
        kappa = torch.logspace(-1, 4, 300, dtype=torch.float64)
        for i, n in enumerate(dims):
            color = SHADES[round(i * (len(SHADES) - 1) / (len(dims) - 1))]
            axes.plot(kappa, mean_resultant_length(kappa, n), color=color, label=f"n = {n}", linewidth=1.4)
            start = initial_concentration(n, ratio)
            axes.plot(
                start,
                ratio,
                "o",
                color=color,
                markersize=6,
                markeredgecolor=PAPER,
                markeredgewidth=0.9,
                zorder=4,
            )
        axes.axhline(ratio, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)), zorder=0.5)
        axes.set_xscale("log")
        _plain(axes.xaxis)
        axes.set(xlim=(0.1, 1e4), ylim=(0, 1.01), xlabel="concentration κ", ylabel="Aₙ(κ) = E[μ·z]")
        axes.legend(loc="lower right", ncols=2)

    return Figure(
        "starts",
        "Where the von Mises–Fisher head starts",
        "Length of the mean, Aₙ(κ) = I(n/2; κ) / I(n/2 − 1; κ), computed exactly, against the concentration. "
        f"Points: the start κ = λ(n − 1)/(1 − λ²) for λ = {ratio:g}; on the curve means that training starts "
        "with Aₙ = λ.",
        (Panel("Mean resultant length by dimension", draw),),
        5.4,
        3.4,
        number="Figure 2",
    )
