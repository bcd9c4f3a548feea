"""Studies in a terminal: a live table of runs, then the results."""

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import TextIO, final

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from spaceform.foundation.messages import counted
from spaceform.run.progress import at_least, duration
from spaceform.study import summary
from spaceform.study.folder import RunStatus
from spaceform.study.place import Event
from spaceform.study.published import Pair

_COLUMN_GAP = 2
_COLOUR = {
    "finished": "green",
    "failed": "red",
    "running": "bold",
    "waiting": "dim",
    "stopped": "yellow",
}


@final
@dataclass
class _Line:
    label: str
    seed: int
    state: str = "waiting"
    epoch: str = ""
    score: float | None = None
    left: float | None = None
    note: str = ""
    began: float = 0.0
    seconds: float = 0.0


@final
class Board:
    """A watcher of studies: a live table if `file` is a terminal, otherwise plain lines for what matters."""

    def __init__(
        self, statuses: Iterable[RunStatus], file: TextIO | None = None, *, every: float = 30.0
    ) -> None:
        self._file = file or sys.stderr
        self._lines = {status.job.name: _line(status) for status in statuses}
        self._every = every
        self._told = self._began = time.monotonic()
        self._live: Live | None = None

    def __enter__(self) -> "Board":
        done, runs = sum(line.state == "finished" for line in self._lines.values()), len(self._lines)
        if self._file.isatty():
            self._live = Live(self._table(), console=Console(file=self._file), refresh_per_second=4)
            self._live.start()
        elif done:
            self._say(
                f"{done} of {counted(runs, 'run')} {'is' if done == 1 else 'are'} finished"
                + (f"; {runs - done} more to do" if done < runs else "")
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._table())
            self._live.stop()

    def __call__(self, event: Event | None) -> None:
        if event is not None:
            self._take(event)
        if self._live is not None:
            self._live.update(self._table())
        elif event is None and time.monotonic() - self._told > self._every:
            self._say(self._summary())

    def _take(self, event: Event) -> None:
        line, now = self._lines[event.job.name], time.monotonic()
        match event.kind:
            case "started":
                line.state, line.began = "running", now
            case "progress" if event.progress is not None:
                p = event.progress
                line.epoch, line.score, line.left = f"{p.epoch + 1}/{p.epochs}", p.best_score, p.seconds_left
            case "lost":
                line.note, line.left = "process lost, tried again", None
                self._print(f"{event.job.name}: {event.error}; trying again")
            case "finished":
                line.state, line.left, line.seconds = "finished", None, now - line.began
                score = "" if line.score is None else f", best validation score {line.score:.4f}"
                done = sum(other.state == "finished" for other in self._lines.values())
                took = f"finished in {duration(line.seconds)}{score}"
                self._print(f"{event.job.name}: {took} ({done} of {len(self._lines)})")
            case "failed":
                line.state, line.left, line.note = "failed", None, event.error
                self._print(f"{event.job.name}: failed: {event.error}")

    def _print(self, text: str) -> None:
        if self._live is None:
            self._say(text)

    def _say(self, text: str) -> None:
        self._told = time.monotonic()
        print(text, file=self._file, flush=True)

    def _summary(self) -> str:
        running = [
            f"{name} epoch {line.epoch}" + (f", {left}" if (left := at_least(line.left)) else "")
            for name, line in self._lines.items()
            if line.state == "running" and line.epoch
        ]
        return "running: " + ("; ".join(running) or "reading data")

    def _table(self) -> Table:
        lines = list(self._lines.values())
        now = time.monotonic()
        for line in lines:
            if line.state == "running" and line.began:
                line.seconds = now - line.began
        done = sum(line.state == "finished" for line in lines)
        caption = f"{done} of {len(lines)} runs finished, {duration(now - self._began)} so far"
        return _runs_table(_shortened(lines), caption)


def _shortened(lines: Sequence[_Line], most: int = 30) -> list[_Line]:
    """If there are too many runs for a screen: those that run or failed, and the last finished ones."""
    if len(lines) <= most:
        return list(lines)
    rank = {"running": 0, "failed": 1, "stopped": 1, "finished": 2, "waiting": 3}
    kept = sorted(range(len(lines)), key=lambda i: (rank[lines[i].state], -i))[:most]
    return [lines[i] for i in sorted(kept)]


def _line(status: RunStatus, at_work: bool = True) -> _Line:
    state = "stopped" if status.state == "running" and not at_work else str(status.state)
    epoch = str(status.epoch) if status.epoch else ""
    seconds = status.seconds
    return _Line(
        status.job.label,
        status.job.recipe.seed,
        state,
        epoch,
        status.score,
        note=status.error,
        seconds=seconds,
    )


def _runs_table(lines: Sequence[_Line], caption: str | None = None) -> Table:
    table = Table(caption=caption, caption_justify="left", box=None, pad_edge=False)
    for name in ("head", "seed", "state", "epoch", "score", "time", "left, at least"):
        table.add_column(name, justify="left" if name in ("head", "state") else "right", no_wrap=True)
    table.add_column("", overflow="fold")
    for line in lines:
        table.add_row(
            line.label,
            str(line.seed),
            line.state,
            line.epoch,
            "" if line.score is None else f"{line.score:.4f}",
            duration(line.seconds) if line.seconds else "",
            duration(line.left) if line.left is not None and at_least(line.left) else "",
            Text(line.note),
            style=_COLOUR[line.state],
        )
    return table


