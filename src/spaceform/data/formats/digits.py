"""scikit-learn's digits: 1,797 images of 8x8, in memory, no download."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from spaceform.data.dataset import Dataset


def load_digits() -> Dataset:
    """The digits with their 17 grey levels stretched to 0–255; there is no official split."""
    rows = torch.from_numpy(_rows())
    return Dataset(
        name="digits",
        classes=tuple(str(digit) for digit in range(10)),
        labels=rows[:, -1].long(),
        inputs=rows[:, :-1].mul(255 / 16).round().to(torch.uint8).reshape(-1, 1, 8, 8),
    )


def _rows() -> np.ndarray:
    """64 grey levels and the label of each image.

    From scikit-learn's file: to import scikit-learn takes a second, in each process of a study.
    """
    package = find_spec("sklearn")
    for place in (package.submodule_search_locations or []) if package else []:
        if (file := Path(place) / "datasets" / "data" / "digits.csv.gz").is_file():
            return np.loadtxt(file, delimiter=",", dtype=np.float64)
    from sklearn.datasets import load_digits  # it keeps the file elsewhere

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])
