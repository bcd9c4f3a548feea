"""What a report holds: tables, figures, advice and pictures of every data set, computed once."""

from dataclasses import dataclass
from typing import final

from spaceform.report import panels, pictures, probabilities, tables
from spaceform.report.figures import Figure
from spaceform.report.images import Pictures, open_pictures
from spaceform.report.pictures import Extremes, Neighbours
from spaceform.report.projection import Projection
from spaceform.report.records import Collection, Group
from spaceform.report.tables import Table
from spaceform.study.verdict import Advice, advice


@final
@dataclass(frozen=True, eq=False)
class Part:
    """One data set."""

    group: Group
    advice: list[Advice]
    summary: Table
    paper: Table | None
    runs: Table
    tradeoff: Figure
    temperature: Figure | None
    reliability: Figure
    risk: Figure
    training: Figure
    projections: dict[str, Projection]
    embeddings: Figure
    pictures: Pictures | None
    no_pictures: str
    extremes: list[Extremes]
    extremes_figure: Figure
    neighbours: list[Neighbours]
    neighbours_figure: Figure

    @property
    def photos(self) -> bool:
        return self.pictures is not None and self.pictures.photos

    @property
    def figures(self) -> list[Figure]:
        """All of them, in the order of the page."""
        curves = [self.reliability, self.risk] if self.group.task == "classification" else []
        own = [self.temperature] if self.temperature else []
        return [
            self.tradeoff,
            *own,
            self.embeddings,
            *curves,
            self.extremes_figure,
            self.neighbours_figure,
            self.training,
        ]


@final
@dataclass(frozen=True, eq=False)
class Contents:
    """Everything that is written."""

    collection: Collection
    parts: tuple[Part, ...]
    tables: list[Table]
    starts: Figure

    @property
    def figures(self) -> list[Figure]:
        return [*(figure for part in self.parts for figure in part.figures), self.starts]

    @property
    def all_tables(self) -> list[Table]:
        own = [
            table
            for part in self.parts
            for table in (part.summary, part.paper, part.runs)
            if table is not None and table.columns
        ]
        return [*self.tables, *own]


def compute(collection: Collection) -> Contents:
    """Everything from the saved results."""
    return Contents(
        collection,
        tuple(map(_part, collection.groups)),
        tables.paper_tables(collection),
        _starts(collection),
    )


def _part(group: Group) -> Part:
    found = open_pictures(group.data) if group.shown else "No run has left outputs to show."
    images, reason = (None, found) if isinstance(found, str) else (found, "")
    extremes = pictures.extremes(group, images) if images else []
    neighbours = pictures.neighbours_of(group, images) if images else []
    projections = pictures.projections(group)
    return Part(
        group,
        advice(tables.frame(group)) if any(map(group.of, group.labels)) else [],
        tables.summary(group),
        tables.comparison(group),
        tables.runs(group),
        panels.tradeoff(group),
        panels.temperature(group),
        probabilities.reliability(group),
        probabilities.risk_coverage(group),
        panels.training(group),
        projections,
        pictures.embeddings_figure(group, projections),
        images,
        reason,
        extremes,
        pictures.extremes_figure(group, extremes, reason),
        neighbours,
        pictures.neighbours_figure(group, neighbours, reason or "There are too few test items."),
    )


def _starts(collection: Collection) -> Figure:
    stochastic = [r for r in collection.records if r.head in ("vmf", "power_spherical")]
    ratios = {float(r.recipe.head.options.get("init_ratio", 0.4)) for r in stochastic}
    return panels.starts(min(ratios, default=0.4), sorted({r.recipe.net.dim for r in stochastic}))
