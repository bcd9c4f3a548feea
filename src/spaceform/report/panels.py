"""Figures of whole runs: training curves, accuracy against calibration, temperatures, and the start."""

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from spaceform.heads.directional import initial_concentration
from spaceform.report.axes import logarithmic, look, share, thinned, within
from spaceform.report.figures import Draw, Figure, Panel
from spaceform.report.records import Group, Record
from spaceform.report.style import COLORS, DASHES, MARKERS, MUTED, PAPER, SHADES, display
from spaceform.special import mean_resultant_length
from spaceform.study.verdict import standard_error

_DIMENSIONS = (2, 3, 8, 32, 128, 512)


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
                    *thinned(np.arange(1, len(y) + 1), y),
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
                logarithmic(axes.yaxis)
            if percent:
                share(axes.yaxis)
                low, high = float(np.quantile(values, 0.03)), max(values)
                room = 0.06 * (high - low) + 1e-3
                axes.set_ylim(within(low - room, high + room))

        return draw

    panels = [
        Panel(f"Validation {score}", curve("score", f"validation {score}", percent=True)),
        Panel("Training objective", curve("loss", "objective, each head's own", log=True)),
    ]
    if any("beta" in h for r in records for h in r.history[:1]):
        panels.append(Panel("Inverse temperature β", curve("beta", "β = exp τ", log=True)))
    return Figure(
        f"{group.key}-training",
        "Training",
        "Every seed is a line, the first one stronger. Objectives of different heads are not comparable; the "
        "validation score is.",
        tuple(panels) if records else (),
        2.9,
        2.5,
        3,
        missing="" if records else "No run has left its training curve.",
    )


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
                    _scatter(group, "map_at_r", "cosine.map_at_r", "own metric", "cosine", True),
                ),
            )
            if any(map(group.of, group.labels))
            else (),
            4.4,
            4.0,
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
                _scatter(group, "calibration_error_l2", "accuracy", "calibration error", "accuracy"),
            ),
            Panel(
                "After temperature scaling",
                _scatter(
                    group,
                    "calibrated.temperature.calibration_error_l2",
                    "accuracy",
                    "calibration error",
                    "accuracy",
                ),
            ),
        )
        if finished
        else (),
        4.4,
        3.2,
        2,
        missing="" if finished else "No run has finished.",
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
            style = {**look(group, label), "linestyle": "none", "markerfacecoloralt": PAPER, "clip_on": False}
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


def temperature_of(record: Record) -> str:
    """`learned`, or the fixed β."""
    options = record.recipe.head.options
    return "learned" if options.get("learn_beta", True) else f"{options.get('beta', 1.0):g}"


def temperature(group: Group) -> Figure | None:
    """Figure 5: learned against fixed β; None where no head was run with several temperatures."""
    column = "accuracy" if group.task == "classification" else "map_at_r"
    by_head: dict[str, dict[str, list[float]]] = {}
    for label in group.labels:
        for record in group.of(label):
            if (found := record.number(column)) is not None:
                by_head.setdefault(record.head, {}).setdefault(temperature_of(record), []).append(found)
    by_head = {head: found for head, found in by_head.items() if len(found) > 1}
    if not by_head:
        return None
    fixed = sorted({float(t) for found in by_head.values() for t in found if t != "learned"})
    ticks = ["learned", *(f"{t:g}" for t in fixed)]

    def draw(axes: Axes) -> None:
        for place, (head, found) in enumerate(by_head.items()):
            shift = 0.08 * (place - (len(by_head) - 1) / 2)
            for part in (ticks[:1], ticks[1:]):  # no line from the learned to the fixed ones
                x = [ticks.index(t) for t in part if t in found]
                axes.errorbar(
                    np.array(x) + shift,
                    [np.mean(found[ticks[i]]) for i in x],
                    yerr=[standard_error(found[ticks[i]]) or 0.0 for i in x],
                    color=COLORS.get(head, MUTED),
                    marker=MARKERS.get(head, "o"),
                    linestyle=DASHES.get(head, "-"),
                    linewidth=1,
                    capsize=2,
                    label=display(head),
                )
        axes.set_xticks(range(len(ticks)), [ticks[0], *(f"β = {t}" for t in ticks[1:])])
        share(axes.yaxis)
        axes.set_ylim(within(*axes.get_ylim()))
        axes.set(xlabel="temperature", ylabel="accuracy" if column == "accuracy" else "mAP@R")

    return Figure(
        f"{group.key}-temperature",
        "Learned and fixed temperature",
        "Each head with its temperature β = exp τ learned, or held fixed: mean over seeds ± one "
        "standard error.",
        (Panel(f"{'Accuracy' if column == 'accuracy' else 'mAP@R'} on {group.title}", draw),),
        4.4,
        3.2,
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
        logarithmic(axes.xaxis)
        axes.set(xlim=(0.1, 1e4), ylim=(0, 1.01), xlabel="concentration κ", ylabel="Aₙ(κ) = E[μ·z]")

    return Figure(
        "starts",
        "Where the von Mises–Fisher head starts",
        "Length of the mean, Aₙ(κ) = I(n/2; κ) / I(n/2 − 1; κ), computed exactly, against the concentration. "
        f"Points: the start κ = λ(n − 1)/(1 − λ²) for λ = {ratio:g}; on the curve means that training starts "
        "with Aₙ = λ.",
        (Panel("Mean resultant length by dimension", draw),),
        4.4,
        3.2,
        number="Figure 2",
    )
