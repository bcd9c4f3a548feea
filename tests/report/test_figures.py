"""Figures: three files each, and panels that a strict page may carry."""

import io
import re
import xml.etree.ElementTree as ET
import zlib

import numpy as np
import pytest
import torch
from fontTools import subset
from fontTools.ttLib import TTFont

from spaceform.heads import VonMisesFisherHead
from spaceform.report.figures import figure as figures
from spaceform.report.figures import panels, probabilities
from spaceform.report.figures.axes import line_style, share
from spaceform.report.figures.figure import Figure, Panel
from spaceform.report.looks import look
from spaceform.report.readable import number
from spaceform.report.records import collect
from spaceform.run.recipe import load_recipe, replace
from spaceform.study.folder import Job

pytestmark = pytest.mark.slow


def test_a_figure_is_written_three_times_and_the_same_every_time(tmp_path) -> None:
    figure = panels.starts(0.4, [3])
    first = [path.read_bytes() for path in figures.save_figure(figure, tmp_path / "a")]
    again = [path.read_bytes() for path in figures.save_figure(figure, tmp_path / "b")]
    assert first == again
    assert first[0].startswith(b"<?xml")
    assert first[1].startswith(b"%PDF")
    assert first[2].startswith(b"\x89PNG")
    assert figures.save_figure(Figure("k", "t", "c", (), missing="nothing"), tmp_path / "c") == []


def test_fonts_of_a_pdf_are_glyphs_without_rules_for_layout(tmp_path) -> None:
    before = subset.Options().drop_tables
    _, pdf, _ = figures.save_figure(panels.starts(0.4, [3]), tmp_path)
    parts = re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf.read_bytes(), re.DOTALL)
    plain = [zlib.decompress(part) for part in parts]
    fonts = [TTFont(io.BytesIO(part)) for part in plain if part.startswith(b"\0\1\0\0")]
    assert fonts
    for font in fonts:
        assert "glyf" in font
        assert not {"GDEF", "GPOS", "GSUB", "kern"} & {*font.keys()}
    assert subset.Options().drop_tables == before


def test_inline_panels_have_no_styles_and_speak_in_variables() -> None:
    def draw(axes) -> None:
        axes.plot([0, 1], [0, 1], color=look("vmf").color, label="$x_1$ <script>")
        axes.legend()

    text = figures.inline(Figure("k", "t", "c", (Panel("p", draw, 'what & "why"'),)), 0)
    ET.fromstring(text)
    assert "style" not in text
    assert "var(--spherical-2)" in text
    assert "var(--ink)" in text
    assert "$x_1$ &lt;script&gt;" in text
    assert 'aria-label="what &amp; &quot;why&quot;"' in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert all(name.startswith("k-0-") for name in ids)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', text))
    assert used <= set(ids)


def test_the_expected_norm_at_the_start_lies_on_the_curve_in_high_dimension() -> None:
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
    assert gaps["n = 2"] > 0.1  # the start is made for many dimensions
    assert max(gaps["n = 32"], gaps["n = 128"], gaps["n = 512"]) < 0.01


@pytest.mark.parametrize("n", [2, 3, 16])
def test_the_expected_norm_is_that_of_the_weights_of_a_new_head(n) -> None:
    torch.manual_seed(0)
    norms = VonMisesFisherHead(n, 40_000, init_ratio=0.4).weight.detach().norm(dim=1)
    error = float(norms.std()) / 200
    assert abs(float(norms.mean()) - panels.expected_norm(n, 0.4)) < 5 * error  # false alarm: 6e-7


