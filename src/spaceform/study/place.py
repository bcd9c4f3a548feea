"""Where the runs of a study are carried out, as a value: `Processes(2)`, `Ray("host:6379")`, or your own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, final, runtime_checkable

from spaceform.run.progress import Progress
from spaceform.study.folder import Failure, Job, StudyFolder

TRIES = 3
"""How often a run may lose its process (killed, out of memory) or its machine before it counts as failed."""


@final
@dataclass(frozen=True)
class Event:
    """What happens to a run."""

    job: Job
    kind: Literal["started", "progress", "finished", "failed", "lost", "stopped"]
    progress: Progress | None = None
    failure: Failure | None = None
    """Why the run failed or was lost."""

    @property
    def error(self) -> str:
        """The sentence of the failure; empty where there is none."""
        return "" if self.failure is None else self.failure.sentence


Work: TypeAlias = Callable[..., None]
"""What a process does with a job, such as `perform`: `work(job, folder, listener, datasets, workers=0)`."""
Watcher: TypeAlias = Callable[[Event | None], None]
"""A function that is called with every event, and a few times a second with None."""


def unwatched(event: Event | None) -> None:
    """The watcher that does nothing."""


@runtime_checkable
class Place(Protocol):
    """What can carry out the runs of a study."""

    def finish(self, study: StudyFolder, watch: Watcher = unwatched, *, workers: int | None = None) -> None:
        """Finish every run of the study that is not finished.

        If a run fails, the reason is kept beside it, and the other runs go on. `workers` processes decode the
        photos of each run; None takes the cores that no run uses.
        """


def perform(
    job: Job,
    folder: Path,
    listener: Callable[[Progress], None],
    datasets: dict[Any, Any],
    *,
    measure: bool = True,
    workers: int = 0,
) -> None:
    """Train one run and measure it, on this machine's accelerator where there is one.

    `datasets` keeps the data that were loaded, for the next run of this process.
    """
    from spaceform.run.evaluate import evaluate
    from spaceform.run.material import load_data
    from spaceform.run.train import train

    key = job.recipe.data.key
    if key not in datasets:
        datasets.clear()
        datasets[key] = load_data(job.recipe)
    run = train(job.recipe, folder, dataset=datasets[key], workers=workers, listener=listener)
    if measure:
        evaluate(run, dataset=datasets[key], device=accelerator(), workers=workers)


def accelerator() -> str:
    """The device that training chooses by itself."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def decoding_processes(cores: int, runs: int) -> int:
    """Processes that decode for each of the runs at work: the cores that no run uses, at most eight."""
    return max(0, min(8, cores // runs - 1))
