"""Carry out runs in local processes. If a process dies, no more than the current epoch is lost."""

import multiprocessing as mp
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, final

from spaceform.data.decoding import usable_cores
from spaceform.run.allocator import give_back_freed_memory
from spaceform.run.progress import Progress
from spaceform.study.folder import Failure, Job, StudyFolder
from spaceform.study.place import TRIES, Event, Watcher, Work, decoding_processes, perform, unwatched


class Stopped(Exception):
    """A run was asked to stop before its end."""


@final
@dataclass(frozen=True)
class Errand:
    """Work for a process that is not a run: a job, the folder for the result, the function that does it."""

    job: Job
    folder: Path
    work: Work


@final
@dataclass(frozen=True)
class Processes:
    """Local processes of one thread each: `count` of them, or one for each GPU, or one for each core."""

    count: int | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise ValueError(f"at least 1 process must do the work, got {self.count}")

    @property
    def most(self) -> int:
        """The most processes that work at a time."""
        return self.count or _gpus() or usable_cores()

    def finish(
        self,
        study: StudyFolder,
        watch: Watcher = unwatched,
        *,
        workers: int | None = None,
        beside: Sequence[Errand] = (),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Finish every run of the study that is not finished.

        If a run fails, the reason is kept beside it, and the other runs go on. `workers` processes decode the
        photos of each run; None takes the cores that no run uses. An interrupt stops all processes at once. A
        run that was under way goes on from its last checkpoint next time. The same processes do the errands
        in `beside` before the runs; `say` is told if one fails.
        """
        jobs = study.unfinished()
        for job in jobs:
            study.clear_failure(job)
        waiting, errands = jobs[::-1], list(beside[::-1])
        others = {one.job.name for one in beside}
        with self.pool(len(jobs) + len(errands), workers) as pool:
            while waiting or errands or pool.busy:
                while errands and pool.room:
                    one = errands.pop()
                    pool.submit(one.job, one.folder, one.work)
                while waiting and pool.room:
                    job = waiting.pop()
                    pool.submit(job, study.path(job))
                    watch(Event(job, "started"))
                watch(None)
                for event in pool.events():
                    if event.job.name in others:
                        if event.kind == "failed":
                            say(f"{event.job.label}: {event.error}")
                        continue
                    if event.kind == "failed" and event.failure is not None:
                        study.record_failure(event.job, event.failure)
                    watch(event)

    def each(self, errands: Sequence[Errand]) -> Iterator[Event]:
        """Do errands, begun in this order; there is an event for each errand that ends or fails."""
        waiting = list(errands[::-1])
        with self.pool(len(errands), 0) as pool:
            while waiting or pool.busy:
                while waiting and pool.room:
                    one = waiting.pop()
                    pool.submit(one.job, one.folder, one.work)
                yield from (event for event in pool.events() if event.kind in ("finished", "failed"))

    def pool(self, runs: int, workers: int | None = None) -> "Pool":
        """Processes for this many runs."""
        size = min(runs, self.most)
        return Pool(size, decoding_processes(usable_cores(), max(1, size)) if workers is None else workers)


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()


@contextmanager
def lasting() -> Iterator[None]:
    """In this context a pool leaves its idle processes to the next pool: to start a process takes seconds."""
    if _SPARE.get() is not None:
        yield
        return
    spare: list[_Worker] = []
    token = _SPARE.set(spare)
    try:
        yield
    finally:
        _SPARE.reset(token)
        _end(spare)


@final
class Pool:
    """Processes that each carry out many runs: `submit` a run where there is `room`, then read `events`."""

    def __init__(self, size: int, decoders: int = 0) -> None:
        self._size = size
        self._decoders = decoders
        self._workers: list[_Worker] = []
        self._tries: dict[str, int] = {}

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        spare = _SPARE.get()
        if error is None and spare is not None:
            spare.extend(worker for worker in self._workers if worker.task is None)
            self._workers = [worker for worker in self._workers if worker.task is not None]
        _end(self._workers)
        self._workers.clear()

    @property
    def busy(self) -> bool:
        """Whether any run is under way."""
        return any(worker.task is not None for worker in self._workers)

    @property
    def room(self) -> bool:
        """Whether another run could start now."""
        return sum(worker.task is not None for worker in self._workers) < self._size

    def submit(self, job: Job, folder: Path, work: Work = perform) -> None:
        """Start a run, or other work on a job, in a free process."""
        self._tries[job.name] = 0
        self._start(_Task(job, folder, work, self._decoders))

    def stop(self, job: Job) -> None:
        """Ask a run to stop; an event `stopped` follows, or `finished` where it was too late."""
        for worker in self._workers:
            if worker.task is not None and worker.task.job == job:
                worker.pipe.send(None)

    def events(self, timeout: float = 0.2) -> Iterator[Event]:
        """The events since the last call; waits at most `timeout` seconds for the first."""
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
            worker = self._hire(next(slot for slot in range(self._size) if slot not in taken))
        self._tries[task.job.name] += 1
        worker.task = task
        with suppress(
            OSError
        ):  # the process died while idle: `events` will find its pipe closed and try again
            worker.pipe.send(task)

    def _hire(self, slot: int) -> "_Worker":
        """A process for the slot: one that an earlier pool left, or a new one."""
        spare = _SPARE.get() or []
        left = next((worker for worker in spare if worker.slot == slot), None)
        worker = _Worker.make(slot) if left is None else left
        self._workers.append(worker)  # before the process starts: an interrupt in between must find it
        if left is None:
            worker.start()
        else:
            spare.remove(worker)
        return worker

    def _bury(self, worker: "_Worker", task: "_Task") -> Event:
        failure = Failure("ProcessLost", worker.last_words())
        if self._tries[task.job.name] < TRIES:
            self._start(task)
            return Event(task.job, "lost", failure=failure)
        return Event(task.job, "failed", failure=failure)


@final
@dataclass(frozen=True)
class _Task:
    job: Job
    folder: Path
    work: Work
    decoders: int


@final
@dataclass
class _Worker:
    process: BaseProcess
    pipe: "Connection[Any, Any]"
    theirs: "Connection[Any, Any]"
    slot: int
    task: _Task | None = field(default=None)

    @classmethod
    def make(cls, slot: int) -> "_Worker":
        context = mp.get_context("spawn")
        ours, theirs = context.Pipe()
        # no daemon: a daemon may not have children, and some children decode photos
        return cls(context.Process(target=_work, args=(theirs,), daemon=False), ours, theirs, slot)

    def start(self) -> None:
        with _birth(self.slot):
            self.process.start()
        self.theirs.close()

    def last_words(self) -> str:
        self.process.join(5)
        code = self.process.exitcode
        if code == -signal.SIGKILL:
            return (
                "its process was killed, perhaps for want of memory; use fewer --processes or smaller batches"
            )
        return f"its process died (exit code {code}); run it alone with `spaceform train` to see why"


def _end(workers: Sequence[_Worker]) -> None:
    started = [worker.process for worker in workers if worker.process.pid is not None]
    for process in started:
        process.kill()
    for process in started:
        process.join()


_SPARE: ContextVar[list[_Worker] | None] = ContextVar("_SPARE", default=None)
"""Idle processes that the next pool may take over."""


@contextmanager
def _birth(slot: int) -> Iterator[None]:
    """A process started in this context has one thread and one GPU, and does not import the parent's script.

    Ctrl-C and SIGTERM are blocked in it from its first instruction: only the parent stops it.
    """
    settings = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    if (gpus := _gpus()) > 1:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
        settings["CUDA_VISIBLE_DEVICES"] = visible[slot % gpus]
    before = {name: os.environ.get(name) for name in settings}
    main = sys.modules["__main__"]
    script = {name: getattr(main, name) for name in ("__file__", "__spec__") if hasattr(main, name)}
    if os.name == "posix":
        resource_tracker.ensure_running()  # now, since its start unblocks the signals
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
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
        if os.name == "posix":
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _work(pipe: "Connection[Any, Any]") -> None:
    """What a worker does: one run after the other, until its parent is gone."""
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
            task.work(task.job, task.folder, tell, datasets, workers=task.decoders)
            event = Event(task.job, "finished")
        except Stopped:
            event = Event(task.job, "stopped")
        except Exception as error:
            event = Event(task.job, "failed", failure=Failure.of(error))
        give_back_freed_memory()
        pipe.send(event)


def _next(pipe: "Connection[Any, Any]") -> _Task | None:
    """The next task; requests to stop a run that has ended are ignored."""
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
    os._exit(1)  # files on the disk are whole; the run goes on from its checkpoint another time
