"""Texts with labels: a column of a table, or a folder of `.txt` files with a sub-folder for each class."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from spaceform.data.dataset import PARTS, DataError, Dataset
from spaceform.data.formats.feature_files import official_split
from spaceform.data.formats.image_folder import images_in
from spaceform.data.formats.table_files import TABLES, a_table, has_labels, read_table, with_labels
from spaceform.data.guard import require_file
from spaceform.data.text_items import Texts
from spaceform.foundation.messages import counted, spelled

_KNOWN = ("y", "split", "groups")
TEXT_FILES = ".txt"
"""Stands for the column of texts where they are files of a folder."""


def load_text_dataset(path: Path, column: str, label: str | None = None) -> Dataset:
    """Labelled texts to compare heads on; empty ones are refused."""
    texts = load_texts(path, None if column == TEXT_FILES else column, label)
    if texts.labels is None:
        with_labels(read_table(path), label, path)  # says that there is no column of labels
    assert texts.labels is not None
    require_texts(texts)
    split = None if texts.split is None else np.array(texts.split)
    return Dataset(
        name=texts.name,
        classes=texts.classes,
        labels=torch.from_numpy(texts.labels),
        inputs=texts,
        official=official_split(split, len(texts), path),
        groups=None if texts.groups is None else torch.from_numpy(texts.groups),
        source=(path,),
        label=texts.label,
        text=column,
        note=f"columns left out: {', '.join(map(repr, texts.left_out))}" if texts.left_out else "",
    )


def load_new_texts(path: Path, column: str) -> Texts:
    """Texts without labels, for a prediction: a column of a table, a `.txt` file, or those of a folder."""
    if path.suffix.lower() in TABLES:
        if column == TEXT_FILES:
            raise DataError(f"{path} is a table, and the run was trained on .txt files; give such files.")
        return _of_table(path, column, None, labelled=False)
    files = list(_files(path, "**/*.txt")) if path.is_dir() else [path]
    if not files or any(file.suffix.lower() != ".txt" for file in files):
        raise DataError(f"{path} holds no texts; give {a_table()}, a .txt file or a folder of them.")
    return Texts(path.name, tuple(map(_read, files)), tuple(spelled(str(file)) for file in files), None, ())


def load_texts(what: str | Path, column: str | None = None, label: str | None = None) -> Texts:
    """Texts of the column `column` of a table, or of a folder of `.txt` files a class.

    `label` names the column of a table that holds the labels.
    """
    path = Path(what).expanduser()
    if path.is_dir():
        if column is not None:
            raise DataError(f"{path} is a folder and has no column {column!r}; leave out --text.")
        if label is not None:
            raise DataError(f"{path} is a folder and has no column {label!r}; leave out --label.")
        return _of_folder(path)
    if not path.exists():
        raise DataError(
            f"there is no file or folder {str(path)!r}; give texts in {a_table()}, or in a folder."
        )
    if path.suffix.lower() not in TABLES:
        raise DataError(f"{path} is no table; give texts in {a_table()}, or in a folder.")
    if column is None:
        raise DataError(f"say which column of {path} holds the texts: --text COLUMN.")
    return _of_table(path, column, label)


def has_texts(folder: Path) -> bool:
    """Whether the sub-folders of a folder hold `.txt` files and no images."""
    return folder.is_dir() and next(_files(folder), None) is not None and not images_in(folder)


def _of_table(path: Path, column: str, label: str | None, *, labelled: bool = True) -> Texts:
    table = read_table(path)
    if column not in table.column_names:
        there = ", ".join(map(repr, table.column_names)) or "none"
        remedy = "name one of them by --text" if labelled else f"call that of the texts {column!r}"
        raise DataError(f"{path} has no column {column!r} (its columns: {there}); {remedy}.")
    if column == label:
        raise DataError(f"column {column!r} of {path} cannot be texts and labels; name two columns.")
    found = tuple("" if text is None else str(text) for text in table[column].to_pylist())
    items = tuple(f"row {i}" for i in range(len(found)))
    others = table.drop_columns([column])
    if not labelled:
        return Texts(path.stem, found, items, None, ())
    if label is not None or has_labels(others.column_names):
        others, _ = with_labels(others, label, path)
    for name in [name for name in _KNOWN if name in others.column_names]:
        if empty := others[name].null_count:
            raise DataError(
                f"column {name!r} of {path} has {counted(empty, 'empty cell')}; fill them, or remove their "
                "rows."
            )
    known = {
        name: np.array(others[name].to_pylist()).astype(str) for name in _KNOWN if name in others.column_names
    }
    labels, classes = None, ()
    if "y" in known:
        names, numbers = np.unique(known["y"], return_inverse=True)
        labels, classes = numbers.astype(np.int64), tuple(names.tolist())
    split = _parts(known["split"], path) if "split" in known else None
    groups = np.unique(known["groups"], return_inverse=True)[1] if "groups" in known else None
    left_out = tuple(name for name in others.column_names if name not in _KNOWN)
    return Texts(path.stem, found, items, labels, classes, split, groups, label, left_out)


def _parts(values: NDArray[Any], path: Path) -> tuple[str, ...]:
    known = {str(value): PARTS.get(str(value).lower(), "") for value in values.tolist()}
    for value, part in known.items():
        if not part:
            raise DataError(f"split in {path} has the value {value!r}; give 'train', 'val' or 'test'.")
    return tuple(known[str(value)] for value in values.tolist())


def _of_folder(folder: Path) -> Texts:
    children = {child.name.lower(): child for child in folder.iterdir() if child.is_dir()}
    divided = "train" in children and all(name in PARTS for name in children)
    files = list(_files(folder, "*/*/**/*.txt" if divided else "*/**/*.txt"))
    if not files:
        raise DataError(
            f"{folder} has no .txt files in sub-folders; put those of each class into one of its own."
        )
    depth = 1 if divided else 0
    named = [spelled(path.relative_to(folder).parts[depth]) for path in files]
    classes = sorted(set(named))
    number = {name: i for i, name in enumerate(classes)}
    parts = tuple(PARTS[path.relative_to(folder).parts[0].lower()] for path in files) if divided else None
    return Texts(
        folder.resolve().name,
        tuple(map(_read, files)),
        tuple(spelled(path.relative_to(folder).as_posix()) for path in files),
        np.array([number[name] for name in named]),
        tuple(classes),
        parts,
    )


def _files(folder: Path, pattern: str = "*/**/*.txt") -> Any:
    return iter(sorted(path for path in folder.glob(pattern) if not path.name.startswith(".")))


def _read(path: Path) -> str:
    require_file(path)
    try:
        return path.read_text("utf-8").strip()
    except UnicodeDecodeError:
        raise DataError(f"{path} is not written in UTF-8; save it so.") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); replace or remove it.") from None


def require_texts(texts: Texts) -> None:
    """Refuse empty texts, naming the first."""
    empty = [item for item, text in zip(texts.items, texts.texts, strict=True) if not text.strip()]
    if empty:
        first = f"{empty[0]} (counted from 0)" if empty[0].startswith("row ") else empty[0]
        raise DataError(
            f"{texts.name} has {counted(len(empty), 'empty text')}, the first is {first}; fill or remove "
            "them (spaceform features --skip-broken leaves them out)."
        )
