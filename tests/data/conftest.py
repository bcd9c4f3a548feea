"""Small files in each original format, and a folder of data of their own for the tests that look for data."""

import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SPACEFORM_DATA and the user's cache, both empty and both inside the test's own folder."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("SPACEFORM_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def idx_bytes(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


@pytest.fixture
def write_mnist() -> Callable[..., Path]:
    """Write the four files of MNIST with 30 training and 10 test images."""

    def write(folder: Path, *, zipped: bool = True) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        for part, n in (("train", 30), ("t10k", 10)):
            images = rng.integers(256, size=(n, 28, 28), dtype=np.uint8)
            labels = (np.arange(n) % 10).astype(np.uint8)
            for stem, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
                content = idx_bytes(array)
                if zipped:
                    (folder / f"{stem}.gz").write_bytes(gzip.compress(content, mtime=0))
                else:
                    (folder / stem).write_bytes(content)
        return folder

    return write


@pytest.fixture
def write_cifar10() -> Callable[..., Path]:
    """Write batches of CIFAR-10 with 20 images each."""

    def write(folder: Path, batches: tuple[int, ...] = (1, 2, 3, 4, 5)) -> Path:
        folder.mkdir(parents=True)
        rng = np.random.default_rng(0)
        for name in [*(f"data_batch_{i}" for i in batches), "test_batch"]:
            data = rng.integers(256, size=(20, 3072), dtype=np.uint8)
            batch = {b"data": data, b"labels": [i % 10 for i in range(20)], b"batch_label": b"some"}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=3))
        names = {b"label_names": [f"thing{i}".encode() for i in range(10)]}
        (folder / "batches.meta").write_bytes(pickle.dumps(names, protocol=3))
        return folder

    return write


@pytest.fixture
def write_photo() -> Callable[..., Path]:
    """Write a JPEG or PNG of random colours."""

    def write(path: Path, size: tuple[int, int] = (100, 80), seed: int = 0, mode: str = "RGB") -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(seed)
        coarse = rng.integers(256, size=(4, 4, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).convert(mode).save(path)
        return path

    return write


@pytest.fixture
def write_folder(write_photo: Callable[..., Path]) -> Callable[..., Path]:
    """Write a folder of images: {class: count}."""

    def write(
        folder: Path, counts: dict[str, int], size: tuple[int, int] = (100, 80), ext: str = "jpg"
    ) -> Path:
        for c, (name, count) in enumerate(counts.items()):
            (folder / name).mkdir(parents=True, exist_ok=True)
            for i in range(count):
                write_photo(folder / name / f"{i:03d}.{ext}", size, seed=1000 * c + i)
        return folder

    return write
