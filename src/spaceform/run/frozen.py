"""Features in place of photos or texts: extracted once by a pretrained net, then taken from the cache."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from spaceform import data
from spaceform.data import cache
from spaceform.data.decoding import ahead, decoding_threads
from spaceform.data.formats.shards import Shards
from spaceform.data.formats.stored_features import kept_or_read, rows_of_shards
from spaceform.data.text_items import Texts
from spaceform.nets.pretrained import FrozenNet
from spaceform.nets.sentences import SentenceNet
from spaceform.run.extraction import (
    BATCH,
    FeatureSource,
    PhotoSource,
    TextSource,
    extract,
    photos_of,
    plan_of,
)
from spaceform.run.progress import PaceListener


def frozen_features(
    dataset: data.Dataset,
    net: str,
    weights: str | Path | None = None,
    *,
    listener: PaceListener | None = None,
) -> data.Dataset:
    """The same items with features as inputs; features that were extracted before come from the cache.

    Data that are neither photos nor texts stay as they are. The digest of the data is that of the photos or
    texts.
    """
    if dataset.kind in ("features", "pixels"):
        return dataset
    return kept_features(dataset, source_of(dataset, net, weights), listener)


def source_of(
    dataset: data.Dataset, net: str | None, weights: str | Path | None = None
) -> PhotoSource | TextSource:
    """Photos or texts, with the net that sees or reads them."""
    if isinstance(dataset.inputs, Texts):
        return TextSource(dataset.inputs, net)
    return PhotoSource(dataset, net, weights)


def kept_features(
    dataset: data.Dataset, source: FeatureSource, listener: PaceListener | None = None
) -> data.Dataset:
    """The data set with the features of its source, extracted or from the cache."""
    shards = extract(source, cache.place(plan_of(source)), listener=listener)
    return replace(
        dataset,
        inputs=kept_or_read(rows_of_shards(shards)),
        shrunk_from=dataset.inputs_digest.decode(),
        made_by=shards.about.weights,
    )


def require_net(source: FeatureSource) -> None:
    """Load the net if features must still be extracted; raises `NoWeights` if its weights cannot be found."""
    plan = plan_of(source)
    if Shards.done(cache.place(plan), plan) is None:
        source.load()


def read_by(texts: Sequence[str], net: SentenceNet) -> Iterator[Float[Tensor, "batch features"]]:
    """The features of texts, a batch at a time."""
    empty = [i for i, text in enumerate(texts) if not text.strip()]
    if empty:
        raise ValueError(f"the text of item {empty[0]} (counted from 0) is empty; fill or remove it")
    for i in range(0, len(texts), BATCH):
        yield torch.from_numpy(net.encode(texts[i : i + BATCH]))


def features_of(photos: Sequence[Path], net: FrozenNet) -> Iterator[Float[Tensor, "batch features"]]:
    """The features of photos, a batch at a time, on the net's device; threads decode ahead."""
    how, device = photos_of(net.sight), next(net.parameters()).device
    batches = [photos[i : i + BATCH] for i in range(0, len(photos), BATCH)]
    for decoded in ahead(batches, how.pixels, decoding_threads()):
        with torch.inference_mode():
            yield net(how.scaled(torch.stack(decoded).to(device)))
