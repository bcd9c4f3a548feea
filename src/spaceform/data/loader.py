"""Batches for training and evaluation: from memory, from the disk, or decoded by worker processes."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias, final

import numpy as np
import torch
from jaxtyping import Float, Int64, UInt8
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from spaceform.data.augment import Pixels, pixels_for
from spaceform.data.dataset import DataError, Dataset, Split
from spaceform.data.photos import Photos, photos_for
from spaceform.data.sampler import EpisodicSampler
from spaceform.data.stored_rows import StoredRows
from spaceform.data.text_items import Texts
from spaceform.foundation.torchvision import ensure_torchvision

Preprocessing: TypeAlias = Pixels | Photos | None
"""How inputs are prepared for the net; None for features, which are taken as they are."""

DecodedPhoto: TypeAlias = tuple[Tensor, int] | DataError
"""A decoded photo and its index, or what is wrong with the file."""

_AUGMENTATION = 1  # its stream of random numbers; the sampler has another one


class Batch(NamedTuple):
    """One step of training: this process's part of an episode, and the size of the whole episode."""

    inputs: Float[Tensor, "batch *shape"]
    targets: Int64[Tensor, "batch"]
    total: int


def preprocessing(dataset: Dataset, split: Split) -> Preprocessing:
    """The paper's preprocessing of a data set, or ours for own data; see `pixels_for` and `photos_for`."""
    match dataset.kind:
        case "features":
            return None
        case "photos":
            return photos_for(dataset.name)
        case "texts":
            raise DataError(
                f"{dataset.name} are texts, which heads see by the features of a net; set "
                "data.features=sentence-transformers/all-MiniLM-L6-v2."
            )
        case "pixels":
            assert isinstance(dataset.inputs, Tensor)
            return pixels_for(dataset.name, dataset.inputs[split.train])


def train_batches(
    dataset: Dataset,
    targets: Int64[Tensor, "items"],
    sampler: EpisodicSampler,
    how: Preprocessing,
    *,
    device: torch.device | None = None,
    workers: int = 0,
) -> Iterator[Batch]:
    """The sampler's current epoch, augmented.

    Each episode's randomness is a function of (seed, epoch, episode), whatever the device, the number of
    workers and the number of processes. ``dataset.inputs`` in memory should already be on the device:
    `Dataset.to`.
    """
    assert not isinstance(dataset.inputs, Texts)  # `preprocessing` refuses them
    if not isinstance(dataset.inputs, tuple):
        yield from _from_rows(dataset.inputs, targets, sampler, how, device)
        return
    assert isinstance(how, Photos)
    loader = _photo_loader(dataset, how, _Keyed(sampler), workers, device)
    for (inputs, index), number in zip(loader, range(sampler.start, sampler.episodes), strict=True):
        y = targets[index]
        yield Batch(
            inputs.to(device, non_blocking=True),
            y.to(device, non_blocking=True),
            len(sampler.episode(number)),
        )


def evaluation_batches(
    dataset: Dataset,
    indices: Int64[Tensor, "part"],
    how: Preprocessing,
    *,
    batch_size: int = 512,
    device: torch.device | None = None,
    workers: int = 0,
) -> Iterator[Float[Tensor, "batch *shape"]]:
    """The inputs of a part, in order, without augmentation."""
    parts = torch.split(indices, batch_size)
    assert not isinstance(dataset.inputs, Texts)  # `preprocessing` refuses them
    if not isinstance(dataset.inputs, tuple):
        for part in parts:
            x = taken(dataset.inputs, part, device)
            yield how.evaluate(x) if isinstance(how, Pixels) else x
        return
    assert isinstance(how, Photos)
    keys = [[(i, -1) for i in part.tolist()] for part in parts]
    for inputs, _ in _photo_loader(dataset, how, keys, workers, device):
        yield inputs.to(device, non_blocking=True)


