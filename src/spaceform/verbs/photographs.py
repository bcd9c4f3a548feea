"""How a study sees photos and texts: by frozen features of a pretrained net; photos also by other nets."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from spaceform.nets import NETS, TimmOptions
from spaceform.nets.pretrained import DEFAULT_PHOTO_NET, NoWeights
from spaceform.nets.sentences import DEFAULT_SENTENCE_NET
from spaceform.run.extraction import FeatureSource
from spaceform.run.frozen import kept_features, require_net, source_of
from spaceform.run.progress import Pace, PaceListener
from spaceform.run.recipe import RecipeError, load_recipe
from spaceform.study.choices import Length
from spaceform.verbs.source import StudyData

_EVERY = 10.0
"""Seconds between two sentences about an extraction."""


@final
@dataclass(frozen=True)
class Eyes:
    """What was asked for: a net, a file of its weights, and whether the net is trained, too."""

    net: str | None = None
    weights: str | Path | None = None
    finetune: bool = False


@final
@dataclass(frozen=True, eq=False)
class Seen:
    """The data as the heads take them, and what recipes say about them."""

    source: StudyData
    net: str | None
    """The net for `plan.Conditions`."""
    settings: Mapping[str, Any]


def see(
    source: StudyData,
    eyes: Eyes,
    *,
    budget: Length | None,
    recipes: Sequence[str | Path] = (),
    settings: Mapping[str, Any] | None,
    say: Callable[[str], None],
) -> Seen:
    """The data as heads take them: photos and texts as frozen features, unless a net is trained on photos."""
    given = dict(settings or {})
    if source.dataset.kind == "texts":
        return _read(source, eyes, given, say)
    weights = None if eyes.weights is None else str(eyes.weights)
    if source.dataset.kind != "photos":
        if weights is not None or eyes.finetune:
            option = "--weights" if weights is not None else "--finetune"
            raise RecipeError(f"{option} is for photos, and {source.dataset.name} is {source.dataset.kind}")
        return Seen(source, eyes.net, given)
    scratch = eyes.net is not None and NETS.get(eyes.net, TimmOptions) is not TimmOptions
    if scratch and weights is not None:
        raise RecipeError(f"--weights are those of a pretrained net, and --net {eyes.net} has none")
    if eyes.finetune and not scratch:
        start = {"net.weights": weights} if weights is not None else {"net.pretrained": True}
        return Seen(source, eyes.net or DEFAULT_PHOTO_NET, start | given)
    chosen = {"net.name", "data.thumbnail", "data.features"} & given.keys()
    if scratch or budget == "paper" or chosen or not _take_features(recipes):
        return Seen(source, eyes.net, given)
    name = eyes.net or DEFAULT_PHOTO_NET
    photos = source_of(source.dataset, name, weights)
    try:
        require_net(photos)
    except NoWeights as error:
        if eyes.net is not None:
            raise
        say(f"{error}.")
        say(
            "Going on with a small net, trained from scratch on photos shrunk to 64x64 pixels. It is a poor "
            "substitute: features of a pretrained net are far more accurate, in less time."
        )
        return Seen(source, None, given)
    say(
        f"photos are seen by the frozen features of {name} ({photos.origin}); heads are trained on them "
        "(--net names another net, --finetune trains the net too)"
    )
    features = {"data.features": name, "data.weights": weights}
    return _with_features(source, photos, name, features, given, say)


def _read(source: StudyData, eyes: Eyes, given: Mapping[str, Any], say: Callable[[str], None]) -> Seen:
    """Texts as frozen features of a net for texts."""
    if eyes.weights is not None or eyes.finetune:
        option = "--weights" if eyes.weights is not None else "--finetune"
        raise RecipeError(f"{option} is for photos; for texts, --net names a net or a local folder")
    if eyes.net in NETS:
        raise RecipeError(
            f"--net {eyes.net} does not read texts; name a net of sentence-transformers, or a local folder"
        )
    name = eyes.net or str(given.get("data.features", DEFAULT_SENTENCE_NET))
    texts = source_of(source.dataset, name)
    require_net(texts)
    say(f"texts are read by {name}, frozen ({texts.origin}); heads are trained on its features")
    return _with_features(source, texts, name, {"data.features": name}, given, say)


def _with_features(
    source: StudyData,
    items: FeatureSource,
    name: str,
    said: Mapping[str, Any],
    given: Mapping[str, Any],
    say: Callable[[str], None],
) -> Seen:
    dataset = kept_features(source.dataset, items, _teller(say))
    note = "; ".join(filter(None, [dataset.note, f"features of {name}, frozen ({items.origin})"]))
    return Seen(replace(source, dataset=replace(dataset, note=note)), None, {**said, **given})


def _take_features(recipes: Sequence[str | Path]) -> bool:
    """Whether the nets of the recipes, if there are any, are nets for features."""
    paths = [
        path
        for source in map(Path, recipes)
        for path in (source.glob("*.toml") if source.is_dir() else [source])
    ]
    return all(load_recipe(path).net.name in ("features", "projection") for path in paths if path.exists())


def _teller(say: Callable[[str], None]) -> PaceListener:
    told = time.monotonic()

    def tell(pace: Pace) -> None:
        nonlocal told
        if time.monotonic() - told > _EVERY:
            told = time.monotonic()
            say(f"extracting features: {pace}")

    return tell
