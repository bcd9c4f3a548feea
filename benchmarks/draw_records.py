"""Draw what two benchmarks found: python benchmarks/draw_records.py

How loose the bound of eq. 8 is by the number of classes, and how far mistakes lie in a tree of classes, from
their records in results/benchmarks/, into docs/images.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from spaceform.report.looks import display, look
from spaceform.report.style import INK, MUTED, RC

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
DISTANCES = {"mistake_distance": "distance of a mistake", "expected_distance": "expected distance"}


def record(name: str) -> Any:
    return json.loads((ROOT / "results" / "benchmarks" / f"{name}.json").read_text())


def draw_bound() -> Figure:
    """Bound minus expected loss, at the start and trained, beside its expansion; then both losses."""
    rows, real = (
        [row for row in record("many_classes")["rows"] if (row["data"] == "made") is is_made]
        for is_made in (True, False)
    )
    classes = [row["classes"] for row in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.2), layout="constrained")
    for state, title, color in (("trained", "trained", look("vmf").color), ("untrained", "start", MUTED)):
        gap, error = ([row[state][key] for row in rows] for key in ("gap", "error"))
        left.errorbar(classes, gap, yerr=error, fmt="o-", color=color, markersize=4.5, label=title)
    found = [(row["classes"], row["trained"]["gap"], row["trained"]["error"]) for row in real]
    left.errorbar(
        *zip(*found, strict=True), fmt="s", color=look("arcface").color, mfc="none", label="real data"
    )
    expansion = [row["trained"]["second_order"] for row in rows]
    left.plot(classes, expansion, "x", color=INK, label="trained, ½β² Σ p² v")
    left.set_title("bound − expected loss, nat")
    for key, title, style in (("bound", "bound", "-"), ("expected_loss", "expected loss", "--")):
        found = [row["trained"][key] for row in rows]
        right.plot(classes, found, style, marker="o", color=look("vmf").color, markersize=4.5, label=title)
    right.set_title("trained, nat")
    for ax in (left, right):
        ax.set_xscale("log")
        ax.set_xticks(classes, [f"{number:,}" for number in classes])
        ax.minorticks_off()
        ax.set_xlabel("classes")
        ax.legend()
    return figure


def draw_hierarchy() -> Figure:
    """A row for every head, a column for every set, the mean over seeds with its standard error."""
    columns = [
        (f"{name}, {'8 dimensions' if dim else 'dimensions free'}", rows)
        for name, found in record("hierarchy")["sets"].items()
        for dim in sorted({row["dim"] for row in found["rows"]})
        for rows in [{row["row"]: row for row in found["rows"] if row["dim"] == dim}]
    ]
    labels = list(dict.fromkeys(label for _, rows in columns for label in rows))
    figure, axes = plt.subplots(2, len(columns), figsize=(10.4, 4.6), sharey=True, layout="constrained")
    for ax, (name, _) in zip(axes[0], columns, strict=True):
        ax.set_title(name)
    titles = [display(label.replace(", ", " ")).replace(" curved", ", curved") for label in labels]
    for line, (key, title) in zip(axes, DISTANCES.items(), strict=True):
        for ax, (_, rows) in zip(line, columns, strict=True):
            _dots(ax, {labels.index(label): (label, row[key]) for label, row in rows.items()})
            ax.set_xlabel(title)
        line[0].set_yticks(range(len(labels)), titles)
        line[0].set_ylim(len(labels) - 0.5, -0.5)
    return figure


def _dots(ax: Axes, found: dict[int, tuple[str, dict[str, float]]]) -> None:
    for place, (label, value) in found.items():
        head, _, curved = label.partition(", ")
        ax.errorbar(
            value["mean"],
            place,
            xerr=value["error"],
            fmt="s" if curved else "o",
            color=look(head).color,
            markersize=4.5,
            linewidth=1.4,
        )
    ax.grid(False, axis="y")
    ax.locator_params(axis="x", nbins=4)
    ax.margins(x=0.12)


PICTURES = {"bound-many-classes": draw_bound, "hierarchy": draw_hierarchy}


def main() -> None:
    """All pictures."""
    with plt.rc_context(RC):
        for name, draw in PICTURES.items():
            path = IMAGES / f"{name}.png"
            figure = draw()
            figure.savefig(path, dpi=140)
            plt.close(figure)
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
