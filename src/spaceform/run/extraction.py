"""Features of photos or texts by a frozen net, shard by shard. After a kill, extraction goes on.

A batch always has the same items, so the shards have the same bytes however often the work was stopped.
"""

import hashlib
import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, final

import filelock
import numpy as np
import torch
from jaxtyping import Float32, UInt8
from numpy.typing import NDArray
from torch import Tensor

from spaceform import data
from spaceform.data.dataset import digest_of_photos
from spaceform.data.decoding import ahead, decoding_threads
from spaceform.data.formats.shards import About, Shard, Shards
from spaceform.data.stored_rows import StoredRows
from spaceform.data.text_items import Texts
from spaceform.foundation.messages import first_line, spelled
from spaceform.nets.pretrained import FrozenNet, Sight, frozen_net, origin_of
from spaceform.nets.sentences import SentenceNet, place_of, sentence_net
from spaceform.run.progress import Pace, PaceListener

BATCH = 32
SHARD = 2048
"""About how many rows a shard has: it holds whole batches. A killed process loses less than one shard."""


class BrokenItem(data.DataError):
    """A photo that cannot be decoded or a text that is empty; the message names it."""


Batches: TypeAlias = list[Sequence[int]]
"""The rows of a shard, batch by batch."""
ExtractedBatch: TypeAlias = "tuple[Float32[np.ndarray, 'good features'], list[str | None]]"
"""The features of the good rows of a batch; and for every row what is wrong with it, or None."""


Elsewhere: TypeAlias = Callable[
    ["FeatureSource", dict[int, Batches]], Iterator[tuple[int, list[ExtractedBatch]]]
]
"""Encodes shards in place of this process: yields them with their numbers, in any order."""


