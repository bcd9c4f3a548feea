"""Files that are either whole or not there: safetensors and JSON, never pickle.

A checkpoint is one safetensors file. Its header has a JSON value (`state`) and a SHA-256 over this value and
every tensor, so a cut, altered or foreign file is recognised before anything in it is used. JSON is read by a
schema: if it does not fit, the error is one sentence that names the file.
"""

import contextlib
import hashlib
import json
import os
import secrets
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, overload

import safetensors
import safetensors.torch
import torch
from torch import Tensor
from typing_extensions import TypedDict

from spaceform.foundation.values import parsed
from spaceform.run.recipe import RecipeError

RUN_FORMAT = "spaceform-1"
CURRENT, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"


class CheckpointError(ValueError):
    """A file is cut short, altered, or was not written by this program."""


class _Header(TypedDict):
    sha256: str
    state: str


Read = TypeVar("Read")


@overload
def read_json(path: Path, *, remedy: str = "") -> dict[str, Any]: ...
@overload
def read_json(path: Path, schema: type[Read], *, remedy: str = "") -> Read: ...
def read_json(path: Path, schema: Any = dict[str, Any], *, remedy: str = "") -> Any:
    """Read a JSON file by a schema (a type that pydantic knows); an error names the file.

    `remedy` ends the sentence of the error: what to do.
    """
    ending = f"; {remedy}" if remedy else ""
    try:
        return parsed(path.read_bytes(), schema)
    except OSError as error:
        raise RecipeError(f"{path} cannot be read ({error.strerror or error}){ending}") from None
    except ValueError as error:
        raise RecipeError(f"{path} cannot be read ({error}){ending}") from None


def read_lines(
    path: Path,
    *,
    growing: bool = False,
    schema: Any = dict[str, Any],
    first: Any = None,
    remedy: str = "restore the file, or remove it",
) -> list[dict[str, Any]]:
    """The JSON objects of a file, one on each line. They fit the schema, and the first line fits `first`.

    If another process may be writing the file (`growing`), only whole lines are read, and the file may be
    missing.
    """
    if growing and not path.exists():
        return []
    records, lines = [], path.read_bytes().splitlines()
    for number, line in enumerate(lines, 1):
        try:
            records.append(parsed(line, first if number == 1 and first is not None else schema))
        except ValueError as error:
            if (
                growing and number == len(lines) and not _is_json(line)
            ):  # not yet written whole, or cut by a kill
                break
            raise RecipeError(f"{path} cannot be read ({error}, in line {number}); {remedy}") from None
    return records


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


def sha256(path: Path) -> str:
    """The digest of a file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_bytes(path: Path, content: bytes | memoryview, *, keep: Path | None = None) -> None:
    """Write the whole file or nothing: a temporary file beside it, fsync, rename, fsync of the folder.

    The file that was there before is renamed to `keep`, if this is given.
    """
    try:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        try:
            with open(temporary, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if keep is not None and path.exists():
                os.replace(path, keep)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise OSError(
            error.errno,
            f"cannot write {path} ({error.strerror}); what was there before is untouched: "
            "make room or choose another folder, and run the same command again",
        ) from None
    _sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, as a whole or not at all."""
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any], *, keep: Path | None = None
) -> str:
    """Write tensors and a JSON value as one file, as a whole or not at all; returns their digest."""
    held = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(state, allow_nan=False)
    # one key: the order of several keys is random, and equal states should give equal files
    digest = _digest(held, text)
    metadata = {RUN_FORMAT: json.dumps({"sha256": digest, "state": text})}
    write_bytes(path, safetensors.torch.save(held, metadata), keep=keep)
    return digest


@overload
def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]: ...
@overload
def read_tensors(
    path: Path, schema: type[Read], digest: str | None = None
) -> tuple[dict[str, Tensor], Read]: ...
def read_tensors(
    path: Path, schema: Any = dict[str, Any], digest: str | None = None
) -> tuple[dict[str, Tensor], Any]:
    """Read what `write_tensors` wrote; a CheckpointError if the file is another one or has another digest."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {path}") from None
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is torn or not a safetensors file ({error})") from None
    if RUN_FORMAT not in metadata:
        raise CheckpointError(f"{path} was not written by this program")
    try:
        header = parsed(metadata[RUN_FORMAT], _Header)
        state = parsed(header["state"], schema)
    except ValueError as error:
        raise CheckpointError(f"{path} cannot be read ({error})") from None
    found = _digest(tensors, header["state"])
    if found != header["sha256"]:
        raise CheckpointError(f"{path} is damaged: its checksum does not match its content")
    if digest not in (None, found):
        raise CheckpointError(f"{path} is not the file that this run wrote")
    return tensors, state


def save_checkpoint(folder: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write the current checkpoint of a run and keep the one before; one of the two is always whole."""
    write_tensors(folder / CURRENT, tensors, state, keep=folder / PREVIOUS)


@overload
def latest_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None: ...
@overload
def latest_checkpoint(folder: Path, schema: type[Read]) -> tuple[dict[str, Tensor], Read] | None: ...
def latest_checkpoint(folder: Path, schema: Any = dict[str, Any]) -> tuple[dict[str, Tensor], Any] | None:
    """The newest whole checkpoint of a run, or None; a damaged one is named and set aside."""
    for path in (folder / CURRENT, folder / PREVIOUS):
        if path.exists():
            try:
                return read_tensors(path, schema)
            except CheckpointError as error:
                path.rename(aside := path.with_suffix(".damaged"))
                warnings.warn(
                    f"{error}; set aside as {aside.name}, going on from the one before", stacklevel=2
                )
    return None


def remove_checkpoints(folder: Path) -> None:
    """Remove the checkpoints of a run, and what a killed process left of an unfinished write."""
    for path in (folder / CURRENT, folder / PREVIOUS, *folder.glob(".*.tmp")):
        path.unlink(missing_ok=True)


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Sync the folder, which makes a rename durable. Some file systems cannot do this, and do not need it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
