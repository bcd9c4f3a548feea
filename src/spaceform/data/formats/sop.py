"""Stanford Online Products: `Ebay_train.txt`, `Ebay_test.txt` and a folder for each kind of product."""

from pathlib import Path

import torch

from spaceform.data.dataset import DataError, Dataset, Split
from spaceform.data.photos import present

HEADER = ["image_id", "class_id", "super_class_id", "path"]


def load_sop(folder: Path) -> Dataset:
    """All photos that are there; the official halves have disjoint classes."""
    train, test = _rows(folder / "Ebay_train.txt"), _rows(folder / "Ebay_test.txt")
    rows = train + test
    paths = [folder / path for _, path in rows]
    here = present(paths)
    if not any(here):
        raise DataError(f"{folder} has none of the {len(paths):,} photos of its lists; unpack them there.")
    ids = sorted({class_id for class_id, _ in rows})
    number = {class_id: i for i, class_id in enumerate(ids)}
    kept = [i for i, there in enumerate(here) if there]
    half = sum(i < len(train) for i in kept)
    return Dataset(
        name="sop",
        task="retrieval",
        classes=tuple(str(class_id) for class_id in ids),
        labels=torch.tensor([number[rows[i][0]] for i in kept]),
        inputs=tuple(paths[i] for i in kept),
        official=Split(torch.arange(half), test=torch.arange(half, len(kept))),
        source=(folder, folder / "Ebay_train.txt", folder / "Ebay_test.txt"),
        note=f"{len(kept):,} of 120,053 photos" if len(kept) < 120_053 else "",
    )


def _rows(path: Path) -> list[tuple[int, str]]:
    try:
        header, *lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; unpack the whole of Stanford_Online_Products.zip.") from error
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a list ({error}); unpack it again.") from error
    if header.split() != HEADER:
        raise DataError(f"{path} starts with {header!r}, not {' '.join(HEADER)!r}; use the original list.")
    rows = []
    for i, line in enumerate(lines, start=2):
        fields = line.split()
        if len(fields) != 4 or not fields[1].isdigit():
            raise DataError(f"line {i} of {path} is {line!r}, not four fields; unpack the file again.")
        rows.append((int(fields[1]), fields[3]))
    return rows
