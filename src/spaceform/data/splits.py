"""Which items train, validate and test; and how training items are made long-tailed or noisy.

Everything here is a function of its arguments and a seed. The seed of the split is not the seed of a run: all
seeds of a study share one split.
"""

from dataclasses import replace
from functools import partial
from math import floor

import numpy as np
import torch
from jaxtyping import Bool, Int64
from numpy.typing import NDArray
from torch import Tensor

from spaceform.data.dataset import DataError, Dataset, Split
from spaceform.foundation.messages import counted, listed

VALIDATION = 0.15  # the paper's share, of the items (fixed-set) or of the training classes (open-set)
TEST = 0.2  # ours, for data that come without a test part

_LEFT = 2  # items of a class that stay to train on, if other classes can give more
_NAMED = 4  # classes that a sentence names

# One stream of random numbers for each purpose, so that they do not influence each other.
_TEST, _VALIDATION, _IMBALANCE, _NOISE = range(4)


def split(dataset: Dataset, seed: int = 0, *, validation: float = VALIDATION, test: float = TEST) -> Split:
    """Divide a data set as the paper does.

    Classification: the official test part, or else 20% of the items, tests; the official validation part, or
    else 15% of the rest, validates; both stratified by class. A class of few items keeps two of them to train
    on, as far as other classes can give enough; `scarce_classes` names those with fewer.
    Retrieval: the classes are disjoint. The official halves, or else the first half of the classes, train,
    and the rest tests; 15% of the training classes (at least two, where there are four or more) validate.
    """
    for name, share in (("validation", validation), ("test", test)):
        if not 0 < share < 1:
            raise ValueError(f"{name}={share} is not a share; give a number between 0 and 1, such as 0.15.")
    if dataset.task == "retrieval":
        return _open_set(dataset, seed, validation)
    return _fixed_set(dataset, seed, validation, test)


def _fixed_set(dataset: Dataset, seed: int, validation: float, test: float) -> Split:
    _require_two_of_each(dataset)
    official = dataset.official or Split(torch.arange(len(dataset)))
    pool, val, held = official.train, official.val, official.test
    if not len(held):
        pool, held = _stratified(dataset, pool, test, _generator(seed, _TEST))
    if not len(val):
        pool, val = _stratified(dataset, pool, validation, _generator(seed, _VALIDATION))
    parts = Split(pool, val, held)
    _require_training_items(dataset, parts)
    return parts


def scarce_classes(dataset: Dataset, parts: Split) -> list[str]:
    """Sentences on classes with too few items to train on, or without items to test on."""
    if dataset.task == "retrieval":
        return []
    count = partial(torch.bincount, minlength=len(dataset.classes))
    there = count(dataset.labels) > 0
    trained, tested = (count(dataset.labels[part]) for part in (parts.train, parts.test))
    return [*_few_to_train_on(dataset, trained == 1), *_not_tested(dataset, there & (tested == 0))]


def _few_to_train_on(dataset: Dataset, which: Bool[Tensor, "classes"]) -> list[str]:
    """A sentence that names the classes with a single item to train on."""
    number, named = _names(dataset, which)
    if number == 1:
        return [
            f"class {named} has 1 item to train on, from which little can be learnt: add items, or remove it"
        ]
    said = (
        f"{number:,} classes have 1 item each to train on, from which little can be learnt ({named}): "
        "add items, or remove them"
    )
    return [said] if number else []


def _not_tested(dataset: Dataset, which: Bool[Tensor, "classes"]) -> list[str]:
    """A sentence that names the classes without an item in the test part."""
    number, named = _names(dataset, which)
    if number == 1:
        return [
            f"class {named} has no item in the test part, so that no number says how well it is found: add "
            "items, or give the split in the file"
        ]
    said = (
        f"{number:,} classes have no item in the test part, so that no number says how well they are found "
        f"({named}): add items, or give the split in the file"
    )
    return [said] if number else []


