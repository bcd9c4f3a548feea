"""Episodes: what is in them, that they can be found again, and that ranks share them out."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from spaceform.data import EpisodicSampler

LABELS = torch.repeat_interleave(torch.arange(12), torch.tensor([3, 40, 5, 20, 1, 8, 9, 30, 4, 2, 17, 6])) + 5
TRAIN = torch.arange(len(LABELS))[torch.randperm(len(LABELS), generator=torch.Generator().manual_seed(1))][
    :130
]


def sampler(**changes) -> EpisodicSampler:
    arguments = {"classes_per_episode": 7, "items_per_class": 4, "episodes": 9, "seed": 3} | changes
    return EpisodicSampler(LABELS, TRAIN, **arguments)


@given(n=st.integers(1, 20), k=st.integers(1, 50), seed=st.integers(0, 2**40), epoch=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_an_episode_has_n_classes_and_k_items_of_each_where_there_are_as_many(n, k, seed, epoch):
    s = sampler(classes_per_episode=n, items_per_class=k, seed=seed)
    s.set_epoch(epoch)
    available = torch.bincount(LABELS[TRAIN], minlength=17)
    for batch in s:
        assert len(set(batch)) == len(batch)
        assert set(batch) <= set(TRAIN.tolist())
        counts = torch.bincount(LABELS[batch], minlength=17)
        chosen = counts > 0
        assert int(chosen.sum()) == min(n, int((available > 0).sum()))
        assert torch.equal(counts[chosen], available[chosen].clamp(max=k))


def test_an_epoch_is_a_function_of_seed_and_epoch():
    a, b = sampler(), sampler()
    a.set_epoch(4)
    b.set_epoch(4)
    assert list(a) == list(b) == list(a)
    b.set_epoch(5)
    assert list(a) != list(b)
    b.set_epoch(4, start=6)
    assert list(b) == list(a)[6:]
    assert len(b) == 3
    assert list(sampler(seed=4)) != list(sampler(seed=3))


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_ranks_share_out_the_batch_of_a_single_process(world_size):
    ranks = [list(sampler(rank=r, world_size=world_size)) for r in range(world_size)]
    for whole, *shares in zip(sampler(), *ranks, strict=True):
        assert sorted(i for share in shares for i in share) == sorted(whole)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_classes_and_items_are_drawn_uniformly():
    s = sampler(classes_per_episode=3, items_per_class=2, episodes=4000)
    drawn = torch.bincount(torch.tensor([i for batch in s for i in batch]), minlength=len(LABELS))[TRAIN]
    y = LABELS[TRAIN]
    for c in y.unique():
        counts, n = drawn[y == c].double(), int((y == c).sum())
        classes = len(y.unique())
        p = 3 / classes * min(2, n) / n
        # Binomial counts, 130 of them; 5.5 standard deviations happen by chance in 5e-6 of the runs.
        assert float((counts - 4000 * p).abs().max()) < 5.5 * (4000 * p * (1 - p)) ** 0.5 + 1e-9


def test_it_is_a_batch_sampler_of_torch():
    s = sampler()
    loader = DataLoader(TensorDataset(LABELS), batch_sampler=s)
    assert len(loader) == 9
    for (y,), batch in zip(loader, s, strict=True):
        assert y.tolist() == LABELS[batch].tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"episodes": 0}, "episodes=0 must be at least 1"),
        ({"items_per_class": 0}, "items_per_class=0"),
        ({"rank": 2, "world_size": 2}, "rank=2 must be between 0 and"),
    ],
)
def test_arguments_out_of_range(changes, message):
    with pytest.raises(ValueError, match=message):
        sampler(**changes)
    with pytest.raises(ValueError, match=r"len\(indices\)=0"):
        EpisodicSampler(LABELS, TRAIN[:0], classes_per_episode=1, items_per_class=1, episodes=1)
