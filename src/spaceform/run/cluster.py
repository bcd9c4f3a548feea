"""Work on a running Ray cluster: Ray Data hands out parts to actors that hold a net, and brings back results.

Each part has a number. Parts that a lost host did not send back are handed out again; if a result comes
twice, it is taken once. So no row is lost or doubled.
"""

import gc
import logging
import os
import pickle
import signal
import socket
import tempfile
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

import ray
import ray.data

from spaceform.foundation.messages import first_line
from spaceform.run.recipe import RecipeError

ROUNDS = 4
"""How often lost parts are handed out before that is an error."""
_READERS = ("StreamingExecutor", "iter_threaded")
"""The names of the threads of Ray Data that ask the cluster for parts."""


class ClusterError(ConnectionError):
    """The cluster cannot be used, or lost its hosts again and again."""


@runtime_checkable
class Cluster(Protocol):
    """A running Ray cluster, and what each actor asks it for."""

    @property
    def address(self) -> str:
        """HOST:PORT, or "auto"."""

    @property
    def cpus(self) -> float:
        """CPUs that an actor asks for."""

    @property
    def gpus(self) -> float:
        """GPUs that an actor asks for."""


class ActorWork(ABC):
    """Base class: the work of an actor. It travels to the hosts once, with the net in it."""

    @abstractmethod
    def settle(self, device: str, workers: int) -> None:
        """Called once on a host, with the device to work on and the number of threads that decode."""

    @abstractmethod
    def __call__(self, task: Any) -> Any:
        """The result of a part."""


def connect(cluster: Cluster) -> None:
    """Connect to the cluster, if it is there and has room for one actor."""
    host, _, port = _last_known(cluster.address).rpartition(":")
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        if "/" not in host and port.isdigit():  # Ray itself would try for minutes, with many messages
            socket.create_connection((host, int(port)), timeout=5.0).close()
        ray.init(
            address=cluster.address, log_to_driver=False, logging_level=logging.ERROR, namespace="spaceform"
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"no Ray cluster answers at {cluster.address!r} ({first_line(error)}); "
            "start one with `ray start --head`, or leave --on ray out"
        ) from None
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(
                signal.SIGTERM, on_sigterm
            )  # Ray sets its own handler, which ends the process without a message
    if not _places(cluster):
        ray.shutdown()
        raise RecipeError(
            f"no host of the cluster has {cluster.cpus:g} CPUs and {cluster.gpus:g} GPUs; "
            "ask for less with --cpus and --gpus"
        )


def _last_known(address: str) -> str:
    """The address that "auto" stands for: Ray keeps the last one, even after the cluster died."""
    if address != "auto":
        return address
    if "RAY_ADDRESS" in os.environ:
        return os.environ["RAY_ADDRESS"]
    kept = Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray" / "ray_current_cluster"
    try:
        return kept.read_text("utf-8").strip()
    except OSError:
        return address


def by_actors(cluster: Cluster, work: ActorWork, tasks: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
    """The number and the result of every task, each once, as they arrive; errors of the work are raised."""
    if not tasks:
        return
    before = set(threading.enumerate())
    connect(cluster)
    try:
        held, left, lost = ray.put(work), dict(tasks), "hosts were lost"
        for _ in range(ROUNDS):
            try:
                for number, result in _round(cluster, held, left):
                    if number in left:
                        del left[number]
                        yield number, result
            except ray.exceptions.RayError as error:
                lost = str(error).strip().splitlines()[-1]
                if "creation task" in str(error):
                    raise ClusterError(
                        f"the net cannot be set up on a host ({lost}); install there what is installed here"
                    ) from None
            if not left:
                return
        raise ClusterError(
            f"{len(left):,} of {len(tasks):,} parts were lost {ROUNDS} times ({lost}); the others are kept: "
            "mend the cluster, and run the same command again"
        )
    finally:
        _await_readers(before)
        ray.shutdown()


def _await_readers(before: Container[threading.Thread]) -> None:
    """Wait for the threads of Ray Data.

    If one asks for a part after `ray.shutdown()`, this process ends without a message.
    """
    gc.collect()  # Ray's iterators end their threads when they are collected
    for thread in threading.enumerate():
        if thread not in before and thread.name.startswith(_READERS):
            thread.join(timeout=30.0)


def _round(cluster: Cluster, held: Any, tasks: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
    """Hand out all tasks once. The part of a lost host is lost: nothing is tried again here."""
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars, context.max_errored_blocks = False, -1
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    rows = [{"number": number, "task": pickle.dumps(task)} for number, task in tasks.items()]
    actors = max(1, min(len(rows), _places(cluster)))
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # Ray warns of the last two options, since they are not arguments of its own
        done = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Actor,
            fn_constructor_args=(held, max(1, int(cluster.cpus))),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(
                min_size=1, max_size=actors, initial_size=actors, max_tasks_in_flight_per_actor=2
            ),
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
            max_restarts=0,
            max_task_retries=0,
        )
    parts: Iterator[Any] = iter(
        done.iter_batches(batch_size=None, prefetch_batches=0, batch_format="pyarrow")
    )
    try:
        for part in parts:
            for row in part.to_pylist():
                result = pickle.loads(row["result"])
                if isinstance(result, Exception):
                    raise result
                yield int(row["number"]), result
    finally:
        del parts, done  # the traceback of an error would keep them


def _places(cluster: Cluster) -> int:
    """How many actors the cluster has room for."""
    wanted = {kind: much for kind, much in (("CPU", cluster.cpus), ("GPU", cluster.gpus)) if much}
    found = 0
    for node in ray.nodes():
        if node["Alive"]:
            room = [node["Resources"].get(kind, 0) / much for kind, much in wanted.items()]
            found += int(min(room, default=1))
    return found


@final
class _Actor:
    """On a host: holds the work, and does it for one part after the other."""

    def __init__(self, held: Any, cpus: int) -> None:
        import torch

        from spaceform.foundation.torchvision import ensure_torchvision

        warnings.simplefilter("ignore")
        torch.set_num_threads(cpus)
        ensure_torchvision()  # before the net is unpacked, which may import torchvision
        self._work: ActorWork = ray.get(held) if isinstance(held, ray.ObjectRef) else held
        self._work.settle("cuda" if torch.cuda.is_available() else "cpu", cpus)

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[Any]]:
        try:
            result = self._work(pickle.loads(rows["task"][0]))
        except Exception as error:
            result = error
        return {"number": [int(rows["number"][0])], "result": [pickle.dumps(result)]}
