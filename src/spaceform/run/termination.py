"""SIGTERM, which clusters and containers send, ends training as Ctrl-C does."""

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible() -> Iterator[None]:
    """In this context SIGTERM raises KeyboardInterrupt, and an interrupt ends processes that it started.

    A handler that somebody else has set stays. Outside the main thread Python allows no handlers, and nothing
    is changed.
    """
    ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    )
    before = set(multiprocessing.active_children())
    if ours:
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
            child.join()
        raise
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 (what Python calls it with)
    raise KeyboardInterrupt
