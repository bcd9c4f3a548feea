"""How training is shown: a live line in a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TextIO, TypeAlias, final


@final
@dataclass(frozen=True)
class Progress:
    """What a listener is told, a few times a second and after every epoch."""

    epoch: int
    """The first is 0; people read it as epoch 1."""
    epochs: int
    step: int
    steps: int
    loss: float
    score: float | None
    """The validation score of the last whole epoch; beside it the best so far, and its epoch."""
    best_score: float | None
    best_epoch: int
    lr: float
    seconds_left: float | None
    """The least time that is left: until training stops, if no later epoch is better."""
    done: bool
    """Whether an epoch ends here."""


Listener: TypeAlias = Callable[[Progress], None]


@final
@dataclass(frozen=True)
class Pace:
    """What a listener is told after each batch."""

    done: int
    total: int
    broken: int
    speed: float
    """How many items a second this process does."""

    @property
    def seconds_left(self) -> float:
        """Seconds until the end, at this speed."""
        return (self.total - self.done) / max(self.speed, 1e-9)

    def __str__(self) -> str:
        """`512 of 2,000 items  38.1 a second  39 s left  1 broken`."""
        parts = [f"{self.done:,} of {self.total:,} items", f"{self.speed:.1f} a second"]
        parts.append(f"{duration(self.seconds_left)} left")
        return "  ".join([*parts, f"{self.broken:,} broken"] if self.broken else parts)


PaceListener: TypeAlias = Callable[[Pace], None]


@final
class ProgressPrinter:
    """A listener of `train`: a live line if `file` is a terminal, or a plain line every few seconds."""

    def __init__(self, file: TextIO | None = None, *, every: float = 5.0) -> None:
        self._file = file
        self._every = every
        self._last = -every
        self._line: Any = None

    def __call__(self, progress: Progress) -> None:
        file = self._file or sys.stderr
        if file.isatty():
            self._show(progress, file)
        elif progress.done and (
            time.monotonic() - self._last >= self._every or progress.epoch + 1 == progress.epochs
        ):
            self._last = time.monotonic()
            print(describe(progress), file=file, flush=True)

    def _show(self, progress: Progress, file: TextIO) -> None:
        import rich.progress
        from rich.console import Console

        if self._line is None:
            self._line = rich.progress.Progress(
                rich.progress.BarColumn(bar_width=20),
                rich.progress.TextColumn("{task.description}"),
                console=Console(file=file),
                transient=True,
            )
            self._line.start()
            self._line.add_task("", total=progress.steps)
        self._line.update(0, completed=progress.step, total=progress.steps, description=describe(progress))

    def __enter__(self) -> "ProgressPrinter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.stop()
            self._line = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_line": None, "_file": None}  # a terminal cannot be sent to another process


def describe(progress: Progress) -> str:
    """`epoch 3/60  loss 0.1234  score 0.9537 (best 0.9537, epoch 2)  lr 0.1  at least 12 s left`."""
    parts = [f"epoch {progress.epoch + 1}/{progress.epochs}", f"loss {progress.loss:.4f}"]
    if progress.score is not None and progress.best_score is not None:
        best = f"best {progress.best_score:.4f}, epoch {progress.best_epoch + 1}"
        parts.append(f"score {progress.score:.4f} ({best})")
    parts.append(f"lr {progress.lr:g}")
    if left := at_least(progress.seconds_left):
        parts.append(left)
    return "  ".join(parts)


def at_least(seconds_left: float | None) -> str:
    """`at least 12 s left`; nothing where that is not known, or is no whole second."""
    return (
        "" if seconds_left is None or round(seconds_left) < 1 else f"at least {duration(seconds_left)} left"
    )


def duration(seconds: float) -> str:
    """`42 s`, `3 min 10 s`, `2 h 5 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
