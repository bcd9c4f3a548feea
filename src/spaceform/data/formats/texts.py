"""Texts with labels: a column of a table, or a folder of `.txt` files with a sub-folder for each class."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from spaceform.data.dataset import PARTS, DataError
from spaceform.data.formats.image_folder import images_in
from spaceform.data.formats.table_files import TABLE_ENDINGS, read_table
from spaceform.data.guard import require_file
from spaceform.foundation.messages import counted, spelled

_KNOWN = ("y", "split", "groups")


@final
@dataclass(frozen=True, eq=False)
class Texts:
    """Texts in order, and what is known of each."""

    name: str
    texts: tuple[str, ...]
    items: tuple[str, ...]
    """What an item is called: its file, or its row."""
    labels: NDArray[np.int64] | None
    """None where there are none: then the features are for `predict` alone."""
    classes: tuple[str, ...]
    split: NDArray[Any] | None = None
    """"train", "val" or "test" of each, where the data say so."""
    groups: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.texts)


def load_texts(what: str | Path, column: str | None = None) -> Texts:
    """Texts of the column `column` of a `.csv` or `.parquet`, or of a folder of `.txt` files a class."""
    path = Path(what).expanduser()
    if path.is_dir():
        if column is not None:
            raise DataError(f"{path} is a folder and has no column {column!r}; leave out --text.")
        return _of_folder(path)
    if not path.exists():
        raise DataError(
            f"there is no file or folder {str(path)!r}; give texts in a .csv, a .parquet or a folder."
        )
    if path.suffix.lower() not in TABLE_ENDINGS:
        raise DataError(f"{path} is no table; give texts in a .csv or .parquet file, or in a folder.")
    if column is None:
        raise DataError(f"say which column of {path} holds the texts: --text COLUMN.")
    return _of_table(path, column)


def has_texts(folder: Path) -> bool:
    """Whether the sub-folders of a folder hold `.txt` files and no images."""
    return folder.is_dir() and next(_files(folder), None) is not None and not images_in(folder)


def _of_table(path: Path, column: str) -> Texts:
    table = read_table(path)
    if column not in table.column_names:
        there = ", ".join(map(repr, table.column_names)) or "none"
        raise DataError(
            f"{path} has no column {column!r} (its columns: {there}); name one of them by --text."
        )
    for name in [name for name in _KNOWN if name in table.column_names]:
        if empty := table[name].null_count:
            raise DataError(
                f"column {name!r} of {path} has {counted(empty, 'empty cell')}; fill them, or remove their "
                "rows."
            )
    known = {
        name: np.array(table[name].to_pylist()).astype(str) for name in table.column_names if name in _KNOWN
    }
    labels, classes = None, ()
    if "y" in known:
        names, numbers = np.unique(known["y"], return_inverse=True)
        labels, classes = numbers.astype(np.int64), tuple(names.tolist())
    split = _parts(known["split"], path) if "split" in known else None
    groups = np.unique(known["groups"], return_inverse=True)[1] if "groups" in known else None
    texts = tuple("" if text is None else str(text) for text in table[column].to_pylist())
    items = tuple(f"row {i}" for i in range(len(texts)))
    return Texts(path.stem, texts, items, labels, classes, split, groups)


def _parts(values: NDArray[Any], path: Path) -> NDArray[Any]:
    known = [PARTS.get(str(value).lower()) for value in values.tolist()]
    if None in known:
        wrong = values.tolist()[known.index(None)]
        raise DataError(f"split in {path} has the value {wrong!r}; give 'train', 'val' or 'test'.")
    return np.array(known)


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
    split = [PARTS[path.relative_to(folder).parts[0].lower()] for path in files] if divided else None
    return Texts(
        folder.resolve().name,
        tuple(map(_read, files)),
        tuple(spelled(path.relative_to(folder).as_posix()) for path in files),
        np.array([number[name] for name in named]),
        tuple(classes),
        None if split is None else np.array(split),
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
        raise DataError(
            f"{texts.name} has {counted(len(empty), 'empty text')}, the first is {empty[0]}; fill or remove "
            "them, or leave them out by --skip-broken."
        )
