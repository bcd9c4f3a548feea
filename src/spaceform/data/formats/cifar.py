"""CIFAR-10 and CIFAR-100 in their original pickles, read without running what a pickle may ask for."""

import io
import pickle
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from spaceform.data.dataset import DataError, Dataset, Split

TRAIN_10 = tuple(f"data_batch_{i}" for i in range(1, 6))

_Read = Callable[[str], bytes | None]


_RECONSTRUCT = np.empty(0).__reduce__()[0]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


@final
class _ArraysOnly(pickle.Unpickler):
    """Knows the names from which a numpy array is rebuilt, and refuses every other."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return _ALLOWED[module, name]


def load_cifar10(source: Path) -> Dataset:
    """The folder ``cifar-10-batches-py`` or its archive, with the training batches that are there."""
    read = _reader(source)
    batches = [(name, content) for name in TRAIN_10 if (content := read(name)) is not None]
    absent = [name for name in TRAIN_10 if name not in dict(batches)]
    if not batches:
        raise DataError(f"{source} has none of {', '.join(TRAIN_10)}; put the original files there.")
    note = f"{len(batches)} of 5 training batches; missing: {', '.join(absent)}" if absent else ""
    return _assemble(
        "cifar10", source, read, batches, "test_batch", b"labels", "batches.meta", b"label_names", 10, note
    )


def load_cifar100(source: Path) -> Dataset:
    """The folder ``cifar-100-python`` or the archive of it, with the 100 fine labels."""
    read = _reader(source)
    train = read("train")
    if train is None:
        raise DataError(f"{source} lacks 'train'; put the original files train, test and meta there.")
    batches = [("train", train)]
    return _assemble(
        "cifar100", source, read, batches, "test", b"fine_labels", "meta", b"fine_label_names", 100, ""
    )


def _assemble(
    name: str,
    source: Path,
    read: _Read,
    batches: list[tuple[str, bytes]],
    test: str,
    label_key: bytes,
    meta: str,
    names_key: bytes,
    num_classes: int,
    note: str,
) -> Dataset:
    content = read(test)
    if content is None:
        raise DataError(f"{source} lacks {test!r}; put the original file there.")
    parts = [_images(source / file, data, label_key) for file, data in [*batches, (test, content)]]
    images = torch.from_numpy(np.concatenate([images for images, _ in parts]))
    labels = torch.from_numpy(np.concatenate([labels for _, labels in parts]))
    held = len(parts[-1][1])
    described = read(meta)
    names = _unpickle(source / meta, described).get(names_key) if described is not None else None
    return Dataset(
        name=name,
        classes=tuple(n.decode() for n in names) if names else tuple(str(i) for i in range(num_classes)),
        labels=labels,
        inputs=images,
        official=Split(torch.arange(len(labels) - held), test=torch.arange(len(labels) - held, len(labels))),
        source=(source, *(source / file for file, _ in batches), source / test),
        note=note,
    )


def _images(path: Path, content: bytes, label_key: bytes) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    batch = _unpickle(path, content)
    data, labels = batch.get(b"data"), batch.get(label_key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise DataError(
            f"{path} holds no images of 3x32x32 bytes; use the original python version of the data."
        )
    if not isinstance(labels, list) or len(labels) != len(data):
        raise DataError(f"{path} holds {len(data):,} images and no label for each; use the original file.")
    return data.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def _unpickle(path: Path, content: bytes) -> dict[bytes, Any]:
    try:
        batch = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path} is not a file of CIFAR arrays ({error}); nothing in it was run: fetch it again."
        ) from error
    except Exception as error:  # a damaged pickle raises whatever its bytes lead to
        raise DataError(f"{path} is cut short or damaged ({error}); delete it and fetch it again.") from error
    if not isinstance(batch, dict):
        raise DataError(
            f"{path} holds a {type(batch).__name__}, not the table of a CIFAR file; fetch it again."
        )
    return batch


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror or error}).") from error


def _reader(source: Path) -> _Read:
    if source.is_dir():
        return lambda name: _content(source / name)
    try:
        with tarfile.open(source) as tar:
            members = {Path(m.name).name: f.read() for m in tar if m.isfile() and (f := tar.extractfile(m))}
    except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
        raise DataError(
            f"{source} is cut short or damaged ({error}); delete it and fetch it again."
        ) from error
    return members.get