def print_status(statuses: Sequence[RunStatus], at_work: bool) -> None:
    """Print how far a study is, one line for each run."""
    lines = [_line(status, at_work) for status in statuses]
    states = [line.state for line in lines]
    counts = ", ".join(f"{states.count(state)} {state}" for state in _COLOUR if state in states)
    note = (
        "a process is at work" if at_work else "no process is at work; the same command as before continues"
    )
    if states and not at_work and all(state == "finished" for state in states):
        note = "all is done"
    if lines:
        _console().print(_runs_table(lines))
    _console().print(f"{counts}; {note}" if counts else note)


def failure_sentence(failures: Mapping[str, Sequence[str]], runs: int, folder: Path) -> str:
    """How many runs failed, and why: the reason if there is one, otherwise the most frequent reason."""
    failed = sum(map(len, failures.values()))
    reason, names = max(failures.items(), key=lambda item: len(item[1]))
    why = (
        reason if len(failures) == 1 else f"{names[0]}: {reason}; `spaceform status {folder}` has the others"
    )
    return f"{failed} of {counted(runs, 'run')} failed: {why}; the same command tries them again"


def print_results(results: summary.Results, said: Iterable[str]) -> None:
    """Print the table, its notes, and the sentences of the advice."""
    console = _console()
    if not results.measures:
        console.print("no run is finished yet: there is nothing to compare")
        return
    plain = not console.is_terminal
    labels = (*results.heads, *results.references)
    cells = {
        measure: [_cell(measure, results.row(label, measure), plain) for label in labels]
        for measure in results.measures
    }
    widths = {
        measure: max(len(word.plain) for word in map(Text.from_markup, (*cells[measure], *_title(measure))))
        for measure in results.measures
    }
    head = max(len("head"), *map(len, labels))
    for part in _parts(results.measures, widths, console.width - head):
        shown = Table(box=None, pad_edge=False, padding=(0, _COLUMN_GAP, 0, 0))
        shown.add_column("head", no_wrap=True)
        for measure in part:
            title = " ".join(_title(measure))
            shown.add_column(title, justify="right", min_width=widths[measure])
        for i, label in enumerate(labels):
            if results.references and label == results.references[0]:
                shown.add_row("instead of a head:" if plain else "[dim]instead of a head:[/dim]")
            row = (label, *(cells[measure][i] for measure in part))
            shown.add_row(*row, style="dim" if label in results.references else None)
        console.print(shown)
        if part[-1] is not results.measures[-1]:
            console.print()
    for sentence in results.footnote:
        console.print(sentence, style="dim")
    if plain and any(row.marked for row in results.rows.values()):
        console.print("* marks what a terminal shows in bold.")
    console.print()
    for sentence in said:
        console.print(sentence, highlight=False)


def _title(measure: summary.Measure) -> list[str]:
    """The title of a column. Lines may break between its words, but not before the arrow."""
    *words, last = measure.title.split()
    return [*words, f"{last} {'↑' if measure.higher else '↓'}"]


def _parts(
    columns: Sequence[summary.Measure], widths: dict[summary.Measure, int], room: int
) -> list[list[summary.Measure]]:
    """Columns in groups that fit side by side, of about the same width: no value is ever broken."""
    for count in range(1, len(columns)):
        size = ceil(len(columns) / count)
        parts = [list(columns[i : i + size]) for i in range(0, len(columns), size)]
        if all(sum(widths[measure] + _COLUMN_GAP for measure in part) <= room for part in parts):
            return parts
    return [[measure] for measure in columns]


def _cell(measure: summary.Measure, row: summary.Row | None, plain: bool) -> str:
    if row is None:
        return "–  " if plain else "–"
    text = measure.text(row.mean, row.sem)
    if not row.marked:
        return text + ("  " if plain else "")
    return f"{text} *" if plain else f"[bold]{text}[/bold]"


def print_beside(pairs: Sequence[Pair], note: str) -> None:
    """Print the paper's numbers and ours side by side, one table of the paper after the other."""
    console = _console()
    for number, column in dict.fromkeys((p.printed.table, p.printed.column) for p in pairs):
        chosen = [p for p in pairs if (p.printed.table, p.printed.column) == (number, column)]
        measure = chosen[0].measure
        shown = Table(
            title=f"Table {number}: {measure.title}", title_justify="left", box=None, pad_edge=False
        )
        for name in ("head", "paper", "ours", "difference", "in standard errors"):
            shown.add_column(name, justify="left" if name == "head" else "right", no_wrap=True)
        for p in chosen:
            shown.add_row(
                p.label,
                measure.text(p.printed.mean, p.printed.sem),
                measure.text(p.mean, p.sem),
                f"{(100 if measure.percent else 1) * p.difference:+.{2 if measure.percent else 3}f}",
                f"{p.errors:+.1f}",
            )
        console.print(shown)
        console.print()
    said = [
        "Mean ± standard error, ours made as the paper's (standard deviation with ddof 0).",
        "Differences are in standard errors of both together, √(paper² + ours²).",
    ]
    if any(p.printed.sem is None for p in pairs):
        said.append("Table 1 prints no errors: the error of its rounding is used instead.")
    if any(p.sem is None for p in pairs):
        said.append(
            "With one seed ours has no error; then the difference is in standard errors of the paper alone."
        )
    if note:
        said.append(note)
    for sentence in said:
        console.print(sentence, style="bold" if sentence == note else "dim")


def _console() -> Console:
    """Standard output; if it is not a terminal, wide enough not to break lines."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)
