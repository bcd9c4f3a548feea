"""Batches from memory: the right items, augmented by nothing but (seed, epoch, episode)."""

import pytest
import torch

from spaceform.data import (
    PIXELS,
    Dataset,
    EpisodicSampler,
    Pixels,
    evaluation_batches,
    load,
    preprocessing,
    split,
    targets,
    train_batches,
)


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load("digits")


HOW = Pixels(pad=2, flip=True, occlusion=3)


def epoch(dataset, how, *, start=0, number=1, **ranks):
    s = split(dataset)
    y, _ = targets(dataset.labels, s.train)
    sampler = EpisodicSampler(
        dataset.labels, s.train, classes_per_episode=10, items_per_class=3, episodes=5, seed=7, **ranks
    )
    sampler.set_epoch(number, start)
    return sampler, list(train_batches(dataset, y, sampler, how))


def test_plain_batches_are_the_items_of_the_sampler(digits):
    sampler, batches = epoch(digits, PIXELS["digits"])
    for batch, indices in zip(batches, sampler, strict=True):
        assert torch.equal(batch.inputs, digits.inputs[indices] / 255)
        assert torch.equal(batch.targets, digits.labels[indices])
        assert batch.total == 30


def test_augmented_batches_resume_and_share_out(digits):
    _, whole = epoch(digits, HOW)
    _, rest = epoch(digits, HOW, start=3)
    ranks = [epoch(digits, HOW, rank=r, world_size=4)[1] for r in range(4)]
    for a, b in zip(whole[3:], rest, strict=True):
        assert torch.equal(a.inputs, b.inputs)
    for i, a in enumerate(whole):
        for r in range(4):
            assert torch.equal(a.inputs[r::4], ranks[r][i].inputs)
            assert ranks[r][i].total == 30
    assert not torch.equal(whole[0].inputs, epoch(digits, HOW, number=2)[1][0].inputs)


def test_features_go_as_they_are():
    d = Dataset("f", ("a", "b"), torch.arange(40) % 2, torch.randn(40, 6))
    s = split(d)
    assert preprocessing(d, s) is None
    x = torch.cat(list(evaluation_batches(d, s.test, None, batch_size=3)))
    assert torch.equal(x, d.inputs[s.test])


def test_evaluation_is_the_same_for_any_batch_size(digits):
    s = split(digits)
    how = preprocessing(digits, s)
    a = torch.cat(list(evaluation_batches(digits, s.test, how, batch_size=7)))
    b = torch.cat(list(evaluation_batches(digits.to(torch.device("cpu")), s.test, how)))
    assert torch.equal(a, b)
    assert a.shape == (359, 1, 8, 8)
