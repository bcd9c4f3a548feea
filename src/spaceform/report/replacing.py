"""The folder of a report is replaced as a whole, or not at all."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FIGURES_FOLDER, TABLES_FOLDER, PAGE = "figures", "tables", "report.html"


@contextmanager
def replaced_whole(out: Path) -> Iterator[Path]:
    """A new folder to write into; afterwards its content takes the place of the report in `out`.

    If writing ends early, by an error or an interrupt, `out` keeps the report that it had (or has none).
    Other files in `out` are not touched.
    """
    name = f".{out.name}.{secrets.token_hex(4)}.part"
    part = out / name if out.is_dir() else out.with_name(name)
    try:
        if out.exists() and not out.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(out))
        part.mkdir(parents=True)
        yield part
        if out.is_dir():
            _exchange(part, out)
        else:
            os.rename(part, out)
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot write the report to {out} ({error.strerror or error}); what was there before is "
            "untouched: make room or choose another folder",
        ) from None
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _exchange(part: Path, out: Path) -> None:
    """Move the old report out and the new one in; where that fails half-way, move everything back."""
    old = part / "old"
    old.mkdir()
    moves: list[tuple[Path, Path]] = []
    try:
        for name in (FIGURES_FOLDER, TABLES_FOLDER, PAGE):
            for source, target in ((out / name, old / name), (part / name, out / name)):
                if source.exists():
                    moves.append((source, target))
                    os.rename(source, target)
    except BaseException:
        for source, target in reversed(moves):
            if not source.exists():
                os.rename(target, source)
        raise
