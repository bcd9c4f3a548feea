"""Draw what the open questions found: python results/draw_questions.py

One picture for each kept study of digits, into docs/images: a row for every variant, a panel for every
metric, the mean over seeds with its standard error. Then plain beside norm-aware temperature for MNIST and
FashionMNIST.
"""

from pathlib import Path

import matplotlib as mpl

mpl.use("agg")
import matplotlib.pyplot as plt
import pandas as pd
from archive import RESULTS, load

from spaceform.report.looks import display, look
from spaceform.report.style import RC
from spaceform.study.summary import standard_error

IMAGES = RESULTS.parent / "docs" / "images"
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
QUESTIONS = ("bottleneck", "imbalance", "laws", "noise", "normalizer", "sampler", "samples", "temperature")
PICTURES = {
    "mnist-temperature": "mnist",
    "fashion-mnist-temperature": "fashion-mnist",
    **{f"digits-{name}": f"digits-{name}" for name in QUESTIONS},
}


def draw(results: pd.DataFrame, panels: dict[str, str], path: Path) -> None:
    """One question."""
    labels = list(dict.fromkeys(results["label"]))
    rows = range(len(labels))
    figure, axes = plt.subplots(
        1, 4, figsize=(9.2, 0.62 + 0.27 * len(labels)), sharey=True, layout="constrained"
    )
    for ax, (metric, title) in zip(axes, panels.items(), strict=True):
        times = 100 if title.endswith("%") else 1
        for row, label in zip(rows, labels, strict=True):
            values = times * results.loc[results["label"] == label, metric].to_numpy()
            color = look(label.split()[0]).color
            error = standard_error(values) or 0
            ax.errorbar(values.mean(), row, xerr=error, fmt="o", color=color, markersize=4.5, linewidth=1.4)
        ax.set_title(title)
        ax.grid(False, axis="y")
        ax.locator_params(axis="x", nbins=4)
        ax.margins(x=0.12)
    # Panels with the same unit have the same axis, so that they can be compared.
    for one, other in ((axes[2], axes[3]),) + (((axes[0], axes[1]),) if panels is OF_TEMPERATURES else ()):
        other.sharex(one)
        one.autoscale()
    axes[0].set_yticks(rows, [display(label).replace("gamma", "γ") for label in labels])
    axes[0].set_ylim(len(labels) - 0.5, -0.5)
    figure.savefig(path, dpi=140)
    plt.close(figure)


def main() -> None:
    """All questions that have an answer."""
    with plt.rc_context(RC):
        for picture, study in PICTURES.items():
            panels = OF_TEMPERATURES if picture.endswith("temperature") else PANELS
            path = IMAGES / f"question-{picture}.png"
            draw(load(study).results(), panels, path)
            print(path.relative_to(RESULTS.parent))


if __name__ == "__main__":
    main()
