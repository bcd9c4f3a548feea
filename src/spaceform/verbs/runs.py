"""Carry out the runs of a study: all runs of a plan, or seed by seed as long as more are needed."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

from spaceform.study.folder import Job, RunStatus, StudyFolder
from spaceform.study.lock import locked
from spaceform.study.place import Event, Place, Watcher, unwatched
from spaceform.study.processes import Errand, Processes
from spaceform.study.seeds import Seeds
from spaceform.verbs.outcome import Study

Watch: TypeAlias = Callable[[Sequence[RunStatus]], AbstractContextManager[Watcher]]
"""A function of how far the runs are. It gives a context, whose value is called with every event."""
Say: TypeAlias = Callable[[str], None]
"""A function that is called with a sentence, such as `print`."""


def silent(sentence: str) -> None:
    """Do nothing with the sentence."""


def carry_out(
    out: str | Path,
    jobs: Sequence[Job],
    *,
    notes: Mapping[str, Any] | None = None,
    on: Place | None = None,
    workers: int | None = None,
    watch: Watch | None = None,
    say: Say = silent,
) -> Study:
    """Plan these runs in a folder and carry them out, for a study that does not compare heads."""
    with locked(out) as folder:
        return _carry_out(folder, jobs, notes or {}, on or Processes(), workers, watch or saying(say))


def run_errands(errands: Sequence[Errand], on: Processes, say: Say) -> None:
    """Do these errands in local processes; `say` is told if one fails."""
    for event in on.each(errands):
        if event.failure is not None:
            say(f"{event.job.label}: {event.error}")


def by_seeds(
    rule: Seeds,
    runs: Callable[[Sequence[int]], list[Job]],
    folder: Path,
    notes: dict[str, Any],
    place: Place,
    workers: int | None,
    watch: Watch,
    say: Say,
    beside: Sequence[Errand] = (),
) -> Study:
    """The first seeds of every head, then more seeds of the heads in question as long as the rule says."""
    counts = {job.label: rule.first for job in runs(range(1))}
    if rule.racing:
        counts = _with_those_there(counts, runs, folder)
    rounds: list[dict[str, Any]] = []
    while True:
        planned = [job for job in runs(range(max(counts.values()))) if job.recipe.seed < counts[job.label]]
        study = _carry_out(folder, planned, notes, place, workers, watch, say, beside)
        beside = ()
        found = rule.next(study.kept)
        if found is None:
            return study
        rounds.append(found.record)
        notes["race"] = rounds
        for sentence in found.sentences:
            say(sentence)
        if not found.go_on:
            return Study(StudyFolder.plan(folder, planned, notes))
        counts = dict(found.counts)


def _with_those_there(
    counts: Mapping[str, int], runs: Callable[[Sequence[int]], list[Job]], folder: Path
) -> dict[str, int]:
    """How many seeds to begin with, including those that an earlier call has finished without a gap."""
    study = StudyFolder.open(folder)
    done = {job for job in study.jobs if study.status(job).state == "finished"}
    found = dict(counts)
    for job in runs(range(len(study.jobs))):  # seed by seed
        if job.recipe.seed == found[job.label] and job in done:
            found[job.label] += 1
    return found


def _carry_out(
    folder: Path,
    jobs: Sequence[Job],
    notes: Mapping[str, Any],
    on: Place,
    workers: int | None,
    watch: Watch,
    say: Say = silent,
    beside: Sequence[Errand] = (),
) -> Study:
    study = StudyFolder.plan(folder, jobs, notes, say=say)
    try:
        with watch([study.status(job) for job in jobs]) as watcher:
            if beside and isinstance(on, Processes):
                on.finish(study, watcher, workers=workers, beside=beside, say=say)
            else:
                on.finish(study, watcher, workers=workers)
    finally:
        study.collect()
    return Study(study)


def saying(say: Say) -> Watch:
    """A watcher that says a sentence for each run that ends."""

    def watch(statuses: Sequence[RunStatus]) -> AbstractContextManager[Watcher]:
        done = sum(status.state == "finished" for status in statuses)

        def tell(event: Event | None) -> None:
            nonlocal done
            if event is not None and event.kind == "finished":
                done += 1
                say(f"{event.job.name}: finished ({done} of {len(statuses)})")
            elif event is not None and event.kind in ("failed", "lost"):
                say(f"{event.job.name}: {event.kind}: {event.error}")

        return nullcontext(tell if say is not silent else unwatched)

    return watch
