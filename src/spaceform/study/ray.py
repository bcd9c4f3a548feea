"""Carry out runs on a running Ray cluster. Its hosts need spaceform installed; they need no common disk.

Data that fit in memory travel once through the object store; each run trains in a folder of its own host, and
its files come back as bytes. A run whose process or machine is lost starts again elsewhere.
"""

import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor

from spaceform.foundation.messages import first_line
from spaceform.run.cluster import connect
from spaceform.run.material import load_data
from spaceform.run.progress import Progress
from spaceform.study.folder import Failure, Job, StudyFolder
from spaceform.study.place import TRIES, Event, Watcher, decoding_processes, perform, unwatched

Files: TypeAlias = dict[str, bytes]
_LOST = (
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.TaskUnschedulableError,
)
"""Errors of Ray after which the run is tried again elsewhere."""


@final
@dataclass(frozen=True)
class Ray:
    """A running Ray cluster. Each run, encoding actor or predicting actor asks for `cpus` and `gpus`."""

    address: str = "auto"
    cpus: float = 1.0
    gpus: float = 0.0

    def finish(self, study: StudyFolder, watch: Watcher = unwatched, *, workers: int | None = None) -> None:
        """Finish every run of the study that is not finished.

        If a run fails, the other runs go on, as in local processes. A run is added to the study when all of
        its files are here. `workers` processes decode the photos of each run; None is one less than its
        `cpus`.
        """
        jobs = study.unfinished()
        for job in jobs:
            study.clear_failure(job)
        if not jobs:
            return
        connect(self)
        news = _mailbox()
        running: dict[Any, Job] = {}
        decoders = decoding_processes(int(self.cpus), 1) if workers is None else workers
        try:
            datasets = _shipped(jobs)
            work = ray.remote(_work).options(num_cpus=self.cpus, num_gpus=self.gpus, max_retries=0)
            tries = dict.fromkeys((job.name for job in jobs), 0)

            def submit(job: Job) -> None:
                tries[job.name] += 1
                key = job.recipe.data.key
                running[work.remote(job, datasets.get(key), news, decoders)] = job

            for job in jobs:
                submit(job)
            started: set[str] = set()
            while running:
                watch(None)
                _pass_on(news, running, started, watch)
                done, _ = ray.wait(list(running), timeout=0.3)
                for ref in done:
                    job = running.pop(ref)
                    outcome = _outcome(ref)
                    lost = isinstance(outcome, Failure) and outcome.kind == "MachineLost"
                    if isinstance(outcome, Failure) and lost and tries[job.name] < TRIES:
                        started.discard(job.name)
                        submit(job)
                        watch(Event(job, "lost", failure=outcome))
                    elif isinstance(outcome, Failure):
                        study.record_failure(job, outcome)
                        watch(Event(job, "failed", failure=outcome))
                    else:
                        study.adopt(job, outcome)
                        watch(Event(job, "finished"))
        finally:
            for ref in running:
                ray.cancel(ref, force=True)
            ray.shutdown()


def _outcome(ref: Any) -> Files | Failure:
    """The files of a run, or why there are none."""
    try:
        outcome: Files | Failure = ray.get(ref)
    except ray.exceptions.RayError as error:
        kind = "MachineLost" if isinstance(error, _LOST) else type(error).__name__
        return Failure(kind, first_line(error))
    return outcome


def _shipped(jobs: list[Job]) -> dict[Any, Any]:
    """The data sets in memory, put into the object store. Each host reads all others from its own disk."""
    refs: dict[Any, Any] = {}
    for job in jobs:
        key = job.recipe.data.key
        if key not in refs:
            dataset = load_data(job.recipe)
            refs[key] = ray.put(dataset) if isinstance(dataset.inputs, Tensor) else None
    return refs


class _Mailbox:
    """The latest progress of every run. The driver's host keeps it, so it does not get lost with a host."""

    def __init__(self) -> None:
        self._latest: dict[str, Progress] = {}

    def put(self, name: str, progress: Progress) -> None:
        self._latest[name] = progress

    def take(self) -> dict[str, Progress]:
        latest, self._latest = self._latest, {}
        return latest


def _mailbox() -> Any:
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return ray.remote(_Mailbox).options(num_cpus=0, scheduling_strategy=here).remote()


def _pass_on(news: Any, running: dict[Any, Job], started: set[str], watch: Watcher) -> None:
    by_name = {job.name: job for job in running.values()}
    for name, progress in ray.get(news.take.remote()).items():
        if name in by_name:
            if name not in started:
                started.add(name)
                watch(Event(by_name[name], "started"))
            watch(Event(by_name[name], "progress", progress))


def _work(job: Job, dataset: Any, news: Any, decoders: int) -> Files | Failure:
    """On a host: all files of the finished run, or why it failed."""
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    key = job.recipe.data.key
    with tempfile.TemporaryDirectory(prefix=f"spaceform-{job.name}-") as place:
        folder = Path(place) / "run"
        try:
            here = {} if dataset is None else {key: dataset}
            perform(job, folder, _sender(job.name, news), here, workers=decoders)
        except Exception as error:
            failure = Failure.of(error)
            return replace(failure, sentence=f"{failure.sentence} (on {socket.gethostname()})")
        return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def _sender(name: str, news: Any) -> Callable[[Progress], None]:
    told = 0.0

    def tell(progress: Progress) -> None:
        nonlocal told
        if time.monotonic() - told > 1.0:
            told = time.monotonic()
            news.put.remote(name, progress)

    return tell