class FeatureSource(ABC):
    """Base class: rows in a fixed order, and the net that extracts their features."""

    origin: str
    """Where the weights of the net come from, in words."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, NDArray[Any]]:
        """The columns beside the features: `y`, `file`, `split`, `view`, `groups`."""

    @property
    @abstractmethod
    def about(self) -> About:
        """The description that the shards will hold, without plan and number; this loads the net."""

    @property
    @abstractmethod
    def facts(self) -> list[Any]:
        """Everything that the features depend on; this does not load the net."""

    @abstractmethod
    def load(self) -> None:
        """Load the net now; raises `NoWeights` if its weights cannot be found."""

    @abstractmethod
    def settle(self, device: str, workers: int) -> None:
        """Work on this device from now on, with `workers` threads that decode."""

    @abstractmethod
    def encoded(self, batches: Sequence[Sequence[int]]) -> Iterator[ExtractedBatch]:
        """The features of the rows of each batch."""


@final
class PhotoSource(FeatureSource):
    """Photos, or small images in memory, and a frozen net.

    Further rows are `views` augmented views of each training item.
    """

    def __init__(
        self,
        dataset: data.Dataset,
        net: str | None = None,
        weights: str | Path | None = None,
        *,
        views: int = 0,
        device: str = "cpu",
        workers: int | None = None,
    ) -> None:
        if dataset.kind == "features":
            raise data.DataError(f"{dataset.name} holds features already; give photos or texts.")
        self.dataset, self._views = dataset, views
        self._name, self._weights = net, weights
        self.origin, self._digest = origin_of(net, weights)
        self._device = _device(device)
        self._workers = decoding_threads() if workers is None else workers
        self._split = dataset.official
        if views:
            self._split = data.split(dataset.with_task("classification"))
        train = np.arange(0) if self._split is None else self._split.train.numpy()
        items = np.arange(len(dataset))
        self._item = np.concatenate([items, *([train] * views)])
        self._view = np.concatenate([0 * items, *(np.full(len(train), k + 1) for k in range(views))])

    @cached_property
    def net(self) -> FrozenNet:
        """The net, loaded when it is first asked for."""
        return frozen_net(self._name, self._weights)

    def load(self) -> None:
        self.net  # noqa: B018 (kept by the property)

    @cached_property
    def _how(self) -> data.Photos:
        return photos_of(self.net.sight)

    @property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        found: dict[str, NDArray[Any]] = {"y": self.dataset.labels.numpy()[self._item]}
        found["file"] = np.array(names_of(self.dataset), dtype=object)[self._item]
        if self._split is not None:
            part = np.full(len(self.dataset), "train", dtype=object)
            part[self._split.val.numpy()] = "val"
            part[self._split.test.numpy()] = "test"
            found["split"] = part[self._item]
        if self._views:
            found["view"] = self._view.astype(np.int64)
        if self.dataset.groups is not None or self._views:
            groups = self.dataset.groups
            found["groups"] = self._item if groups is None else groups.numpy()[self._item]
        return found

    @property
    def about(self) -> About:
        photos = self.dataset.inputs
        return About(
            name=self.dataset.name,
            net=self.net.name,
            weights=self.net.digest,
            plan="",
            shards=0,
            classes=self.dataset.classes,
            preprocessing=asdict(self.net.sight),
            views=self._views,
            photos=digest_of_photos(photos) if isinstance(photos, tuple) else "",
        )

    @property
    def facts(self) -> list[Any]:
        """Of files it takes names, sizes and times, so a photo that was replaced counts as another photo."""
        photos = self.dataset.inputs
        times = [os.stat(path).st_mtime_ns for path in photos] if isinstance(photos, tuple) else []
        return ["photos", self._digest, self._views, self.dataset.content, times]

    def settle(self, device: str, workers: int) -> None:
        self._device, self._workers = _device(device), workers

    def encoded(self, batches: Sequence[Sequence[int]]) -> Iterator[ExtractedBatch]:
        cuda = self._device.type == "cuda"
        layout = torch.channels_last if cuda else torch.contiguous_format
        net = self.net.to(device=self._device, memory_format=layout)  # type: ignore[call-overload]
        for decoded in ahead(batches, self._pixels, self._workers):
            good = [one for one in decoded if isinstance(one, Tensor)]
            wrong = [None if isinstance(one, Tensor) else str(one) for one in decoded]
            if not good:
                yield np.empty((0, self.net.width), np.float32), wrong
                continue
            x = torch.stack(good)
            x = (x.pin_memory() if cuda else x).to(self._device, non_blocking=True)
            with torch.inference_mode():
                features = net(self._how.scaled(x).contiguous(memory_format=layout))
            yield features.float().cpu().numpy(), wrong

    def _pixels(self, row: int) -> UInt8[Tensor, "3 size size"] | data.DataError:
        item, view = int(self._item[row]), int(self._view[row])
        photos = self.dataset.inputs
        assert not isinstance(photos, StoredRows | Texts)
        try:
            photo = _picture(photos[item]) if isinstance(photos, Tensor) else photos[item]
            return self._how.view(photo, item * 2**16 + view) if view else self._how.pixels(photo)
        except data.DataError as error:
            return error  # the caller knows whether broken photos are left out


@final
class TextSource(FeatureSource):
    """Texts and a net for them."""

    def __init__(self, texts: Texts, net: str | None = None, *, device: str = "cpu") -> None:
        self._texts, self._name, self._device = texts, net, device
        _, self.origin, self._digest = place_of(net)

    @cached_property
    def _net(self) -> SentenceNet:
        """The net, loaded when it is first asked for."""
        return sentence_net(self._name, self._device)

    def load(self) -> None:
        self._net  # noqa: B018 (kept by the property)

    @property
    def columns(self) -> Mapping[str, NDArray[Any]]:
        texts = self._texts
        found: dict[str, NDArray[Any]] = {"file": np.array(texts.items, dtype=object)}
        known = {"y": texts.labels, "split": texts.split, "groups": texts.groups}
        return found | {name: np.asarray(values) for name, values in known.items() if values is not None}

    @property
    def about(self) -> About:
        net = self._net
        return About(self._texts.name, net.name, net.digest, plan="", shards=0, classes=self._texts.classes)

    @property
    def facts(self) -> list[Any]:
        digest = hashlib.blake2b(self._texts.digest.encode(), digest_size=16)
        for name, values in self.columns.items():
            digest.update(f"{name} {values.tolist()}".encode())
        return ["texts", self._digest, digest.hexdigest()]

    def settle(self, device: str, workers: int) -> None:  # noqa: ARG002 (there is nothing to decode)
        self._device = device
        self._net.to(device)

    def encoded(self, batches: Sequence[Sequence[int]]) -> Iterator[ExtractedBatch]:
        for batch in batches:
            texts = [self._texts.texts[i] for i in batch]
            wrong = [
                None
                if text.strip()
                else f"{self._texts.items[i]} of {self._texts.name} is empty; fill or remove it"
                for i, text in zip(batch, texts, strict=True)
            ]
            good = [text for text in texts if text.strip()]
            yield self._net.encode(good) if good else np.empty((0, 0), np.float32), wrong


def extract(
    source: FeatureSource,
    folder: Path,
    *,
    batch: int = BATCH,
    skip_broken: bool = False,
    listener: PaceListener | None = None,
    elsewhere: Elsewhere | None = None,
) -> Shards:
    """Write the features of all rows into a folder of shards, or go on where an earlier process stopped.

    If `elsewhere` is given, it encodes the shards; this process writes them.
    """
    if batch < 1:
        raise ValueError(f"--batch must be at least 1, got {batch}")
    columns, edge = source.columns, _edge(batch)
    rows, plan = len(columns["file"]), plan_of(source, batch=batch, skip_broken=skip_broken)
    shards = Shards.done(folder, plan)
    if shards is not None:
        return shards
    shards = Shards.begin(folder, replace(source.about, plan=plan, shards=-(-rows // edge)))
    try:
        with filelock.FileLock(folder / ".lock", timeout=0):
            _fill(source, shards, columns, (rows, edge, batch), skip_broken, listener, elsewhere or _here)
            found = shards.finish()
    except filelock.Timeout:
        raise data.DataError(
            f"another process is extracting into {folder}; wait for it, or choose another name."
        ) from None
    if not found.about.rows:
        raise data.DataError(
            f"none of the {rows:,} items of {shards.about.name} can be read; nothing was extracted."
        )
    return found


def plan_of(source: FeatureSource, *, batch: int = BATCH, skip_broken: bool = False) -> str:
    """A digest of everything that the rows of the shards depend on."""
    facts = [*source.facts, len(source.columns["file"]), _edge(batch), batch, skip_broken]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _edge(batch: int) -> int:
    """How many rows a shard has."""
    return batch * max(1, SHARD // batch)


def _here(
    source: FeatureSource, shards: dict[int, Batches]
) -> Iterator[tuple[int, Iterable[ExtractedBatch]]]:
    """Encode the shards in this process, one after the other, while photos of the next shard are decoded."""
    outcomes = source.encoded([batch for batches in shards.values() for batch in batches])
    for number, batches in shards.items():
        yield number, islice(outcomes, len(batches))


def _fill(
    source: FeatureSource,
    shards: Shards,
    columns: Mapping[str, NDArray[Any]],
    sizes: tuple[int, int, int],
    skip_broken: bool,
    listener: PaceListener | None,
    encode: Callable[[FeatureSource, dict[int, Batches]], Iterator[tuple[int, Iterable[ExtractedBatch]]]],
) -> None:
    rows, edge, batch = sizes
    spans = {i: range(i * edge, min(rows, (i + 1) * edge)) for i in shards.missing}
    before = rows - sum(map(len, spans.values()))
    wanted: dict[int, Batches] = {
        i: [span[k : k + batch] for k in range(0, len(span), batch)] for i, span in spans.items()
    }
    began, done, broken = time.monotonic(), 0, 0
    for number, outcomes in encode(source, wanted):
        parts, kept, left_out = [], [], []
        for taken, (x, wrong) in zip(wanted[number], outcomes, strict=True):
            for row, sentence in zip(taken, wrong, strict=True):
                if sentence is None:
                    kept.append(row)
                elif skip_broken:
                    left_out.append(str(columns["file"][row]))
                else:
                    raise BrokenItem(sentence)
            parts.append(x) if len(x) else None
            done, broken = done + len(taken), broken + sum(text is not None for text in wrong)
            if listener is not None:
                speed = done / max(time.monotonic() - began, 1e-9)
                listener(Pace(before + done, rows, broken, speed))
        x = np.concatenate(parts) if parts else np.empty((0, 1), np.float32)
        at = np.array(kept, dtype=np.int64)
        shards.write(
            number, Shard(x, {name: values[at] for name, values in columns.items()}, tuple(left_out))
        )


def _device(name: str) -> torch.device:
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"--device {name} cannot be used here ({first_line(error)}); give cpu, or one that is there"
        ) from None


def photos_of(sight: Sight) -> data.Photos:
    """The preprocessing that a net asks for; views are crops of at least a third of the photo.

    A JPEG whose edges have at least four times the pixels after the resize is decoded at a part of its size,
    but with at least twice these pixels. That takes a third of the time on photos of 6 megapixels. It changes
    the features of EfficientNet-Lite0 by 2 % of their norm, while two photos differ by 120 %. Smaller photos
    are decoded in full.
    """
    return data.Photos(
        sight.resize,
        sight.size,
        crop_area=(0.35, 1.0),
        mean=sight.mean,
        std=sight.std,
        resampling=sight.resampling,
        draft=2,
    )


def names_of(dataset: data.Dataset) -> list[str]:
    """The names of items: paths inside the data's folder, or numbers for images that are held in memory."""
    photos = dataset.inputs
    if not isinstance(photos, tuple):
        return [str(i) for i in range(len(photos))]
    root = dataset.source[0] if dataset.source else Path()
    return [spelled((p.relative_to(root) if p.is_relative_to(root) else p).as_posix()) for p in photos]


def _picture(pixels: UInt8[Tensor, "channels height width"]) -> Any:
    from PIL import Image

    grey = pixels.shape[0] == 1
    x = pixels.cpu().permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(x[..., 0] if grey else x[..., :3])).convert("RGB")