def training_pass(
    dataset: Dataset,
    indices: Int64[Tensor, "part"],
    how: Preprocessing,
    *,
    seed: int,
    batch_size: int,
    device: torch.device | None = None,
    workers: int = 0,
) -> Iterator[Float[Tensor, "batch *shape"]]:
    """The inputs of a part, each once, in a random order and augmented; a function of the seed."""
    generator = torch.Generator().manual_seed(seed)
    order = indices[torch.randperm(len(indices), generator=generator)]
    # Parts of equal size: batch norm cannot take a lone item.
    parts = order.tensor_split(-(-len(order) // batch_size))
    assert not isinstance(dataset.inputs, Texts)  # `preprocessing` refuses them
    if not isinstance(dataset.inputs, tuple):
        for part in parts:
            x = taken(dataset.inputs, part, device)
            if isinstance(how, Pixels):
                x = how.train(x, how.draw(len(x), x.shape[-2], x.shape[-1], generator=generator))
            yield x
        return
    assert isinstance(how, Photos)
    seeds = torch.randint(2**62, order.shape, generator=generator)
    chunks = zip(parts, seeds.tensor_split(len(parts)), strict=True)
    keys = [list(zip(part.tolist(), seed.tolist(), strict=True)) for part, seed in chunks]
    for inputs, _ in _photo_loader(dataset, how, keys, workers, device):
        yield inputs.to(device, non_blocking=True)


def taken(
    inputs: Tensor | StoredRows, index: Int64[Tensor, "part"], device: torch.device | None
) -> Float[Tensor, "part *shape"] | UInt8[Tensor, "part *shape"]:
    """Some inputs, on the device. From the disk they go through pinned memory, without waiting for a GPU."""
    if isinstance(inputs, Tensor):
        return inputs[index.to(inputs.device)]
    x = inputs[index]
    cuda = device is not None and device.type == "cuda"
    return (x.pin_memory() if cuda else x).to(device, non_blocking=True)


def _from_rows(
    inputs: Tensor | StoredRows,
    targets: Int64[Tensor, "items"],
    sampler: EpisodicSampler,
    how: Preprocessing,
    device: torch.device | None,
) -> Iterator[Batch]:
    where = inputs.device if isinstance(inputs, Tensor) else device
    targets = targets.to(where)
    mine = slice(sampler.rank, None, sampler.world_size)
    for number in range(sampler.start, sampler.episodes):
        episode = torch.from_numpy(sampler.episode(number))
        index = episode[mine]
        x = taken(inputs, index, device)
        if isinstance(how, Pixels):
            if how.random:
                generator = torch.Generator().manual_seed(int(_seeds(sampler, number, 1)[0]))
                draws = how.draw(len(episode), x.shape[-2], x.shape[-1], generator=generator)
                x = how.train(x, draws[mine])
            else:
                x = how.evaluate(x)
        yield Batch(x, targets[index.to(where)], len(episode))


def _seeds(sampler: EpisodicSampler, number: int, n: int) -> NDArray[np.uint64]:
    sequence = np.random.SeedSequence([sampler.seed, sampler.epoch, number, _AUGMENTATION])
    return sequence.generate_state(n, np.uint64) >> np.uint64(1)  # torch takes seeds below 2⁶³


@final
class _Keyed:
    """The sampler's batches, each index with the seed of its augmentation."""

    def __init__(self, sampler: EpisodicSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        s = self._sampler
        for number in range(s.start, s.episodes):
            episode = s.episode(number)
            pairs = list(zip(episode.tolist(), _seeds(s, number, len(episode)).tolist(), strict=True))
            yield pairs[s.rank :: s.world_size]

    def __len__(self) -> int:
        return len(self._sampler)


@final
class _Decoded(TorchDataset[DecodedPhoto]):
    """Photos by (index, seed); a negative seed means no augmentation."""

    def __init__(self, dataset: Dataset, how: Photos) -> None:
        assert isinstance(dataset.inputs, tuple)
        ensure_torchvision()  # once here, instead of in each worker of each epoch
        self._paths = dataset.inputs
        self._how = how

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, key: tuple[int, int]) -> DecodedPhoto:
        index, seed = key
        path = self._paths[index]
        try:
            return (self._how.train(path, seed) if seed >= 0 else self._how.evaluate(path)), index
        except DataError as error:
            return error  # returned as a value: an error that a worker raises arrives inside a traceback


def _collate(items: list[DecodedPhoto]) -> tuple[Tensor, Tensor] | DataError:
    good = []
    for item in items:
        if isinstance(item, DataError):
            return item
        good.append(item)
    return torch.stack([photo for photo, _ in good]), torch.tensor([index for _, index in good])


def _photo_loader(
    dataset: Dataset,
    how: Photos,
    keys: "_Keyed | list[list[tuple[int, int]]]",
    workers: int,
    device: torch.device | None,
) -> Iterator[tuple[Tensor, Tensor]]:
    loader: DataLoader[DecodedPhoto] = DataLoader(
        _Decoded(dataset, how),
        batch_sampler=keys,
        num_workers=workers,
        collate_fn=_collate,
        pin_memory=device is not None and device.type == "cuda",
        generator=torch.Generator(),  # the loader draws a base seed: not from the global stream
    )
    for batch in loader:
        if isinstance(batch, DataError):
            raise batch
        yield batch
