"""Features and predictions by the actors of a Ray cluster, kept part by part in this process.

Hosts need spaceform installed and must see the photos under the same paths; the net travels to them. After a
kill, the same command goes on with the parts that are missing.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, final

import torch
from numpy.typing import NDArray

from spaceform.run.cluster import ActorWork, Cluster, by_actors
from spaceform.run.extraction import Batches, Elsewhere, ExtractedBatch, FeatureSource
from spaceform.run.finished import Run
from spaceform.run.parts import KeptParts
from spaceform.run.predict import NewItems, Prediction, PredictionPlan, read_items

PART = 1024
"""How many items a part has. A killed process loses less than one part for each actor."""


def encoded_by(cluster: Cluster) -> Elsewhere:
    """A function for `extract` by which actors of a cluster encode the shards."""

    def encode(
        source: FeatureSource, shards: dict[int, Batches]
    ) -> Iterator[tuple[int, list[ExtractedBatch]]]:
        return by_actors(cluster, _Encoding(source), shards)

    return encode


@final
class _Encoding(ActorWork):
    """The work of an actor: features of the rows of a shard."""

    def __init__(self, source: FeatureSource) -> None:
        self._source = source

    def settle(self, device: str, workers: int) -> None:
        self._source.settle(device, workers)

    def __call__(self, task: Batches) -> list[ExtractedBatch]:
        return list(self._source.encoded(task))


def predict_by(
    cluster: Cluster,
    run: Run,
    sources: Sequence[str | Path],
    folder: Path,
    plan: PredictionPlan,
    *,
    part: int = PART,
    tell: Callable[[int, int], None] | None = None,
) -> Prediction:
    """`predict` by the actors of a cluster; parts are kept in a folder until the caller removes it.

    `tell` is called with the number of parts that are done and the number of all parts.
    """
    plan = plan.for_run(run)
    items, inputs = read_items(sources, run.columns, run.recipe.data.text)
    kept = KeptParts(folder, _digest(run, sources, items, plan, part), -(-len(items) // part))
    run.frozen, run.reader  # noqa: B018 (loaded here: they travel to the hosts)
    tasks = {i: inputs[i * part : (i + 1) * part] for i in kept.missing}
    for number, arrays in by_actors(cluster, _Predicting(run, plan), tasks):
        kept.write(number, arrays)
        if tell is not None:
            tell(kept.count - len(kept.missing), kept.count)
    found = {name: torch.from_numpy(values) for name, values in kept.read().items()}
    return Prediction(items, run.classes, **found)


def parts_folder(out: Path) -> Path:
    """Where the parts of an output are kept until it is written."""
    return out.with_name(f".{out.name}.parts")


def remove_parts(folder: Path) -> None:
    """Remove the parts of an output that is written."""
    KeptParts.there(folder).remove()


@final
class _Predicting(ActorWork):
    """The work of an actor: what a run says of some items."""

    def __init__(self, run: Run, plan: PredictionPlan) -> None:
        self._run, self._plan = run, plan

    def settle(self, device: str, workers: int) -> None:  # noqa: ARG002 (photos are decoded as they come)
        self._run.model.to(device)
        for net in (self._run.frozen, self._run.reader):
            if net is not None:
                net.to(device)

    def __call__(self, task: NewItems) -> dict[str, NDArray[Any]]:
        return {name: value.numpy() for name, value in self._plan.of(self._run, task).items()}


def _digest(
    run: Run, sources: Sequence[str | Path], items: Sequence[str], plan: PredictionPlan, part: int
) -> str:
    """A digest of everything that the parts depend on: weights, items, options of the prediction."""
    stamps = [(str(path), os.stat(path).st_mtime_ns) for path in sources]
    facts = [run.result["digests"]["weights"], list(items), stamps, repr(plan), part]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
