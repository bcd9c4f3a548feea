"""Carry out runs in local processes, one thread each; the death of a process costs no more than its epoch."""

import multiprocessing as mp
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from spaceform.messages import sentence
from spaceform.run.progress import Progress
from spaceform.study.folder import Job, Study

TRIES = 3
"""How often a run may lose its process (killed, out of memory) or its machine before it counts as failed."""


@final
@dataclass(frozen=True)
class Event:
    """What happens to a run."""

    job: Job
    kind: Literal["started", "progress", "finished", "failed", "lost", "stopped"]
    progress: Progress | None = None
    error: str = ""


Watcher: TypeAlias = Callable[[Event | None], None]
"""Told of every event, and of None a few times a second."""


class Stopped(Exception):
    """A run was asked to stop before its end."""


def perform(
    job: Job,
    folder: Path,
    listener: Callable[[Progress], None],
    datasets: dict[Any, Any],
    measure: bool = True,
) -> None:
    """Train one run and measure it; `datasets` keeps what was loaded for the next run of this process."""
    from spaceform.run.evaluate import evaluate
    from spaceform.run.material import load_data
    from spaceform.run.train import train

    key = job.recipe.data.name, job.recipe.data.thumbnail
    if key not in datasets:
        datasets.clear()
        datasets[key] = load_data(job.recipe)
    run = train(job.recipe, folder, dataset=datasets[key], listener=listener)
    if measure:
        evaluate(run, dataset=datasets[key])


def in_processes(study: Study, workers: int | None = None, watch: Watcher = lambda _: None) -> None:
    """Finish every unfinished run of the study with `workers` processes (default: one a core, or a GPU).

    Runs fail alone: the sentence of the error is kept beside the run, the others go on. An interrupt stops
    all processes at once; a run that was under way goes on from its last checkpoint next time.
    """
    jobs = study.unfinished()
    for job in jobs:
        study.clear_failure(job)
    waiting = jobs[::-1]
    with Pool(min(len(jobs), workers or default_workers())) as pool:
        while waiting or pool.busy:
            while waiting and pool.room:
                job = waiting.pop()
                pool.submit(job, study.path(job))
                watch(Event(job, "started"))
            watch(None)
            for event in pool.events():
                if event.kind == "failed":
                    study.record_failure(event.job, event.error)
                watch(event)


def default_workers() -> int:
    """One process a GPU, or else a core that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return _gpus() or cores or 1


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


@final
class Pool:
    """Processes that outlive many runs: `submit` where there is `room`, then read `events`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._workers: list[_Worker] = []
        self._tries: dict[str, int] = {}

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
        self._workers.clear()

    @property
    def busy(self) -> bool:
        """Whether any run is under way."""
        return any(worker.task is not None for worker in self._workers)

    @property
    def room(self) -> bool:
        """Whether another run could start now."""
        return sum(worker.task is not None for worker in self._workers) < self._size

    def submit(self, job: Job, folder: Path, *, measure: bool = True) -> None:
        """Start a run in a free process."""
        self._tries[job.name] = 0
        self._start(_Task(job, folder, measure))

    def stop(self, job: Job) -> None:
        """Ask a run to stop; an event `stopped` follows, or `finished` where it was too late."""
        for worker in self._workers:
            if worker.task is not None and worker.task.job == job:
                worker.pipe.send(None)

    def events(self, timeout: float = 0.2) -> Iterator[Event]:
        """What happened since the last call; waits for the first event no longer than `timeout` seconds."""
        for ready in wait([worker.pipe for worker in self._workers], timeout):
            worker = next(w for w in self._workers if w.pipe is ready)
            try:
                event: Event = worker.pipe.recv()
            except (EOFError, OSError):
                self._workers.remove(worker)
                if worker.task is not None:
                    yield self._bury(worker, worker.task)
                continue
            if event.kind in ("finished", "failed", "stopped"):
                worker.task = None
            yield event

    def _start(self, task: "_Task") -> None:
        worker = next((w for w in self._workers if w.task is None), None)
        if worker is None:
            taken = {w.slot for w in self._workers}
            worker = _Worker.start(next(slot for slot in range(self._size) if slot not in taken))
            self._workers.append(worker)
        self._tries[task.job.name] += 1
        worker.task = task
        with suppress(OSError):  # it died while idle: `events` will find its pipe closed and try again
            worker.pipe.send(task)

    def _bury(self, worker: "_Worker", task: "_Task") -> Event:
        words = worker.last_words()
        if self._tries[task.job.name] < TRIES:
            self._start(task)
            return Event(task.job, "lost", error=words)
        return Event(task.job, "failed", error=words)


@final
@dataclass(frozen=True)
class _Task:
    job: Job
    folder: Path
    measure: bool


@final
@dataclass
class _Worker:
    process: BaseProcess
    pipe: "Connection[Any, Any]"
    slot: int
    task: _Task | None = field(default=None)

    @classmethod
    def start(cls, slot: int) -> "_Worker":
        context = mp.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs,), daemon=True)
        with _birth(slot):
            process.start()
        theirs.close()
        return cls(process, ours, slot)

    def last_words(self) -> str:
        self.process.join(5)
        code = self.process.exitcode
        if code == -signal.SIGKILL:
            return (
                "its process was killed, perhaps for want of memory; use fewer --workers or smaller batches"
            )
        return f"its process died (exit code {code}); run it alone with `spaceform train` to see why"


@contextmanager
def _birth(slot: int) -> Iterator[None]:
    """A process started inside has one thread and one GPU, leaves interrupts to its parent, and imports
    nothing of the parent's script.
    """
    settings = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if (gpus := _gpus()) > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
        settings["CUDA_VISIBLE_DEVICES"] = visible[slot % gpus]
    before = {name: os.environ.get(name) for name in settings}
    main = sys.modules["__main__"]
    script = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if os.name == "posix" else None
    try:
        os.environ.update(settings)
        for name in script:
            setattr(main, name, None)
        yield
    finally:
        for name, value in script.items():
            setattr(main, name, value)
        for name, old in before.items():
            if old is None:
                del os.environ[name]
            else:
                os.environ[name] = old
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _work(pipe: "Connection[Any, Any]") -> None:
    """A worker's life: one run after the other, until its parent is gone."""
    threading.Thread(target=_die_with_parent, daemon=True).start()
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    datasets: dict[Any, Any] = {}
    while (task := _next(pipe)) is not None:

        def tell(progress: Progress, job: Job = task.job) -> None:
            if pipe.poll() and pipe.recv() is None:
                raise Stopped
            pipe.send(Event(job, "progress", progress))

        try:
            perform(task.job, task.folder, tell, datasets, task.measure)
            event = Event(task.job, "finished")
        except Stopped:
            event = Event(task.job, "stopped")
        except Exception as error:
            event = Event(task.job, "failed", error=sentence(error))
        pipe.send(event)


def _next(pipe: "Connection[Any, Any]") -> _Task | None:
    """The next task; a request to stop that came too late is passed over."""
    while True:
        try:
            task: _Task | None = pipe.recv()
        except EOFError:
            return None
        if task is not None:
            return task


def _die_with_parent() -> None:
    parent = mp.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)  # what is on disk is whole; the run goes on from its checkpoint another time
