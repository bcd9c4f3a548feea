"""Threads decode photos before the net needs them: Pillow lets other threads run while it decodes."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Key = TypeVar("Key")
_Item = TypeVar("_Item")

_AHEAD = 2
"""How many batches are decoded before they are asked for."""


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def decoding_threads() -> int:
    """How many threads decode by default: one for each core that this process may use, at most 8."""
    return min(8, usable_cores())


def ahead(
    batches: Sequence[Sequence[Key]], work: Callable[[Key], _Item], workers: int
) -> Iterator[list[_Item]]:
    """The results of `work` for every key, batch by batch, in order; without workers not ahead."""
    if not workers:
        for batch in batches:
            yield [work(key) for key in batch]
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="decode") as pool:
        waiting: deque[list[Future[_Item]]] = deque()
        try:
            for batch in batches:
                waiting.append([pool.submit(work, key) for key in batch])
                if len(waiting) > _AHEAD:
                    yield [future.result() for future in waiting.popleft()]
            while waiting:
                yield [future.result() for future in waiting.popleft()]
        finally:
            for future in (future for batch in waiting for future in batch):
                future.cancel()
