"""Ctrl-C and SIGTERM, at any moment, end a command in one sentence.

The first signal raises `KeyboardInterrupt`, so that processes are stopped and files are closed. If an
exception would be lost or changed (inside an import or a finaliser), and at the second signal, the command
ends at once instead. That is safe: files on the disk are whole at every moment.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

STOPPED = "stopped; the same command goes on with what is done"
_SECONDS_TO_STOP = 10  # seconds that stopping processes and closing files may take
_SHOW_CURSOR = "\x1b[?25h"  # a live table hides it

_received: list[int] = []
_process: list[int] = []


def received() -> bool:
    """Whether the command was told to stop."""
    return bool(_received)


@contextmanager
def one_sentence() -> Iterator[None]:
    """In this context an interrupt ends the program with one sentence and exit code 130 (143 for SIGTERM)."""
    _process[:] = [os.getpid()]
    signals = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) != signal.SIG_IGN]
    for one in signals:
        signal.signal(one, _stop)
    sys.unraisablehook = _unraisable
    try:
        yield
    except BaseException as error:
        if not isinstance(error, KeyboardInterrupt) and not _received:
            raise
        _stop_children()
        _say()
        if hasattr(signal, "alarm"):
            signal.alarm(0)  # Python's own end may take its time
        sys.exit(_code())
    finally:
        for one in signals:  # Python's own end is not interrupted by Python code
            signal.signal(one, signal.SIG_DFL)


def _stop(number: int, frame: FrameType | None) -> None:
    if os.getpid() not in _process:  # a copy of this process, which its parent stops
        if number == signal.SIGTERM:
            os._exit(128 + number)
        return
    first = not _received
    _received.append(number)
    if not first or _importing(frame):
        _leave()
    if "logging" in sys.modules:  # libraries log errors while they end
        sys.modules["logging"].disable()
    if hasattr(signal, "alarm"):
        signal.signal(signal.SIGALRM, _leave)
        signal.alarm(_SECONDS_TO_STOP)
    raise KeyboardInterrupt


def _importing(frame: FrameType | None) -> bool:
    """Whether an import is under way: an exception while a compiled module starts may become a crash."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _unraisable(args: Any) -> None:
    """Called for an exception in a finaliser, which Python would drop: an interrupt would be lost."""
    if _received:
        _leave()
    sys.__unraisablehook__(args)


def _leave(*_: object) -> NoReturn:
    with suppress(Exception):
        _stop_children()
    with suppress(Exception):
        _say()
    os._exit(_code())


def _stop_children() -> None:
    # while multiprocessing is being imported, it may lack this function, but then it has no children
    for child in getattr(sys.modules.get("multiprocessing"), "active_children", tuple)():
        child.kill()


def _say() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    cursor = _SHOW_CURSOR if os.isatty(2) else ""
    os.write(2, f"{cursor}error: {STOPPED}\n".encode())


def _code() -> int:
    return 128 + (_received[0] if _received else signal.SIGINT)
