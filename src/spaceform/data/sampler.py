"""Episodes: N classes, then K items of each."""

from collections.abc import Iterator
from typing import final

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler


@final
class EpisodicSampler(Sampler[list[int]]):
    """A batch sampler for `torch.utils.data.DataLoader`: each batch is an episode.

    An episode has N classes without replacement (all of them, if there are fewer), then min(K, available)
    items of each without replacement. Episode i of epoch e is a function of (seed, e, i) alone, so a run that
    stops can go on at any episode: ``set_epoch(e, start=i)``.

    Under data parallelism every rank makes the same episode and takes every ``world_size``-th item of it: the
    union over the ranks is the batch of a single process. (Keep Lightning Fabric from adding its own sampler:
    ``setup_dataloaders(..., use_distributed_sampler=False)``.)
    """

    def __init__(
        self,
        labels: Int64[Tensor, "items"],
        indices: Int64[Tensor, "train"],
        *,
        classes_per_episode: int,
        items_per_class: int,
        episodes: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        for name, value in {
            "classes_per_episode": classes_per_episode,
            "items_per_class": items_per_class,
            "episodes": episodes,
            "world_size": world_size,
            "len(indices)": len(indices),
        }.items():
            if value < 1:
                raise ValueError(f"{name}={value} must be at least 1.")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank={rank} must be between 0 and world_size - 1 = {world_size - 1}.")
        y = labels[indices].numpy()
        order = np.argsort(y, kind="stable")
        self._items: NDArray[np.int64] = indices.numpy()[order]
        _, self._first, self._count = np.unique(y[order], return_index=True, return_counts=True)
        self._n = min(classes_per_episode, len(self._first))
        self._k = items_per_class
        self.episodes = episodes
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.epoch = 0
        self.start = 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Go to an epoch, and within it to the episode ``start``."""
        self.epoch, self.start = epoch, start

    def episode(self, number: int) -> Int64[np.ndarray, "batch"]:
        """All items of one episode of the current epoch, before they are shared out among the ranks."""
        rng = np.random.default_rng([self.seed, self.epoch, number])
        chosen = rng.permutation(len(self._first))[: self._n]
        places = [
            first + rng.choice(count, min(self._k, count), replace=False, shuffle=False)
            for first, count in zip(self._first[chosen], self._count[chosen], strict=True)
        ]
        return self._items[np.concatenate(places)]

    def __iter__(self) -> Iterator[list[int]]:
        for number in range(self.start, self.episodes):
            yield self.episode(number)[self.rank :: self.world_size].tolist()

    def __len__(self) -> int:
        return self.episodes - self.start
