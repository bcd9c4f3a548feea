"""A study as users see it: the table, the advice, the runs, the report."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, final

import pandas as pd

from spaceform.run.finished import Run
from spaceform.run.recipe import Recipe, load_recipe
from spaceform.study import published, summary
from spaceform.study.folder import Job, RunStatus, StudyFolder
from spaceform.study.judge import Advice, judge, next_step
from spaceform.study.references import KeptReference, read_references
from spaceform.study.sensitivity import heads_left_out, told, tried


@final
class Study:
    """What `compare`, `reproduce` or `search` left in a folder; `Study.open` reads it again."""

    def __init__(self, kept: StudyFolder) -> None:
        self._kept = kept

    @classmethod
    def open(cls, folder: str | Path) -> "Study":
        """The study, or the search, of a folder."""
        folder = Path(folder)
        if not (folder / "study.json").exists() and (folder / "search.db").exists():
            return cls(StudyFolder(folder, (), {"kind": "search"}))
        return cls(StudyFolder.open(folder))

    def __repr__(self) -> str:
        return f"Study({str(self.folder)!r}, {len(self.jobs)} runs)"

    @property
    def kept(self) -> StudyFolder:
        """The study's folder, with its plan."""
        return self._kept

    @property
    def folder(self) -> Path:
        """The path of the study's folder."""
        return self._kept.folder

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The plan: name, label and recipe of every run."""
        return self._kept.jobs

    @property
    def notes(self) -> Mapping[str, Any]:
        """How the plan was made, and what was shortened."""
        return self._kept.notes

    @property
    def statuses(self) -> list[RunStatus]:
        """How far every run is."""
        return [self._kept.status(job) for job in self.jobs]

    @property
    def table(self) -> pd.DataFrame:
        """One row for each run: its recipe, how it ended, what was measured."""
        return self._kept.table()

    @property
    def runs(self) -> "Runs":
        """The finished runs by name: `study.runs["vmf-seed0"].predict_proba(images)`."""
        return Runs(self._kept)

    @property
    def recipes(self) -> dict[str, Recipe]:
        """The recipe of each row of the table, with its first seed; of a search, the best of each head."""
        if self.jobs:
            return {job.label: job.recipe for job in reversed(self.jobs)}
        return {path.stem: load_recipe(path) for path in sorted(self.folder.glob("*.toml"))}

    @property
    def trials(self) -> pd.DataFrame:
        """One row for each trial of a search: what was tried, and its validation score."""
        from spaceform.study import feature_search, optuna_search

        folder = self._search_folder
        return (optuna_search if _by_optuna(folder) else feature_search).trials_of(folder)

    @property
    def searches(self) -> list[str]:
        """How far the searches are, in a sentence for each head."""
        from spaceform.study import feature_search, optuna_search

        folder = self._search_folder
        heads = [] if self.jobs or folder == self.folder else list(self.notes.get("heads", ()))
        return (optuna_search if _by_optuna(folder) else feature_search).standing(folder, heads)

    @property
    def references(self) -> list[KeptReference]:
        """What people would use instead of a head, on the same split, as far as it is fitted already."""
        return read_references(self.folder)

    @property
    def _search_folder(self) -> Path:
        inside = self.folder / "search"
        return inside if inside.is_dir() else self.folder

    @property
    def advice(self) -> Advice | None:
        """What to choose, over all goals and for each goal, and how sure that is; None before a run ends."""
        return judge(self._kept)

    def shown(self) -> tuple[summary.Results, list[str]]:
        """The table as people see it, and sentences on it.

        The table has a row for each head, marked by the advice, then the references. The sentences are the
        advice, which run to deploy, and the command that does it.
        """
        advice = self.advice
        search = told(tried(self.folder), str(self.notes.get("search", "")))
        gone = heads_left_out({job.recipe.head.name for job in self.jobs}, self.notes)
        found = summary.NOTHING if advice is None else advice.findings
        results = summary.results(
            self.table, found.told(search, *(f"{head} is left out: {why}." for head, why in gone.items()))
        )
        return results, [] if advice is None else [*advice.brief(), *next_step(advice)]

    @property
    def beside_paper(self) -> list[published.Pair]:
        """The paper's cells and ours, where the paper has this data set."""
        return published.beside(self.table, str(self.notes.get("data", "")))

    @property
    def failures(self) -> dict[str, list[str]]:
        """Why runs failed: for each reason, the names of the runs."""
        found: dict[str, list[str]] = {}
        for status in self.statuses:
            if status.state == "failed":
                found.setdefault(status.error, []).append(status.job.name)
        return found

    def report(self, out: str | Path | None = None) -> Path:
        """Write tables, figures and one page from the saved results; returns the path of `report.html`."""
        from spaceform.report import write

        return write([self.folder], out)

    def _repr_html_(self) -> str:
        """The table and the advice, in a notebook."""
        return _html(*self.shown())


@final
class Runs(Mapping[str, Run]):
    """The finished runs of a study by name; each is loaded when it is asked for."""

    def __init__(self, kept: StudyFolder) -> None:
        self._paths = {job.name: kept.path(job) for job in kept.jobs if kept.status(job).state == "finished"}

    def __getitem__(self, name: str) -> Run:
        return Run.load(self._paths[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"Runs({', '.join(self._paths)})"


def _html(results: summary.Results, said: Sequence[str]) -> str:
    if not results.measures:
        return "<p>No run is finished yet.</p>"
    lines = [f"<tr><th>head</th>{''.join(f'<th>{escape(m.title)}</th>' for m in results.measures)}</tr>"]
    for label in (*results.heads, *results.references):
        cells = "".join(_cell(measure, results.row(label, measure)) for measure in results.measures)
        grey = ' style="opacity: 0.6"' if label in results.references else ""
        lines.append(f"<tr{grey}><th>{escape(label)}</th>{cells}</tr>")
    notes = "".join(f"<li>{escape(sentence)}</li>" for sentence in said)
    below = escape(" ".join(results.footnote))
    return f"<table>{''.join(lines)}</table><p><small>{below}</small></p><ul>{notes}</ul>"


def _cell(measure: summary.Measure, row: summary.Row | None) -> str:
    if row is None:
        return "<td>–</td>"
    text = measure.text(row.mean, row.sem)
    return f"<td><b>{text}</b></td>" if row.marked else f"<td>{text}</td>"


def _by_optuna(search: Path) -> bool:
    """Whether Optuna wrote this folder of a search; if not, the engine wrote it."""
    return (search / "search.db").exists()
