"""What a report holds: tables, figures, advice and pictures of every data set, computed once."""

from dataclasses import dataclass
from typing import final

from spaceform.heads import HEADS
from spaceform.report import panels, probabilities, tables
from spaceform.report.embeddings import embeddings_figure, layouts
from spaceform.report.extremes import Extremes, extremes, extremes_figure
from spaceform.report.figures import Figure
from spaceform.report.images import Pictures, open_pictures
from spaceform.report.layout import Layout
from spaceform.report.neighbours import Neighbours, neighbours_figure, neighbours_of
from spaceform.report.records import Collection, Group
from spaceform.report.tables import Table
from spaceform.study.judge import Advice, JudgedRun, judge_runs
from spaceform.study.references import read_references


@final
@dataclass(frozen=True, eq=False)
class Part:
    """One data set."""

    group: Group
    advice: Advice | None
    """None where no run has finished."""
    summary: Table
    paper: Table | None
    runs: Table
    tradeoff: Figure
    temperature: Figure | None
    reliability: Figure
    risk: Figure
    training: Figure
    layouts: dict[str, Layout]
    embeddings: Figure
    pictures: Pictures | None
    no_pictures: str
    """Where there are no pictures: why."""
    extremes: list[Extremes]
    extremes_figure: Figure
    neighbours: list[Neighbours]
    neighbours_figure: Figure

    @property
    def photos(self) -> bool:
        """Whether the pictures are photos, which are large and slow to decode."""
        return self.pictures is not None and self.pictures.photos

    @property
    def figures(self) -> list[Figure]:
        """All of them, in the order of the page."""
        return [
            self.tradeoff,
            *([self.temperature] if self.temperature else []),
            self.embeddings,
            *([self.reliability, self.risk] if self.group.task == "classification" else []),
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
    """Those of the paper, over all data sets."""
    starts: Figure | None

    @property
    def figures(self) -> list[Figure]:
        """All of them, in the order of the page."""
        own = [figure for part in self.parts for figure in part.figures]
        return [*own, self.starts] if self.starts else own

    @property
    def all_tables(self) -> list[Table]:
        """All of them, in the order of the page."""
        own = [table for part in self.parts for table in (part.summary, part.paper, part.runs) if table]
        return [*self.tables, *(table for table in own if table.columns)]


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
    pictures, reason = (None, found) if isinstance(found, str) else (found, "")
    ends = extremes(group, pictures) if pictures else []
    nearest = neighbours_of(group, pictures) if pictures else []
    laid_out = layouts(group)
    return Part(
        group,
        _advice(group),
        tables.summary(group),
        tables.comparison(group),
        tables.runs(group),
        panels.tradeoff(group),
        panels.temperature(group),
        probabilities.reliability(group),
        probabilities.risk_coverage(group),
        panels.training(group),
        laid_out,
        embeddings_figure(group, laid_out),
        pictures,
        reason,
        ends,
        extremes_figure(group, ends, reason),
        nearest,
        neighbours_figure(group, nearest, reason or "There are too few test items."),
    )


def _advice(group: Group) -> Advice | None:
    """Of all runs of the group, beside the references that their studies kept."""
    finished = [record for label in group.labels for record in group.of(label) if record.head in HEADS]
    runs = [
        JudgedRun(r.label, r.head, r.recipe.seed, r.folder, r.metrics, r.status.seconds) for r in finished
    ]
    studies = dict.fromkeys(record.folder.parent.parent for record in finished)
    return judge_runs(runs, [kept for study in studies for kept in read_references(study)])


def _starts(collection: Collection) -> Figure | None:
    """For the smallest start λ among the runs; None where no head has one."""
    found = [(ratio, r.recipe.net.dim) for r in collection.records if (ratio := r.option("init_ratio"))]
    if not found:
        return None
    least = min(float(ratio) for ratio, _ in found)
    return panels.starts(least, sorted({dim for _, dim in found}))
