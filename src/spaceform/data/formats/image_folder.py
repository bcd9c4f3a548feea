"""A folder of images with a sub-folder for each class, optionally under `train/`, `val/` and `test/`."""

import os
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from torch import Tensor

from spaceform.data.dataset import PARTS, DataError, Dataset, Split
from spaceform.data.photos import decode

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif", ".ppm", ".pgm"})
SMALL = 64  # pixels an edge: up to here, images of one size are held in memory


def load_folder(folder: Path) -> Dataset:
    """Images of a class per sub-folder; small ones of one size in memory, others as photos."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give one that has a sub-folder of images for each class.")
    children = _folders(folder)
    parts = {PARTS.get(child.name.lower()) for child in children}
    divided = (
        "train" in parts and None not in parts
    )  # if other folders stand beside it, "train" is a class of vehicles
    if not divided:
        _require_classes(folder, children)
    roots = children if divided else [folder]
    classes = sorted({child.name for root in roots for child in _folders(root)})
    number = {name: i for i, name in enumerate(classes)}
    items = [
        (path, number[child.name], root.name.lower())
        for root in roots
        for child in _folders(root)
        for path in images_in(child)
    ]
    if not classes or not items:
        raise DataError(
            f"{folder} has no images in sub-folders; put those of each class into a sub-folder of its own "
            f"({', '.join(sorted(EXTENSIONS))})."
        )
    labels = torch.tensor([label for _, label, _ in items])
    empty = [
        name
        for name, count in zip(classes, torch.bincount(labels, minlength=len(classes)), strict=True)
        if not count
    ]
    if empty:
        raise DataError(f"the class folder {empty[0]!r} in {folder} has no images; add some or remove it.")
    paths = tuple(path for path, _, _ in items)
    part = np.array([PARTS[name] if divided else "" for _, _, name in items])
    train, val, test = (torch.from_numpy(np.flatnonzero(part == p)) for p in ("train", "val", "test"))
    pixels = _small_images(paths)
    return Dataset(
        name=folder.resolve().name,
        classes=tuple(classes),
        labels=labels,
        inputs=paths if pixels is None else pixels,
        official=Split(train, val, test) if divided else None,
        source=(folder,),
        files=() if pixels is None else paths,
    )


def _require_classes(folder: Path, children: list[Path]) -> None:
    """Refuse what looks like a split with unknown names, whose parts would be read as classes."""
    inside = [{grandchild.name for grandchild in _folders(child)} for child in children]
    shared = sorted(set.intersection(*inside)) if len(inside) > 1 else []
    if len(shared) > 1 and not any(map(_has_images, children)):
        raise DataError(
            f"{folder} has the folders {_some([child.name for child in children])}, and each of them has "
            f"{_some(shared)}; call the former 'train', 'val' and 'test' if they are parts of the data, or "
            "put the images straight into them if they are the classes."
        )


def _small_images(paths: tuple[Path, ...]) -> UInt8[Tensor, "items channels height width"] | None:
    """All images in memory, or None where one is larger than SMALL or of another size than the first."""
    images: list[NDArray[np.uint8]] = []
    for path in paths:
        image = decode(path, SMALL + 1)
        if max(image.size) > SMALL or (images and images[0].shape[1::-1] != image.size):
            return None
        images.append(np.asarray(image))
    x = np.stack(images)
    grey = bool((x[..., :1] == x).all())
    return torch.from_numpy(x[..., :1] if grey else x).permute(0, 3, 1, 2).contiguous()


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:4])) + (", …" if len(names) > 4 else "")


def _folders(folder: Path) -> list[Path]:
    return sorted(child for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def _has_images(folder: Path) -> bool:
    return any(_is_image(child.name) for child in folder.iterdir())


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in EXTENSIONS and not name.startswith(".")


def images_in(folder: Path) -> list[Path]:
    """All images of a folder and its sub-folders, without hidden files such as macOS's `._x.png`."""
    found = []
    for base, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(base, name) for name in names if _is_image(name)]
    return sorted(found)
