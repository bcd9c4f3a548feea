"""scikit-learn's digits: 1,797 images of 8x8, in memory, no download."""

import torch

from spaceform.data.dataset import Dataset


def load_digits() -> Dataset:
    """The digits with their 17 grey levels stretched to 0–255; there is no official split."""
    from sklearn.datasets import load_digits as sklearn_digits

    bunch = sklearn_digits()
    grey = torch.from_numpy(bunch.images).mul(255 / 16).round().to(torch.uint8)
    return Dataset(
        name="digits",
        classes=tuple(str(digit) for digit in range(10)),
        labels=torch.from_numpy(bunch.target).long(),
        inputs=grey.unsqueeze(1),
    )