def _names(dataset: Dataset, which: Bool[Tensor, "classes"]) -> tuple[int, str]:
    """How many classes these are, and the names of the first of them."""
    names = [repr(dataset.classes[c]) for c in torch.nonzero(which).flatten().tolist()]
    more = len(names) - _NAMED
    listing = f"{', '.join(names[:_NAMED])} and {more:,} more" if more > 0 else listed(names or [""])
    return len(names), listing


def _require_training_items(dataset: Dataset, parts: Split) -> None:
    """Refuse a class without an item to train on, since whole groups went to validation and test."""
    counts, trained = (
        torch.bincount(y, minlength=len(dataset.classes))
        for y in (dataset.labels, dataset.labels[parts.train])
    )
    gone = torch.nonzero((counts > 0) & (trained == 0)).flatten().tolist()
    if gone:
        raise DataError(
            f"class {dataset.classes[gone[0]]!r} of {_where(dataset)} has no item left to train on: all "
            f"{counted(int(counts[gone[0]]), 'item')} are in groups that validate or test; spread the class "
            "over more groups, or give the split in the file."
        )


def _open_set(dataset: Dataset, seed: int, validation: float) -> Split:
    y, official = dataset.labels, dataset.official
    if official is not None and len(official.test) and _disjoint(y[official.train], y[official.test]):
        train_classes, test_classes = y[official.train].unique(), y[official.test].unique()
        val_classes = y[official.val].unique()
        if not _disjoint(val_classes, train_classes) or not _disjoint(val_classes, test_classes):
            val_classes = y[:0]
            train_classes = torch.cat([y[official.train], y[official.val]]).unique()
            train_classes = train_classes[~torch.isin(train_classes, test_classes)]
    else:
        present, half = y.unique(), (len(dataset.classes) + 1) // 2
        train_classes, test_classes, val_classes = present[present < half], present[present >= half], y[:0]
    if len(train_classes) < 3 or not len(test_classes):
        raise DataError(
            f"{_where(dataset)} has {len(train_classes)} classes in the half that trains and validates and "
            f"{len(test_classes)} in the half that tests; retrieval needs at least three and one: "
            "add classes, or use the task 'classification'."
        )
    if not len(val_classes):
        n = len(train_classes)
        n_val = min(n - 1, max(round(validation * n), 2 if n >= 4 else 1))
        order = torch.from_numpy(_generator(seed, _VALIDATION).permutation(n))
        val_classes, train_classes = train_classes[order[:n_val]], train_classes[order[n_val:]]
    return Split(*(_items(y, classes) for classes in (train_classes, val_classes, test_classes)))


def targets(
    labels: Int64[Tensor, "items"], indices: Int64[Tensor, "train"]
) -> tuple[Int64[Tensor, "items"], Int64[Tensor, "classes"]]:
    """Labels renumbered 0, 1, … over the classes that occur among ``indices`` (−1 elsewhere), and those
    classes.

    A head that trains on 83 of 196 classes has 83 rows; this says which.
    """
    classes = labels[indices].unique()
    renumbered = torch.full((max(int(labels.max()), int(classes[-1])) + 1,), -1, dtype=torch.int64)
    renumbered[classes] = torch.arange(len(classes))
    return renumbered[labels], classes


def imbalance(dataset: Dataset, split: Split, ratio: float, seed: int = 0) -> Split:
    """Make the training part long-tailed: class sizes fall geometrically, the largest ``ratio`` times the
    smallest.

    Which class is large is drawn from the seed. Every class keeps at least one item; validation and test
    stay.
    """
    if not ratio >= 1:
        raise ValueError(
            f"imbalance={ratio} must be at least 1: the size of the largest class over that of the smallest."
        )
    rng = _generator(seed, _IMBALANCE)
    y = dataset.labels[split.train].numpy()
    classes, counts = np.unique(y, return_counts=True)
    rank = rng.permutation(len(classes)) / max(len(classes) - 1, 1)
    keep = np.minimum(counts, np.maximum(1, np.rint(counts.max() * ratio**-rank))).astype(int)
    chosen = [rng.permutation(np.flatnonzero(y == c))[:k] for c, k in zip(classes, keep, strict=True)]
    return replace(split, train=split.train[torch.from_numpy(np.sort(np.concatenate(chosen)))])


