"""Figures: three files each, and panels that a strict page may carry."""

import re
import xml.etree.ElementTree as ET

import numpy as np

from spaceform.recipe import load, replace
from spaceform.report import figures, panels, probabilities
from spaceform.report.axes import look
from spaceform.report.figures import Figure, Panel
from spaceform.report.records import collect
from spaceform.report.style import CLASS_COLORS, COLORS, NAMES, SHADES
from spaceform.study import Job


def test_a_figure_is_written_three_times_and_the_same_every_time(tmp_path) -> None:
    figure = panels.starts(0.4, [3])
    first = [path.read_bytes() for path in figures.save(figure, tmp_path / "a")]
    again = [path.read_bytes() for path in figures.save(figure, tmp_path / "b")]
    assert first == again
    assert first[0].startswith(b"<?xml")
    assert first[1].startswith(b"%PDF")
    assert first[2].startswith(b"\x89PNG")
    assert figures.save(Figure("k", "t", "c", (), missing="nothing"), tmp_path / "c") == []


def test_inline_panels_have_no_styles_and_speak_in_variables() -> None:
    def draw(axes) -> None:
        axes.plot([0, 1], [0, 1], color=COLORS["vmf"], label="$x_1$ <script>")
        axes.legend()

    text = figures.inline(Figure("k", "t", "c", (Panel("p", draw, 'what & "why"'),)), 0)
    ET.fromstring(text)
    assert "style" not in text
    assert "var(--vmf)" in text
    assert "var(--ink)" in text
    assert "$x_1$ &lt;script&gt;" in text
    assert 'aria-label="what &amp; &quot;why&quot;"' in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert all(name.startswith("k-0-") for name in ids)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    assert used <= set(ids)


def test_the_start_lies_on_the_curve_in_high_dimension() -> None:
    figure = panels.starts(0.4)
    assert figure.number == "Figure 2"
    axes = _drawn(figure)
    curves = {line.get_label(): line for line in axes.lines if line.get_label().startswith("n = ")}
    points = [line for line in axes.lines if line.get_marker() == "o"]
    gaps = {}
    for name, point in zip(curves, points, strict=True):
        (kappa,), (ratio,) = point.get_data()
        gaps[name] = abs(np.interp(kappa, *curves[name].get_data()) - ratio)
    assert list(gaps) == [f"n = {n}" for n in (2, 3, 8, 32, 128, 512)]
    assert list(gaps.values()) == sorted(gaps.values(), reverse=True)
    assert gaps["n = 2"] > 0.1  # the formula is made for many dimensions
    assert gaps["n = 32"] < 0.01


def test_learned_and_fixed_temperature_make_figure_5(tmp_path, make_study) -> None:
    jobs = []
    for beta in (None, 16.0, 64.0):
        for seed in range(2):
            changes = {} if beta is None else {"head.beta": beta, "head.learn_beta": False}
            recipe = replace(load("digits/cosine"), {**changes, "net.dim": 3}, seed=seed)
            label = "cosine" if beta is None else f"cosine β={beta:g}"
            jobs.append(Job(f"cosine-{beta}-seed{seed}", label, recipe))
    make_study(tmp_path / "s", jobs=jobs)
    group = collect([tmp_path / "s"]).groups[0]
    figure = panels.temperature(group)
    assert figure is not None
    ticks = [tick.get_text() for tick in _drawn(figure).get_xticklabels()]
    assert ticks == ["learned", "β = 16", "β = 64"]
    styles = {str(look(group, label)["linestyle"]) for label in group.labels}
    assert len(styles) == 3
    make_study(tmp_path / "plain")
    assert panels.temperature(collect([tmp_path / "plain"]).groups[0]) is None


def test_reliability_draws_what_the_metric_bins(tmp_path, make_study) -> None:
    from spaceform import metrics

    make_study(tmp_path / "s", heads=("vmf",))
    group = collect([tmp_path / "s"]).groups[0]
    outputs = group.shown["vmf"].outputs
    axes = _drawn(probabilities.reliability(group))
    bins = metrics.reliability(outputs.probabilities, outputs.labels)
    drawn = axes.containers[0].lines[0].get_xydata()
    assert np.allclose(drawn, np.column_stack([bins.confidence, bins.accuracy]))
    bars = axes.containers[0].lines[2][0].get_segments()
    assert np.allclose([bar[:, 1] for bar in bars], np.column_stack([bins.accuracy_low, bins.accuracy_high]))


def test_every_head_has_a_name_a_hue_and_contrast() -> None:
    from spaceform.heads import HEADS

    assert set(HEADS) <= set(NAMES)
    assert set(HEADS) <= set(COLORS)
    every = [*COLORS.values(), *SHADES, *CLASS_COLORS]
    assert len(set(every)) == len(every)
    assert COLORS["standard"] == "#f72585"
    assert COLORS["hyperbolic"] == "#3a0ca3"
    assert COLORS["cosine"] == "#3da1c0"


def _drawn(figure: Figure):
    from matplotlib.figure import Figure as Canvas

    axes = Canvas().add_subplot()
    figure.panels[0].draw(axes)
    return axes