def test_learned_and_fixed_temperature_make_figure_5(tmp_path, make_study) -> None:
    jobs = []
    for beta in (None, 16.0, 64.0):
        for seed in range(2):
            changes = {} if beta is None else {"head.beta": beta, "head.learn_beta": False}
            recipe = replace(load_recipe("digits/cosine"), {**changes, "net.dim": 3}, seed=seed)
            label = "cosine" if beta is None else f"cosine β={beta:g}"
            jobs.append(Job(f"cosine-{beta}-seed{seed}", label, recipe))
    make_study(tmp_path / "s", jobs=jobs)
    group = collect([tmp_path / "s"]).groups[0]
    figure = panels.temperature(group)
    assert figure is not None
    ticks = [tick.get_text() for tick in _drawn(figure).get_xticklabels()]
    assert ticks == ["learned", "β = 16", "β = 64"]
    for what in ("linestyle", "fillstyle"):
        assert len({str(line_style(group, label)[what]) for label in group.labels}) == 3
    make_study(tmp_path / "plain")
    assert panels.temperature(collect([tmp_path / "plain"]).groups[0]) is None


@pytest.mark.parametrize(("items", "count"), [(300, 15), (87, 8), (21, 3)])
def test_reliability_draws_what_the_metric_bins(tmp_path, make_study, items, count) -> None:
    from spaceform import metrics

    make_study(tmp_path / "s", heads=("vmf",), items=items)
    group = collect([tmp_path / "s"]).groups[0]
    outputs = group.shown["vmf"].outputs
    figure = probabilities.reliability_figure(group)
    axes = _drawn(figure)
    assert f"in {count} bins with equally many items" in figure.caption
    bins = metrics.reliability(outputs.probabilities, outputs.labels, bins=count)
    drawn = axes.containers[0].lines[0].get_xydata()
    assert np.allclose(drawn, np.column_stack([bins.confidence, bins.accuracy]))
    bars = axes.containers[0].lines[2][0].get_segments()
    assert np.allclose([bar[:, 1] for bar in bars], np.column_stack([bins.accuracy_low, bins.accuracy_high]))


def test_axes_stay_within_what_can_be_and_heads_can_be_compared(tmp_path, make_study) -> None:
    make_study(tmp_path / "easy", noise=0.01)  # every prediction is right
    make_study(tmp_path / "hard", noise=4)
    for name in ("easy", "hard"):
        group = collect([tmp_path / name]).groups[0]
        for figure in (panels.tradeoff(group), probabilities.risk_figure(group), panels.training(group)):
            ends = [*_drawn(figure).get_ylim()]
            assert 0 <= ends[0] < ends[1] <= 1, figure.key
        assert _drawn(panels.tradeoff(group)).get_xlim()[0] == 0
        figure = probabilities.reliability_figure(group)
        limits = {
            (*axes.get_xlim(), *axes.get_ylim())
            for axes in (_drawn(figure, i) for i in range(len(figure.panels)))
        }
        assert len(limits) == 1
        low, high, *_ = limits.pop()
        assert 0 <= low < high == 1


def test_numbers_read_as_people_write_them() -> None:
    wanted = {0: "0", 0.01349: "0.0135", 9: "9.00", 13.31: "13.3", 1349.6: "1,350", 123456: "123,000"}
    assert {value: number(float(value)) for value in wanted} == wanted
    assert number(float("nan")) == "—"
    axes = _drawn(panels.starts(0.4))
    labels = [axes.xaxis.get_major_formatter()(value) for value in (0.001, 0.1, 1, 1000, 1e6)]
    assert labels == ["0.001", "0.1", "1", "1,000", "1,000,000"]
    axes.set_ylim(0.975, 0.99)
    share(axes.yaxis)
    assert axes.yaxis.get_major_formatter().format_ticks([0.98, 0.985]) == ["98.0%", "98.5%"]


def test_one_legend_names_every_line_outside_the_axes() -> None:
    figure = panels.starts(0.4)
    assert [label for label, _ in figures.legend(figure)] == [f"n = {n}" for n in (2, 3, 8, 32, 128, 512)]
    for _, sample in figures.legend(figure):
        ET.fromstring(sample)
        assert "style" not in sample
    assert "n = 512" not in figures.inline(figure, 0)


def _drawn(figure: Figure, place: int = 0):
    from matplotlib.figure import Figure as Canvas

    axes = Canvas().add_subplot()
    figure.panels[place].draw(axes)
    return axes
