"""Checks before a file is opened: whether it is a plain file, and whether its content fits into memory."""

import os
import re
import stat
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from spaceform.data.errors import DataError

SHARE = 0.5
"""The share of the machine's memory that the content of a file may take."""
STAYS = 0.25
"""The share of the machine's memory up to which a folder of features is read into memory."""
MEMORY_VARIABLE = "SPACEFORM_MEMORY"
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def require_file(path: Path) -> None:
    """Refuse what is not a plain file: a pipe would wait for ever, and a device may never end.

    A link is judged by the file that it leads to.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; put the file back, or correct the path.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); replace or remove it.") from None
    if not stat.S_ISREG(mode):
        kind = next((name for is_kind, name in _OTHER_KINDS if is_kind(mode)), "no plain file")
        raise DataError(f"{path} is {kind}, not a plain file; remove it, or give the file itself.")


_OTHER_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


_ON_DISK = (
    "keep them in a folder, as Arrow files or as X-0.npy, y-0.npy, ... (docs/own-data.md): features of a "
    "folder may stay on the disk"
)


def require_room(size: int, path: Path, remedy: str = _ON_DISK) -> None:
    """Refuse content of `size` bytes if that is more than a share of the machine's memory."""
    room = SHARE * memory()
    if size > room:
        raise DataError(
            f"{path} unpacks to {size / 2**30:.1f} GiB, and at most {room / 2**30:.1f} GiB "
            f"({SHARE:.0%} of this machine's memory) are read at once; {remedy}."
        )


def require_room_for_arrays(
    file: BinaryIO, path: Path, names: Collection[str], remedy: str = _ON_DISK
) -> None:
    """`require_room` for these arrays of an `.npz`, by the sizes that it lists, or for any other file."""
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as members:
            size = sum(m.file_size for m in members.infolist() if Path(m.filename).stem in names)
    else:
        size = file.seek(0, os.SEEK_END)
    require_room(size, path, remedy)
    file.seek(0)


def memory() -> int:
    """Bytes of memory to use: `SPACEFORM_MEMORY` ("4GB"), or those of the machine or its container."""
    if said := os.environ.get(MEMORY_VARIABLE):
        return _bytes(said)
    try:
        most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # a system that does not say
        return 2**63
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text("ascii").strip()
    except OSError:
        return most
    return min(most, int(limit)) if limit.isdigit() else most


def _bytes(said: str) -> int:
    found = re.fullmatch(r"([\d.]+)\s*([A-Z]*)", said.strip().upper())
    if found is None or found[2] not in _UNITS or found[1].count(".") > 1 or found[1] == ".":
        raise DataError(f"{MEMORY_VARIABLE}={said} is no amount of memory; set it as 4GB, or unset it.")
    return int(float(found[1]) * _UNITS[found[2]])
