"""The paper's splits, own data's, and what long tails and noise do to the training part alone."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spaceform.data import DataError, Dataset, Split, imbalance, label_noise, split, targets
from spaceform.data.splits import scarce_classes


def dataset(counts, *, task="classification", official=None, groups=None, shuffled=True) -> Dataset:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    if shuffled:
        labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))]
    return Dataset(
        name="made-up",
        classes=tuple(f"class {i}" for i in range(len(counts))),
        labels=labels,
        inputs=torch.zeros(len(labels), 1),
        task=task,
        official=official,
        groups=groups,
    )


def parts(s: Split) -> list[torch.Tensor]:
    return [s.train, s.val, s.test]


def test_fixed_set_sets_aside_15_percent_of_each_class():
    official = Split(torch.arange(5000), test=torch.arange(5000, 6000))
    d = dataset([600] * 10, official=official)
    s = split(d)
    assert [len(p) for p in parts(s)] == [4250, 750, 1000]
    assert torch.equal(s.test, official.test)
    share = torch.bincount(d.labels[s.val]) / torch.bincount(d.labels[:5000])
    assert float((share - 0.15).abs().max()) < 1 / 450


@given(
    counts=st.lists(st.integers(2, 60), min_size=2, max_size=12).filter(lambda c: sum(c) >= 12),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=60, deadline=None)
def test_parts_are_a_partition_and_stratified(counts, seed):
    d = dataset(counts)
    s = split(d, seed)
    assert torch.cat(parts(s)).sort().values.tolist() == list(range(len(d)))
    train = torch.bincount(d.labels[s.train], minlength=len(counts))
    assert int(train.min()) >= 1
    for c, n in enumerate(counts):
        held = int((d.labels[s.test] == c).sum())
        assert abs(held - 0.2 * n) < 1 + 1e-9
    assert len(s.test) == pytest.approx(0.2 * len(d), abs=1) or (torch.tensor(counts) < 5).any()


def test_a_split_depends_on_its_seed_alone():
    d = dataset([50] * 4)
    assert all(torch.equal(a, b) for a, b in zip(parts(split(d, 3)), parts(split(d, 3)), strict=True))
    assert not torch.equal(split(d, 3).val, split(d, 4).val)
    # A recorded split: another numpy or another order of draws must not change published results unseen.
    assert split(d, 0).val[:12].tolist() == GOLDEN_VAL


GOLDEN_VAL = [1, 15, 18, 24, 28, 43, 55, 64, 75, 78, 86, 89]


@pytest.mark.parametrize(
    ("classes", "expected"), [(196, (83, 15, 98)), (200, (85, 15, 100)), (22_634, (9_619, 1_698, 11_317))]
)
def test_open_set_halves_the_classes(classes, expected):
    d = dataset([2] * classes, task="retrieval", shuffled=False)
    s = split(d)
    found = [d.labels[p].unique() for p in parts(s)]
    assert tuple(len(c) for c in found) == expected
    assert int(torch.cat(found[:2]).max()) < int(found[2].min())


def test_sop_has_11318_training_classes_by_its_lists():
    labels = torch.arange(22_634)
    official = Split(torch.arange(11_318), test=torch.arange(11_318, 22_634))
    d = Dataset("sop", tuple(map(str, range(22_634))), labels, torch.zeros(22_634, 1), "retrieval", official)
    assert [len(p) for p in parts(split(d))] == [9_620, 1_698, 11_316]


def test_an_official_split_that_shares_classes_is_not_an_open_set_split():
    official = Split(torch.arange(0, 80, 2), test=torch.arange(1, 80, 2))
    d = dataset([10] * 8, task="retrieval", official=official)
    s = split(d)
    assert d.labels[s.test].unique().tolist() == [4, 5, 6, 7]
    assert len(torch.cat(parts(s)).unique()) == 80


def test_classes_without_items_count_in_the_halving():
    d = Dataset(
        "mini",
        tuple(map(str, range(20))),
        torch.tensor([0, 3, 5, 8, 9, 11, 15]),
        torch.zeros(7, 1),
        "retrieval",
    )
    assert d.labels[split(d).test].tolist() == [11, 15]


def test_official_validation_classes_are_kept():
    official = Split(torch.arange(0, 30), torch.arange(30, 40), torch.arange(40, 60))
    d = dataset([10] * 6, task="retrieval", official=official, shuffled=False)
    assert [d.labels[p].unique().tolist() for p in parts(split(d))] == [[0, 1, 2], [3], [4, 5]]


def test_groups_stay_together():
    groups = torch.arange(200) // 5
    d = dataset([100, 100], groups=groups, shuffled=False)
    s = split(d)
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert not torch.isin(groups[parts(s)[a]], groups[parts(s)[b]]).any()
    assert [len(p) for p in parts(s)] == [135, 25, 40]


def test_what_cannot_be_split_is_said():
    with pytest.raises(DataError, match=r"class 'class 1' of made-up has one item to train on"):
        split(dataset([5, 1, 5]))
    with pytest.raises(DataError, match="retrieval needs at least three and one"):
        split(dataset([5, 5], task="retrieval"))
    with pytest.raises(DataError, match="too few items or groups"):
        split(dataset([10, 10], groups=torch.zeros(20, dtype=torch.int64)))
    with pytest.raises(ValueError, match=r"validation=1\.5 is not a share"):
        split(dataset([5, 5]), validation=1.5)
    official = Split(torch.arange(10), test=torch.arange(10, 15))
    with pytest.raises(DataError, match=r"class 'class 2' of made-up has no item to train on"):
        split(dataset([5, 5, 5], official=official, shuffled=False))


def test_a_data_set_refuses_what_does_not_fit():
    with pytest.raises(DataError, match="3 items and 2 labels"):
        Dataset("d", ("a", "b"), torch.tensor([0, 1]), (Path("1"), Path("2"), Path("3")))
    with pytest.raises(DataError, match="d is empty"):
        Dataset("d", ("a", "b"), torch.tensor([], dtype=torch.int64), torch.zeros(0, 1))
    with pytest.raises(DataError, match="items of one class only"):
        Dataset("d", ("a", "b"), torch.tensor([1, 1]), torch.zeros(2, 1))
    with pytest.raises(DataError, match="label -1"):
        Dataset("d", ("a", "b"), torch.tensor([-1, 1]), torch.zeros(2, 1))


def test_targets_number_the_training_classes():
    y, classes = targets(torch.tensor([7, 2, 5, 2, 9]), torch.tensor([0, 1, 3]))
    assert classes.tolist() == [2, 7]
    assert y.tolist() == [1, 0, -1, 0, -1]


def test_imbalance_is_geometric_and_leaves_the_test_alone():
    d = dataset([1000] * 10)
    s = split(d)
    thin = imbalance(d, s, 100.0, seed=1)
    counts = torch.bincount(d.labels[thin.train]).sort(descending=True).values.double()
    n = torch.bincount(d.labels[s.train]).double().max()
    expected = n * 100.0 ** -(torch.arange(10) / 9).double()
    assert float((counts - expected).abs().max()) <= 0.5 + 1
    assert torch.isin(thin.train, s.train).all()
    assert torch.equal(thin.val, s.val)
    assert torch.equal(thin.test, s.test)
    assert torch.equal(thin.train, imbalance(d, s, 100.0, seed=1).train)
    assert not torch.equal(thin.train, imbalance(d, s, 100.0, seed=2).train)
    assert torch.equal(
        imbalance(dataset([50, 50]), split(dataset([50, 50])), 1.0).train, split(dataset([50, 50])).train
    )
    with pytest.raises(ValueError, match="at least 1"):
        imbalance(d, s, 0.5)


def test_imbalance_keeps_one_of_each_class():
    d = dataset([20] * 6)
    counts = torch.bincount(d.labels[imbalance(d, split(d), 1000.0).train])
    assert int(counts.min()) == 1


def test_label_noise_changes_its_share_of_the_training_labels():
    d = dataset([1000] * 5)
    s = split(d)
    noisy = label_noise(d, s, 0.2, seed=1)
    changed = noisy.labels != d.labels
    assert int(changed.sum()) == round(0.2 * len(s.train))
    assert torch.isin(torch.nonzero(changed).flatten(), s.train).all()
    # Each other class is hit equally: a chi-squared statistic with 15 degrees of freedom, false alarm 1e-4.
    pairs = torch.bincount(d.labels[changed] * 5 + noisy.labels[changed], minlength=25).reshape(5, 5).double()
    assert pairs.diagonal().sum() == 0
    mean = pairs.sum(1, keepdim=True) / 4
    off = ~torch.eye(5, dtype=torch.bool)
    assert float((((pairs - mean) ** 2 / mean)[off]).sum()) < 44.3
    assert torch.equal(label_noise(d, s, 0.0).labels, d.labels)
    with pytest.raises(ValueError, match=r"label_noise=2\.0 is not a share"):
        label_noise(d, s, 2.0)


def test_label_noise_stays_among_the_training_classes_of_an_open_set():
    d = dataset([10] * 12, task="retrieval")
    s = split(d)
    noisy = label_noise(d, s, 1.0)
    assert not (noisy.labels[s.train] == d.labels[s.train]).any()
    assert set(np.unique(noisy.labels[s.train])) == set(np.unique(d.labels[s.train]))


def test_a_class_of_few_items_keeps_two_to_train_on():
    d = dataset([40, 40, 2, 3])
    s = split(d)
    trained = torch.bincount(d.labels[s.train])
    assert trained.min() >= 2
    assert [len(p) for p in parts(s)] == [58, 10, 17]
    assert not any("to train on" in said for said in scarce_classes(d, s))


def test_a_class_that_is_not_tested_is_named():
    d = dataset([30, 30, 2])
    assert scarce_classes(d, split(d)) == [
        "class 'class 2' has no item in the test part, so that no number says how well it is found: add "
        "items, or give the split in the file"
    ]
    assert scarce_classes(dataset([30, 30, 10]), split(dataset([30, 30, 10]))) == []
    many = dataset([2] * 6 + [40] * 4)
    assert scarce_classes(many, split(many))[-1].startswith(
        "6 classes have no item in the test part, so that no number says how well they are found ('class 0', "
        "'class 1', 'class 2', 'class 3' and 2 more): add items"
    )
    nowhere = replace(d, classes=(*d.classes, "nobody"))  # a class without items is no class
    assert len(scarce_classes(nowhere, split(nowhere))) == 1
    retrieval = dataset([30] * 8, task="retrieval")
    assert scarce_classes(retrieval, split(retrieval)) == []


def test_classes_with_one_training_item_are_named_and_counted():
    d = dataset([2] * 20)
    said = scarce_classes(d, split(d))[0]
    assert said.startswith(
        "13 classes have 1 item each to train on, from which little can be learnt ('class "
    )
    assert said.endswith(" and 9 more): add items, or remove them")
    official = Split(torch.arange(41), torch.arange(41, 50), torch.arange(50, 60))
    labels = torch.tensor([0] * 20 + [1] * 20 + [2] + [0, 1, 2] * 6 + [0])
    one = replace(dataset([20, 20, 20]), labels=labels, official=official)
    with pytest.raises(DataError, match="class 'class 2' of made-up has one item to train on"):
        split(one)


def test_a_class_that_groups_take_away_is_refused():
    labels = torch.tensor([0, 1] * 40 + [2] * 3)
    groups = torch.tensor([i // 2 for i in range(80)] + [0, 0, 0])
    d = replace(dataset([40, 40, 3]), labels=labels, groups=groups)
    refused = []
    for seed in range(40):
        try:
            s = split(d, seed)
            assert (torch.bincount(labels[s.train], minlength=3) > 0).all()
        except DataError as error:
            refused.append(str(error))
    assert refused
    assert set(refused) == {
        "class 'class 2' of made-up has no item left to train on: all 3 items are in groups that validate or "
        "test; spread the class over more groups, or give the split in the file."
    }
