"""Features in place of photos: extracted once by a pretrained net, then taken from the cache."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform import data
from spaceform.data import cache
from spaceform.data.dataset import digest_of_photos
from spaceform.data.decoding import ahead, decoding_threads
from spaceform.data.formats.shards import Shards
from spaceform.data.formats.stored_features import kept_or_read, rows_of_shards
from spaceform.nets.pretrained import FrozenNet
from spaceform.run.extraction import BATCH, PhotoSource, extract, photos_of, plan_of
from spaceform.run.progress import PaceListener


def frozen_features(
    dataset: data.Dataset,
    net: str,
    weights: str | Path | None = None,
    *,
    listener: PaceListener | None = None,
) -> data.Dataset:
    """The same items with features as inputs, from the cache where they were extracted before.

    What is no photo stays as it is. The content of the data is that of the photos.
    """
    if not isinstance(dataset.inputs, tuple):
        return dataset
    return kept_features(PhotoSource(dataset, net, weights), listener)


def kept_features(source: PhotoSource, listener: PaceListener | None = None) -> data.Dataset:
    """The features of a source of photos, extracted or from the cache."""
    shards = extract(source, cache.place(plan_of(source)), listener=listener)
    photos = source.dataset.inputs
    assert isinstance(photos, tuple)
    return replace(
        source.dataset,
        inputs=kept_or_read(rows_of_shards(shards)),
        shrunk_from=digest_of_photos(photos),
        made_by=shards.about.weights,
    )


def require_net(source: PhotoSource) -> None:
    """Load the net where features are still to be extracted; raises `NoWeights` where that cannot be."""
    plan = plan_of(source)
    if Shards.done(cache.place(plan), plan) is None:
        source.load()


def features_of(photos: Sequence[Path], net: FrozenNet) -> Iterator[Float[Tensor, "batch features"]]:
    """The features of photos, a batch at a time, on the net's device; threads decode ahead."""
    how, device = photos_of(net.sight), next(net.parameters()).device
    batches = [photos[i : i + BATCH] for i in range(0, len(photos), BATCH)]
    for decoded in ahead(batches, how.pixels, decoding_threads()):
        with torch.inference_mode():
            yield net(how.scaled(torch.stack(decoded).to(device)))