def label_noise(dataset: Dataset, split: Split, rate: float, seed: int = 0) -> Dataset:
    """Give a share ``rate`` of the training items another class, uniform over the other training classes.

    Validation and test labels stay true.
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"label_noise={rate} is not a share; give a number between 0 and 1, such as 0.2.")
    rng = _generator(seed, _NOISE)
    renumbered, classes = targets(dataset.labels, split.train)
    victims = split.train[
        torch.from_numpy(rng.permutation(len(split.train))[: round(rate * len(split.train))])
    ]
    shift = torch.from_numpy(rng.integers(1, len(classes), size=len(victims))) if len(classes) > 1 else 0
    labels = dataset.labels.clone()
    labels[victims] = classes[(renumbered[victims] + shift) % len(classes)]
    return replace(dataset, labels=labels)


def _stratified(
    dataset: Dataset, pool: Int64[Tensor, "pool"], share: float, rng: np.random.Generator
) -> tuple[Int64[Tensor, "rest"], Int64[Tensor, "taken"]]:
    """Take ``share`` of each class out of the pool; where there are groups, whole groups."""
    y = dataset.labels[pool].numpy()
    if dataset.groups is None:
        unit = np.arange(len(y))
    else:
        unit = np.unique(dataset.groups[pool].numpy(), return_inverse=True)[1]
    first = np.unique(unit, return_index=True)[1]  # a group counts for the class of its first item
    taken = _apportion(y[first], share, rng)[unit]
    if not taken.any() or taken.all():
        raise DataError(
            f"{_where(dataset)} has too few items or groups to set {share:.0%} of them aside; "
            "add data, or give the split in the file."
        )
    return pool[torch.from_numpy(~taken)], pool[torch.from_numpy(taken)]


def _apportion(y: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Mark round(share · n) items: each class gives its share, by largest remainder, and never all of it.

    A class that would be left with one item gives it last of all.
    """
    classes, counts = np.unique(y, return_counts=True)
    quota = share * counts
    take = np.floor(quota).astype(int)
    room = counts - 1 > take
    short = min(floor(share * len(y) + 0.5) - int(take.sum()), int(room.sum()))
    order = rng.permutation(
        len(classes)
    )  # equal remainders are ordered at random, not by the order of the classes
    turn = np.where(room, quota - take, -2.0) - (room & (counts - 1 - take < _LEFT))
    order = order[np.argsort(-turn[order], kind="stable")]
    take[order[: max(short, 0)]] += 1
    marked = np.zeros(len(y), dtype=bool)
    for c, k in zip(classes, take, strict=True):
        marked[rng.permutation(np.flatnonzero(y == c))[:k]] = True
    return marked


def _require_two_of_each(dataset: Dataset) -> None:
    pool = dataset.official.train if dataset.official is not None else torch.arange(len(dataset))
    counts = torch.bincount(dataset.labels[pool], minlength=len(dataset.classes))
    present = torch.bincount(dataset.labels, minlength=len(dataset.classes)) > 0
    scarce = torch.nonzero(present & (counts < 2)).flatten()
    if len(scarce):
        c = int(scarce[0])
        has = "one item" if counts[c] == 1 else "no item"
        raise DataError(
            f"class {dataset.classes[c]!r} of {_where(dataset)} has {has} to train on; "
            "a class needs at least two: add items or remove the class."
        )


def _generator(seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, stream])


def _disjoint(a: Tensor, b: Tensor) -> bool:
    return not bool(torch.isin(a, b).any())


def _items(labels: Tensor, classes: Tensor) -> Tensor:
    return torch.nonzero(torch.isin(labels, classes)).flatten()


def _where(dataset: Dataset) -> str:
    return f"{dataset.name} ({dataset.source[0]})" if dataset.source else dataset.name
