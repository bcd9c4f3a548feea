"""Heads are called and drawn by what they declare: ours, somebody else's, and those that are gone."""

import json
import re
from collections.abc import Iterator
from typing import final

import pytest
import torch
from torch import Tensor, nn

from spaceform.geometry import Euclidean, PoincareBall, Sphere
from spaceform.heads import HEADS
from spaceform.heads.base import DeterministicHead
from spaceform.report.contents import Contents, compute
from spaceform.report.figures.axes import line_style
from spaceform.report.looks import display, geometry_of, in_order, look
from spaceform.report.page.page import render
from spaceform.report.records import collect
from spaceform.report.style import CLASS_COLORS, GEOMETRY_COLORS, OTHER_COLORS, SHADES, themes
from spaceform.run.recipe import load_recipe, replace
from spaceform.study.folder import Job

pytestmark = pytest.mark.slow


@final
class PrototypeHead(DeterministicHead):
    """Softmax of minus the squared distance to a prototype: a Euclidean head of somebody else's."""

    name, title = "prototype", "Prototype"
    geometry = Euclidean()
    confidence_symbol = "r"

    def __init__(self, dim: int, num_classes: int, *, width: float = 1.0) -> None:
        super().__init__(dim, num_classes)
        self.prototypes = nn.Parameter(torch.randn(num_classes, dim))
        self.width = width

    def _logits(self, z: Tensor) -> Tensor:
        return -torch.cdist(z, self.prototypes).square() / self.width


@final
class DemandingHead(DeterministicHead):
    """It cannot be made without an option, and its geometry depends on that."""

    name, title = "demanding", "Demanding"

    def __init__(self, dim: int, num_classes: int, *, c: float) -> None:
        super().__init__(dim, num_classes)
        self.c = c

    @property
    def geometry(self) -> PoincareBall:
        return PoincareBall(self.c)

    def _logits(self, z: Tensor) -> Tensor:
        return z


@pytest.fixture
def contents(tmp_path, make_study) -> Iterator[Contents]:
    """Two heads, one of them somebody else's and registered for this test."""
    HEADS["prototype"] = PrototypeHead
    jobs = []
    for seed in range(2):
        recipe = replace(load_recipe("digits/vmf"), {"net.dim": 5}, seed=seed)
        jobs.append(Job(f"vmf-seed{seed}", "vmf", recipe))
        recipe = replace(recipe, {"head.name": "prototype", "head.width": 2.0})
        jobs.append(Job(f"prototype-seed{seed}", "prototype", recipe))
    make_study(tmp_path / "s", jobs=jobs, dim=5, items=120, noise=3)
    yield compute(collect([tmp_path / "s"]))
    HEADS.pop("prototype", None)


def test_our_heads_keep_their_looks() -> None:
    ours = ("standard", "hyperbolic", "cosine", "arcface", "vmf", "power_spherical")
    looks = [look(name) for name in ours]
    assert [one.color for one in looks] == [
        "#f72585",
        "#3a0ca3",
        "#3da1c0",
        "#23758f",
        "#0d4a61",
        "#57b894",
    ]
    assert "".join(one.mark.name for one in looks) == "oDs^vP"
    assert [one.title for one in looks] == [
        "Standard",
        "Hyperbolic",
        "Cosine",
        "ArcFace",
        "vMF",
        "Power Spherical",
    ]
    assert [one.symbol for one in looks] == ["‖z‖"] * 4 + ["κ"] * 2
    assert display("vmf β=16") == "vMF β=16"
    assert geometry_of("hyperbolic", {"curvature": 0.25}) == PoincareBall(0.25)
    assert geometry_of("arcface", {}) == Sphere()


