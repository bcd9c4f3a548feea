"""CUB-200-2011 in its official layout: four text files and `images/`."""

from pathlib import Path

import torch

from spaceform.data.dataset import DataError, Dataset, Split
from spaceform.data.photos import present


def load_cub(folder: Path) -> Dataset:
    """All photos that are there. The classes are the official 200; some of them may have no photo."""
    classes = _table(folder / "classes.txt")
    images = _table(folder / "images.txt")
    labels = _table(folder / "image_class_labels.txt")
    parts = _table(folder / "train_test_split.txt")
    number = {key: i for i, key in enumerate(classes)}
    for key in images:
        if key not in labels or key not in parts:
            missing = "image_class_labels.txt" if key not in labels else "train_test_split.txt"
            raise DataError(
                f"{folder / missing} says nothing of image {key} of images.txt; use the files of one set."
            )
        if labels[key] not in number:
            raise DataError(
                f"{folder / 'image_class_labels.txt'} gives image {key} the class {labels[key]}, "
                "which classes.txt does not have; use the files of one set."
            )
    paths = [folder / "images" / path for path in images.values()]
    here = present(paths)
    if not any(here):
        raise DataError(
            f"{folder / 'images'} has none of the {len(paths):,} photos of images.txt; unpack them there."
        )
    kept = [key for key, there in zip(images, here, strict=True) if there]
    train = torch.tensor([parts[key] == "1" for key in kept])
    note = f"{len(kept):,} of 11,788 photos" if len(kept) < 11_788 else ""
    return Dataset(
        name="cub200",
        task="retrieval",
        classes=tuple(classes.values()),
        labels=torch.tensor([number[labels[key]] for key in kept]),
        inputs=tuple(path for path, there in zip(paths, here, strict=True) if there),
        official=Split(torch.nonzero(train).flatten(), test=torch.nonzero(~train).flatten()),
        source=(folder,),
        note=note,
    )


def _table(path: Path) -> dict[str, str]:
    """Lines of "key value"."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; unpack the whole of CUB_200_2011.tgz.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read as text ({error}); unpack it again.") from error
    table = {}
    for i, line in enumerate(lines, start=1):
        key, _, value = line.strip().partition(" ")
        if not value:
            raise DataError(
                f"line {i} of {path} is {line!r}, not a number and a value; unpack the file again."
            )
        table[key] = value
    return table
