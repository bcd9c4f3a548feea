"""Draw what the open questions found: python results/draw_questions.py

One figure for each results/questions/*.json, into docs/images: a row for every variant, a panel for every
metric, the mean over seeds with its standard error. And the same of plain and norm-aware temperature for
the studies of images that are kept beside them.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt

from spaceform import Study
from spaceform.report.style import COLORS, INK, RC, display
from spaceform.study.verdict import standard_error

RESULTS = Path(__file__).parent
IMAGES = RESULTS.parent / "docs" / "images"
STUDIES = ("mnist", "fashion-mnist")
L2, NLL = "calibration_error_l2", "nll"
SCALED, AWARE = "calibrated.temperature.", "calibrated.norm_aware_temperature."
PANELS = {
    "accuracy": "accuracy, %",
    NLL: "NLL",
    L2: "calibration (l2), %",
    SCALED + L2: "after scaling, %",
}
OF_TEMPERATURES = {
    SCALED + NLL: "NLL, plain",
    AWARE + NLL: "NLL, norm-aware",
    SCALED + L2: "l2, plain, %",
    AWARE + L2: "l2, norm-aware, %",
}


def draw(record: dict[str, Any], path: Path) -> None:
    """One question."""
    panels = OF_TEMPERATURES if record["question"] == "temperature" else PANELS
    found = record["figures"]
    rows = range(len(found))
    figure, axes = plt.subplots(
        1, 4, figsize=(9.2, 0.62 + 0.27 * len(found)), sharey=True, layout="constrained"
    )
    for ax, (metric, title) in zip(axes, panels.items(), strict=True):
        times = 100 if title.endswith("%") else 1
        for row, (label, values) in zip(rows, found.items(), strict=True):
            mean, error = (times * x for x in values[metric])
            color = COLORS.get(label.split()[0], INK)
            ax.errorbar(mean, row, xerr=error, fmt="o", color=color, markersize=4.5, linewidth=1.4)
        ax.set_title(title)
        ax.grid(False, axis="y")
        ax.locator_params(axis="x", nbins=4)
        ax.margins(x=0.12)
    # Of panels with the same unit one looks from one to the other.
    for one, other in ((axes[2], axes[3]),) + (((axes[0], axes[1]),) if panels is OF_TEMPERATURES else ()):
        other.sharex(one)
        one.autoscale()
    axes[0].set_yticks(rows, [display(label).replace("gamma", "γ") for label in found])
    axes[0].set_ylim(len(found) - 0.5, -0.5)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def temperatures(study: Path) -> dict[str, Any]:
    """A study of classification as the answer to the question of temperatures."""
    found = Study.open(study).table.dropna(subset=["accuracy"])
    figures = {
        head: {column: (runs[column].mean(), standard_error(runs[column]) or 0) for column in OF_TEMPERATURES}
        for head, runs in found.groupby("label", sort=False)
    }
    return {"question": "temperature", "figures": figures}


def main() -> None:
    """All questions that have an answer."""
    answers = {
        source.stem: json.loads(source.read_text(encoding="utf-8"))
        for source in sorted((RESULTS / "questions").glob("*.json"))
    }
    answers |= {
        f"{name}-temperature": temperatures(RESULTS / name) for name in STUDIES if (RESULTS / name).exists()
    }
    with plt.rc_context(RC):
        for name, answer in answers.items():
            path = IMAGES / f"question-{name}.png"
            draw(answer, path)
            print(path.relative_to(RESULTS.parent))


if __name__ == "__main__":
    main()
