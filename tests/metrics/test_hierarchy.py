"""Distances in a tree of classes: hand values, a walk through the tree, and how mistakes are counted."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spaceform import metrics

BIRDS = [("animal", "bird"), ("animal", "bird"), ("animal", "cat"), ("plant",), ()]
paths = st.lists(st.lists(st.sampled_from("abc"), max_size=3).map(tuple), min_size=1, max_size=8)


def walked(groups):
    """Breadth first over the edges of the tree, class by class."""
    near: dict[tuple, set[tuple]] = {}
    leaves = [(*path, i) for i, path in enumerate(groups)]
    for leaf in leaves:
        for level in range(len(leaf)):
            child, parent = leaf[: level + 1], leaf[:level]
            near.setdefault(child, set()).add(parent)
            near.setdefault(parent, set()).add(child)
    found = []
    for start in leaves:
        steps, front = {start: 0}, [start]
        for at in front:
            for other in near[at] - steps.keys():
                steps[other] = steps[at] + 1
                front.append(other)
        found.append([steps[leaf] for leaf in leaves])
    return torch.tensor(found, dtype=torch.float64)


def test_hand_values():
    found = metrics.tree_distances(BIRDS)
    assert found[0].tolist() == [0, 2, 4, 5, 4]
    assert found[3].tolist() == [5, 5, 5, 0, 3]
    torch.testing.assert_close(found, found.T)


def test_a_name_belongs_to_the_group_before_it():
    """The twos of two different ones are two groups."""
    assert metrics.tree_distances([("one", "two"), ("other", "two")])[0, 1] == 6


@settings(max_examples=60, deadline=None)
@given(paths)
def test_equals_a_walk_through_the_tree(groups):
    torch.testing.assert_close(metrics.tree_distances(groups), walked(groups))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000))
def test_equals_a_slow_loop(seed):
    g = torch.Generator().manual_seed(seed)
    p = torch.rand(12, 5, generator=g).softmax(-1)
    y, counts = torch.randint(5, (12,), generator=g), torch.randint(1, 4, (3, 12), generator=g)
    d = metrics.tree_distances(BIRDS)
    for row, of_all, of_mistakes in zip(
        counts.tolist(),
        metrics.expected_tree_distance(p, y, d, counts=counts),
        metrics.mistake_distance(p, y, d, counts=counts),
        strict=True,
    ):
        expected, mistakes = [], []
        for often, probs, label in zip(row, p.tolist(), y.tolist(), strict=True):
            guess = int(np.argmax(probs))
            expected += often * [sum(q * float(d[j, label]) for j, q in enumerate(probs))]
            mistakes += often * [float(d[guess, label])] if guess != label else []
        assert of_all.item() == pytest.approx(np.mean(expected), rel=1e-6)
        if mistakes:
            assert of_mistakes.item() == pytest.approx(np.mean(mistakes), rel=1e-9)


def test_without_mistakes_there_is_no_mean_of_them():
    p = torch.eye(5)
    y = torch.arange(5)
    d = metrics.tree_distances(BIRDS)
    assert metrics.mistake_distance(p, y, d).isnan()
    assert metrics.expected_tree_distance(p, y, d).item() == 0


def test_numpy_arrays_are_taken():
    d = metrics.tree_distances(BIRDS).numpy()
    p = np.eye(5)[[1, 1, 2]]
    assert metrics.mistake_distance(p, np.array([0, 1, 3]), d).item() == pytest.approx(3.5)


@pytest.mark.parametrize("metric", [metrics.mistake_distance, metrics.expected_tree_distance])
def test_faults_are_one_sentence(metric):
    with pytest.raises(ValueError, match=r"distances must have shape \(5, 5\).* got \(4, 4\)"):
        metric(torch.eye(5), torch.arange(5), torch.zeros(4, 4))
    with pytest.raises(ValueError, match="groups is empty"):
        metrics.tree_distances([])