def test_every_colour_is_a_variable_of_its_own_in_both_themes() -> None:
    families = [*GEOMETRY_COLORS.values(), OTHER_COLORS, CLASS_COLORS, SHADES]
    lights = [light for family in families for light, _ in family]
    assert len(set(lights)) == len(lights)
    light, dark = (set(re.findall(r"--[\w-]+(?=:)", rule)) for rule in themes().splitlines()[:2])
    assert light == dark
    assert {f"--{kind}-{i}" for kind, colors in GEOMETRY_COLORS.items() for i in range(len(colors))} < light


def test_a_head_of_somebody_elses_is_called_and_drawn_as_it_declares(contents) -> None:
    own = look("prototype")
    assert (own.title, own.symbol) == ("Prototype", "r")
    assert own.color in {light for light, _ in GEOMETRY_COLORS["euclidean"]}
    assert own.color != look("standard").color
    assert own.hue == "var(--euclidean-1)"
    assert own.mark not in [look(name).mark for name in HEADS if name != "prototype"]
    (part,) = contents.parts
    assert part.group.labels == ("vmf", "prototype")
    assert "Principal components" in part.layouts["prototype"].how
    assert [line.label for line in part.summary.lines] == ["vMF", "Prototype"]
    assert [one.symbol for one in part.extremes] == ["κ", "r"]
    assert [one.shown.title for one in part.neighbours] == ["vMF", "Prototype"]
    page = render(contents)
    assert "var(--euclidean-1)" in page
    assert re.search(r"Prototype</span><small>Euclidean space</small>", page)
    pattern = r'<script type="application/json" id="[^"]*-points">(.*?)</script>'
    points = json.loads(re.search(pattern, page, re.DOTALL)[1])
    assert [head["geometry"] for head in points["heads"]] == ["spherical", "euclidean"]


def test_a_head_that_is_gone_still_reports_under_its_bare_name(contents, tmp_path) -> None:
    del HEADS["prototype"]
    again = compute(collect([tmp_path / "s"]))
    (part,) = again.parts
    assert [line.label for line in part.summary.lines] == ["vMF", "prototype"]
    before = contents.parts[0].summary.lines[1].cells
    assert [cell.text for cell in part.summary.lines[1].cells] == [cell.text for cell in before]
    assert not any(cell.bold for line in part.summary.lines for cell in line.cells)  # vMF is judged alone
    assert [one.shown.title for one in part.neighbours] == ["vMF"]  # by whose geometry?
    assert look("prototype").hue == "var(--muted)"
    page = render(again)
    assert "<small>geometry unknown: this head is not installed here</small>" in page
    assert "&#34;width&#34;: 2.0" in page  # its recipe
    single = compute(collect([tmp_path / "s" / "runs" / "prototype-seed0"]))
    assert [line.label for line in single.parts[0].summary.lines] == ["prototype"]


def test_rows_that_look_alike_differ_in_dash_and_filling(contents, monkeypatch) -> None:
    monkeypatch.setattr("spaceform.report.looks.HEADS", {})
    group = contents.parts[0].group
    styles = [line_style(group, label) for label in group.labels]
    for what in ("linestyle", "fillstyle"):
        assert len({str(style[what]) for style in styles}) == 2


def test_a_head_that_cannot_be_made_without_options_disturbs_nobody(monkeypatch) -> None:
    before = {name: look(name) for name in HEADS}
    monkeypatch.setitem(HEADS, "demanding", DemandingHead)
    assert {name: look(name) for name in before} == before
    assert look("demanding").title == "Demanding"
    assert geometry_of("demanding", {"c": 2.0}) == PoincareBall(2.0)


def test_making_a_head_leaves_the_random_numbers_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    geometry_of("hyperbolic", {"curvature": 0.5})
    assert torch.equal(torch.rand(2), expected)


def test_heads_stand_in_their_order_with_unknown_ones_last() -> None:
    heads = {"x": "x", "vmf β=4": "vmf", "vmf": "vmf", "standard": "standard"}
    assert in_order(heads) == ("standard", "vmf β=4", "vmf", "x")
