"""One file a format, and which file ending or kind of folder is read by which of them.

A new file ending is one line of `FILE_FORMATS`, or of `table_files.TABLES` if the file is a table. `load`,
`predict` and their error messages then know it. The format of a data set with a name is named in
`data/entries.py` instead.
"""

import difflib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from spaceform.data.dataset import DataError, Dataset
from spaceform.data.formats.arrays import array_inputs
from spaceform.data.formats.feature_files import load_features, read_inputs
from spaceform.data.formats.image_folder import load_folder
from spaceform.data.formats.shards import ABOUT
from spaceform.data.formats.stored_features import has_arrays, load_arrays, load_stored_shards
from spaceform.data.formats.table_files import TABLES
from spaceform.data.formats.texts import TEXT_FILES, has_texts, load_text_dataset
from spaceform.data.table_columns import TableFeature
from spaceform.foundation.messages import spelled

UnlabelledInputs: TypeAlias = NDArray[np.generic]


@final
@dataclass(frozen=True)
class FileFormat:
    """How files of one ending are read."""

    load: Callable[[Path, str | None], Dataset] | None
    """Reads labelled data; a table gets the name of the column of labels. None: there are no labels."""
    inputs: Callable[[Path, Sequence[TableFeature]], UnlabelledInputs] | None
    """Reads inputs to predict; a table gets the features of the run. None: `predict` cannot read it."""


FILE_FORMATS: dict[str, FileFormat] = {
    ".npz": FileFormat(load_features, lambda path, _: array_inputs(path)),
    ".npy": FileFormat(None, lambda path, _: array_inputs(path)),
    **dict.fromkeys(TABLES, FileFormat(load_features, read_inputs)),
}


def load_path(
    path: Path, label: str | None = None, text: str | None = None, names: Collection[str] = ()
) -> Dataset:
    """Labelled data in a file or folder.

    `label` and `text` name the columns of a table that hold labels and texts. `names` are data sets that the
    user may have meant, if there is no such path.
    """
    if spelled(str(path)) != str(path):
        raise DataError(f"{spelled(str(path))} is no valid UTF-8, so that no recipe can name it; rename it.")
    if label is not None and path.suffix.lower() not in TABLES:
        raise DataError(f"{path} has no columns, so there is none of labels {label!r}; leave out --label.")
    if text is not None and path.exists():
        return load_text_dataset(path, text, label)
    found = FILE_FORMATS.get(path.suffix.lower())
    if found is not None and found.load is not None:
        return found.load(path, label)
    if (path / ABOUT).is_file():
        return load_stored_shards(path)
    if has_arrays(path):
        return load_arrays(path)
    if has_texts(path):
        return load_text_dataset(path, TEXT_FILES)
    if path.is_dir():
        return load_folder(path)
    if path.exists():
        raise DataError(f"{path} is not of a kind that is read; give {_known()}.")
    near = difflib.get_close_matches(path.name, names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise DataError(
        f"there is no data {str(path)!r}; {hint}give one of {', '.join(names)}, {_known()} "
        f"(paths are from {Path.cwd()})."
    )


def can_predict(path: Path) -> bool:
    """Whether the ending is that of a file of inputs that `read_unlabelled` reads."""
    found = FILE_FORMATS.get(path.suffix.lower())
    return found is not None and found.inputs is not None


def read_unlabelled(path: Path, columns: Sequence[TableFeature] = ()) -> UnlabelledInputs:
    """The inputs of a file, with or without labels; for a table, `columns` says which columns to take."""
    read = FILE_FORMATS[path.suffix.lower()].inputs
    assert read is not None
    return read(path, columns)


def _known() -> str:
    *others, last = (ending for ending, known in FILE_FORMATS.items() if known.load is not None)
    return f"a folder of images or texts, or an {', '.join(others)} or {last} file of features"
