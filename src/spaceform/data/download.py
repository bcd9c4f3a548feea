"""Downloads that go on where they stopped, and are checked before they are used.

pooch knows the checksums, and moves a file into place only if it is right. It does not go on after a cut
connection: `Resume` does.
"""

import logging
import shutil
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from spaceform.data.dataset import DataError

CHUNK = 1 << 14  # the most bytes that a cut connection loses
ATTEMPTS = 5
TIMEOUT = (10.0, 60.0)  # seconds to connect, seconds of silence

DownloadListener = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes so far and the bytes in all, if known."""


@final
@dataclass(frozen=True)
class Remote:
    """A file to fetch: its name, its checksum ("md5:…" or "sha256:…"), and addresses to try in order."""

    name: str
    checksum: str
    urls: tuple[str, ...]


@final
class Resume:
    """A pooch downloader that keeps the bytes it has in ``part`` and asks for the rest."""

    def __init__(
        self,
        part: Path,
        progress: DownloadListener | None = None,
        attempts: int = ATTEMPTS,
        wait: float = 1.0,
    ) -> None:
        self._part = part
        self._progress = progress
        self._attempts = attempts
        self._wait = wait

    def __call__(self, url: str, output_file: Any, pooch: Any) -> None:  # noqa: ARG002 - pooch's signature
        import requests

        failures = 0
        while True:
            before = self._size()
            try:
                self._receive(url)
                break
            except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError):
                # After a connection that brings bytes, attempts are counted from 0 again.
                failures = failures + 1 if self._size() <= before else 0
                if failures == self._attempts or not self._size():
                    raise
                time.sleep(self._wait * failures)
        shutil.move(self._part, output_file)

    def _receive(self, url: str) -> None:
        import requests

        have = self._size()
        headers = (
            {"Range": f"bytes={have}-", "Accept-Encoding": "identity"}
            if have
            else {"Accept-Encoding": "identity"}
        )
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if (
                response.status_code == 416
            ):  # nothing is left to send, or what is here is longer than the file
                if _total(response) != have:
                    self._part.unlink()
                    self._receive(url)
                return
            response.raise_for_status()
            resumed = response.status_code == 206
            total = _total(response)
            done = have if resumed else 0
            with open(self._part, "ab" if resumed else "wb") as file:
                for chunk in response.iter_content(CHUNK):
                    file.write(chunk)
                    done += len(chunk)
                    if self._progress is not None:
                        self._progress(self._part.name.removesuffix(".part"), done, total)
            if total is not None and done < total:
                raise requests.ConnectionError(f"{done:,} of {total:,} bytes arrived")

    def _size(self) -> int:
        return self._part.stat().st_size if self._part.exists() else 0


@contextmanager
def bar() -> Iterator[DownloadListener]:
    """A progress bar on standard error, or a line for each file where that is not a terminal."""
    from rich import progress as rich
    from rich.console import Console

    console = Console(stderr=True)
    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.DownloadColumn(),
        rich.TransferSpeedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=console, disable=not console.is_terminal) as display:
        tasks: dict[str, rich.TaskID] = {}

        def advance(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = display.add_task(name, total=total)
                if not console.is_terminal:
                    size = f" ({total:,} bytes)" if total else ""
                    console.print(f"downloading {name}{size}", highlight=False)
            display.update(tasks[name], completed=done, total=total)

        yield advance


def fetch(
    remote: Remote, folder: Path, progress: DownloadListener | None = None, *, wait: float = 1.0
) -> Path:
    """The file, from the first address with the right checksum; a file that is here is checked, too."""
    import pooch
    import requests

    pooch.get_logger().setLevel(logging.WARNING)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} cannot be written to ({error.strerror or error}).") from error
    failures = []
    for url in remote.urls:
        try:
            return Path(
                pooch.retrieve(
                    url,
                    known_hash=remote.checksum,
                    fname=remote.name,
                    path=folder,
                    downloader=Resume(folder / f"{remote.name}.part", progress, wait=wait),
                )
            )
        except requests.RequestException as error:
            failures.append(f"{url}: {_reason(error)}")
        except ValueError as error:
            if "hash" not in str(error):
                raise
            failures.append(f"{url}: the file there has another checksum than {remote.checksum}")
        except OSError as error:
            raise DataError(
                f"{folder / remote.name} cannot be written ({error.strerror or error})."
            ) from error
    raise DataError(f"cannot download {remote.name} ({'; '.join(failures)})")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar or zip archive into a folder: all of it, or nothing."""
    staging = folder / f".{archive.name}.unpacking"
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as z:
                z.extractall(staging)
        else:
            with tarfile.open(archive) as tar:
                tar.extractall(staging, filter="data")
        _merge(staging, folder)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise DataError(f"{archive} cannot be unpacked into {folder} ({error}).") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _merge(source: Path, target: Path) -> None:
    """Move new files into a folder; a new sub-folder is moved as a whole."""
    for item in source.iterdir():
        if item.is_dir() and (target / item.name).is_dir():
            _merge(item, target / item.name)
        else:
            item.replace(target / item.name)


def _total(response: Any) -> int | None:
    of = response.headers.get("Content-Range", "").rpartition("/")[2]
    if of.isdigit():
        return int(of)
    length = response.headers.get("Content-Length", "")
    return int(length) if response.status_code == 200 and length.isdigit() else None


def _reason(error: Exception) -> str:
    response = getattr(error, "response", None)
    if response is not None:
        return f"the server answered {response.status_code}"
    cause: BaseException = error
    while cause.__cause__ or cause.__context__ or (cause.args and isinstance(cause.args[0], Exception)):
        cause = cause.__cause__ or cause.__context__ or cause.args[0]
    return type(error).__name__ if cause is error else str(cause).rpartition(": ")[2]
