"""What a report holds: tables, figures, advice and pictures of every data set, computed once."""

from dataclasses import dataclass
from typing import final

from spaceform.heads import HEADS
from spaceform.report.figures import confusion, panels, probabilities, searched
from spaceform.report.figures.embeddings import embeddings_figure, layouts
from spaceform.report.figures.extremes import Extremes, extremes, extremes_figure
from spaceform.report.figures.figure import Figure
from spaceform.report.figures.images import Pictures, open_pictures
from spaceform.report.figures.intervals import intervals
from spaceform.report.figures.neighbours import Neighbours, neighbours_figure, neighbours_of
from spaceform.report.layout import Layout
from spaceform.report.records import Collection, Group, Record
from spaceform.report.tables import decided, found
from spaceform.report.tables import results as result_tables
from spaceform.report.tables.cost import costs
from spaceform.report.tables.making import Made, made
from spaceform.report.tables.results import Table
from spaceform.study import summary
from spaceform.study.folder import Job
from spaceform.study.judge import Advice, JudgedRun, judge_runs
from spaceform.study.references import read_references
from spaceform.study.sensitivity import Tried, heads_left_out, told, tried
from spaceform.study.summary import Results


@final
@dataclass(frozen=True, eq=False)
class DataSetPart:
    """The part of a report on one data set."""

    group: Group
    advice: Advice | None
    """The advice; None where no run has finished."""
    answer: Figure
    results: Results
    summary: Table
    searched: list[Tried]
    search: Figure
    search_table: Table | None
    found: Table | None
    costs: Table | None
    classes: Figure
    confused: Table | None
    sets: Table | None
    pairs: Table | None
    made: Made
    left_out: dict[str, str]
    """Heads that never trained, with the reason."""
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
    """Why there are no pictures, if there are none."""
    extremes: list[Extremes]
    extremes_figure: Figure
    neighbours: list[Neighbours]
    neighbours_figure: Figure

    @property
    def photos(self) -> bool:
        """Whether the pictures are photos, which are large and slow to decode."""
        return self.pictures is not None and self.pictures.photos

    @property
    def tables(self) -> list[Table | None]:
        """All tables in the order of the page; None for a missing one."""
        return [
            self.summary,
            self.paper,
            self.search_table,
            self.found,
            self.costs,
            self.confused,
            self.sets,
            self.pairs,
            self.runs,
        ]

    @property
    def figures(self) -> list[Figure]:
        """All of them, in the order of the page."""
        return [
            self.answer,
            self.tradeoff,
            *([self.temperature] if self.temperature else []),
            self.search,
            self.embeddings,
            *([self.classes, self.reliability, self.risk] if self.group.task == "classification" else []),
            self.extremes_figure,
            self.neighbours_figure,
            self.training,
        ]


@final
@dataclass(frozen=True, eq=False)
class Contents:
    """Everything that a report holds."""

    collection: Collection
    parts: tuple[DataSetPart, ...]
    tables: list[Table]
    """The tables of the paper, over all data sets."""
    starts: Figure | None

    @property
    def figures(self) -> list[Figure]:
        """All of them, in the order of the page."""
        own = [figure for part in self.parts for figure in part.figures]
        return [*own, self.starts] if self.starts else own

    @property
    def all_tables(self) -> list[Table]:
        """All of them, in the order of the page."""
        own = [table for part in self.parts for table in part.tables if table]
        return [*self.tables, *(table for table in own if table.columns)]


def compute(collection: Collection) -> Contents:
    """All contents, from the saved results."""
    parts = tuple(_part(group, collection) for group in collection.groups)
    marks = {part.group.key: part.advice.findings.leading for part in parts if part.advice is not None}
    return Contents(
        collection,
        parts,
        result_tables.paper_tables(collection.groups, lambda group: marks.get(group.key, {})),
        _starts(collection),
    )


def _part(group: Group, collection: Collection) -> DataSetPart:
    opened = open_pictures(group.data) if group.shown else "No run has left outputs to show."
    pictures, reason = (None, opened) if isinstance(opened, str) else (opened, "")
    ends = extremes(group, pictures) if pictures else []
    nearest = neighbours_of(group, pictures) if pictures else []
    laid_out = layouts(group)
    tried_ones = [one for study in group.studies for one in tried(study)]
    advice, notes = _advice(group, tried_ones), collection.notes_of(group)
    search = told(tried_ones, str(notes.get("search", "")))
    results = summary.results(
        result_tables.frame(group), (summary.NOTHING if advice is None else advice.findings).told(search)
    )
    deployed = _to_deploy(group, advice)
    confused = confusion.confusion(deployed)
    return DataSetPart(
        group,
        advice,
        intervals(group, advice),
        results,
        result_tables.summary(group, results),
        tried_ones,
        searched.search_figure(group, tried_ones),
        searched.search_table(group, tried_ones),
        found.numbers_table(group),
        costs(group, advice),
        confusion.confusion_figure(group, confused),
        confusion.confused_table(group, confused),
        decided.sets(group, deployed),
        decided.pairs(group),
        made(group, notes, search),
        heads_left_out({record.head for record in group.records}, notes),
        result_tables.comparison(group),
        result_tables.runs(group),
        panels.tradeoff(group),
        panels.temperature(group),
        probabilities.reliability_figure(group),
        probabilities.risk_figure(group),
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


def _advice(group: Group, searched: list[Tried]) -> Advice | None:
    """The advice from all runs of the group, with the references that their studies kept."""
    finished = [record for label in group.labels for record in group.of(label) if record.head in HEADS]
    runs = [JudgedRun.of(Job(r.name, r.label, r.recipe), r.folder, r.metrics, r.status) for r in finished]
    references = [kept for study in group.studies for kept in read_references(study)]
    return judge_runs(runs, references, searched)


def _to_deploy(group: Group, advice: Advice | None) -> Record | None:
    """The record of the run that the advice says to deploy."""
    run = None if advice is None else advice.to_deploy
    return None if run is None else next(r for r in group.records if r.folder == run.folder)


def _starts(collection: Collection) -> Figure | None:
    """The figure of the starts, for the smallest λ among the runs; None where no head has a λ."""
    started = [(ratio, r.recipe.net.dim) for r in collection.records if (ratio := r.option("init_ratio"))]
    if not started:
        return None
    least = min(float(ratio) for ratio, _ in started)
    return panels.starts(least, sorted({dim for _, dim in started}))
